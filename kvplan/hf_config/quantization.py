"""The KV type that a checkpoint asks for under ``auto``, from its quantization block."""

from collections.abc import Mapping

from kvplan.hf_config.fields import Fields
from kvplan.layers import HeadLayer, Layer

_MODELOPT_NAMES = {"fp8": "fp8_e4m3", "nvfp4": "nvfp4"}
_NOT_TOLD = frozenset({"bailing_moe", "jamba", "lfm2_moe", "plamo3", "sarvam", "step3_text", "zamba2"})
"""Classes whose attention is built without the checkpoint's quantisation (vLLM 0.33)."""


def quantization_block(outer: Fields, text: Fields, beside: Mapping[str, object] | None) -> Fields | None:
    """The block that says how the weights are quantised: in config.json, outer before nested; hf_quant_config.json
    (``beside``) only where config.json has none. Source: vLLM 0.33, ``get_config``, ``get_quantization_config``."""
    for block in (outer, text):
        found = block.section("quantization_config", "compression_config")
        if found is not None:
            return found
    return None if beside is None else Fields(beside, path="hf_quant_config.")


def read_kv_scheme(
    block: Fields | None, *, family: str, layers: tuple[tuple[Layer, ...], ...], is_nested: bool
) -> str | None:
    """``fp8``, ``fp8_e4m3`` or ``nvfp4`` where ``auto`` follows the checkpoint, else None.

    ModelOpt, where its block is not inside the language model's (``is_nested``): ``kv_cache_scheme`` (8-bit float, not
    dynamic; or 4-bit float; or a plain string), else ``kv_cache_quant_algo``; an unknown one is ignored.
    compressed-tensors: any ``kv_cache_scheme``, which attention with heads follows and latent attention does not.
    Other methods never switch it. Source: vLLM 0.33, ``resolve_kv_cache_dtype_string``, ``Attention.__init__``.
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
        is_told = family not in _NOT_TOLD and any(isinstance(kept, HeadLayer) for layer in layers for kept in layer)
        return "fp8" if is_told else None
    return None


def quantises_weights(block: Fields) -> bool:
    """Whether ``block`` is about weights: ModelOpt's file with ``quant_algo`` null only quantises the KV cache."""
    inner = block.section("quantization") or block
    return "quant_algo" not in inner.values or inner.value("quant_algo") is not None


def _method(block: Fields, inner: Fields) -> str:
    """``quant_method``; ModelOpt's own file says its producer instead."""
    said = (block.text("quant_method") or "").lower()
    producer = block.value("producer")
    if isinstance(producer, Mapping) and producer.get("name") == "modelopt" and inner is not block:
        return "modelopt"
    return said


def _modelopt_scheme(block: Fields, inner: Fields) -> str | None:
    for name in ("kv_cache_scheme", "kv_cache_quant_algo"):
        for where in (inner, block):
            found = where.value(name)
            if not found:
                continue
            if isinstance(found, Mapping):
                return _float_scheme(found)
            if isinstance(found, str):
                return _MODELOPT_NAMES.get(found.lower())
            raise where.broken(name, found, "an object or a string")
    return None


def _float_scheme(scheme: Mapping[str, object]) -> str | None:
    if scheme.get("type") != "float":
        return None
    if scheme.get("num_bits") == 8 and scheme.get("dynamic") is False:
        return "fp8_e4m3"
    return "nvfp4" if scheme.get("num_bits") == 4 else None
