"""A log against its plan: what differs, what misleads, what is refused, and a file that reproduces the start."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from kvplan.calibration import Calibration, calibrate, calibration_text
from kvplan.calibration.deployment import logged_deployment, release_in
from kvplan.calibration.misleading import misleading_lines
from kvplan.calibration_file import apply_calibration, load_calibration
from kvplan.capacity import fit
from kvplan.cli import main
from kvplan.engine_logs import EngineStart, read_starts
from kvplan.engine_logs.lines import clean_lines
from kvplan.engines import parse_engine
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import BudgetTerm
from kvplan.errors import InputError, KvplanError
from kvplan.hf_config import read_config
from kvplan.model import ModelSpec, Source
from kvplan.profiles.loader import load_gpu
from kvplan.units import GIB
from tests.log_lines import vllm_log
from tests.tables.budget import device_of, gib, read_lines, read_model
from tests.test_engine_logs import LLAMA, SGLANG, TRT, V0, V1

EIGHT_B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
H100 = load_gpu("h100")
# figures of a recorded start: Llama-3.1-8B on an H100, 0.9 of 79.18 GiB
ROW: dict[str, Any] = {
    "model": "org/eight-b",
    "engine_version": "0.11.0",
    "dtype": "bfloat16",
    "max_model_len": 32768,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.9,
    "model_load_gib": 14.99,
    "available_kv_gib": 51.38,
    "kv_tokens": 420_896,
    "max_concurrency": 12.84,
    "max_concurrency_len": 32768,
    "graph_gib": -0.45,
    "graph_est_gib": 0.5,
}


def model(**changes: object) -> ModelSpec:
    return read_config({**EIGHT_B, **changes}, model_id="org/eight-b", source=Source(name="test"))


def start_of(text: str) -> EngineStart:
    return read_starts(clean_lines(io.BytesIO(text.encode())))[-1]


def test_a_start_is_reproduced_to_the_block() -> None:
    found = calibrate(start_of(vllm_log(ROW)), model(), H100)
    assert found.calibrated.pool_tokens == 420_896
    assert round(float(found.calibrated.concurrency), 2) == 12.84
    assert found.calibrated.plan.blocks == 420_896 // 16
    assert found.calibrated.plan.budget is not None
    assert abs(found.calibrated.plan.budget.kv_bytes - round(51.38 * GIB)) < GIB // 100


def test_the_window_is_that_of_the_concurrency_where_no_other_line_says_it() -> None:
    """The lines of vllm-project/vllm pull request 17122 (Llama-3.1-8B on an L40S): its settings are not among them."""
    start = start_of(
        "INFO 04-24 16:33:00 [gpu_model_runner.py:1316] Model loading took 14.9889 GiB and 3.652170 seconds\n"
        "INFO 04-24 16:33:13 [kv_cache_utils.py:634] GPU KV cache size: 158,656 tokens\n"
        "INFO 04-24 16:33:13 [kv_cache_utils.py:637] Maximum concurrency for 32,768 tokens per request: 4.84x\n"
    )
    assert start.max_model_len is None
    assert logged_deployment(start, load_gpu("l40s")).max_model_len == 32768


def test_terms_that_are_printed_apart_are_compared_apart() -> None:
    found = calibrate(start_of(V1), model(), H100)
    names = {term.name: term for term in found.terms}
    assert names["activation"].logged_bytes == round(4.76 * GIB)
    assert names["weights"].difference_bytes == round(14.99 * GIB) - names["weights"].planned_bytes
    assert found.culprit is not None
    assert sum(term.difference_bytes or 0 for term in found.terms) == found.planned.plan.kv_bytes - (
        found.kv_bytes_logged or 0
    )


def test_what_is_not_printed_apart_is_named_together() -> None:
    found = calibrate(start_of(vllm_log(ROW)), model(), H100)
    assert [term.name for term in found.terms] == ["weights", "non_torch + activation"]


def test_lines_that_mislead() -> None:
    reasons = {line.line: line.reason for line in misleading_lines(start_of(vllm_log(ROW)))}
    text = " ".join(reasons.values())
    assert "does not subtract it" in text
    assert "not how many users" in text
    assert "memory was freed" in text
    old = " ".join(line.reason for line in misleading_lines(start_of(V0)))
    assert "rounded to two digits" in old
    assert "GiB, 7% more" in old
    hybrid = {**ROW, "engine_version": "0.19.0", "kv_tokens": 290_864, "max_concurrency": 33.04}
    assert any("disagree" in line.reason for line in misleading_lines(start_of(vllm_log(hybrid))))
    assert any("GiB" in line.reason for line in misleading_lines(start_of(SGLANG)))


def test_a_log_of_another_model_is_refused() -> None:
    with pytest.raises(InputError, match="is not of org/eight-b") as caught:
        calibrate(start_of(vllm_log(ROW)), model(num_key_value_heads=4), H100)
    assert caught.value.key == "model"


def test_a_log_without_figures_is_refused() -> None:
    silent = {"model": "org/eight-b", "engine_version": "0.11.0", "max_model_len": 4096}
    with pytest.raises(InputError, match="no figure"):
        calibrate(start_of(vllm_log(silent)), model(), H100)
    with pytest.raises(InputError, match="how much memory"):
        logged_deployment(start_of(vllm_log(ROW)))


def test_a_refused_start_still_tells_its_pool() -> None:
    """What the engine refused with is what there was: 12.20 GiB."""
    log = vllm_log(
        {**ROW, "available_kv_gib": None, "kv_tokens": None, "max_concurrency": None, "max_model_len": 131072}
    )
    log += (
        "ValueError: To serve at least one request with the models's max seq len (131072), (16.00 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (12.20 GiB). Based on the available memory, "
        "the estimated maximum model length is 99936."
    )
    found = calibrate(start_of(log), model(), H100)
    assert found.kv_bytes_logged == round(12.2 * GIB)
    assert found.calibrated.verdict == "does_not_fit"
    assert any(finding.hint == "--max-model-len 99936, as the engine says" for finding in found.findings)
    assert abs(found.calibrated.longest_window_tokens - 99_936) <= 48


def test_sglang_tensorrt_and_llama_cpp_are_reproduced() -> None:
    small = model(
        num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2, hidden_size=1536, tie_word_embeddings=True
    )
    # the log's 34.38 GiB for 1,287,482 tokens are of one of two ranks: 28 layers × 2 × 1 head × 128 × 2 B need half
    one_rank = SGLANG.replace("tp_size=2", "tp_size=1")
    found = calibrate(start_of(one_rank), small)
    assert found.calibrated.plan.blocks == 1_287_482
    with pytest.raises(InputError, match="is not of"):
        calibrate(start_of(SGLANG), small)
    trt = calibrate(start_of(TRT), model(), weight_bytes=15 * GIB)
    assert trt.calibrated.plan.blocks == 8219
    llama = calibrate(start_of(LLAMA), read_model("Qwen/Qwen3.6-35B-A3B"), weight_bytes=34 * GIB)
    names = {term.name: term.difference_bytes for term in llama.terms}
    assert names["recurrent_state"] == 0
    assert llama.planned.plan.kv_bytes == 640 * 2**20


def test_a_state_pool_follows_from_what_is_left() -> None:
    """Qwen3.5-9B at TP 2 as recorded: 61.1 GiB free, 0.8, states of 18.68 and tokens of 20.74 GiB."""
    hybrid = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 32,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "linear_num_key_heads": 16,
        "linear_key_head_dim": 128,
        "linear_num_value_heads": 32,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "bfloat16",
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
    }
    log = """
[2026-01-01 00:00:00] server_args=ServerArgs(model_path='m', mem_fraction_static=0.8, tp_size=2, page_size=1)
[2026-01-01 00:00:01 TP0] Load weight begin. avail mem=61.10 GB
[2026-01-01 00:00:02 TP0] Load weight end. type=M, dtype=torch.bfloat16, avail mem=51.67 GB, mem usage=9.43 GB.
[2026-01-01 00:00:03 TP0] Mamba Cache is allocated. max_mamba_cache_size: 1521, conv_state size: 0.84GB, ssm_state \
size: 17.84GB
[2026-01-01 00:00:03 TP0] KV Cache is allocated. #tokens: 1359146, K size: 10.37 GB, V size: 10.37 GB
"""
    found = calibrate(start_of(log), read_config(hybrid, model_id="m", source=Source(name="test")))
    assert abs(found.calibrated.plan.blocks - 1_359_146) <= 1000
    assert all(name != "state_pool" for name, _ in found.corrections)


def written(found: Calibration, folder: Path) -> Path:
    path = folder / "calibration.yaml"
    path.write_text(calibration_text(found, "server.log"), encoding="utf-8")
    return path


def test_the_file_makes_a_plan_reproduce_the_log(tmp_path: Path) -> None:
    found = calibrate(start_of(vllm_log(ROW)), model(), H100)
    learnt = load_calibration(written(found, tmp_path))
    assert (learnt.engine, learnt.corrections) == (found.deployment.engine, found.corrections)
    deployment = apply_calibration(Deployment(gpu=H100), learnt, "org/eight-b")
    assert fit(model(), deployment).pool_tokens == 420_896
    # with another share the corrections stay, so the pool moves by the share alone
    other = apply_calibration(Deployment(gpu=H100, memory_utilization=Fraction(8, 10)), learnt, "other/Eight-B@main")
    lost = fit(model(), deployment).plan.kv_bytes - fit(model(), other).plan.kv_bytes
    assert abs(lost - H100.memory_bytes / 10) < GIB / 100
    assert (learnt.gpu, learnt.source) == (H100.name, "server.log, lines 1 to 8")


@pytest.mark.parametrize(
    ("deployment", "model_id", "words"),
    [
        (Deployment(engine=parse_engine("sglang")), "org/eight-b", "calibration is of vllm"),
        (Deployment(), "org/nine-b", "calibration is of org/eight-b"),
        (Deployment(tensor_parallel=2), "org/eight-b", "tensor_parallel"),
        (Deployment(gpu=load_gpu("rtx-4090")), "org/eight-b", "calibration is of h100-80gb-sxm, the plan of rtx-4090"),
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, deployment: Deployment, model_id: str, words: str) -> None:
    learnt = load_calibration(written(calibrate(start_of(vllm_log(ROW)), model(), H100), tmp_path))
    with pytest.raises(InputError, match=words):
        apply_calibration(deployment, learnt, model_id)


GOOD = "engine: vllm@0.11.0\nmodel: org/eight-b\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no keys and values"),
        ("- a\n- b\n", "has no keys and values"),
        ("engine: [vllm\n", "not valid YAML"),
        ("model: org/eight-b\n", "does not say its engine"),
        ("engine: vllm\n", "does not say its model"),
        ("engine: wllm\nmodel: m\n", "not an engine"),
        (GOOD + "corections: {}\n", "'corections' is not a key"),
        (GOOD + "corrections: {weights: many}\n", "whole bytes"),
        (GOOD + "corrections: 7\n", "is not a mapping"),
        (GOOD + "tensor_parallel: -1\n", "less than 1"),
        (GOOD + "gpu_memory_bytes: 1.5\n", "whole number"),
        (GOOD + "memory_utilization: 1.5\n", "a share"),
        (GOOD + "memory_utilization: lots\n", "a share"),
        (GOOD + "efficiency: 2\n", "a share"),
        (GOOD + "settings: [1]\n", "is not a mapping"),
        (GOOD + "settings: {max_model_len: long}\n", "settings.max_model_len"),
        (GOOD + "settings: {colour: blue}\n", "settings.colour"),
    ],
)
def test_a_file_that_is_wrong_names_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "calibration.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words):
        load_calibration(path)
    with pytest.raises(InputError, match="there is no file"):
        load_calibration(tmp_path / "absent.yaml")


def test_through_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, log, out = tmp_path / "config.json", tmp_path / "server.log", tmp_path / "calibration.yaml"
    config.write_text(json.dumps(EIGHT_B), encoding="utf-8")
    log.write_text(vllm_log({**ROW, "model": str(config)}), encoding="utf-8")
    assert main(["calibrate", str(log), "--gpu", "h100", "--output", str(out), "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "kvplan.calibration"
    assert answer["pool"]["tokens_calibrated"] == 420_896
    assert answer["calibration_file"] == out.read_text(encoding="utf-8")
    assert main(["calibrate", str(log), "--gpu", "h100"]) == 0
    text = capsys.readouterr().out
    assert "lines that mislead" in text
    assert main(["fit", str(config), "--calibration", str(out), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["pool"]["tokens"] == 420_896
    for arguments, words in (
        (["calibrate", str(log), "--gpu", "h100", "--engine", "sglang"], "written by vllm"),
        (["calibrate", str(log), "--gpu", "h100", "--engine", "vllm@0.12"], "the log says vllm 0.11.0, not vllm@0.12"),
        (["calibrate", str(log), "--gpu", "h100", "--start", "3"], "the log has 1 start"),
        (["calibrate", str(log), "--gpu", "h100", "--output", str(out)], "exists"),
        (["calibrate", str(config), "--gpu", "h100"], "no start-up lines"),
        (["fit", str(config), "--calibration", str(log)], "not valid YAML"),
    ):
        assert main(arguments) == 3
        assert words in capsys.readouterr().err


def test_a_release_that_the_log_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worker lines alone do not say the release; that of ``--engine`` is planned, before the guess from V0's words."""
    config, log = tmp_path / "config.json", tmp_path / "server.log"
    config.write_text(json.dumps(EIGHT_B), encoding="utf-8")
    parts = "non_torch_memory takes 0.10GiB; PyTorch activation peak memory takes 1.20GiB"
    for text, inferred in (
        ("Model loading took 14.99 GiB and 5 seconds\nAvailable KV cache memory: 51.40 GiB\n", None),
        (
            f"model weights take 14.99GiB; {parts}; the rest of the memory reserved for KV Cache is 51.40GiB.",
            "vllm@0.7.3",
        ),
    ):
        log.write_text(text, encoding="utf-8")
        for engine, said in (("vllm", inferred), ("vllm@0.6.6", "vllm@0.6.6")):
            command = ["calibrate", str(log), "--model", str(config), "--gpu", "h100", "--engine", engine]
            assert main([*command, "--format", "json"]) == 0
            answer = json.loads(capsys.readouterr().out)
            assert f"engine: {said or 'vllm'}\n" in answer["calibration_file"]
            codes = {finding["code"] for finding in answer["findings"]}
            assert ("release-inferred" in codes) is (inferred is not None and said == inferred)


SMALL = {
    **EIGHT_B,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "hidden_size": 1536,
    "tie_word_embeddings": True,
}
SLOTS = """
build: 8999 (abcdef0) with cc for x86_64-linux-gnu
srv    load_model: loading model '/models/q.gguf'
llama_model_load_from_file_impl: using device CUDA0 (NVIDIA RTX A6000) (0000:01:00.0) - 48260 MiB free
load_tensors:        CUDA0 model buffer size = 14315.00 MiB
llama_context: n_seq_max     = 4
llama_context: n_ctx         = 32768
llama_context: n_ctx_seq     = 8192
llama_context: n_ubatch      = 512
llama_context: kv_unified    = false
llama_kv_cache:      CUDA0 KV buffer size =  4096.00 MiB
llama_kv_cache: size = 4096.00 MiB (  8192 cells,  32 layers,  4/4 seqs), K (f16): 2048.00 MiB, V (f16): 2048.00 MiB
sched_reserve:      CUDA0 compute buffer size =   560.00 MiB
srv    load_model: initializing, n_slots = 4, n_ctx_slot = 8192, kv_unified = 'false'
"""
TGI = """
INFO text_generation_launcher: Args {
    model_id: "org/eight-b",
    num_shard: Some(
        1,
    ),
    max_total_tokens: Some(
        8192,
    ),
    max_concurrent_requests: 128,
    cuda_memory_fraction: 1.0,
    kv_cache_dtype: None,
}
INFO text_generation_launcher: KV-cache blocks: 400000, size: 1
INFO text_generation_router_v3: Setting max batch total tokens to 400000
"""
STARTS = [
    # engine, config, log, GPU, more options of calibrate, the log's pool in blocks
    ("vllm", EIGHT_B, vllm_log(ROW), "h100", (), 26_306),
    ("sglang", SMALL, SGLANG.replace("tp_size=2", "tp_size=1"), "l40s", (), 1_287_482),
    ("tensorrt-llm", EIGHT_B, TRT, "rtx-5090", ("--weights-bytes", "15GiB"), 8219),
    ("llama.cpp", EIGHT_B, SLOTS, "rtx-a6000", (), 32_768),
    ("tgi", EIGHT_B, TGI, "h100", (), 400_000),
]
TRAFFIC = """
model: {config}
deployment: {{{named}}}
traffic:
  duration: 20s
  classes: [{{name: a, rate: 1/s, prompt_tokens: 200, output_tokens: 50, max_tokens: {{value: 100}}}}]
limits: {{kv_pool_bytes: {{min: {least}}}}}
"""


def test_a_static_pool_says_nothing_of_what_is_left() -> None:
    """llama.cpp allocates what is asked: without a line on the card's memory, no term takes the blame for the rest."""
    silent = "\n".join(line for line in SLOTS.splitlines() if "using device" not in line)
    found = calibrate(start_of(silent), model(), H100)
    terms = {term.name: term.logged_bytes for term in found.terms}
    assert terms == {"weights": 14315 * 2**20, "context": None, "compute_buffer": 560 * 2**20}
    assert found.culprit is not None
    assert found.culprit.name == "compute_buffer"
    (said,) = [finding for finding in found.findings if finding.code == "total-memory-not-in-log"]
    assert said.message.endswith(f"the plan uses that of the {H100.name}, 79.2 GiB")
    assert not [each for each in calibrate(start_of(SLOTS), model(), H100).findings if each.code == said.code]
    partly = "load_tensors: offloaded 20/33 layers to GPU\nload_tensors:        CUDA0 model"
    host = calibrate(start_of(SLOTS.replace("load_tensors:        CUDA0 model", partly)), model())
    assert "20 of 33 layers are on the GPU" in next(
        finding.message for finding in host.findings if finding.code == "layers-on-the-host"
    )


def noisy(log: str) -> str:
    """``log`` twice, as a composed service that restarted keeps it: colours, stamps and prefixes, junk between."""
    first = "\n".join(f"server-1  | \x1b[36m{line}\x1b[0m\nserver-1  | 50%|##  | 1/2\r" for line in log.splitlines())
    second = "\n".join(f"Nov 30 01:00:00 host docker[7]: {line}" for line in log.splitlines())
    return f"{first}\nserver-1 exited with code 1\n{second}\n"


@pytest.mark.parametrize(("engine", "config", "log", "gpu", "more", "blocks"), STARTS, ids=[row[0] for row in STARTS])
def test_every_command_reproduces_the_log_of_every_engine(
    engine: str,
    config: dict[str, Any],
    log: str,
    gpu: str,
    more: tuple[str, ...],
    blocks: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``calibrate`` writes what ``fit``, ``simulate``, ``check`` and ``recommend`` take: each has the log's pool."""

    def answer(*arguments: object, code: int = 0) -> dict[str, Any]:
        assert main([*map(str, arguments), "--format", "json"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    model_file, log_file, learnt = tmp_path / "config.json", tmp_path / "server.log", tmp_path / "calibration.yaml"
    model_file.write_text(json.dumps(config), encoding="utf-8")
    log_file.write_text(noisy(log), encoding="utf-8")
    answer("calibrate", log_file, "--gpu", gpu, "--model", model_file, "--output", learnt, *more)
    pool = answer("fit", model_file, "--engine", engine, "--gpu", gpu, "--calibration", learnt)["pool"]
    assert pool["blocks"] == blocks
    assert answer("fit", model_file, "--calibration", learnt)["pool"] == pool  # the calibration names engine and GPU

    traffic = tmp_path / "traffic.yaml"
    for least, code, named in ((1, 1, f"gpu: {gpu}, engine: {engine}"), (0, 0, "")):
        text = TRAFFIC.format(config=model_file, named=named, least=f"{pool['kv_bytes'] + least}B")
        traffic.write_text(text, encoding="utf-8")
        limits = answer("check", traffic, "--seeds", 1, "--calibration", learnt, code=code)["limits"]
        assert [limit["measured"] for limit in limits] == [pool["kv_bytes"]]
    assert answer("simulate", traffic, "--seeds", 1, "--calibration", learnt)["pool"]["blocks"] == blocks
    if engine == "vllm":
        assert answer("recommend", traffic, "--seeds", 1, "--calibration", learnt)["pool"]["blocks"] == blocks


def test_releases_are_read_from_printed_versions() -> None:
    assert release_in("0.20.2rc1.dev249+local") == (0, 20, 2)
    assert release_in(None) is None


NOT_REPRODUCED = {
    "vl-7e762b0c": "its release paged an asked block size otherwise",
    "vl-a8c5f162": "a DFlash drafter of a config that the log does not print lies in the same pool",
    "vl-bd78ca28": "the same",
    "vl-881205ff": "neither the release, which says how tokens are printed, nor any memory",
    "vl-b9f90fa9": "no release, and a drafter that is not said",
}


def recorded(data: Path) -> Iterator[tuple[dict[str, Any], ModelSpec]]:
    """Rows of vLLM that print a capacity and the memory it came of, and whose model is in the catalogue."""
    usable = {line["row"]: line for line in read_lines(data / "engine_logs_usable.jsonl")}
    for row in read_lines(data / "engine_logs.jsonl"):
        known = usable.get(row["row"], {})
        said = row["kv_tokens"] or row["max_concurrency"] or row["gpu_blocks"]
        if row["engine"] != "vllm" or not said or not (row["available_kv_gib"] or row["gpu_blocks"]):
            continue
        try:
            model = read_model(known.get("base_model") or row["model"])
        except KvplanError:
            continue
        row["gpu_mem_total_gib"] = known.get("total_gib") or row["gpu_mem_total_gib"] or 94.97
        row["gpu_memory_utilization"] = known.get("utilization") or row["gpu_memory_utilization"]
        window = max(model.max_context_tokens or 0, row["max_model_len"] or row["max_concurrency_len"] or 0)
        yield row, replace(model, max_context_tokens=window)


def test_recorded_starts_are_reproduced(shared_data: Path) -> None:
    """Logs written from recorded figures: tokens, blocks and concurrency of the calibrated plan are the log's."""
    differing, judged = set(), 0
    for row, spec in recorded(shared_data):
        start = replace(start_of(vllm_log(row)), total_bytes=round(row["gpu_mem_total_gib"] * GIB))
        weights = round((row["model_load_gib"] or 8) * GIB * (row["tp"] or 1))
        found = calibrate(start, spec, device_of(row["gpu"] or "", start.total_bytes or 0), weight_bytes=weights)
        judged += 1
        plan, concurrency = found.calibrated, row["max_concurrency"]
        if not (
            row["kv_tokens"] in (None, plan.pool_tokens)
            and row["gpu_blocks"] in (None, plan.plan.blocks)
            and (concurrency is None or abs(float(plan.concurrency) - concurrency) <= 0.0051)
        ):
            differing.add(row["row"])
    assert judged >= 60
    assert differing <= set(NOT_REPRODUCED)


def test_what_guessed_ahead_is_planned_where_the_log_says_enough() -> None:
    """VLLM's line names method and tokens; the model's own next-token layers need no more. A drafter's config does."""
    hybrid = read_model("Qwen/Qwen3.6-35B-A3B")
    row = {**ROW, "model": "Qwen/Qwen3.6-35B-A3B", "available_kv_gib": 40.0, "kv_tokens": None, "max_concurrency": None}
    for method, tokens, said in (("mtp", 3, False), ("qwen3_5_mtp", 3, False), ("dflash", 0, True)):
        speculative = f"SpeculativeConfig(method='{method}', model='org/any', num_spec_tokens=3)"
        found = calibrate(start_of(vllm_log({**row, "speculative": speculative})), hybrid, H100)
        assert found.deployment.speculative_tokens == tokens
        assert any(each.code == "speculation-in-log" for each in found.findings) is said
    logged = {
        "available_kv_gib": 71.59,
        "max_concurrency": 7.35,
        "max_concurrency_len": 200_000,
        "max_model_len": 200_000,
    }
    drafted = start_of(vllm_log({**row, **logged, "engine_version": "0.22.0", "speculative": speculative}))
    (differs,) = [each for each in calibrate(drafted, hybrid, H100).findings if each.code == "capacity-differs"]
    assert "a draft's layers share its blocks" in differs.message


def test_a_printed_block_tells_the_type_that_auto_stands_for() -> None:
    """Qwen3.6-27B: a block of 784 tokens holds 16 bit; 1,568 are 8 bit, as checkpoints say (0.20.0 prints both)."""
    hybrid = read_model("Qwen/Qwen3.6-27B")
    row = {**ROW, "model": "Qwen/Qwen3.6-27B", "available_kv_gib": 40.0, "kv_tokens": None, "max_concurrency": None}
    for tokens, word in ((784, "auto"), (1568, "fp8"), (4711, "auto")):
        text = vllm_log({**row, "other_flags": f"attention block size set to {tokens}"})
        assert calibrate(start_of(text), hybrid, device_of("GB10", gib("121.7"))).deployment.kv_dtype == word


def test_a_traffic_file_that_names_another_engine_than_its_calibration_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    learnt, traffic = tmp_path / "learnt.yaml", tmp_path / "traffic.yaml"
    learnt.write_text("engine: sglang@0.5.9\nmodel: meta-llama/Llama-3.1-8B-Instruct\ngpu: h100-80gb-sxm\n")
    for named, code in (("engine: vllm, ", 3), ("", 0)):
        text = TRAFFIC.format(
            config="meta-llama/Llama-3.1-8B-Instruct", named=f"{named}calibration: learnt.yaml", least="1GiB"
        )
        traffic.write_text(text, encoding="utf-8")
        assert main(["check", str(traffic), "--seeds", "1", "--offline"]) == code
        assert ("the calibration is of sglang, the plan of vllm" in capsys.readouterr().err) is bool(code)


def test_which_start_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "two.log"
    log.write_text(vllm_log(ROW) + vllm_log({**ROW, "available_kv_gib": 51.0, "kv_tokens": None}), encoding="utf-8")
    asked = ["calibrate", str(log), "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--offline"]
    for extra, said in (([], "start 2 of 2"), (["--start", "1"], "start 1 of 2"), (["--start", "2"], "start 2 of 2")):
        assert main([*asked, *extra]) == 0
        assert said in capsys.readouterr().out


def test_a_log_may_come_through_a_pipe() -> None:
    """As in ``vllm serve … 2>&1 | kvplan calibrate -``."""
    program = [sys.executable, "-c", "import sys; from kvplan.cli import main; sys.exit(main())"]
    asked = ["calibrate", "-", "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "h100", "--offline"]
    found = subprocess.run([*program, *asked], input=vllm_log(ROW), capture_output=True, text=True, check=True)
    assert "stdin, lines 1 to" in found.stdout


def test_a_log_of_a_larger_gpu_is_noticed() -> None:
    """What an H100 held is more than an A100 of 40 GB may use: a rest below nothing, which no term can be."""
    start = start_of(vllm_log(ROW))
    codes = [each.code for each in calibrate(start, model(), H100).findings]
    assert "log-takes-more-than-there-is" not in codes
    unsaid = replace(start, total_bytes=None, requested_bytes=None)
    found = calibrate(unsaid, model(), load_gpu("a100-40gb"))
    assert "log-takes-more-than-there-is" in [each.code for each in found.findings]


def test_weights_far_below_those_planned_are_noticed() -> None:
    """8.03 B parameters are 15.0 GiB in bf16, and 8.5 GiB in fp8 with the embedding and the head left in bf16."""
    start = start_of(vllm_log(ROW))
    for weight_bytes, is_noticed in ((15 * GIB, False), (17 * GIB // 2, True)):
        found = calibrate(replace(start, weight_bytes=weight_bytes), model(), H100).findings
        assert ("log-weights-are-few" in [each.code for each in found]) == is_noticed


def test_a_term_that_is_corrected_below_zero_says_why() -> None:
    """The log's remainder goes to one of the terms that it does not print, which may be smaller than that."""
    term = BudgetTerm(name="non_torch", bytes=100, formula="CUDA context")
    assert term.corrected(-40).formula == "CUDA context; corrected by a log"
    assert term.corrected(-140) == replace(
        term, bytes=-40, formula="CUDA context; corrected by a log, for all terms that it does not print"
    )


def test_a_window_that_the_engine_served_is_taken_from_the_log() -> None:
    """An override of the config (``--hf-overrides`` with a rope scaling) lengthens the window that the config has."""
    found = calibrate(start_of(vllm_log(ROW)), model(max_position_embeddings=8192), H100)
    assert found.calibrated.max_model_len == 32768
    assert found.calibrated.pool_tokens == 420_896


def test_what_a_log_leaves_open_is_said() -> None:
    """A quantised checkpoint under its base model's name, TensorRT-LLM's KV type, a missing release."""
    quantised = replace(start_of(vllm_log(ROW)), quantization="compressed-tensors")
    headless = start_of("\n".join(line for line in V0.splitlines() if "0.7.3" not in line))
    for start, code in (
        (quantised, "log-weights-are-quantised"),
        (start_of(TRT), "kv-type-inferred"),
        (replace(headless, kv_bytes=None), "release-inferred"),
        (replace(start_of(vllm_log(ROW)), version=None), "release-not-in-log"),
        (replace(start_of(vllm_log(ROW)), has_lora=True), "adapters-in-log"),
    ):
        said = [each.code for each in calibrate(start, model(), H100, weight_bytes=15 * GIB).findings]
        assert code in said
    assert not [each for each in calibrate(start_of(vllm_log(ROW)), model(), H100).findings if each.severity != "info"]


def test_a_gguf_file_without_latents_is_no_other_model() -> None:
    """DeepSeek-V2-Lite's kind: K of 27 × 16 heads × 192, V of 27 × 16 × 128 values, where a latent would have 576."""
    cells = "llama_kv_cache: size = 4320.00 MiB ( 16384 cells, 27 layers, 1/1 seqs)"
    log = f"{cells}, K (f16): 2592.00 MiB, V (f16): 1728.00 MiB"
    latent = read_model("deepseek-ai/DeepSeek-V2-Lite-Chat")
    (found,) = [each for each in calibrate(start_of(log), latent, H100).findings if each.code == "latents-expanded"]
    assert "would give 486.00 MiB" in found.message  # 27 × 576 × 2 B × 16,384
    assert "the log says 4,320.00" in found.message
    with pytest.raises(InputError, match=r"MiB of KV buffers, the log says 4,320\.00"):
        calibrate(start_of(log), model(), H100)


def test_options_complete_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worker lines alone say nothing of the parallelism, and a folder's name may be that of a bundled model."""
    log = tmp_path / "server.log"
    lines = vllm_log({**ROW, "model": "/models/meta-llama/Llama-3.1-8B-Instruct", "available_kv_gib": 57.5})
    log.write_text(
        lines.replace("tensor_parallel_size=1, ", "").replace("420,896", "942,080").replace("12.84", "28.75")
    )
    asked = ["calibrate", str(log), "--gpu", "h100", "--offline"]
    assert main([*asked, "--tp", "2", "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["model"]["id"], answer["log"]["tensor_parallel"]) == ("meta-llama/Llama-3.1-8B-Instruct", 2)
    assert main([*asked, "--max-model-len", "4096"]) == 3
    assert "the log says max_model_len 32768, not 4096" in capsys.readouterr().err


def test_an_excerpt_says_nothing_of_the_kv_type_and_the_prefix_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures of a public start (Qwen3.6-35B-A3B in 4 bit on two cards): 4.55 GiB of 8-bit KV with prefix caching hold
    3.45 windows of 262,144, printed as 903,602 tokens."""
    log = tmp_path / "server.log"
    log.write_text(
        "Model loading took 9.96 GiB memory and 78 seconds\nAvailable KV cache memory: 4.55 GiB\n"
        "GPU KV cache size: 903,602 tokens\nMaximum concurrency for 262,144 tokens per request: 3.45x\n",
        encoding="utf-8",
    )
    command = ["calibrate", str(log), "--model", "Qwen/Qwen3.6-35B-A3B", "--gpu", "rtx-4090-24gb", "--tp", "2"]
    assert main([*command, "--offline"]) == 0
    assert "what the log leaves out: --kv-dtype, --prefix-caching" in " ".join(capsys.readouterr().out.split())
    said = ["--kv-dtype", "fp8", "--prefix-caching", "--engine", "vllm@0.28"]
    assert main([*command, "--offline", *said, "--format", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "capacity-differs" not in {finding["code"] for finding in answer["findings"]}
    assert answer["pool"]["tokens_calibrated"] == 903_602


@pytest.mark.parametrize("folder", ["C:/models/{}", r"D:\\hub\\{}", "~/models/{}", "../{}"])
def test_a_model_in_a_folder_of_another_machine(
    folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Windows and redacted home folders are folders too; the name of a bundled model is its last two parts."""
    log = tmp_path / "server.log"
    for name, status in (("meta-llama/Llama-3.1-8B-Instruct", 0), ("some/model", 3)):
        log.write_text(vllm_log({**ROW, "model": folder.format(name)}), encoding="utf-8")
        assert main(["calibrate", str(log), "--gpu", "h100", "--offline"]) == status
    assert "a folder of the engine's machine" in capsys.readouterr().err


def test_a_log_of_another_platform_is_said() -> None:
    """vllm-ascend prints vLLM's lines; what its NPUs hold beside weights and KV is no GPU's."""
    log = V1.replace("device_config=cuda", "device_config=npu")
    assert log != V1
    said = [each.reason for each in misleading_lines(start_of(log), None)]
    assert sum("ran on NPUs" in each for each in said) == 1
    assert not any("ran on" in each.reason for each in misleading_lines(start_of(V1), None))
