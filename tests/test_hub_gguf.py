"""GGUF files on a Hub: the header by ranges of bytes, at most a few requests, and every refusal as one message."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvplan.errors import InputError, ModelUnavailableError
from kvplan.hub.cache import hub_cache_folder
from kvplan.sources import read_model
from tests.gguf_files import gguf_bytes
from tests.hub_server import COMMIT, Fault, HubServer, Repository, only_hub
from tests.test_gguf import LLAMA_8B

FILE = "q4/llama-Q4_K_M.gguf"
REFERENCE = f"org/llama-GGUF/{FILE}"


@pytest.fixture(scope="module")
def whole() -> bytes:
    tokens = [f"token {number:06d} with some length" for number in range(320_000)]
    return gguf_bytes({**LLAMA_8B, "tokenizer.ggml.tokens": tokens}, {"w": ((1 << 22,), 0, 1 << 24)})


@pytest.fixture
def hub(whole: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[HubServer]:
    with only_hub(monkeypatch, tmp_path) as server:
        server.repositories["org/llama-GGUF"] = Repository(files={FILE: whole})
        yield server


def test_only_the_header_is_read(hub: HubServer) -> None:
    """11 MB of vocabulary take two requests; the tensors behind it are never asked for as a whole."""
    model = read_model(REFERENCE)
    assert model.id == REFERENCE
    assert model.shape.vocabulary == 128_256
    assert model.weights.stored_bytes == 1 << 24
    assert [seen.path for seen in hub.seen] == [f"/org/llama-GGUF/resolve/main/{FILE}"] * 2
    assert model.source.name == f"Hub, the header of {FILE}"


def test_a_server_without_ranges_is_read_as_far_as_needed(hub: HubServer) -> None:
    body = hub.repositories["org/llama-GGUF"].files[FILE]
    hub.faults.append(Fault(where=".gguf", body=body))
    assert read_model(REFERENCE).weights.stored_bytes == 1 << 24


def test_a_remote_file_that_was_cut_is_an_input_error(hub: HubServer) -> None:
    files = hub.repositories["org/llama-GGUF"].files
    files[FILE] = files[FILE][: 9 << 20]
    with pytest.raises(InputError, match="in the middle of its header"):
        read_model(REFERENCE)


@pytest.mark.parametrize(
    ("reference", "change", "words"),
    [
        (REFERENCE.replace("Q4", "Q8"), {}, "has no file q4/llama-Q8_K_M.gguf"),
        (f"{REFERENCE}@nowhere", {}, "nowhere"),
        (REFERENCE, {"gated": True, "token": "t"}, "terms|gated|restricted"),
    ],
)
def test_refusals_are_messages(hub: HubServer, reference: str, change: dict[str, object], words: str) -> None:
    for name, value in change.items():
        setattr(hub.repositories["org/llama-GGUF"], name, value)
    with pytest.raises(ModelUnavailableError, match=words) as caught:
        read_model(reference)
    assert caught.value.hint


def test_offline_takes_a_file_that_was_downloaded(hub: HubServer) -> None:
    with pytest.raises(ModelUnavailableError, match="offline"):
        read_model(REFERENCE, offline=True)
    folder = hub_cache_folder() / "models--org--llama-GGUF"
    path = folder / "snapshots" / COMMIT / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gguf_bytes(LLAMA_8B, {"w": ((64,), 0, 256)}))
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    assert read_model(REFERENCE, offline=True).weights.stored_bytes == 256
    assert hub.seen == []


def test_a_local_path_stays_local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name" / "m.gguf").write_bytes(gguf_bytes(LLAMA_8B))
    assert read_model("org/name/m.gguf").id == "m.gguf"
