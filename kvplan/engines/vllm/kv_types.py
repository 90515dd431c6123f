"""The types in which vLLM stores keys and values, by its own words for them (``--kv-cache-dtype``)."""

from kvplan.engines.devices import H100_CAPABILITY
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import BFLOAT16, FLOAT16, FP8, CompressedKv, CompressedWindow, KvTypes, StoredType
from kvplan.model import ModelSpec

_TYPES = {
    "bfloat16": BFLOAT16,
    "float16": FLOAT16,
    "fp8": FP8,
    "fp8_e4m3": StoredType(name="fp8_e4m3", bytes_per_group=1),
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
}
_PACKED = "fp8_ds_mla"

_NOT_MODELLED = frozenset(
    {
        "fp8_inc",
        "nvfp4",
        "nvfp4_4over6",
        "nvfp4_ds_mla",
        "int4_per_token_head",
        "int8_per_token_head",
        "fp8_per_token_head",
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "octave_k3v4",
        "octave_k3v3",
        "octave_k3v3_compact",
        "ultraquant_4bit",
    }
)
"""Further words of vLLM 0.33, whose pages hold scales that kvplan does not price."""

_8_BIT_ON_SM10X = frozenset({"GlmMoeDsaForCausalLM"})
"""Classes whose KV vLLM 0.33 stores in fp8 on capability 10.x by default."""


def kv_types(model: ModelSpec, kv_dtype: str = "auto", *, capability: tuple[int, int] = H100_CAPABILITY) -> KvTypes:
    """The stored types of ``model`` under the engine's word ``kv_dtype``.

    ``auto`` follows the checkpoint's KV scheme, else the model's own type. Sparse MLA stores fp8 packed
    (``fp8_ds_mla``, 656 B per token and layer) where FlashMLA reads it, and plain where FlashInfer does; compressed KV
    is always packed. Classes that ignore the word stay 16-bit.
    Source: vLLM 0.33, ``CacheDType``, ``MLAAttention`` (what each sparse backend stores) and ``models/config.py``.
    """
    if kv_dtype not in ("auto", _PACKED) and kv_dtype not in _TYPES:
        _refuse(kv_dtype)
    if model.keeps(CompressedKv, CompressedWindow):
        if kv_dtype in ("bfloat16", "float16"):  # the class refuses it: "layout only supports fp8 kv-cache"
            raise InputError(f"vLLM keeps compressed KV in fp8 only, not in {kv_dtype}", hint="use fp8", key="kv_dtype")
        return _packed()
    is_sparse = model.has_sparse_latents
    if kv_dtype == _PACKED and not is_sparse:
        raise InputError(
            f"{_PACKED} is the layout of sparse MLA, which {model.id} does not use", hint="use fp8", key="kv_dtype"
        )
    word = kv_dtype
    if word == "auto":
        word = model.kv_scheme or model.dtype
        if capability[0] == 10 and model.architecture in _8_BIT_ON_SM10X:
            word = "fp8_e4m3"
    if is_sparse and word == "fp8_e5m2":
        raise InputError("sparse MLA cannot store KV in fp8_e5m2", hint="use fp8", key="kv_dtype")
    if word == _PACKED or (is_sparse and _packs_sparse(word, is_auto=kv_dtype == "auto", generation=capability[0])):
        return _packed()
    if model.ignores_kv_dtype:
        word = model.dtype
    if word not in _TYPES:
        _refuse(word)
    return KvTypes(key=_TYPES[word], value=_TYPES[word])


def _packs_sparse(word: str, *, is_auto: bool, generation: int) -> bool:
    """Whether a sparse MLA kernel stores ``word`` packed: on Hopper only FlashMLA's ``fp8`` (``fp8_e4m3`` goes to
    FlashInfer, plain), on capability 12.x any 8-bit word and the default, on 10.x none."""
    if generation == 12:
        return is_auto or word in ("fp8", "fp8_e4m3")
    return generation != 10 and word == "fp8"


def _packed() -> KvTypes:
    return KvTypes(key=FP8, value=FP8, packed=_PACKED)


def _refuse(word: str) -> None:
    if word in _NOT_MODELLED:
        raise UnsupportedModelError(
            f"cannot tell: KV in {word} is stored with scales that kvplan does not price",
            hint="plan with auto, bfloat16 or fp8",
            key="kv_dtype",
        )
    raise InputError(
        f"{word!r} is not a KV type of vLLM", hint=f"one of auto, {', '.join([*_TYPES, _PACKED])}", key="kv_dtype"
    )
