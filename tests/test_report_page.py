"""How parts of a report are set: widths, alignment, colour."""

from kvplan.report.page import (
    BLANK,
    Part,
    Prose,
    answer,
    columns,
    headline,
    labelled,
    next_steps,
    paragraph,
    render,
)


def test_parts_under_each_other() -> None:
    parts: list[Part] = [
        headline("a-model", "bundled facts"),
        answer("fits"),
        BLANK,
        columns(("layers", "bytes"), [("32 × full", "131,072"), ("1 × none", "0")]),
        paragraph("Prose."),
        labelled("Note", "what to know"),
        *next_steps("one", "two"),
    ]
    assert render(parts) == (
        "a-model                                 bundled facts\n"
        "fits\n"
        "\n"
        "  layers       bytes\n"
        "  32 × full  131,072\n"
        "  1 × none         0\n"
        "  Prose.\n"
        "  Note      what to know\n"
        "  Next      one\n"
        "            two\n"
    )


def test_labels_of_a_block_line_up_with_the_longest() -> None:
    block = [labelled("Note", "a"), labelled("Uncalibrated", "b"), *next_steps("c")]
    assert render([*block, BLANK, labelled("Note", "d")]).splitlines() == [
        "  Note          a",
        "  Uncalibrated  b",
        "  Next          c",
        "",
        "  Note      d",
    ]


def test_a_headline_that_is_too_wide_takes_two_lines() -> None:
    assert render([headline("x" * 40, "y" * 40)]) == f"{'x' * 40}\n{'y' * 40}\n"


def test_only_the_named_column_breaks() -> None:
    table = columns(("name", "n", ""), [("alpha", "1", "one two three four five six seven")], left={0, 2}, wrap=2)
    assert render([table], width=40) == (
        "  name   n\n"
        "  alpha  1  one two three four five six\n"
        "            seven\n"
    )  # fmt: skip


def test_a_marked_row_carries_the_accent_and_colour_changes_no_letter() -> None:
    table = columns(("name",), [("plain",), ("chosen",)], marked=[1])
    coloured = render([table], colour=True)
    assert coloured == "  \x1b[2mname\x1b[0m\n  plain\n  \x1b[1;36mchosen\x1b[0m\n"
    assert render([table]) == "  name\n  plain\n  chosen\n"


def test_a_long_word_is_not_cut() -> None:
    word = "meta-llama/" + "x" * 60
    assert word in render([Prose(text=f"kvplan fit {word}", indent=2)], width=40)


def test_a_command_that_is_too_long_can_still_be_pasted() -> None:
    """Joined by the shell's own rule, it is the command again; an option is not parted from its value."""
    command = "kvplan fit org/model --gpu h100 --prompt 4000 --enforce-eager --set 'a b=c d'"
    text = render(next_steps(command), width=44)
    lines = [line.strip() for line in text.removeprefix("  Next").splitlines()]
    assert len(lines) > 1
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join(line.removesuffix(" \\") for line in lines) == command
    assert not any(line.removesuffix(" \\").endswith(("--gpu", "--prompt", "--set")) for line in lines)


def test_a_number_stays_beside_its_unit_and_its_sign() -> None:
    text = render([Prose(text="the time of a step comes from a roofline, ± 25% of it, and 12 GiB are left")], width=44)
    assert text.splitlines() == ["the time of a step comes from a roofline,", "± 25% of it, and 12 GiB are left"]
    text = render([Prose(text="the time of a step and all that is kept, 12 GiB")], width=44)
    assert text.splitlines() == ["the time of a step and all that is kept,", "12 GiB"]


def test_a_drawing_goes_where_there_is_no_room() -> None:
    table = columns(("cap", "refused", "95%", ""), [("192", "0.4%", "0-3.8%", "#" * 30)], last_is_drawn=True)
    assert "#" in render([table], width=60)
    assert render([table], width=40) == "  cap  refused     95%\n  192     0.4%  0-3.8%\n"


def test_names_from_foreign_files_do_not_steer_the_terminal() -> None:
    foreign = "\x1b[2J\x1b]0;title\x07a\nb"
    parts: list[Part] = [
        answer(foreign),
        headline(foreign, foreign),
        labelled(foreign, foreign),
        columns(("", ""), [(foreign, "1")]),
    ]
    shown = render(parts, colour=True).replace("\x1b[1;36m", "").replace("\x1b[1m", "").replace("\x1b[2m", "")
    assert shown.replace("\x1b[0m", "").replace("\n", "").isprintable()
    assert r"\x1b[2J" in shown
    assert len(render([columns(("", ""), [(foreign, "1")])]).splitlines()) == 1
