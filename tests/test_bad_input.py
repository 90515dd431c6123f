"""What a person may get wrong, and what once broke: each has its message, its exit code, and never a traceback."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from kvplan.checkpoint import read_json_object
from kvplan.cli import main
from kvplan.files import require_file
from tests.fuzz import shell_pipe
from tests.gguf_files import ARRAY, STRING, gguf_bytes, text
from tests.models import LLAMA_CONFIG
from tests.small_pool import small_pool

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
TEXTS = text("tokens") + struct.pack("<IIQ", ARRAY, STRING, 2**29)
MAMBA: dict[str, object] = {
    "architectures": ["MambaForCausalLM"],
    "model_type": "mamba",
    "hidden_size": 768,
    "num_hidden_layers": 24,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
    "intermediate_size": 1536,
    "time_step_rank": 48,
    "vocab_size": 50280,
    "torch_dtype": "float32",
}
POOL = ["fit", LLAMA, "--kv-memory", "40GiB"]


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


def _fails(arguments: list[str], code: int, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """``kvplan arguments`` ends with ``code``, says ``words`` on stderr and nothing on stdout."""
    assert main([*arguments, "--offline"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert not [word for word in words if word not in err], err
    return err


VALUES: list[tuple[list[str], int, tuple[str, ...]]] = [
    (["fit", LLAMA], 3, ("fit needs a GPU", "--gpu h100")),
    (["fit", LLAMA, "--gpu", "h1000"], 3, ("'h1000' is not a known GPU", "nearest: h100")),
    (["fit", LLAMA, "--gpu", "h101"], 3, ("'h101' is not a known GPU", "nearest: h100-80gb-sxm")),
    (["fit", LLAMA, "--gpu", "a100-8"], 3, ("nearest: a100-80gb-pcie, a100-80gb-sxm",)),
    ([*POOL, "--prompt", "4kB"], 3, ("'4kB' is not a whole number", "--prompt 32768, which is 32K")),
    (["list", "gpu"], 2, ("'gpu' is not one of", "Did you mean 'gpus'?")),
    (["calibrate", "none.log"], 3, ("cannot be read", "check that it exists")),
    (["fit", LLAMA, "--kv-memory", "40 gigs"], 3, ("not an amount of memory", "10GiB")),
    ([*POOL, "--weights-bytes", "0GiB"], 3, ("--weights-bytes 0GiB is not above zero",)),
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
    ([*POOL, "--gpu-memory-utilization", "0.5", "--cuda-memory-fraction", "0.5"], 3, ("set the same option",)),
    ([*POOL, "--other-processes", "12"], 3, ("--other-processes 12 is 12 bytes", "--other-processes 12GiB")),
    ([*POOL, "--safety-fraction", "0"], 3, ("0 is not a share",)),
    ([*POOL, "--tp", "0"], 3, ("--tensor-parallel 0",)),
    ([*POOL, "--tp", "3"], 3, ("3 does not divide", "tensor_parallel")),
    ([*POOL, "--pp", "33"], 3, ("pipeline",)),
    ([*POOL, "--max-model-len", "200000"], 3, ("200,000", "131,072")),
    ([*POOL, "--max-model-len", "-5"], 3, ("--max-model-len -5",)),
    ([*POOL, "--max-num-seqs", "0"], 3, ("--max-num-seqs 0",)),
    ([*POOL, "--prompt", "131072"], 3, ("leaves no room for an answer",)),
    ([*POOL, "--max-tokens", "100"], 3, ("give a --prompt for each --max-tokens",)),
    ([*POOL, "--kv-dtype", "fp7"], 3, ("'fp7' is not a KV type",)),
    ([*POOL, "--kv-dtype", "nvfp4"], 5, ("cannot tell",)),
    ([*POOL, "--engine", "vlm"], 3, ("'vlm' is not an engine",)),
    ([*POOL, "--engine", "vllm@new"], 3, ("'new' is not a release",)),
    ([*POOL, "--tokens", "10,x"], 3, ("--tokens 'x' is not a whole number",)),
    ([*POOL, "--profiles", "nowhere"], 3, ("nowhere is not a folder",)),
    ([*POOL, "--tp", "two"], 2, ("--tp 'two' is not a whole number",)),
    (["lst"], 2, ("No such command 'lst'. Did you mean 'list'?", "--help")),
    (["model", LLAMA, "--tp", "5"], 3, ("5 does not divide",)),
    (["model", "nobody/nothing"], 4, ("offline", "try: ")),
    (["model", "./nowhere"], 3, ("nowhere",)),
    (["explain", "everything"], 3, ("there is no page",)),
    (["trace", "nowhere.csv"], 3, ("nowhere.csv",)),
    (["simulate", "chatt"], 3, ("there is no traffic file 'chatt'", "did you mean chat?")),
    (["simulate", "chat", "--set", "safety=1"], 3, ("'safety' is not a key of a traffic file",)),
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
    (["init", "--dp", "4"], 2, ("error: No such option: --dp\n",)),  # as near to --output as two dashes make it
    ([*POOL, "--prompt", "4000", "--prompt", "4kB"], 3, ("--prompt '4kB' is not a whole number",)),
    ([*POOL, "--tokens", "9" * 5000], 3, ("is not a whole number",)),
    (["fit", LLAMA, "--kv-memory", "9" * 5000], 3, ("is not an amount of memory",)),
    (["fit", LLAMA, "--gpu-memory", " 80"], 3, ("--gpu-memory 80 is 80 bytes", "--gpu-memory 80GiB")),
    (["compare", LLAMA, "--gpu", "h100", "--max-model-len", "32kB"], 3, ("'32kB' is not", "which is 32K; 32k is")),
    (["simulate", "chat", "--strategy", "hope"], 3, ("hope",)),
    (["simulate", "chat", "--scale", "0"], 3, ("scale",)),
    (["fit", LLAMA, "--gpu-memory", "80GiB,80GiB"], 3, ("error: gpu_memory: 2 amounts",)),
    (["fit", LLAMA, "--gpu", "h100", "--pp-layers", "1,2"], 3, ("error: pp_layers: ",)),
    ([*POOL, "--max-loras", "1", "--max-lora-rank", "3"], 3, ("error: max_lora_rank: ",)),
    ([*POOL, "--engine", "sglang", "--swa-full-tokens-ratio", "0.5"], 3, ("error: swa_full_tokens_ratio: ",)),
    (["simulate", ""], 3, ("TRAFFIC is empty", "kvplan list traffic")),
    (["trace", "-", "--name", ""], 3, ("error: --name '' is not",)),
    (["init", "--output", "-"], 3, ("- is standard input, and cannot be written to",)),
    (["simulate", "chat", "--seeds", "0"], 3, ("seeds: at least one seed is needed", "--seeds 1")),
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


def _config(**changes: object) -> str:
    return json.dumps(LLAMA_CONFIG | changes)


CONFIGS: dict[str, tuple[str, int]] = {  # tests/test_hf_config.py has every refusal
    "null layers": (_config(num_hidden_layers=None), 5),
    "negative heads": (_config(num_attention_heads=-32), 3),
    "an unknown layer type": (_config(layer_types=["quantum_attention"] * 32), 5),
    "an empty object": ("{}", 5),
    "infinite": ('{"num_hidden_layers": Infinity}', 5),
}


def test_a_file_beside_the_missing_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "traffic.yaml").write_text("", encoding="utf-8")
    _fails(
        ["simulate", "traffic.yml"], 3, capsys, "there is no traffic file 'traffic.yml'", "did you mean traffic.yaml?"
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_configs(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text, code = CONFIGS[name]
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    _fails(["model", str(path)], code, capsys)


def test_a_mistake_in_a_traffic_file_is_said_with_its_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """tests/test_traffic_file.py has the mistakes one by one."""
    (tmp_path / "traffic.yaml").write_text(small_pool().replace("rate:", "rates:"), encoding="utf-8")
    _fails(["simulate", "traffic.yaml"], 3, capsys, "error: traffic.yaml:13: ", "'rates'", "did you mean 'rate'?")
    (tmp_path / "traffic.yaml").write_text(small_pool().partition("  classes")[0], encoding="utf-8")
    _fails(["simulate", "traffic.yaml"], 3, capsys, "traffic.classes")


@pytest.mark.parametrize("command", ["simulate", "check", "recommend"])
def test_an_option_that_the_engine_refuses_is_said_with_its_line(
    command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = small_pool().replace("kv_pool: {blocks: 400, block_tokens: 16}", "gpu: h100\n  kv_dtype: fp7")
    limits = "limits: {preemptions: {max: 0}}"
    (tmp_path / "traffic.yaml").write_text(f"model: {LLAMA}\n{text}{limits}\n", encoding="utf-8")
    _fails([command, "traffic.yaml"], 3, capsys, "error: traffic.yaml:4: deployment.kv_dtype: 'fp7' is not")
    changed = ["--set", "deployment.kv_dtype=fp9"]
    _fails([command, "traffic.yaml", *changed], 3, capsys, "error: kv_dtype: 'fp9' is not")


def test_a_profile_of_one_s_own_is_named_where_it_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for folder in ("gpus", "models"):
        (tmp_path / folder).mkdir()
    os.mkfifo("gpus/pipe.yaml")
    _fails(["list", "gpus", "--profiles", "."], 3, capsys, "error: gpus/pipe.yaml: ", "device or pipe")
    facts = "id: own/model\nsources: [me]\nchecked: 2026-11-30\nconfig: {architectures: LlamaForCausalLM}\n"
    (tmp_path / "models" / "own--model.yaml").write_text(facts)
    _fails(["model", "own/model", "--profiles", "."], 3, capsys, "error: own--model.yaml: architectures")


def test_a_calibration_is_a_small_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo("pipe.yaml")
    (tmp_path / "large.yaml").write_text("#" * (2**20 + 1))
    for name, words in (("pipe.yaml", "device or pipe"), ("large.yaml", "larger than 1 MiB"), ("none", "no file none")):
        _fails([*POOL, "--calibration", name], 3, capsys, words)


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
    shape = ["--max-model-len", "32000", "--prompt", "20000", "--max-tokens", "12000", "--offline", "--format", "json"]
    for pool, code, sequences in (("4GiB", 0, 1), ("2GiB", 1, 0)):
        assert main(["fit", LLAMA, "--kv-memory", pool, *shape]) == code
        document = json.loads(capsys.readouterr().out)
        assert document["capacity"]["reservations"][0]["sequences"] == sequences
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


# --- what once broke: files that are no files, numbers without measure, names that no disk can hold ---


def _write(path: Path, **changes: object) -> Path:
    path.write_text(_config(**changes), encoding="utf-8")
    return path


@pytest.mark.parametrize("layers", [10_001, 10**7, 2**53])
@pytest.mark.parametrize("command", [["model"], ["fit", "--kv-memory", "10GiB"]])
def test_layers_beyond_any_model(command: list[str], layers: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Each layer is an object: ten million of them took minutes and gigabytes, a billion ended as a bug."""
    _write(Path("config.json"), num_hidden_layers=layers)
    message = _fails([command[0], "config.json", *command[1:]], 3, capsys)
    assert "config.json: num_hidden_layers is " in message
    assert "10,000 at most" in message


def test_decoder_layers_beyond_any_model(capsys: pytest.CaptureFixture[str]) -> None:
    whisper = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "d_model": 1280,
        "decoder_layers": 10**7,
        "decoder_attention_heads": 20,
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }
    Path("config.json").write_text(json.dumps(whisper), encoding="utf-8")
    assert "decoder_layers is 10000000" in _fails(["model", "config.json"], 3, capsys)


def test_a_number_of_thousands_of_digits(capsys: pytest.CaptureFixture[str]) -> None:
    Path("config.json").write_text('{"num_hidden_layers": ' + "9" * 5000 + "}", encoding="utf-8")
    assert "thousands of digits" in _fails(["model", "config.json"], 3, capsys)


@pytest.mark.parametrize("factor", [-1, 1e308, 1e300])
def test_a_rope_factor_that_cannot_be(factor: float, capsys: pytest.CaptureFixture[str]) -> None:
    """A negative one made a negative window that "fits", a huge one an infinite window."""
    _write(Path("config.json"), rope_scaling={"rope_type": "linear", "factor": factor})
    assert "rope_scaling.factor is " in _fails(["fit", "config.json", "--gpu", "h100"], 3, capsys)


@pytest.mark.parametrize("reference", ["x" * 300, "a" * 5000, "~nobody-has-this-name/x", "org/" + "y" * 300])
def test_names_that_no_file_can_have(reference: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", reference, "--offline"]) in (3, 4)
    assert "Traceback" not in capsys.readouterr().err
    assert main(["fit", LLAMA, "--gpu", reference, "--offline"]) == 3


@pytest.mark.parametrize(
    "address", ["https://huggingface.co/org/name", "hf.co/org/name/tree/main", "huggingface.co/org/name"]
)
def test_an_address_is_answered_with_its_id(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "try: give org/name\n" in _fails(["model", address], 3, capsys)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no named pipes in folders")
@pytest.mark.parametrize("name", ["config.json", "model.gguf"])
def test_a_pipe_that_nobody_writes_to(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(name)
    assert "device or pipe" in _fails(["model", name], 3, capsys)


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="this system has no /dev/zero")
def test_a_device_without_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert "device or pipe" in _fails(["model", "/dev/zero"], 3, capsys)


def test_the_shell_s_own_pipes_are_read() -> None:
    """``kvplan model <(command)``."""
    with shell_pipe(json.dumps(LLAMA_CONFIG).encode()) as pipe:
        require_file(pipe)
        assert read_json_object(pipe) == LLAMA_CONFIG


@pytest.mark.parametrize(
    ("option", "owner"),
    [
        ("--swa-full", "llama.cpp"),
        ("--kv-unified", "llama.cpp"),
        ("--swa-full-tokens-ratio=0.5", "sglang"),
        ("--mamba-full-memory-ratio=0.5", "sglang"),
    ],
)
def test_another_engine_s_option_is_not_ignored(option: str, owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"is an option of {owner}" in _fails(["fit", LLAMA, "--gpu", "h100", option], 3, capsys)


def _findings(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, object], set[str]]:
    assert main([*arguments, "--offline", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    return document, {finding["code"] for finding in document["findings"]}


def test_a_window_that_nobody_says_is_vllms_own_with_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    """As in vLLM 0.33, ``_get_and_verify_max_len``: 2,048 where no length is known. Mamba's config has none."""
    Path("config.json").write_text(json.dumps(MAMBA), encoding="utf-8")
    document, codes = _findings(["fit", "config.json", "--kv-memory", "10GiB"], capsys)
    assert document["capacity"]["max_model_len"] == 2048  # type: ignore[index]
    assert "window-not-said" in codes
    _, codes = _findings(["fit", "config.json", "--kv-memory", "10GiB", "--max-model-len", "2048"], capsys)
    assert "window-not-said" not in codes


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "tgi", "llama.cpp"])
def test_a_pool_larger_than_the_device_is_refused(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An H100-80 reports 79.18 GiB, an H200 139.8 (profiles/gpus)."""
    fit = ["fit", LLAMA, "--engine", engine, "--kv-memory", "100GiB", "--max-model-len", "8192", "--offline"]
    assert main([*fit, "--gpu", "h100"]) == 3
    assert "100 GiB is more than the device has: 79.2 GiB" in capsys.readouterr().err
    assert main(fit) == main([*fit, "--gpu", "h200"]) == 0


def test_flags_alone_still_warn(capsys: pytest.CaptureFixture[str]) -> None:
    """Data is the flags; what they would break goes to stderr. vLLM wants a state block for each sequence."""
    asked = ["fit", "Qwen/Qwen3.5-9B", "--kv-memory", "10GiB", "--max-model-len", "32768", "--offline"]
    assert main([*asked, "--max-num-seqs", "1024", "--flags", "k8s"]) == 1
    out, err = capsys.readouterr()
    assert "error" not in out
    assert err.startswith("error: max_num_seqs 1,024 is above the ")
    assert "try: --max-num-seqs " in err


def test_an_error_of_a_key_names_its_file_once(capsys: pytest.CaptureFixture[str]) -> None:
    _write(Path("config.json"), hidden_size=-4096)
    message = _fails(["model", "config.json"], 3, capsys)
    assert message.startswith("error: config.json: hidden_size is -4096, not a whole number above zero\n")


def test_adapters_are_priced_where_their_widths_are_known(capsys: pytest.CaptureFixture[str]) -> None:
    """Slots take from the pool; recurrent layers have adapters of another shape: cannot tell."""
    plain, _ = _findings(["fit", LLAMA, "--gpu", "h100"], capsys)
    slots, codes = _findings(["fit", LLAMA, "--gpu", "h100", "--max-loras", "4", "--max-lora-rank", "64"], capsys)
    assert "max-loras-not-modelled" not in codes
    taken = next(term["bytes"] for term in slots["budget"]["terms"] if term["name"] == "lora")  # type: ignore[index]
    assert taken == plain["budget"]["kv_bytes"] - slots["budget"]["kv_bytes"]  # type: ignore[index]
    assert slots["flags"]["--max-lora-rank"] == 64  # type: ignore[index]
    hybrid = ["fit", "Qwen/Qwen3.5-9B", "--gpu", "h200", "--max-loras", "4", "--offline", "--format", "json"]
    assert main(hybrid) == 5
    assert json.loads(capsys.readouterr().out)["findings"][0]["code"] == "max-loras-not-modelled"


@pytest.mark.parametrize("wrong", [["--max-loras", "-1"], ["--max-loras", "1", "--max-lora-rank", "17"]])
def test_adapters_that_cannot_be(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert "try: " in _fails(["fit", LLAMA, "--gpu", "h100", *wrong], 3, capsys)


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(
    ("redirected", "code"),
    [(">/dev/full", 3), (">&-", 0), ("2>&-", 0), (">/dev/full 2>&1", 3), ("<&-", 0), (">&- 2>&-", 0)],
)
def test_streams_that_take_nothing(redirected: str, code: int) -> None:
    """A full disk or a closed stream ended with a traceback and 1, the code of "does not fit"."""
    if "/dev/full" in redirected and not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    program = "'import sys; from kvplan.cli import main; sys.exit(main())'"
    call = f"exec {sys.executable} -c {program} fit {LLAMA} --kv-memory 40GiB --offline {redirected}"
    ran = subprocess.run(["/bin/sh", "-c", call], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("arguments", ["--version", "fit --help"])
def test_a_help_text_on_a_full_disk(arguments: str) -> None:
    call = "import sys; from kvplan.cli import main; sys.exit(main())"
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        ran = subprocess.run(
            [sys.executable, "-c", call, *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ran.returncode, "the answer cannot be written" in ran.stderr) == (3, True)


@pytest.mark.parametrize("arguments", [["fit", "--help"], ["fit", LLAMA, "--kv-memory", "40GiB", "--offline"]])
def test_a_terminal_of_one_column(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1")
    assert main(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows keeps a folder that a process works in")
def test_a_working_folder_that_is_gone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Path("gone").mkdir()
    monkeypatch.chdir("gone")
    Path.cwd().rmdir()
    _fails(["model", "nowhere.json"], 3, capsys)
    _fails(["model", "."], 3, capsys)


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell")
@pytest.mark.parametrize(("arguments", "code"), [("fit --help", 0), ("explain budget", 0), ("list", 2)])
def test_a_reader_that_has_seen_enough(arguments: str, code: int) -> None:
    """``kvplan explain … | true``: the pipe is closed before anything is written, and nothing is said of it."""
    reading, writing = os.pipe()
    os.close(reading)
    program = "import sys; from kvplan.cli import main; sys.exit(main())"
    try:
        ran = subprocess.run(
            [sys.executable, "-c", program, *arguments.split()],
            stdout=writing,
            stderr=writing if code else subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr or b"") == (code, b"")


def test_an_explanation_is_found_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "MLA"]) == 0
    assert capsys.readouterr().out.startswith("Latent attention (MLA)")


@pytest.mark.parametrize("shape", ["x", [1.5], [None], [[2]], [-5, 3], 5, None])
def test_a_weight_file_whose_shapes_are_none(shape: object, capsys: pytest.CaptureFixture[str]) -> None:
    _write(Path("config.json"))
    header = json.dumps({"a.weight": {"dtype": "BF16", "shape": shape}}).encode()
    Path("model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "the tensor a.weight has no shape" in _fails(["model", "."], 3, capsys)


def test_a_quantisation_file_about_the_cache_only(capsys: pytest.CaptureFixture[str]) -> None:
    """ModelOpt writes ``quant_algo`` null where only the KV cache is quantised: the weights are what they are."""
    _write(Path("config.json"))
    words = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    Path("hf_quant_config.json").write_text(json.dumps(words), encoding="utf-8")
    document, _ = _findings(["fit", ".", "--gpu", "h100"], capsys)
    assert document["budget"]["weight_bytes"] == 2 * 8_030_261_248  # type: ignore[index]
    assert document["pool"]["bytes_per_block"] == 16 * 32 * 2 * 8 * 128  # type: ignore[index]


@pytest.mark.parametrize(
    "claims", [struct.pack("<QQ", 0, 1) + TEXTS, struct.pack("<QQ", 2**20, 0)], ids=["texts", "tensors"]
)
def test_a_header_that_claims_more_than_any_model_has(claims: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Half a billion texts, or a million tensors, in a file of zeros that seems large enough: half a minute of work."""
    with Path("sparse.gguf").open("wb") as file:
        file.write(b"GGUF" + struct.pack("<I", 3) + claims)
        file.truncate(6 * 2**30)
    assert "it claims" in _fails(["model", "sparse.gguf"], 3, capsys)


def test_the_projector_of_a_vision_model(capsys: pytest.CaptureFixture[str]) -> None:
    Path("mmproj.gguf").write_bytes(gguf_bytes({"general.architecture": "clip"}))
    assert "projector" in _fails(["model", "mmproj.gguf"], 5, capsys)


def _raise_permission(_path: Path, *_arguments: object) -> bool:
    raise PermissionError(13, "Permission denied")


def test_a_folder_that_others_keep_to_themselves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("closed").mkdir()
    monkeypatch.setattr(Path, "is_file", _raise_permission)
    assert "cannot be read: Permission denied" in _fails(["model", "closed"], 3, capsys)
    assert "cannot be read: Permission denied" in _fails(["fit", "closed", "--gpu", "h100"], 3, capsys)


def test_catalogues_that_others_keep_to_themselves(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", _raise_permission)
    assert main(["list", "gpus"]) == 3
    assert "cannot be read: Permission denied" in capsys.readouterr().err


def test_a_user_without_a_home(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A container run under a user number of its own: no HOME, and no entry that says one."""

    def no_home(_path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("HF_HOME")
    monkeypatch.setattr(Path, "expanduser", no_home)
    assert main(["model", LLAMA, "--offline"]) == 0
    capsys.readouterr()
    assert main(["model", "nobody/nothing", "--offline"]) == 4


def test_a_plan_says_what_its_model_s_source_leaves_open(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a window vLLM serves a longrope model at its original length: the plan prints the flag, and says why."""
    rope = {"type": "longrope", "long_factor": [1.0] * 64, "short_factor": [1.0] * 64}
    _write(Path("config.json"), original_max_position_embeddings=4096, rope_scaling=rope)
    document, codes = _findings(["fit", "config.json", "--kv-memory", "40GiB"], capsys)
    assert document["flags"]["--max-model-len"] == 131072  # type: ignore[index]
    assert "model-note" in codes


def test_compressed_kv_is_8_bit_or_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """As in vLLM 0.33, whose DeepSeek-V4 class takes no other type than fp8 on Hopper."""
    fit = ["fit", "deepseek-ai/DeepSeek-V4-Flash", "--kv-memory", "40GiB", "--kv-dtype"]
    assert "in fp8 only" in _fails([*fit, "bfloat16"], 3, capsys)
    assert main([*fit, "fp8", "--offline"]) == 0
