"""Logs with damaged bytes and figures: every figure that is reported stands in its line, read with another pattern."""

import contextlib
import gzip
import itertools
import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvplan.engine_logs import read_log
from kvplan.engine_logs.figures import Observation
from kvplan.errors import InputError
from tests.fuzz import CORPUS, answer, bounded, shell_pipe

LINES = (
    "INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version 0.10.2",
    "INFO 01-01 00:00:00 [api_server.py:2] non-default args: {'model': 'meta-llama/Llama-3.1-8B-Instruct', 'tp': 1}",
    "INFO 01-01 00:00:00 [gpu_model_runner.py:3] Model loading took 14.9889 GiB and 5.1 seconds",
    "INFO 01-01 00:00:00 [gpu_worker.py:4] Available KV cache memory: 54.47 GiB",
    "INFO 01-01 00:00:00 [kv_cache_utils.py:5] GPU KV cache size: 446,160 tokens",
    "INFO 01-01 00:00:00 [kv_cache_utils.py:6] Maximum concurrency for 131,072 tokens per request: 3.40x",
    "[2025-01-01 00:00:00 TP0] KV Cache is allocated. #tokens: 446160, K size: 27.23 GB, V size: 27.23 GB",
    "[2025-01-01 00:00:00 TP0] max_total_num_tokens=446160, chunked_prefill_size=8192, context_len=131072",
    "llama_kv_cache_unified: size = 4096.00 MiB ( 32768 cells,  32 layers,  1 seqs), K (f16): 2048.00 MiB",
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 54.47 GiB for max tokens in paged KV cache (446160).",
)
ODD = ["", "nan", "-1", "1e999", "9" * 5000, "1.2.3", ",,,", "\x1b[31m", "\x00", "\r", '{"log":', "}" * 9, "٣", "é" * 9]
WORDS = st.one_of(st.sampled_from(ODD), st.text(max_size=6))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the cases of this module are written, one over the other."""
    return tmp_path_factory.mktemp("logs")


@bounded(200)
@given(
    picks=st.lists(st.sampled_from(LINES), min_size=1, max_size=12),
    changes=st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 12), WORDS), max_size=4),
    wrapped=st.booleans(),
)
@example(picks=['{"a":' + "[" * 30_000 + "]" * 30_000 + "}", *LINES], changes=[], wrapped=False)
@example(picks=[LINES[6]], changes=[(60, 1, ",,,")], wrapped=False)
def test_a_damaged_log(folder: Path, picks: list[str], changes: list[tuple[int, int, str]], wrapped: bool) -> None:
    text = "\n".join(json.dumps({"log": line + "\n"}) if wrapped else line for line in picks)
    for place, cut, put in changes:
        at = place % (len(text) + 1)
        text = text[:at] + put + text[at + cut :]
    path = folder / "engine.log"
    path.write_text(text, encoding="utf-8", newline="")
    try:
        starts = read_log(path)
    except InputError:
        return
    lines = text.count("\n") + 1
    for start in starts:
        assert 1 <= start.first_line <= start.last_line <= lines
        for place, seen in enumerate(start.observations):
            before = {one.value for one in start.observations[:place] if one.name == seen.name}
            assert _stands(seen, _said(text.split("\n")[seen.line - 1]), before)
        assert all(math.isfinite(value) for value in vars(start).values() if isinstance(value, int | float))


UNITS = (1, 2**10, 2**20, 2**30, 10**6, 10**9)
"""A number of a log is a count, or of KiB, MiB, GiB, MB or GB."""


def _said(line: str) -> str:
    """A line out of its JSON and without colours and control characters, as far as it is well formed."""
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        line = str(json.loads(line, strict=False)["log"])
    return re.sub("\x1b\\[[0-9;]*m|[\x00-\x08\x0b-\x1f\x7f]", "", line)


def _stands(seen: Observation, line: str, before: set[int | float | str]) -> bool:
    """Whether the figure is a number of its line, or the sum of two (keys and values), in one of ``UNITS``; by itself
    or added to what was said ``before`` (SGLang allocates several pools)."""
    if isinstance(seen.value, bool):
        return True
    if isinstance(seen.value, str):
        return seen.value in line
    found = {float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?(?:e\d+)?", line)}
    sums = found | {one + other for one, other in itertools.combinations_with_replacement(sorted(found), 2)}
    earlier = [0.0, *(float(value) for value in before)]
    return any(abs(number * unit + old - seen.value) <= 4 for number in sums for unit in UNITS for old in earlier)


@bounded(60)
@given(changes=st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=3), length=st.integers(0, 900))
def test_damaged_bytes(folder: Path, changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(gzip.compress("\n".join(LINES).encode(), mtime=0))
    for place, byte in changes:
        content[place % len(content)] = byte
    path = folder / "engine.log.gz"
    path.write_bytes(content[: max(length, 1)])
    try:
        read_log(path)
    except InputError:
        return


@pytest.mark.parametrize("path", sorted((CORPUS / "logs").iterdir()), ids=lambda path: path.name)
def test_what_once_broke(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer(["calibrate", str(path)], capsys)


def test_a_log_from_a_pipe_of_the_shell() -> None:
    """``kvplan calibrate <(kubectl logs POD)``: a pipe cannot be read twice."""
    with shell_pipe("\n".join(LINES[:6]).encode()) as pipe:
        assert read_log(pipe)[0].kv_tokens == 446_160
