"""What a person may get wrong: each has its message, its exit code, and never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvplan.cli import main

CONFIG: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
}
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
POOL = ["fit", LLAMA, "--kv-memory", "40GiB"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def _fails(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str], *words: str) -> None:
    """``kvplan arguments`` ends with ``code``, says ``words`` on stderr and nothing on stdout."""
    assert main([*arguments, "--offline"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err
    for word in words:
        assert word in captured.err


VALUES: list[tuple[list[str], int, tuple[str, ...]]] = [
    (["fit", LLAMA], 3, ("fit needs a GPU", "--gpu h100")),
    (["fit", LLAMA, "--gpu", "h1000"], 3, ("'h1000' is not a known GPU", "nearest: h100")),
    (["fit", LLAMA, "--gpu", "h101"], 3, ("'h101' is not a known GPU", "nearest: h100-80gb-sxm")),
    (["fit", LLAMA, "--gpu", "a100-8"], 3, ("nearest: a100-80gb-pcie, a100-80gb-sxm",)),
    ([*POOL, "--prompt", "4k"], 2, ("--prompt '4k' is not a whole number", "kvplan fit --help")),
    (["list", "gpu"], 2, ("'gpu' is not one of", "Did you mean 'gpus'?")),
    (["calibrate", "none.log"], 3, ("cannot be read", "check that it is there")),
    ([*POOL, "--tp=two"], 2, ("--tp 'two' is not a whole number",)),
    (["fit", LLAMA, "--kv-memory", "40 gigs"], 3, ("not an amount of memory", "10GiB")),
    ([*POOL, "--weights-bytes", "0GiB"], 3, ("nothing fits in no memory",)),
    (["fit", LLAMA, "--gpu-memory", "79.18"], 3, ("not an amount of memory",)),
    ([*POOL, "--gpu-memory-utilization", "1.5"], 3, ("1.5 is not a share",)),
    ([*POOL, "--gpu-memory-utilization", "nan"], 3, ("nan is not a share",)),
    ([*POOL, "--gpu-memory-utilization", "0"], 3, ("--gpu-memory-utilization 0 is not a share", "0.9, 0.5free of")),
    ([*POOL, "--gpu-memory-utilization", "90 %"], 3, ("90 % is not a share", "a share, not a percentage: 0.9")),
    ([*POOL, "--mem-fraction-static", "1.5"], 3, ("error: --mem-fraction-static 1.5 is not a share",)),
    ([*POOL, "--free-gpu-memory-fraction", "92%"], 3, ("--free-gpu-memory-fraction 92% is not", "percentage: 0.92")),
    (
        ["fit", LLAMA, "--gpu", "h100", "--engine", "sglang", "--mem-fraction-static", "40GiB"],
        3,
        ("error: --mem-fraction-static: SGLang takes a share", "--kv-memory 40GiB"),
    ),
    (
        [*POOL, "--engine", "llama.cpp", "--free-gpu-memory-fraction", "0.5"],
        3,
        ("error: --free-gpu-memory-fraction: gpu_memory_utilization is an option of",),
    ),
    ([*POOL, "--gpu-memory-utilization", "0.5", "--cuda-memory-fraction", "0.5"], 3, ("two words for one option",)),
    ([*POOL, "--other-processes", "12"], 3, ("--other-processes 12 is 12 bytes", "--other-processes 12GiB")),
    ([*POOL, "--safety-fraction", "0"], 3, ("0 is not a share",)),
    ([*POOL, "--tp", "0"], 3, ("--tensor-parallel 0",)),
    ([*POOL, "--tp", "3"], 3, ("3 does not divide", "tensor_parallel")),
    ([*POOL, "--pp", "33"], 3, ("pipeline",)),
    ([*POOL, "--max-model-len", "200000"], 3, ("200,000", "131,072")),
    ([*POOL, "--max-model-len", "-5"], 3, ("--max-model-len -5",)),
    ([*POOL, "--max-num-seqs", "0"], 3, ("--max-num-seqs 0",)),
    ([*POOL, "--prompt", "131072"], 3, ("leaves no room for an answer",)),
    ([*POOL, "--max-tokens", "100"], 3, ("give each cap its prompt",)),
    ([*POOL, "--kv-dtype", "fp7"], 3, ("'fp7' is not a KV type",)),
    ([*POOL, "--kv-dtype", "nvfp4"], 5, ("cannot tell",)),
    ([*POOL, "--engine", "vlm"], 3, ("'vlm' is not an engine",)),
    ([*POOL, "--engine", "vllm@new"], 3, ("'new' is not a release",)),
    ([*POOL, "--speculative-tokens", "3"], 5, ("cannot tell",)),
    ([*POOL, "--tokens", "10,x"], 3, ("'x' is not a whole number from 1 on",)),
    ([*POOL, "--profiles", "nowhere"], 3, ("nowhere is not a folder",)),
    ([*POOL, "--tp", "two"], 2, ("--tp",)),
    (["model", LLAMA, "--tp", "5"], 3, ("5 does not divide",)),
    (["model", "nobody/nothing"], 4, ("offline", "try: ")),
    (["model", "./nowhere"], 3, ("nowhere",)),
    (["explain", "everything"], 3, ("there is no page",)),
    (["trace", "nowhere.csv"], 3, ("nowhere.csv",)),
    (["simulate", "chatt"], 3, ("there is no traffic file 'chatt'", "did you mean chat?")),
    (["simulate", "chat", "--set", "safety=1"], 3, ("'safety' is no key of a traffic file",)),
    (["simulate", "chat", "--set", "max_model_length=9"], 3, ("error: 'max_model_length' is no", "max_model_len?")),
    (["simulate", "chat", "--set", "nothing"], 3, ("not KEY=VALUE",)),
    (["simulate", "chat", "--safety-fraction", "1.5"], 3, ("error: --safety-fraction: must be",)),
    (["simulate", "chat", "--mem-fraction-static", "2"], 3, ("error: --mem-fraction-static: must be less than",)),
    (["recommend", "chat", "--kv-dtype", "fp7"], 3, ("'fp7' is not a KV type",)),
    (["simulate", "chat", "--duration", "10"], 3, ("error: --duration: '10' is not a duration",)),
    (["simulate", "chat", "--set", "traffic.seed=x"], 3, ("error: --set traffic.seed: ",)),
    (["simulate", "nofile.yaml"], 3, ("error: there is no traffic file 'nofile.yaml'",)),
    (["fit", LLAMA, "--gpu-memory", "80"], 3, ("--gpu-memory 80 is 80 bytes", "--gpu-memory 80GiB")),
    (["fit", LLAMA, "h100"], 2, ("nothing takes the argument 'h100'", "kvplan fit --help")),
    (["check", "chat", "--max-model-len", "8192"], 2, ("No such option", "--set deployment.max_model_len=VALUE")),
    (["fit", LLAMA, "--gpus", "h100"], 2, ("No such option: --gpus. Did you mean '--gpu'?",)),
    (["init", "--tp", "4"], 2, ("error: No such option: --tp\n",)),  # as near to --output as two dashes make it
    ([*POOL, "--prompt", "4000", "--prompt", "4k"], 2, ("--prompt '4k' is not a whole number",)),
    ([*POOL, "--tokens", "9" * 5000], 3, ("is not a whole number from 1 on",)),
    (["fit", LLAMA, "--kv-memory", "9" * 5000], 3, ("is not an amount of memory",)),
    (["fit", LLAMA, "--gpu-memory", " 80"], 3, ("--gpu-memory 80 is 80 bytes", "--gpu-memory 80GiB")),
    (["compare", LLAMA, "--gpu", "h100", "--max-model-len", "32k"], 3, ("'32k' is not", "write it out in digits")),
    (["simulate", "chat", "--strategy", "hope"], 3, ("hope",)),
    (["simulate", "chat", "--scale", "0"], 3, ("scale",)),
    (["simulate", "chat", "--seeds", "0"], 3, ("--seeds 0",)),
]


def test_a_device_is_written_to_without_force(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--output", "/dev/null"]) == 0
    assert "wrote /dev/null" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    VALUES,
    ids=lambda value: " ".join(map(str, value))[:60] if isinstance(value, list) else "",
)
def test_values(arguments: list[str], code: int, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    _fails(arguments, code, capsys, *words)


def _without(key: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({k: v for k, v in CONFIG.items() if k != key}), encoding="utf-8")


def _with(**changes: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({**CONFIG, **changes}), encoding="utf-8")


def _text(text: str) -> Callable[[Path], object]:
    return lambda path: path.write_text(text, encoding="utf-8")


def _bytes(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


CONFIGS: dict[str, tuple[Callable[[Path], object], int]] = {
    "no layers": (_without("num_hidden_layers"), 5),
    "no heads": (_without("num_attention_heads"), 5),
    "null layers": (_with(num_hidden_layers=None), 5),
    "negative heads": (_with(num_attention_heads=-32), 3),
    "zero KV heads": (_with(num_key_value_heads=0), 3),
    "text for a number": (_with(num_hidden_layers="many"), 3),
    "a fraction of a head": (_with(num_key_value_heads=1.5), 3),
    "an unknown layer type": (_with(layer_types=["quantum_attention"] * 32), 5),
    "an empty object": (_text("{}"), 5),
    "an empty file": (_text(""), 3),
    "a list": (_text("[1, 2]"), 3),
    "half a file": (_text('{"num_hidden_layers": 32, '), 3),
    "not text": (_bytes(b"\xff\xfe\x00\x80"), 3),
    "infinite": (_text('{"num_hidden_layers": Infinity}'), 5),
    "deeper than deep": (_text('{"a":' * 100_000 + "1" + "}" * 100_000), 3),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write, code = CONFIGS[name]
    path = tmp_path / "config.json"
    write(path)
    assert main(["model", str(path), "--offline"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "Traceback" not in captured.err


def test_kv_heads_that_are_not_said_are_query_heads(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Missing or null, as in Hugging Face's own classes: every query head keeps its own KV."""
    for write in (_without("num_key_value_heads"), _with(num_key_value_heads=None)):
        write(tmp_path / "config.json")
        assert main(["model", str(tmp_path), "--offline", "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["kv"]["bytes_per_token"] == 2 * 32 * 32 * 128 * 2


def test_a_folder_without_a_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _fails(["model", str(tmp_path / "empty")], 3, capsys, "config.json")


TRAFFIC = """\
deployment: {kv_pool: {blocks: 2000, block_tokens: 16}, max_model_len: 8192,
  service: {base_s: 0.01, prefill_token_s: 1.0e-5, decode_sequence_s: 1.0e-5, kv_token_s: 1.0e-8}}
traffic:
  duration: 60s
  classes:
    - name: chat
      rate: 1/s
      prompt_tokens: 100
      output_tokens: 10
"""
TRAFFICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a negative rate": (TRAFFIC.replace("1/s", "-1/s"), (":7", "rate")),
    "shares that sum to 0.9": (
        TRAFFIC + "      max_tokens: {choices: [{unset: true, share: 0.5}, {value: 10, share: 0.4}]}\n",
        (":10", "0.9"),
    ),
    "not a number": (TRAFFIC.replace("base_s: 0.01", "base_s: .nan"), ("base_s",)),
    "infinite": (TRAFFIC.replace("base_s: 0.01", "base_s: .inf"), ("base_s",)),
    "a duplicate key": (TRAFFIC + "      rate: 2/s\n", (":10", "rate")),
    "a tab": (TRAFFIC.replace("      rate", "\trate"), ("traffic.yaml",)),
    "empty": ("", ("traffic.yaml",)),
    "an unknown key": (TRAFFIC.replace("rate:", "rates:"), (":7", "rates", "rate")),
    "no classes": (TRAFFIC.partition("  classes")[0], ("classes",)),
    "a missing trace": (TRAFFIC.partition("      rate")[0] + "      trace: nowhere.csv\n", ("nowhere.csv",)),
}


@pytest.mark.parametrize("name", TRAFFICS)
def test_traffic_files(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, words = TRAFFICS[name]
    (tmp_path / "traffic.yaml").write_text(text, encoding="utf-8")
    _fails(["simulate", "traffic.yaml"], 3, capsys, *words)


def test_a_folder_where_a_file_is_expected(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mix").mkdir()
    _fails(["simulate", "mix"], 3, capsys, "mix")
    _fails(["trace", "mix"], 3, capsys, "mix")
    _fails(["init", "--output", "mix"], 3, capsys, "mix is a folder")


def test_nothing_is_overwritten_unasked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["init", "--output", "traffic.yaml"]) == 0
    assert capsys.readouterr().out == ""
    _fails(["init", "--output", "traffic.yaml"], 3, capsys, "traffic.yaml exists", "--force")
    assert main(["init", "--output", "traffic.yaml", "--force"]) == 0


def test_a_plan_without_an_answer_is_still_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 5: the document is printed, and says that it cannot tell."""
    assert main([*POOL, "--speculative-tokens", "3", "--offline", "--format", "json"]) == 5
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert (document["schema"], document["verdict"]) == ("kvplan.fit", "cannot_tell")
    assert document["findings"][0]["key"] == "speculative_tokens"
    assert captured.err.startswith("error: speculative_tokens: cannot tell")


def test_a_reservation_larger_than_the_pool_is_said_to_be_permanent(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "fit",
        LLAMA,
        "--kv-memory",
        "4GiB",
        "--max-model-len",
        "32000",
        "--prompt",
        "20000",
        "--max-tokens",
        "12000",
    ]
    assert main([*arguments, "--offline", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["capacity"]["reservations"][0]["sequences"] == 1
    assert main([*arguments[:3], "2GiB", *arguments[4:], "--offline", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["capacity"]["reservations"][0]["sequences"] == 0
    assert "reservation-larger-than-pool" in [finding["code"] for finding in document["findings"]]


PATHS = {
    "traffic": ["check"],
    "trace": ["trace"],
    "log": ["calibrate"],
    "output": ["init", "--output"],
    "base": ["check", "chat", "--against"],
    "requests": ["simulate", "chat", "--requests"],
}


@pytest.mark.parametrize("name", PATHS)
def test_a_path_that_no_file_system_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _fails([*PATHS[name], "x" * 5000], 3, capsys, "File name too long", "try: ")


def test_a_path_behind_a_closed_folder(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As an ordinary user meets it; root, whom no folder keeps out, is told the same by hand."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    _fails(["trace", "in/t.csv"], 3, capsys, "in/t.csv: Permission denied")
