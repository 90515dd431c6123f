"""The type a model runs in, by the rule of vLLM's ``_resolve_auto_dtype`` on GPUs that have bfloat16."""

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.fields import Fields
from kvplan.layers import BFLOAT16, FLOAT16, StoredType

_SHORT = {"bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32"}
_DOWNCAST = frozenset({"float32", "float64"})
# Numerically unstable in float16: vLLM 0.33 (_FLOAT16_NOT_SUPPORTED_MODELS) runs these in bfloat16.
_NEVER_FLOAT16 = frozenset({"gemma2", "gemma3_text", "glm4"})


def read_dtype(outer: Fields, text: Fields, family: str) -> StoredType:
    """``dtype`` or ``torch_dtype`` of the outer block, then the language, vision and encoder blocks.

    Absent or float32: bfloat16. float16 stays, but for the classes that cannot run in it.
    """
    for block in (outer, text, outer.section("vision_config"), outer.section("encoder_config")):
        said = None if block is None else block.text("dtype", "torch_dtype")
        if block is None or said in (None, "auto"):
            continue
        name = said.removeprefix("torch.")
        name = _SHORT.get(name, name)
        if name == "float16" and family not in _NEVER_FLOAT16:
            return FLOAT16
        if name in ("bfloat16", "float16") or name in _DOWNCAST:
            return BFLOAT16
        raise UnsupportedModelError(
            f"{block.path}torch_dtype is {said!r}, not a type that vLLM runs a model in",
            hint="one of bfloat16, float16, float32; a quantised checkpoint says it in quantization_config",
            key=f"{block.path}torch_dtype",
        )
    return BFLOAT16
