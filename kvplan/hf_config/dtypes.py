"""The types that a checkpoint asks for: the one it runs in, and the KV type that ``auto`` means.

Source: vLLM 0.33, ``_resolve_auto_dtype`` on GPUs with bfloat16; ``resolve_kv_cache_dtype_string``.
"""

from collections.abc import Mapping

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.config import Fields, LayerStack
from kvplan.layers import BFLOAT16, FLOAT16, HeadLayer, StoredType

_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_DOWNCAST = frozenset({"float32", "float64"})
# Unstable in float16, so vLLM 0.33 (_FLOAT16_NOT_SUPPORTED_MODELS) runs these in bfloat16.
_NEVER_FLOAT16 = frozenset({"gemma2", "gemma3_text", "glm4"})


def read_dtype(outer: Fields, text: Fields, family: str) -> StoredType:
    """The type a model runs in: ``dtype`` or ``torch_dtype`` of the file, then its language, vision, encoder blocks.

    Absent or float32 means bfloat16. float16 stays, except for the classes that cannot run in it.
    """
    for block in (outer, text, outer.section("vision_config"), outer.section("encoder_config")):
        stated = None if block is None else block.text("dtype", "torch_dtype")
        if block is None or stated in (None, "auto"):
            continue
        name = stated.removeprefix("torch.")
        name = _SHORT.get(name, name)
        if name == "float16" and family not in _NEVER_FLOAT16:
            return FLOAT16
        if name in ("bfloat16", "float16") or name in _DOWNCAST:
            return BFLOAT16
        raise UnsupportedModelError(
            f"{block.path}torch_dtype is {stated!r}, not a type that vLLM runs a model in",
            hint="use bfloat16, float16 or float32; a quantised checkpoint states its type in quantization_config",
            key=f"{block.path}torch_dtype",
        )
    return BFLOAT16


_MODELOPT_KV_TYPES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_IGNORES_SCHEME = frozenset({"bailing_moe", "jamba", "lfm2_moe", "plamo3", "sarvam", "step3_text", "zamba2"})
"""Families whose attention is built without the checkpoint's quantization (vLLM 0.33)."""


def quantization_block(outer: Fields, text: Fields, beside: Mapping[str, object] | None) -> Fields | None:
    """The quantization block: in config.json, outer before nested; else hf_quant_config.json (``beside``).

    Source: vLLM 0.33, ``get_config``, ``get_quantization_config``.
    """
    for block in (outer, text):
        found = block.section("quantization_config", "compression_config")
        if found is not None:
            return found
    return None if beside is None else Fields(beside, path="hf_quant_config.")


def read_kv_scheme(block: Fields | None, *, family: str, layers: LayerStack, is_nested: bool) -> str | None:
    """``fp8``, ``fp8_e4m3`` or ``nvfp4`` where ``auto`` follows the checkpoint, else None.

    ModelOpt, unless its block is inside the language model's (``is_nested``): ``kv_cache_scheme`` (8-bit float, not
    dynamic; or 4-bit float; or a plain string), else ``kv_cache_quant_algo``; an unknown one is ignored.
    compressed-tensors: any ``kv_cache_scheme``; attention with heads follows it, latent attention does not.
    Other methods never change the KV type.
    """
    if block is None:
        return None
    inner = block.section("quantization") or block
    method = _method(block, inner)
    if method.startswith("modelopt"):
        return None if is_nested else _modelopt_scheme(block, inner)
    if method.replace("_", "-") == "compressed-tensors" and block.value("kv_cache_scheme") is not None:
        scheme = block.section("kv_cache_scheme")
        assert scheme is not None
        if scheme.value("num_bits") != 8 or scheme.value("type") != "float":
            raise block.refused("kv_cache_scheme", "only an 8-bit float cache is known for compressed-tensors")
        has_heads = any(isinstance(kept, HeadLayer) for layer in layers for kept in layer)
        return "fp8" if has_heads and family not in _IGNORES_SCHEME else None
    return None


def quantises_weights(block: Fields) -> bool:
    """Whether ``block`` covers weights: a ModelOpt file with ``quant_algo`` null only quantises the KV cache."""
    inner = block.section("quantization") or block
    return "quant_algo" not in inner.values or inner.value("quant_algo") is not None


def _method(block: Fields, inner: Fields) -> str:
    """``quant_method``; ModelOpt's own file names its producer instead."""
    stated = (block.text("quant_method") or "").lower()
    producer = block.value("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt" and inner is not block:
        return "modelopt"
    return stated


def _modelopt_scheme(block: Fields, inner: Fields) -> str | None:
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for where in (inner, block):
            found = where.value(name)
            if not found:
                continue
            if isinstance(found, Mapping):
                return _float_scheme(found)
            if isinstance(found, str):
                return _MODELOPT_KV_TYPES.get(found.lower())
            raise where.broken(name, found, "an object or a string")
    return None


def _float_scheme(scheme: Mapping[str, object]) -> str | None:
    if scheme.get("type") != "float":
        return None
    if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
        return "fp8_e4m3"
    return "nvfp4" if scheme.get("num_bits") == 4 else None
