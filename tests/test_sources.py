"""Which source answers for MODEL, and what is said of a path or a file that cannot."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplan.checkpoint import (
    Checkpoint,
    read_folder,
    read_json_object,
    read_safetensors_header,
    weight_files,
    weight_totals,
)
from kvplan.errors import InputError, ModelUnavailableError
from kvplan.model import Source
from kvplan.sources import read_model
from tests.hub_server import COMMIT, Fault, HubServer, Repository, only_hub

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "max_position_embeddings": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
}
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    """A Hub without repositories, and an empty cache."""
    with only_hub(monkeypatch, tmp_path) as server:
        yield server


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a name may be looked up."""

    def refuse(*args: object, **kwargs: object) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def write_config(folder: Path, text: str | bytes | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    body = json.dumps(CONFIG) if text is None else text
    path.write_bytes(body if isinstance(body, bytes) else body.encode())
    return path


def write_safetensors(path: Path, tensors: dict[str, tuple[str, list[int]]], weights: bytes = b"") -> None:
    header = {
        name: {"dtype": dtype, "shape": shape, "data_offsets": [0, 0]} for name, (dtype, shape) in tensors.items()
    }
    body = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(body)) + body + weights)


# Local paths


@pytest.mark.usefixtures("no_network")
def test_a_local_folder_is_read_without_network(tmp_path: Path) -> None:
    write_config(tmp_path / "model")
    model = read_model(str(tmp_path / "model"))
    assert (len(model.layers), model.source, model.id) == (2, Source(name="local folder"), str(tmp_path / "model"))


@pytest.mark.usefixtures("no_network")
def test_a_config_file_is_read_without_network(tmp_path: Path) -> None:
    model = read_model(str(write_config(tmp_path / "model")), offline=True)
    assert model.source == Source(name="local file")


@pytest.mark.usefixtures("no_network")
def test_a_gguf_file_is_read_without_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.gguf_files import gguf_bytes

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = tmp_path / "qwen.gguf"
    path.write_bytes(
        gguf_bytes(
            {
                "general.architecture": "llama",
                "llama.block_count": 2,
                "llama.context_length": 1024,
                "llama.embedding_length": 64,
                "llama.attention.head_count": 8,
                "llama.attention.head_count_kv": 2,
                "llama.feed_forward_length": 128,
                "llama.vocab_size": 100,
            }
        )
    )
    assert len(read_model(str(path)).layers) == 2


def test_a_folder_in_the_working_directory_wins_over_the_hub(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org").mkdir()
    write_config(tmp_path / "org" / "name")
    monkeypatch.chdir(tmp_path)
    assert read_model("org/name").source.name == "local folder"
    assert hub.seen == []


def test_a_quantization_file_beside_the_config_is_read(tmp_path: Path) -> None:
    write_config(tmp_path / "model")
    said = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "model" / "hf_quant_config.json").write_text(json.dumps(said))
    assert read_folder(tmp_path / "model").quantization == said
    assert read_model(str(tmp_path / "model")).kv_scheme == "fp8_e4m3"


def test_headers_give_parameters_and_bytes_without_a_weight(tmp_path: Path) -> None:
    write_config(tmp_path)
    for part in (1, 2):
        path = tmp_path / f"model-0000{part}-of-00002.safetensors"
        write_safetensors(path, {f"a{part}": ("BF16", [10, 20]), f"b{part}": ("F32", [5])})
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {f"a{p}": f"model-0000{p}-of-00002.safetensors" for p in (1, 2)},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_folder(tmp_path) == Checkpoint(
        config=CONFIG, parameters=2 * (200 + 5), weight_bytes=2 * (200 * 2 + 5 * 4)
    )


def test_where_shards_are_missing_the_index_gives_the_bytes(tmp_path: Path) -> None:
    write_config(tmp_path)
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_folder(tmp_path) == Checkpoint(config=CONFIG, weight_bytes=12345)


@pytest.mark.parametrize("total", ["-5", "1e999", "NaN", "0", "true", '"16 GB"', "12.5"])
def test_an_index_whose_total_is_no_number_of_bytes(tmp_path: Path, total: str) -> None:
    write_config(tmp_path)
    index = f'{{"metadata": {{"total_size": {total}}}, "weight_map": {{"a": "model-00001-of-00001.safetensors"}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=r"total_size is .*not a number of bytes") as caught:
        read_folder(tmp_path)
    assert (caught.value.key, caught.value.file) == (
        "metadata.total_size",
        str(tmp_path / "model.safetensors.index.json"),
    )


@pytest.mark.parametrize(("total", "read"), [("12345.0", 12345), ("null", None)])
def test_an_index_total_as_some_writers_leave_it(tmp_path: Path, total: str, read: int | None) -> None:
    write_config(tmp_path)
    index = f'{{"metadata": {{"total_size": {total}}}, "weight_map": {{"a": "model-00001-of-00001.safetensors"}}}}'
    (tmp_path / "model.safetensors.index.json").write_text(index)
    assert read_folder(tmp_path).weight_bytes == read


@pytest.mark.parametrize(
    ("target", "said"), [("model", "Too many levels of symbolic links"), ("gone", "No such file or directory")]
)
def test_a_link_that_leads_to_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").symlink_to(target)
    with pytest.raises(InputError, match=f"cannot be read: {said}") as caught:
        read_model("model", offline=True)
    assert caught.value.file == "model"


def test_pickles_give_bytes_only(tmp_path: Path) -> None:
    write_config(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x" * 77)
    (tmp_path / "training_args.bin").write_bytes(b"x" * 1000)
    assert read_folder(tmp_path) == Checkpoint(config=CONFIG, weight_bytes=77)


@pytest.mark.parametrize("body", [b"", b"\x10\x00", struct.pack("<Q", 2**60), struct.pack("<Q", 100) + b"{}"])
def test_a_weight_file_that_broke_off_is_named(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(body)
    with pytest.raises(InputError) as caught:
        read_safetensors_header(path)
    assert (caught.value.file, caught.value.hint) == (str(path), "download it again")


@pytest.mark.parametrize(
    ("files", "hint"),
    [
        ({}, "give the folder of one checkpoint, or its config.json"),
        ({"q4.gguf": b""}, "it has a GGUF file: give {folder}/q4.gguf"),
        ({"adapter_config.json": b"{}"}, "it has an adapter: give the base model that adapter_config.json names"),
        ({"params.json": b"{}"}, "it has a checkpoint in its vendor's own format"),
        ({"deeper/config.json": b"{}"}, "a folder in it has one: give {folder}/deeper"),
    ],
)
def test_a_folder_without_a_config(tmp_path: Path, files: dict[str, bytes], hint: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for name, body in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(body)
    with pytest.raises(InputError) as caught:
        read_model(str(folder))
    assert caught.value.message == f"the folder {folder} has no config.json"
    assert (caught.value.hint or "").startswith(hint.format(folder=folder))


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("", 1, None, "not valid JSON: the file is empty"),
        ("{", 1, None, "not valid JSON: Expecting property name"),
        ('{\n"a": 1,\n"b" 2}', 3, None, "not valid JSON: Expecting ':' delimiter"),
        ("[1]", None, None, "not a model's config: a JSON list, not an object"),
        ("null", None, None, "not a model's config: a JSON null, not an object"),
        ("3", None, None, "not a model's config: a JSON number, not an object"),
        ('{"a": 1, "a": 2}', None, "a", "the key 'a' appears twice"),
        ('{"text_config": {"b": 1, "b": 1}}', None, "b", "the key 'b' appears twice"),
        (b"\xff\xfe{}", None, None, "not a JSON file: the bytes are not UTF-8 text"),
        (b"\x80\x05pickle", None, None, "not a JSON file: the bytes are not UTF-8 text"),
        ("[" * 100_000, None, None, "not a model's config: nested too deeply"),
    ],
)
def test_a_config_that_is_not_one(
    tmp_path: Path, text: str | bytes, line: int | None, key: str | None, says: str
) -> None:
    path = write_config(tmp_path / "model", text)
    with pytest.raises(InputError) as caught:
        read_model(str(path))
    assert caught.value.message.startswith(says)
    assert (caught.value.file, caught.value.line, caught.value.key) == (str(path), line, key)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = write_config(tmp_path / "model", b"\xef\xbb\xbf" + json.dumps(CONFIG).encode())
    assert len(read_model(str(path)).layers) == 2


def test_a_config_of_200_mb_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(200 * 10**6)  # sparse: no byte of it is on the disk
    with pytest.raises(InputError, match="200,000,000 bytes are too many for a model's config"):
        read_model(str(path))


def test_a_folder_where_a_file_is_expected(tmp_path: Path) -> None:
    (tmp_path / "model" / "config.json").mkdir(parents=True)
    with pytest.raises(InputError, match="this is a folder, not a file"):
        read_json_object(tmp_path / "model" / "config.json")


@pytest.mark.parametrize("reference", ["./none", "none/config.json", "~/none", "none.gguf", "/none", "a/b/c"])
def test_a_path_that_is_not_there(hub: HubServer, reference: str) -> None:
    with pytest.raises(InputError) as caught:
        read_model(reference)
    assert caught.value.message == f"there is no file or folder {reference}"
    assert hub.seen == []


@pytest.mark.parametrize(
    "reference", ["", " ", "org/na me", "-org/name", "org/..", "a--b/c", "org/name@", "org/name@a b", "org/name@a/../b"]
)
def test_a_name_that_can_be_no_hub_id(hub: HubServer, reference: str) -> None:
    with pytest.raises(InputError):
        read_model(reference)
    assert hub.seen == []


# The Hub, its cache and the catalogue


def test_every_request_goes_to_the_endpoint(hub: HubServer) -> None:
    hub.repositories["org/name"] = Repository(files={"config.json": json.dumps(CONFIG).encode()})
    model = read_model("org/name")  # the fixture that allows loopback only would fail any other address
    assert model.source == Source(name=f"Hub at {hub.endpoint}", revision=COMMIT)
    assert len(hub.seen) == 2
    assert read_model("org/name", offline=True).source == Source(name="Hub cache", revision=COMMIT)


def test_the_hub_answers_before_the_catalogue(hub: HubServer) -> None:
    hub.repositories[LLAMA] = Repository(files={"config.json": json.dumps(CONFIG).encode()})
    assert len(read_model(LLAMA).layers) == 2


@pytest.mark.usefixtures("no_network")
def test_the_catalogue_answers_offline() -> None:
    model = read_model(LLAMA, offline=True)
    assert (model.source.name, model.source.checked is not None) == ("bundled facts", True)
    assert (len(model.layers), model.weights.parameters) == (32, 8_030_261_248)


@pytest.mark.usefixtures("no_network")
def test_the_catalogue_answers_where_the_environment_says_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert read_model(LLAMA).source.name == "bundled facts"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(where="/api/", status=401, headers={"X-Error-Code": "GatedRepo"}), "the Hub answered 401"),
        (Fault(where="/api/", status=403), "the Hub answered 403"),
        (Fault(where="/api/", status=429), "the Hub answered 429"),
        (Fault(where="/api/", status=502), "the Hub answered 502"),
        (Fault(where="/api/", hang=True), "the Hub timed out"),
        (Fault(where="/api/", body=b"{", cut=True), "the Hub's answer was cut short"),
    ],
)
def test_the_catalogue_answers_where_the_hub_does_not(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, fault: Fault, reason: str
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "0.3")
    hub.faults.append(fault)
    source = read_model(LLAMA).source
    assert source.name == f"bundled facts ({reason})"
    assert source.checked is not None
    assert source.revision is None


def test_bundled_facts_of_a_gated_model_say_how_to_open_it(hub: HubServer) -> None:
    hub.repositories[LLAMA] = Repository(files={"config.json": b"{}"}, gated=True, token="hf_right")
    (note,) = read_model(LLAMA).notes
    assert note.startswith(f"bundled facts are used, because {LLAMA} is gated")
    assert "set a token (HF_TOKEN)" in note
    assert "or give a local config.json" in note


def test_the_catalogue_answers_where_nobody_listens(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert read_model(LLAMA).source.name == "bundled facts (the Hub cannot be reached)"


def test_the_catalogue_does_not_stand_in_for_a_model_that_the_hub_says_is_not_there(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_any")
    with pytest.raises(ModelUnavailableError, match="there is no model"):
        read_model(LLAMA)


@pytest.mark.parametrize("offline", [True, False])
def test_the_catalogue_does_not_stand_in_for_a_revision(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(ModelUnavailableError) as caught:
        read_model(f"{LLAMA}@v1", offline=offline)
    assert "the bundled facts of meta-llama/Llama-3.1-8B-Instruct do not state their revision" in (caught.value.message)
    assert "@v1" in (caught.value.hint or "")


def test_a_wrong_id_lists_bundled_models_with_a_similar_name(hub: HubServer) -> None:
    with pytest.raises(ModelUnavailableError) as caught:
        read_model("meta-llama/Llama-3.1-8B-Instrukt", offline=True)
    assert caught.value.exit_code == 4
    assert LLAMA in (caught.value.hint or "")


# What the weights' files say


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["model.safetensors", "model.fp16.safetensors"], ("model.safetensors",)),
        (["weights.safetensors", "adapter_model.safetensors"], ("weights.safetensors",)),
        (["consolidated.safetensors"], ("consolidated.safetensors",)),
        (["pytorch_model.bin", "training_args.bin"], ("pytorch_model.bin",)),
        (["unet/model.safetensors", "README.md"], ()),
    ],
)
def test_the_files_that_an_engine_would_load(names: list[str], chosen: tuple[str, ...]) -> None:
    assert weight_files(names) == chosen


@pytest.mark.parametrize(
    ("elements", "file_bytes", "expected"),
    [
        ({}, None, (None, None)),
        ({}, 77, (None, 77)),
        ({"BF16": 100}, None, (100, 200)),
        ({"BF16": 100}, 201, (100, 200)),
        # gpt-oss: the Hub's count is already unpacked (4-bit weights stored two to a byte), so the files are right
        ({"BF16": 2_167_371_072, "U8": 118_244_966_400}, 65_248_815_744, (120_412_337_472, 65_248_815_744)),
        ({"F8_E4M3": 100, "BF16": 10, "F32": 1}, 125, (111, 124)),
        ({"NEW_TYPE": 100}, 50, (100, 50)),
    ],
)
def test_totals_are_exact_or_those_of_the_files(
    elements: dict[str, int], file_bytes: int | None, expected: tuple[int | None, int | None]
) -> None:
    assert weight_totals(elements, file_bytes) == expected
