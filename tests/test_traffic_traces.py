"""Recorded traces: five formats and the usual names of columns, streamed, with everything odd about a file counted."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kvplan.errors import InputError
from kvplan.simulation.backend import build_backend
from kvplan.traffic.arrival_processes import OnOff, arrival_times
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.load import load_traffic, parse_traffic
from kvplan.traffic.sample import sample
from kvplan.traffic.traces import statistics
from kvplan.traffic.traces.arrays import load_trace
from kvplan.traffic.traces.describe import describe_trace
from kvplan.traffic.traces.formats import FORMATS, parse_stamp
from kvplan.traffic.traces.reader import TraceNotes, read_trace
from kvplan.traffic.traces.writer import traffic_text

PLAIN = "arrival_s,prompt_tokens,output_tokens,max_tokens,class,client,hash_ids\n"

SAMPLES = {
    "plain": PLAIN + "0.5,100,20,,chat,openai-python,\n1.5,200,30,64,,,7 8\n",
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109",
    "burstgpt": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n",
    "mooncake": '{"timestamp": 0, "input_length": 1000, "output_length": 6, "hash_ids": [0, 1]}\n'
    '{"timestamp": 2500, "input_length": 600, "output_length": 4, "hash_ids": [0, 2]}\n',
    "bailian": '{"chat_id": 1, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 20, "output_length": 5, '
    '"type": "text", "turn": 1, "hash_ids": [3, 4]}\n'
    '{"chat_id": 2, "parent_chat_id": 1, "timestamp": 62.614, "input_length": 30, "output_length": 6, '
    '"type": "search", "turn": 2, "hash_ids": [3, 5]}\n',
}
EXPECTED = {
    "plain": ([0.0, 1.0], [100, 200], [20, 30], [0, 64], ("chat", ""), None),
    "azure": ([0.0, 4.314579], [374, 396], [44, 109], [0, 0], ("",), None),
    "burstgpt": ([0.0, 40.0], [472, 1087], [18, 230], [0, 0], ("ChatGPT", "GPT-4"), None),
    "mooncake": ([0.0, 2.5], [1000, 600], [6, 4], [0, 0], ("",), 512),
    "bailian": ([0.0, 1.5], [20, 30], [5, 6], [0, 0], ("text", "search"), 16),
}


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(EXPECTED) == set(FORMATS)


@pytest.mark.parametrize("name", SAMPLES)
def test_each_format_is_recognised_and_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / "trace"
    path.write_text(SAMPLES[name])
    trace = load_trace(path)
    arrival_s, prompt, output, caps, classes, block_tokens = EXPECTED[name]
    assert trace.format == name
    assert trace.arrival_s.tolist() == pytest.approx(arrival_s, abs=1e-6)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == (prompt, output)
    assert (trace.max_tokens.tolist(), trace.classes) == (caps, classes)
    assert trace.skipped == {}
    if name == "plain":
        assert trace.prefixes is not None
        assert (trace.prefixes.ids.tolist(), trace.prefixes.offsets.tolist()) == ([7, 8], [0, 0, 2])
        assert trace.clients == ("openai-python", "")
    else:
        assert (None if trace.prefixes is None else trace.prefixes.block_tokens) == block_tokens


def test_plain_traces_may_be_json_and_say_input_tokens(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    rows = [
        {"arrival_s": 2.0, "input_tokens": 5, "output_tokens": 6},
        {"arrival_s": 3, "input_tokens": 7, "output_tokens": 8},
    ]
    path.write_text("\n".join(json.dumps(row) for row in rows))
    assert load_trace(path).prompt_tokens.tolist() == [5, 7]


HEADERS = {
    # Splitwise's simulator, Vidur's and Sarathi's replay, LLMServingSim, and what people write
    "request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size\n"
    "0,2,0,10.5,1,100,20\n1,2,0,12.0,1,200,30\n": "arrival_timestamp",
    "arrived_at,num_prefill_tokens,num_decode_tokens\n10.5,100,20\n12.0,200,30\n": "arrived_at",
    '{"input_toks": 100, "output_toks": 20, "arrival_time_ns": 10500000000}\n'
    '{"input_toks": 200, "output_toks": 30, "arrival_time_ns": 12000000000}\n': "",
    '{"request_id": "bench-0", "input_toks": 100, "output_toks": 20, "arrival_time": 1787267980.5, "queued_ts": 5.1}\n'
    '{"request_id": "bench-1", "input_toks": 200, "output_toks": 30, "arrival_time": 1787267982, "queued_ts": 6}\n': "",
    "timestamp;Prompt Tokens;completion-tokens;max_completion_tokens\n"
    "2026-05-10T00:00:00.500Z;100;20;\n2026-05-10T00:00:02Z;200;30;64\n": "",
    "ts_ms\tISL\tOSL\n500\t100\t20\n2000\t200\t30\n": "",
    "created,input_length,generated_tokens\n1787267980500,100.0,20.0\n1787267982000,200.0,30.0\n": "",
    "Time,InputLen,OutputLen\n1787267980500000000,100,20\n1787267982000000000,200,30\n": "",
}


@pytest.mark.parametrize("text", HEADERS)
def test_columns_have_many_names_and_stamps_many_units(tmp_path: Path, text: str) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    trace = load_trace(path)
    assert trace.arrival_s.tolist() == pytest.approx([0.0, 1.5], abs=1e-6)
    assert (trace.prompt_tokens.tolist(), trace.output_tokens.tolist()) == ([100, 200], [20, 30])
    assert trace.max_tokens.tolist() == ([0, 64] if "max_completion" in text else [0, 0])
    assert trace.notes.guessed_unit == HEADERS[text]
    said = "has no unit: taken as seconds" in " ".join(trace.notes.odd_rows)
    assert said == bool(HEADERS[text])


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_trace_is_known_by_its_first_bytes(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "trace"
    path.write_bytes(pack(SAMPLES["mooncake"].encode()))
    assert load_trace(path).arrival_s.tolist() == [0.0, 2.5]


def test_fractional_stamps_are_not_mooncake_s_milliseconds(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(SAMPLES["mooncake"].replace("0,", "0.5,", 1).replace("2500", "3.0"))
    trace = load_trace(path)
    assert (trace.arrival_s.tolist(), trace.notes.guessed_unit) == ([0.0, 2.5], "timestamp")


def test_a_later_turn_without_a_stamp_is_counted_as_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(SAMPLES["mooncake"] + '{"delay": 900, "input_length": 700, "output_length": 4, "hash_ids": []}\n')
    assert load_trace(path).skipped == {"a later turn of a session, with a delay instead of a timestamp": 1}


def test_a_benchmark_s_result_is_read_column_by_column(tmp_path: Path) -> None:
    """As ``vllm bench serve --save-result --save-detailed`` writes it (vLLM 0.33); a failed request has no output."""
    result = {"date": "20261130-070000", "num_prompts": 3, "input_lens": [10, 20, 30], "output_lens": [5, 0, 7]}
    path = tmp_path / "vllm.json"
    path.write_text(json.dumps(result | {"ttfts": [0.1, 0.0, 0.1], "start_times": [100.5, 101.0, 102.0]}))
    trace = load_trace(path)
    assert (trace.arrival_s.tolist(), trace.prompt_tokens.tolist()) == ([0.0, 1.5], [10, 30])
    assert trace.skipped == {"no output (a failed request)": 1}
    path.write_text(json.dumps(result))
    with pytest.raises(InputError, match="without start_times, input_lens, output_lens") as caught:
        load_trace(path)
    assert "--save-detailed" in str(caught.value.hint)


def test_seven_fractional_digits_and_zones() -> None:
    later, earlier = parse_stamp("2024-05-10 00:00:00.0099301+00:00"), parse_stamp("2024-05-10 01:00:00+01:00")
    assert later - earlier == pytest.approx(0.0099301, abs=1e-6)


def test_odd_rows_are_counted_and_the_rest_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        PLAIN
        + "3,10,5,,,,\n1,11,5,,,,\n1,12,5,,,,\n2,0,5,,,,\n2,10,0,,,,\n2,-1,5,,,,\n2,x,5,,,,\n"
        + "nan,1,1,,,,\n4,13,5,,,,\n5,1,1,,,,"
    )
    trace = load_trace(path)
    assert trace.prompt_tokens.tolist() == [11, 12, 10, 13, 1]
    assert trace.arrival_s.tolist() == [0, 0, 2, 3, 4]
    assert trace.skipped == {
        "no prompt tokens": 1,
        "no output (a failed request)": 1,
        "a negative value": 1,
        "a value that is not a number": 2,
    }
    assert (trace.notes.unsorted, trace.notes.equal_stamps, trace.notes.ends_without_newline) == (1, 1, True)
    oddities = " · ".join(describe_trace(path).oddities)
    for word in (
        "no prompt tokens",
        "before that of the row above",
        "line 5",
        "1 row with the time of the row",
        "no newline",
    ):
        assert word in oddities


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("a,b\n1,2\n", "no known trace has the columns a, b"),
        ('{"conversation_id": "x", "messages": []}\n', "no known trace has the columns conversation_id, messages"),
        ('[{"id": "x", "conversations": []}]', "is one JSON value"),
        ('{\n  "start_times": []\n}\n', "is one JSON value"),
        ("arrival_s,prompt_tokens,output_tokens\n", "a header and no rows"),
        ("arrival_s,prompt_tokens,output_tokens\n1,0,1\n", "no request|cannot be read"),
        ("arrival_s,prompt_tokens,output_tokens\n" + "x,1,1\n" * 9 + "1,1,1\n", "9 of 10 rows cannot be read"),
        ('{"arrival_s": 1}\n', "no known trace has the columns"),
    ],
)
def test_files_that_are_not_traces(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_trace(path)
    assert caught.value.file == str(path)


def test_folders_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a folder"):
        load_trace(tmp_path)
    for start, kind in ((b"\x28\xb5\x2f\xfd", "zstd"), (b"PAR1", "Parquet"), (b"PK\x03\x04", "zip")):
        foreign = tmp_path / "foreign"
        foreign.write_bytes(start + b"\x00" * 20)
        with pytest.raises(InputError, match=f"is a {kind} file"):
            load_trace(foreign)
    (tmp_path / "t.csv").write_text("time,prompt,answer\n1,2,3\n")
    with pytest.raises(InputError, match="no azure trace has the columns") as caught:
        load_trace(tmp_path / "t.csv", format="azure")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("no column holds ContextTokens or GeneratedTokens or TIMESTAMP;")
    with pytest.raises(InputError, match="there is no trace"):
        load_trace(tmp_path / "none.csv")
    damaged = tmp_path / "t.csv.gz"
    damaged.write_bytes(gzip.compress(SAMPLES["azure"].encode() * 200)[:-20])
    with pytest.raises(InputError, match="truncated or damaged"):
        load_trace(damaged)
    binary = tmp_path / "b.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01" * 10)
    with pytest.raises(InputError, match="not UTF-8"):
        load_trace(binary)
    with pytest.raises(InputError, match="not a trace format"):
        load_trace(damaged, format="other")


def test_rows_stream(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(PLAIN + "0,1,1,,,,\n" * 10)
    notes = TraceNotes()
    rows = read_trace(path, notes=notes)
    next(rows)
    assert notes.rows == 1
    rows.close()  # type: ignore[attr-defined]


def test_description_of_a_small_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i},{i + 1},{2 * (i + 1)}\n" for i in range(100))
    )
    found = describe_trace(path)
    assert (found.requests, found.span_s, found.rate_per_s, found.interarrival_cv) == (100, 99.0, 1.0, 0.0)
    assert (found.prompt.mean, found.output.mean) == (50.5, 101.0)
    assert found.prompt.quantiles((0, 50, 95, 100)) == {"p0": 1, "p50": 50, "p95": 95, "p100": 100}
    assert found.peak_per_s == 1


def test_the_written_file_draws_like_the_trace(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    arrival_s = np.cumsum(rng.gamma(0.25, 4 * 0.5, 4000))
    prompt = np.concatenate([rng.integers(180, 220, 1000), rng.integers(900, 4100, 3000)])
    output = rng.geometric(0.005, 4000)
    caps = rng.choice([0, 256, 1024], 4000, p=[0.5, 0.3, 0.2])
    path = tmp_path / "t.csv"
    rows = zip(arrival_s, prompt, output, caps, strict=True)
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens,max_tokens\n"
        + "".join(f"{when},{p},{o},{cap or ''}\n" for when, p, o, cap in rows)
    )
    found = describe_trace(path)
    drawn = sample(parse_traffic(traffic_text(found), file=str(tmp_path / "mix.yaml")), 1)
    assert found.interarrival_cv == pytest.approx(2.0, rel=0.1)
    assert len(drawn) / drawn.duration_s == pytest.approx(found.rate_per_s, rel=0.15)
    assert drawn.prompt_tokens.mean() == pytest.approx(prompt.mean(), rel=0.03)
    assert drawn.output_tokens.mean() == pytest.approx(output.mean(), rel=0.05)
    for probability in (0.1, 0.5, 0.9, 0.99):
        got = np.quantile(drawn.prompt_tokens, probability)
        assert got == pytest.approx(np.quantile(prompt, probability), rel=0.05)
    assert (drawn.max_tokens == 0).mean() == pytest.approx(0.5, abs=0.04)


def _dispersion(arrival_s: NDArray[np.float64], window_s: float, span_s: float) -> float:
    counts = np.histogram(arrival_s, np.arange(0.0, span_s, window_s))[0]
    return float(counts.var() / counts.mean())


def test_bursts_are_drawn_as_bursts(tmp_path: Path) -> None:
    """A trace of requests that come in bursts of about 10 s, 40 s apart: counts over 2 s to 5 min vary alike."""
    rng = np.random.default_rng(8)
    bursts = OnOff(on_s=10.0, off_s=40.0)
    arrival_s = arrival_times(bursts, rate_per_s=3.0, duration_s=3_000.0, gap_rng=rng, curve_rng=rng)
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{at},100,20\n" for at in arrival_s))
    text = traffic_text(describe_trace(path))
    drawn = sample(parse_traffic(text, file=str(tmp_path / "mix.yaml")), 1)
    assert "arrivals: {recorded: {step: 2s" in text
    for window_s in (2.0, 10.0, 60.0, 300.0):
        recorded = _dispersion(arrival_s - arrival_s[0], window_s, drawn.duration_s)
        assert _dispersion(drawn.arrival_s, window_s, drawn.duration_s) == pytest.approx(recorded, rel=0.25)
    assert len(drawn) == pytest.approx(len(arrival_s), rel=0.05)


def test_a_trace_of_conversations_is_drawn_as_conversations(tmp_path: Path) -> None:
    """200 conversations of six turns, each turn a block of 512 tokens longer, among as many short prompts that share
    nothing: drawn requests of either kind are as long and as many, and as large a share of blocks has been seen before.
    """
    rng = np.random.default_rng(3)
    rows = [(float(at), 100, 300, f"{-1 - place}") for place, at in enumerate(rng.random(1200) * 3000)]
    for talk in range(200):
        first, length = rng.random() * 2700, int(rng.integers(4, 20))
        for turn in range(6):
            ids = " ".join(f"{talk * 1000 + block}" for block in range(length + turn))
            rows.append((float(first + 50 * turn), 512 * (length + turn), 20, ids))
    path = tmp_path / "t.csv"
    lines = ["arrival_s,prompt_tokens,output_tokens,hash_ids", *(",".join(map(str, row)) for row in sorted(rows))]
    path.write_text("\n".join(lines))
    found = describe_trace(path)
    drawn = sample(parse_traffic(traffic_text(found), file=str(tmp_path / "mix.yaml")), 1)
    assert drawn.classes == ("recorded", "recorded, shared prefixes")
    talks = drawn.class_index == 1
    assert talks.mean() == pytest.approx(0.5, abs=0.02)
    assert set(drawn.prompt_tokens[~talks]) == {100}
    recorded = [prompt for _, prompt, output, _ in rows if output == 20]
    assert drawn.prompt_tokens[talks].mean() == pytest.approx(np.mean(recorded), rel=0.03)
    again = _tokens_seen_before(drawn) / drawn.prompt_tokens.sum()
    expected = sum(prompt for _, prompt, output, _ in rows if output == 20) - 512 * 200 * 5
    expected -= sum(prompt for prompt in recorded[::6])  # nobody has seen a first turn
    assert again == pytest.approx(expected / sum(prompt for _, prompt, _, _ in rows), abs=0.06)


def _tokens_seen_before(drawn: Arrivals) -> int:
    """Prompt tokens in blocks whose ids, from the first on, an earlier request had too."""
    assert drawn.prefixes is not None
    seen: set[tuple[int, ...]] = set()
    total = 0
    for start, end in pairwise(drawn.prefixes.offsets.tolist()):
        chain = tuple(drawn.prefixes.ids[start:end].tolist())
        known = [place for place in range(1, len(chain) + 1) if chain[:place] in seen]
        total += len(known) * drawn.prefixes.block_tokens
        seen.update(chain[:place] for place in range(1, len(chain) + 1))
    return total


def test_long_answers_follow_the_prompts_that_they_followed(tmp_path: Path) -> None:
    """Long prompts with short answers hold less KV than chance would have them hold."""
    rng = np.random.default_rng(5)
    prompt = rng.integers(100, 4000, 3000)
    output = np.maximum(1, (400_000 / prompt).astype(int) + rng.integers(0, 50, 3000))
    path = tmp_path / "t.csv"
    path.write_text(
        "arrival_s,prompt_tokens,output_tokens\n"
        + "".join(f"{i},{p},{o}\n" for i, (p, o) in enumerate(zip(prompt, output, strict=True)))
    )
    drawn = sample(parse_traffic(traffic_text(describe_trace(path)), file=str(tmp_path / "mix.yaml")), 1)
    recorded = float((prompt * output).mean())
    assert recorded < 0.7 * prompt.mean() * output.mean()
    assert float((drawn.prompt_tokens * drawn.output_tokens).mean()) == pytest.approx(recorded, rel=0.05)


def test_the_written_file_runs_whatever_the_lengths_and_the_name(tmp_path: Path) -> None:
    for longest, model, window in (
        (900, "meta-llama/Llama-3.1-8B-Instruct", 8192),
        (120_000, "meta-llama/Llama-3.1-8B-Instruct", 131_072),
        (190_000, "Qwen/Qwen3-4B-Instruct-2507", 262_144),
        (900_000, "Qwen/Qwen3-4B-Instruct-2507", 262_144),
    ):
        path = tmp_path / "t.csv"
        path.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,{longest},7\n3,30,9\n")
        text = traffic_text(describe_trace(path), name='odd: "#1"')
        found = parse_traffic(text, file=str(tmp_path / "mix.yaml"))
        assert (found.model, found.deployment.max_model_len, found.classes[0].name) == (model, window, 'odd: "#1"')
        assert build_backend(found, offline=True).settings.max_model_len == window
        assert ("refused for good" in text) == (longest > window)


def test_a_replayed_trace_keeps_its_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN + "10,100,20,,chat,openai-python,1 2\n12,200,30,64,,,\n14,5,5,,,,\n")
    file = tmp_path / "mix.yaml"
    file.write_text("traffic: {classes: [{name: r, trace: t.csv, scale: 2.0, max_tokens: {value: 9}}]}\n")
    drawn = sample(load_traffic(file), 1)
    assert drawn.arrival_s.tolist() == [0.0, 1.0, 2.0]
    assert drawn.max_tokens.tolist() == [9, 64, 9]
    assert (drawn.classes, drawn.clients, drawn.duration_s) == (("r/chat", "r"), ("openai-python", ""), 2.0)
    assert drawn.prefixes is not None
    assert drawn.prefixes.offsets.tolist() == [0, 2, 2, 2]
    assert sample(load_traffic(file, overrides={"traffic.duration": "1500ms"}), 1).arrival_s.tolist() == [0.0, 1.0]


def test_public_traces_read_as_documented(shared_data: Path) -> None:
    """Counts, means and quantiles against the statistics that came with the traces."""
    known = {entry["name"]: entry for entry in json.loads((shared_data / "traces" / "stats.json").read_text())}
    files = {
        "azure_code": "azure_llm_2023_code.csv.gz",
        "azure_conv": "azure_llm_2023_conv.csv.gz",
        "mooncake_synth": "mooncake_fast25_synthetic.jsonl.gz",
    }
    for name, file in files.items():
        found, stats = describe_trace(shared_data / "traces" / file), known[name]
        assert found.requests == stats["rows"]
        assert found.span_s == pytest.approx(stats["span_s"], abs=1e-3)
        assert found.interarrival_cv == pytest.approx(stats["ia_cv"], rel=1e-3)
        assert found.prompt.mean == pytest.approx(stats["in"]["mean"], abs=0.06)
        assert found.output.mean == pytest.approx(stats["out"]["mean"], abs=0.06)
        assert found.output.quantile(0.95) == stats["out"]["p95"]


def test_a_mix_of_traces_and_drawn_classes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(PLAIN + "0,100,20,,,,1 2\n2,100,20,,,,1 3\n")
    (tmp_path / "b.csv").write_text(PLAIN + "1,50,5,,,,1\n")
    (tmp_path / "c.jsonl").write_text(SAMPLES["bailian"])
    file = tmp_path / "mix.yaml"
    drawn = "{name: d, rate: 1/s, arrivals: constant, prompt_tokens: 7, output_tokens: 3}"
    file.write_text(
        f"traffic: {{duration: 3s, classes: [{{name: a, trace: a.csv}}, {{name: b, trace: b.csv}}, {drawn}]}}\n"
    )
    mixed = sample(load_traffic(file), 1)
    assert mixed.arrival_s.tolist() == [0.0, 0.0, 1.0, 2.0, 2.0]
    assert [mixed.classes[index] for index in mixed.class_index] == ["a", "b", "d", "a", "d"]
    assert mixed.prefixes is not None
    assert np.diff(mixed.prefixes.offsets).tolist() == [2, 1, 0, 2, 0]
    ids = mixed.prefixes.ids.tolist()
    assert ids[0] == ids[3]  # shared within a trace
    assert ids[2] not in (ids[0], ids[1], ids[4])  # and never across traces
    file.write_text("traffic: {classes: [{name: a, trace: a.csv}, {name: c, trace: c.jsonl}]}\n")
    with pytest.raises(InputError, match="blocks of 16 and 512 tokens"):
        sample(load_traffic(file), 1)


def test_a_ramp_bends_a_replayed_trace(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(PLAIN + "".join(f"{second},10,5,,,,\n" for second in range(200)))
    file = tmp_path / "mix.yaml"
    file.write_text("traffic: {duration: 100s, ramp: {start: 1, end: 3}, classes: [{name: r, trace: t.csv}]}\n")
    drawn = sample(load_traffic(file), 1)
    assert len(drawn) == 200  # the integral of 1 … 3 over 100 s is 200 s of the trace
    assert int((drawn.arrival_s < 50).sum()) == 75  # 1 × 50 + 2 × 50² / 200


def test_long_spans_are_counted_in_wider_bins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_MAX_BINS", 50)
    found = statistics.Stamps()
    for second in (100, 7, 0, 1_000, 2_000, 2_000, 900, 1_500, 3_000):
        found.add(float(second))
    assert (found.first_s, found.last_s, found.peak_per_s) == (0.0, 3000.0, 2)
    assert sum(found._bins) == 9
    assert len(found._bins) <= 60
    assert found.dispersion(1) is None
    assert found.dispersion(300) is not None


def test_windows_count_as_a_histogram_does() -> None:
    times = np.cumsum(np.random.default_rng(2).exponential(0.3, 5000))
    found = statistics.Stamps()
    for when in times:
        found.add(float(when))
    for window in (1, 10, 60):
        start = np.floor(times[0])
        whole = int((times[-1] - times[0]) // window)
        counts = np.histogram(times, bins=whole, range=(start, start + whole * window))[0]
        assert found.dispersion(window) == pytest.approx(counts.var() / counts.mean(), rel=0.02)


def test_a_stamp_in_scientific_notation_is_not_a_date(tmp_path: Path) -> None:
    """8.4e-05 has its dash where a date has the first of its own."""
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n0.0,10,2\n8.4e-05,11,3\n")
    assert [row.arrival_s for row in read_trace(path)] == [0.0, 8.4e-05]
