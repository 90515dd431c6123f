"""Traces with odd figures, damaged bytes and missing columns: what is read equals a plain reading by hand."""

import csv
import gzip
import io
import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvplan.errors import InputError
from kvplan.traffic.load import parse_traffic
from kvplan.traffic.traces.arrays import load_trace
from kvplan.traffic.traces.describe import describe_trace
from kvplan.traffic.traces.writer import traffic_text
from tests.fuzz import CORPUS, answer, bounded, shell_pipe

ODD_FIGURES = ["", " ", "x", "9" * 5000, "٣", "\x00", '"']
ODD_FIGURES += ["-1", "0", "1.5", "nan", "inf", "1e300", "0x10", "1_000", "9e12"]
FIGURES = st.sampled_from([*map(str, range(1, 5000, 25)), *ODD_FIGURES])
"""Mostly sound, so that most files are read and their rows are compared."""
ROWS = st.lists(st.tuples(FIGURES, FIGURES, FIGURES, FIGURES), min_size=1, max_size=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases of this module are written, one over the other."""
    return tmp_path_factory.mktemp("traces")


def _by_hand(rows: list[tuple[str, ...]]) -> list[tuple[float, int, int, int]] | None:
    """The rows that can be replayed, sorted and moved to 0; None where most rows are no requests."""
    kept, failed = [], 0
    for row in rows:
        try:
            stamp, prompt, output = (float(text) for text in row[:3])
            cap = float(row[3]) if row[3] else 0.0
        except ValueError:
            continue
        if not all(map(math.isfinite, (stamp, prompt, output, cap))) or min(prompt, output, cap) <= -1:
            continue
        if abs(stamp) >= 1e12 or max(prompt, output) >= 2**31 or not int(prompt):
            continue
        if not int(output):
            failed += 1
            continue
        kept.append((stamp, int(prompt), int(output), min(int(cap), 2**31 - 1)))
    if len(rows) - len(kept) - failed > len(rows) / 2 or not kept:
        return None
    kept.sort(key=lambda row: row[0])
    return [(stamp - kept[0][0], *rest) for stamp, *rest in kept]  # type: ignore[misc]


@bounded(150)
@given(rows=ROWS, packed=st.booleans(), newline=st.booleans())
@example(rows=[("1e300", "1", "1", "")], packed=False, newline=True)
def test_a_plain_trace_is_read_as_by_hand(
    folder: Path, rows: list[tuple[str, str, str, str]], packed: bool, newline: bool
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arrival_s", "prompt_tokens", "output_tokens", "max_tokens"])
    writer.writerows(rows)
    content = text.getvalue().encode()
    content = content if newline else content[:-1]
    path = folder / "plain.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    expected = _by_hand(list(rows))
    if expected is None:
        with pytest.raises(InputError):
            load_trace(path)
        with pytest.raises(InputError):
            describe_trace(path)
        return
    trace = load_trace(path)
    found = zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, trace.max_tokens, strict=True)
    assert [(float(a), int(p), int(o), int(m)) for a, p, o, m in found] == expected
    described = describe_trace(path)
    assert described.requests == len(expected)
    assert described.prompt.mean * len(expected) == pytest.approx(sum(row[1] for row in expected))


@bounded(15)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e11), st.integers(1, 9000), st.integers(1, 9000), st.integers(0, 2**50)),
        min_size=2,
        max_size=30,
    )
)
@example(rows=[(0.0, 1, 1, 0), (1e11, 1, 1, 2**50)])
@example(rows=[(0.0, 11, 724, 0), (0.0, 1, 1, 0), (0.0, 1, 1, 0), (4436.0, 1, 1, 0)])
def test_the_traffic_file_of_a_trace_is_one(folder: Path, rows: list[tuple[float, int, int, int]]) -> None:
    path = folder / "plain.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens,max_tokens", *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines), encoding="utf-8")
    described = describe_trace(path)
    if described.rate_per_s > 0:
        drawn = parse_traffic(traffic_text(described), file="x.yaml")
        assert drawn.classes[0].rate_per_s == pytest.approx(described.rate_per_s, rel=1e-5)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=2)),
    max_leaves=4,
)
FIELDS = st.integers(0, 9).flatmap(lambda turn: VALUES if turn == 0 else st.integers(1, 9000))
KEYS = {
    "mooncake": ("timestamp", "input_length", "output_length", "hash_ids"),
    "bailian": ("timestamp", "input_length", "output_length", "chat_id", "hash_ids", "type"),
    "azure": ("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    "burstgpt": ("Timestamp", "Request tokens", "Response tokens", "Model"),
    "plain": ("arrival_s", "prompt_tokens", "output_tokens", "max_tokens", "class", "client", "hash_ids"),
}


ROWS_OF_ANY = [
    st.lists(st.fixed_dictionaries(dict.fromkeys(keys, FIELDS)), min_size=1, max_size=4) for keys in KEYS.values()
]


@bounded(150)
@given(rows=st.one_of(ROWS_OF_ANY))
def test_json_rows_of_any_values(folder: Path, rows: list[dict[str, object]]) -> None:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    for read in (load_trace, describe_trace):
        try:
            read(path)
        except InputError:
            continue


WHOLE = b"arrival_s,prompt_tokens,output_tokens,max_tokens,class\n" + b"".join(
    b"%d.5,%d,%d,%d,a\n" % (i, i % 90 + 1, i % 40 + 1, i % 3 * 50) for i in range(200)
)


@bounded(100)
@given(
    packed=st.booleans(),
    changes=st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=4),
    length=st.one_of(st.just(9999), st.integers(0, 5000)),
)
def test_damaged_bytes(folder: Path, packed: bool, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(gzip.compress(WHOLE, mtime=0) if packed else WHOLE)
    for place, byte in changes:
        content[place % len(content)] = byte
    path = folder / "damaged"
    path.write_bytes(content[:length] if length < len(content) else content)
    for read in (load_trace, describe_trace):
        try:
            read(path)
        except InputError:
            continue


@pytest.mark.parametrize("path", sorted((CORPUS / "traces").iterdir()), ids=lambda path: path.name)
def test_what_once_broke(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(["trace", str(path)], capsys)


def test_a_line_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Twenty million characters on one line: refused before they fill the memory."""
    path = tmp_path / "line.csv"
    path.write_bytes(b"arrival_s,prompt_tokens,output_tokens\n0,1," + b"1" * 20_000_000)
    assert "not a trace" in answer(["trace", str(path)], capsys)[2]


def test_a_trace_from_a_pipe_of_the_shell() -> None:
    """``kvplan trace <(zcat old.gz)``: looking for gzip's magic number must not eat the first row."""
    with shell_pipe(WHOLE) as pipe:
        assert describe_trace(pipe).requests == 200
