"""``kvplan calibrate`` as text: which term differs and by how much, which lines mislead, what the log pins down."""

from collections.abc import Iterator
from shlex import quote

from kvplan.calibration import Calibration, TermDifference
from kvplan.report.fit_text import findings, settings_line
from kvplan.report.numbers import count, format_bytes, ratio
from kvplan.report.page import BLANK, QUIET, Part, answer, columns, headline, labelled, next_steps, paragraph
from kvplan.units import GIB

CALIBRATION_FILE = "calibration.yaml"
"""What the next step calls the file that was not asked for yet."""


def text(found: Calibration, log_name: str, which: str, written: str | None, command: str) -> Iterator[Part]:
    """The comparison. ``which``: the start, where the log holds several; ``written``: the calibration file's name;
    ``command``: what asked for it."""
    start = found.start
    yield headline(found.planned.model.id, f"{log_name}, lines {start.first_line} to {start.last_line}")
    for setting in _setting(found, which):
        yield paragraph(setting, style=QUIET, indent=0)
    yield answer(_answer(found))
    yield BLANK
    yield columns(("GiB of one GPU", "planned", "log", "difference"), _rows(found))
    yield BLANK
    if found.misleading:
        yield paragraph("lines that mislead", style=QUIET, indent=2)
        for line in found.misleading:
            yield labelled(f"line {line.line}", line.reason)
    yield BLANK
    yield from findings(found.findings)
    yield BLANK
    engine = "" if start.engine == "vllm" else f" --engine {start.engine}"
    yield from kept_and_used(written, command, f"kvplan fit {quote(found.planned.model.id)}{engine}")


def kept_and_used(written: str | None, command: str, use: str) -> Iterator[Part]:
    """What to run next: the command again with a file for what was learnt, unless there is one, and what uses it."""
    keep = () if written is not None else (f"{command} --output {CALIBRATION_FILE}",)
    yield from next_steps(*keep, f"{use} --calibration {quote(written or CALIBRATION_FILE)}")


def _setting(found: Calibration, which: str) -> tuple[str, str]:
    engine = str(found.deployment.engine).replace("@", " ")
    return f"{which} · {engine}" if which else engine, settings_line(found.planned.plan.settings)


def _answer(found: Calibration) -> str:
    culprit = found.culprit
    if found.kv_bytes_logged is None:
        pool = "the log does not say its KV pool"
    else:
        calibrated = found.calibrated
        pool = (
            f"KV pool {format_bytes(found.kv_bytes_logged)}: {count(calibrated.plan.blocks)} blocks, "
            f"{ratio(calibrated.concurrency)} requests of {calibrated.max_model_len:,}"
        )
    if culprit is None:
        return f"{pool}; every printed term is as planned"
    difference = culprit.difference_bytes or 0
    term, word = culprit.name.replace("_", " "), "more" if difference > 0 else "less"
    return f"{pool}; most of the difference: {term}, {_gib(abs(difference))} GiB {word} than planned"


def _rows(found: Calibration) -> Iterator[tuple[str, ...]]:
    for term in found.terms:
        yield _row(term)
    budget = found.planned.plan.budget
    if budget is None:
        return
    planned = found.planned.plan.kv_bytes
    yield _row(TermDifference(name="KV pool", names=(), planned_bytes=planned, logged_bytes=found.kv_bytes_logged))


def _row(term: TermDifference) -> tuple[str, ...]:
    difference = term.difference_bytes
    return (
        term.name.replace("_", " "),
        _gib(term.planned_bytes),
        "-" if term.logged_bytes is None else _gib(term.logged_bytes),
        "-" if difference is None else f"{difference / GIB:+.2f}",
    )


def _gib(amount: int) -> str:
    return f"{amount / GIB:.2f}"
