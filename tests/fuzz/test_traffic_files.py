"""Traffic files with odd values, words and characters: refused with line and key, or simulated to a sound result."""

import copy
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.simulation.simulate import simulate
from kvplan.traffic.file.template import TEMPLATE
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.sample import MAX_REQUESTS
from tests.fuzz import CORPUS, ODD_YAML, answer, bounded

SMALL: dict[str, Any] = {
    "deployment": {
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 512,
        "kv_pool": {"blocks": 200, "block_tokens": 16},
        "service": {
            "base_s": 0.008,
            "prefill_token_s": 2.5e-5,
            "decode_sequence_s": 4.0e-5,
            "kv_token_s": 4.0e-8,
        },
    },
    "admission": {
        "policy": "worst_case",
        "safety_fraction": 0.9,
        "default_max_tokens": 256,
        "concurrency": 8,
        "retry_after": {"estimate": "drain", "jitter": 0.25},
    },
    "traffic": {
        "duration": "6s",
        "seed": 7,
        "classes": [
            {
                "name": "chat",
                "rate": "5/s",
                "arrivals": "poisson",
                "prompt_tokens": {"lognormal": {"p50": 60, "p95": 200}},
                "output_tokens": {"lognormal": {"p50": 10, "p95": 40}},
                "max_tokens": {"choices": [{"unset": True, "share": 0.5}, {"value": 64, "share": 0.5}]},
                "client": "openai-python",
                "timeout": "20s",
                "cancel_share": 0.02,
            },
            {
                "name": "batch",
                "rate": "1/s",
                "arrivals": {"gamma": {"cv": 2.0}},
                "prompt_tokens": {"uniform": {"min": 10, "max": 90}},
                "output_tokens": {"value": 20},
                "max_tokens": {"value": 64},
            },
        ],
    },
    "reservation_quantile": 0.95,
    "limits": {"refused_share": {"max": 0.5}, "ttft_p99_s": {"max": 5}, "preemptions": {"max": 0}},
}
ODD_VALUES = [
    None, True, False, -1, 0, 1, 2, 3, 17, 1.5, 1e-300, 1e300, 10**30, 2**40, "", "x", "1", "0s", "1ms", "1000000d",
    "0/s", "1000000000/s", [], {}, [None], {"x": 1}, ["x"], "poisson", {"value": 1},
    {"on_off": {"on": "1s", "off": "1s"}}, {"max": -1}, {"min": 2}, {"uniform": {"min": 1, "max": 4000}},
    {"unset": True}, {"estimate": "drain"}, {"seconds": 0.5},
]  # fmt: skip
ODD_TEXT = [*ODD_YAML, "? ", "é"]


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[tuple[Any, ...], Any]]:
    """The path of every key and entry, and its value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for step, inner in steps for found in (((*path, step), inner), *_places(inner, (*path, step)))]


def _others(value: Any) -> list[Any]:
    """Other values of the same kind, most of them valid."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [type(value)(value * factor) for factor in (0.5, 1.1, 2, 10)]
    unit = value.lstrip("0123456789") if isinstance(value, str) else value
    return [f"{number}{unit}" for number in (1, 3, 20)] if unit != value else []


PLACES = _places(SMALL)
PLAUSIBLE = st.sampled_from([(path, other) for path, value in PLACES for other in _others(value)])
ODD = st.tuples(st.sampled_from([path for path, _ in PLACES]), st.sampled_from([*ODD_VALUES, "remove"]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases of this module are written, one over the other."""
    return tmp_path_factory.mktemp("traffic")


def _changed(changes: list[tuple[tuple[Any, ...], Any]]) -> dict[str, Any]:
    file = copy.deepcopy(SMALL)
    for path, value in changes:
        place: Any = file
        try:
            for step in path[:-1]:
                place = place[step]
            if value == "remove":
                del place[path[-1]]
            else:
                place[path[-1]] = copy.deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue
    return file


@bounded(40)
@given(changes=st.lists(st.one_of(PLAUSIBLE, PLAUSIBLE, ODD), min_size=1, max_size=2))
@example(changes=[(("traffic", "classes", 0, "rate"), "1000000000/s")])
@example(changes=[(("traffic", "duration"), "1000000d")])
def test_a_file_with_other_values_is_simulated_or_refused(
    folder: Path, changes: list[tuple[tuple[Any, ...], Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder / "traffic.yaml"
    path.write_text(yaml.safe_dump(_changed(changes), sort_keys=False), encoding="utf-8")
    try:
        traffic = parse_traffic(path.read_text(encoding="utf-8"), file=str(path))
    except KvplanError:
        return
    expected = sum(entry.rate_per_s for entry in traffic.classes) * (traffic.duration_s or 0.0)
    if 5_000 < expected < MAX_REQUESTS:
        return  # simulated as it stands, but not within a unit test
    code, out, _ = answer(
        ["simulate", str(path), "--seeds", "1", "--workers", "1", "--format", "json"], capsys, json=True
    )
    document = json.loads(out)
    if code == 3:
        return
    for strategy in document["strategies"]:
        counts = strategy["requests"]
        ends = ("completed", "rejected_permanently", "gave_up", "timed_out", "cancelled", "unfinished")
        assert counts["offered"] == sum(counts[end] for end in ends)
        assert counts["truncated"] <= counts["completed"]
        assert counts["refused"] <= counts["offered"]
        assert 0 <= strategy["kv"]["used_mean_share"] <= strategy["kv"]["used_peak_share"] <= 1


TEXT = TEMPLATE


@bounded(120)
@given(
    place=st.integers(0, len(TEXT)),
    cut=st.integers(0, 40),
    put=st.one_of(st.sampled_from(ODD_TEXT), st.text(max_size=6)),
)
@example(place=0, cut=0, put="a: " + "[" * 3000 + "]" * 3000 + "\n")
@example(place=0, cut=0, put="a: " + "9" * 5000 + "\n")
def test_a_damaged_file(place: int, cut: int, put: str) -> None:
    text = TEXT[:place] + put + TEXT[place + cut :]
    lines = text.count("\n") + 2
    assert _complaint_line(text) in range(lines + 1)


def _complaint_line(text: str) -> int:
    """The line that the refusal of ``text`` names; 0 where it is read, or the refusal names none."""
    try:
        parse_traffic(text, file="x.yaml")
    except KvplanError as error:
        return error.line or 0
    return 0


@pytest.mark.parametrize("path", sorted((CORPUS / "traffic").iterdir()), ids=lambda path: path.name)
def test_what_once_broke(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(["simulate", str(path), "--seeds", "1", "--workers", "1"], capsys)


SECONDS = {"ms": Fraction(1, 1000), "s": Fraction(1), "m": Fraction(60), "min": Fraction(60), "h": Fraction(3600)}
COUNTS = st.integers(1, 500)


@bounded(40)
@given(
    rate=st.tuples(COUNTS, st.sampled_from(sorted(SECONDS))),
    duration=st.tuples(COUNTS, st.sampled_from(sorted(SECONDS))),
    lengths=st.tuples(COUNTS, COUNTS, COUNTS),
    pool=st.tuples(st.integers(150, 900), st.sampled_from([8, 16, 32])),
    safety=st.sampled_from(["0.5", "0.9", "0.95", "1.0"]),
)
def test_a_file_is_read_and_charged_as_by_hand(
    rate: tuple[int, str],
    duration: tuple[int, str],
    lengths: tuple[int, int, int],
    pool: tuple[int, int],
    safety: str,
) -> None:
    """Units by a table, blocks by ⌈(prompt + cap) / block⌉; one block is the engine's own."""
    file = copy.deepcopy(SMALL)
    prompt, output, cap = lengths
    blocks, block = pool
    file["deployment"]["kv_pool"] = {"blocks": blocks, "block_tokens": block}
    file["deployment"]["max_model_len"] = 1100
    file["admission"]["safety_fraction"] = float(safety)
    file["traffic"]["duration"] = "{}{}".format(*duration)
    batch = {"name": "batch", "rate": "{}/{}".format(*rate), "prompt_tokens": prompt, "output_tokens": output}
    file["traffic"]["classes"] = [{**batch, "max_tokens": cap}]
    traffic = parse_traffic(yaml.safe_dump(file), file="x.yaml")
    assert traffic.classes[0].rate_per_s == float(rate[0] / SECONDS[rate[1]])
    assert traffic.duration_s == float(duration[0] * SECONDS[duration[1]])
    file["traffic"]["duration"], file["traffic"]["classes"][0]["rate"] = "5s", "2/s"
    played = simulate(
        parse_traffic(yaml.safe_dump(file), file="x.yaml"), strategies=("worst_case",), seeds=1, workers=1
    )
    charge = -(-(prompt + cap) // block)
    assert played.promised_blocks == int((blocks - 1) * Fraction(safety))
    assert [(row.blocks, row.sequences) for row in played.reservations] == [(charge, played.promised_blocks // charge)]
