"""vLLM's words for the KV type."""

import pytest

from kvplan.engines.vllm.kv_types import kv_types
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import CompressedKv, CompressedWindow, FullAttention, IndexKeys, LatentAttention
from tests.models import model_of

FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
MLA = LatentAttention(latent_dim=512, rope_dim=64)
INDEX = IndexKeys(bytes_per_entry=132)
GQA_MODEL, MLA_MODEL, SPARSE_MODEL = model_of([[FULL]]), model_of([[MLA]]), model_of([[MLA, INDEX]])
COMPRESSED_MODEL = model_of(
    [[CompressedWindow(bytes_per_entry=584, window=128), CompressedKv(bytes_per_entry=584, tokens_per_entry=4)]]
)


@pytest.mark.parametrize(
    ("word", "name", "bytes_per_value"),
    [
        ("auto", "bfloat16", 2),
        ("float16", "float16", 2),
        ("bfloat16", "bfloat16", 2),
        ("fp8", "fp8", 1),
        ("fp8_e4m3", "fp8_e4m3", 1),
        ("fp8_e5m2", "fp8_e5m2", 1),
    ],
)
def test_words(word: str, name: str, bytes_per_value: int) -> None:
    stored = kv_types(GQA_MODEL, word)
    assert (stored.name, stored.key.bytes_per_group) == (name, bytes_per_value)


def test_auto_follows_the_checkpoint() -> None:
    scheme = model_of([[FULL]], kv_scheme="fp8_e4m3")
    assert kv_types(scheme).name == "fp8_e4m3"
    assert kv_types(scheme, "bfloat16").name == "bfloat16"
    assert kv_types(model_of([[FULL]], dtype="float16")).name == "float16"


def test_some_classes_ignore_the_word() -> None:
    assert kv_types(model_of([[FULL]], ignores_kv_dtype=True), "fp8").name == "bfloat16"


def test_sparse_mla_packs_8_bit_kv() -> None:
    assert kv_types(SPARSE_MODEL).name == "bfloat16"
    assert kv_types(SPARSE_MODEL, "fp8").name == "fp8_ds_mla"
    assert kv_types(SPARSE_MODEL, "fp8_ds_mla").name == "fp8_ds_mla"
    assert kv_types(SPARSE_MODEL, "fp8_e4m3").name == "fp8_e4m3"  # FlashInfer's kernel, not FlashMLA's
    assert kv_types(MLA_MODEL, "fp8").name == "fp8"


def test_blackwell_reads_sparse_mla_plain() -> None:
    assert kv_types(SPARSE_MODEL, "fp8", capability=(10, 0)).name == "fp8"
    assert kv_types(SPARSE_MODEL, capability=(12, 0)).name == "fp8_ds_mla"
    assert kv_types(SPARSE_MODEL, capability=(10, 0)).name == "bfloat16"


def test_compressed_kv_is_always_packed() -> None:
    assert {kv_types(COMPRESSED_MODEL, word).name for word in ("auto", "fp8", "fp8_ds_mla")} == {"fp8_ds_mla"}


@pytest.mark.parametrize(
    ("model", "word"),
    [(GQA_MODEL, "fp8_ds_mla"), (SPARSE_MODEL, "fp8_e5m2"), (COMPRESSED_MODEL, "bfloat16"), (GQA_MODEL, "q8")],
)
def test_wrong_words(model: object, word: str) -> None:
    with pytest.raises(InputError) as refused:
        kv_types(model, word)  # type: ignore[arg-type]
    assert refused.value.key == "kv_dtype"


@pytest.mark.parametrize("word", ["nvfp4", "int8_per_token_head", "turboquant_4bit_nc"])
def test_words_whose_scales_are_not_priced(word: str) -> None:
    with pytest.raises(UnsupportedModelError, match="cannot tell"):
        kv_types(GQA_MODEL, word)
