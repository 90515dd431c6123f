"""A damaged GGUF header or profile is read or refused with its reason: never a crash, never a long wait."""

import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvplan.errors import InputError, KvplanError
from kvplan.files import RangeReader
from kvplan.gguf import read_gguf
from kvplan.profiles.kinds import BundledModel, ClientProfile, GpuProfile
from kvplan.profiles.loader import load_gpu, profile_folders
from kvplan.profiles.reader import read_profile
from tests.fuzz import ODD_YAML
from tests.gguf_files import gguf_bytes

LLAMA: dict[str, object] = {
    "general.architecture": "llama",
    "llama.block_count": 4,
    "llama.context_length": 4096,
    "llama.embedding_length": 512,
    "llama.attention.head_count": 8,
    "llama.attention.head_count_kv": 2,
    "llama.vocab_size": 1000,
    "tokenizer.ggml.tokens": ["a", "bc"],
}
WHOLE = gguf_bytes(LLAMA, {"token_embd.weight": ((512, 1000), 1, 1_024_000)}, with_data=False)
ODD = [*ODD_YAML, "? [a]\n: b\n", ": ", "2026-99-99"]
KINDS = {"gpus": GpuProfile, "clients": ClientProfile, "models": BundledModel}


def _reader(content: bytes) -> RangeReader:
    return lambda offset, length: content[offset : offset + length]


@settings(max_examples=400, deadline=2000)
@given(
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=6),
    length=st.integers(0, len(WHOLE)),
)
def test_a_header_with_wrong_bytes(changes: list[tuple[int, int]], length: int) -> None:
    content = bytearray(WHOLE)
    for place, byte in changes:
        content[place] = byte
    try:
        model = read_gguf(_reader(bytes(content[: length if len(changes) % 2 else len(content)])))
    except KvplanError:
        return
    assert model.layers


@settings(max_examples=200, deadline=2000)
@given(
    place=st.integers(0, len(WHOLE) - 8), number=st.sampled_from([0, 1, 2**16, 2**20, 2**30, 2**31, 2**63, 2**64 - 1])
)
def test_a_header_with_a_wrong_count(place: int, number: int) -> None:
    """Lengths and counts are what a hostile file lies about: no memory is taken for what the file cannot hold."""
    content = WHOLE[:place] + struct.pack("<Q", number) + WHOLE[place + 8 :]
    try:
        read_gguf(_reader(content))
    except KvplanError:
        return


@settings(max_examples=150, deadline=2000)
@given(key=st.sampled_from([key for key in LLAMA if key.startswith("llama.")]), value=st.one_of(
    st.integers(0, 2**64 - 1), st.floats(width=32), st.booleans(), st.text(max_size=8),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
))  # fmt: skip
def test_a_header_with_another_value(key: str, value: object) -> None:
    try:
        model = read_gguf(_reader(gguf_bytes({**LLAMA, key: value})))
    except KvplanError:
        return
    assert model.layers


def _texts() -> list[tuple[str, str]]:
    folder = profile_folders()[-1]
    return [(sort, min((folder / sort).glob("*.yaml")).read_text(encoding="utf-8")) for sort in KINDS]


@settings(max_examples=300, deadline=2000)
@given(
    which=st.sampled_from(_texts()),
    place=st.integers(0, 4000),
    cut=st.integers(0, 40),
    put=st.one_of(st.sampled_from(ODD), st.text(max_size=6)),
)  # fmt: skip
@example(which=_texts()[0], place=0, cut=0, put="? [a]\n: b\n")
@example(which=_texts()[0], place=0, cut=0, put="checked: 2026-99-99\n")
@example(which=_texts()[0], place=0, cut=0, put="a: " + "[" * 2000 + "]" * 2000 + "\n")
@example(which=_texts()[0], place=0, cut=0, put="a: " + "9" * 5000 + "\n")
def test_a_damaged_profile(which: tuple[str, str], place: int, cut: int, put: str) -> None:
    sort, text = which
    at = place % len(text)
    try:
        read_profile(KINDS[sort], text[:at] + put + text[at + cut :], "x.yaml")
    except InputError:
        return


def test_a_profile_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "odd.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        load_gpu("odd", extra_folder=tmp_path)
