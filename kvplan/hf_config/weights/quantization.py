"""The type in which a quantised checkpoint stores each part: from quantization_config's method, groups and exceptions.

Scales are counted with their elements: an fp8 block of 128 × 128 has one float32 scale, so it takes 16,388 B.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from kvplan.hf_config.weights.module_names import ModuleNames
from kvplan.hf_config.weights.parts import Config, nested, switch, whole, words
from kvplan.layers import FP8, MXFP8, NVFP4, StoredType
from kvplan.model import WeightPart

# 4-bit values with a scale byte for 32 (OCP microscaling), or for 64 (bitsandbytes, its scales quantised too).
_MXFP4 = StoredType(name="mxfp4", bytes_per_group=17, elements_per_group=32)
_NF4 = StoredType(name="nf4", bytes_per_group=33, elements_per_group=64)
_INT8 = StoredType(name="int8", bytes_per_group=1)

_ALGORITHMS: Mapping[str, StoredType] = {
    "FP8": FP8,
    "FP8_PER_CHANNEL_PER_TOKEN": FP8,
    "FP8_PB_WO": FP8,
    "NVFP4": NVFP4,
    "NVFP4_AWQ": NVFP4,
    "W4A16_NVFP4": NVFP4,
    "W4A8_NVFP4_FP8": NVFP4,
    "MXFP4": _MXFP4,
    "W4A8_MXFP4_FP8": _MXFP4,
    "MXFP8": MXFP8,
}

_Rule = Callable[[WeightPart], StoredType | None]


def quantize(
    parts: Sequence[WeightPart], block: Config, *, expert_dtype: object = None
) -> tuple[tuple[WeightPart, ...], str | None]:
    """The parts in their stored types, and the method's name; no parts where the method is not known.

    ``expert_dtype`` is DeepSeek-V4's key beside the block: its experts are 4-bit although the block says fp8.
    """
    if expert_dtype is not None:
        block = {**block, "expert_dtype": expert_dtype}
    inner = nested(block, "quantization") or block
    method = str(block.get("quant_method") or inner.get("quant_algo") or "").lower()
    rule = _rule(method, inner)
    if rule is None or (nested(inner, "quantized_layers") and _leaves_experts_out(parts, inner, rule)):
        return (), method or "unknown"
    return tuple(replace(part, stored=rule(part) or part.stored) for part in parts), method


def _leaves_experts_out(parts: Sequence[WeightPart], block: Config, rule: _Rule) -> bool:
    """Whether experts are neither among the quantised modules nor among the excluded ones.

    Then the list is incomplete, and the type of most bytes is unknown.
    """
    excluded = ModuleNames(_ignored(block))
    routed = [part for part in parts if part.name.endswith(".experts") and part.layer is not None]
    return bool(routed) and all(rule(part) is None and not excluded.match(part) for part in routed)


def _rule(method: str, block: Config) -> _Rule | None:
    """The rule from a part to its stored type (None: unquantised); None where the method is not known."""
    mixed = nested(block, "quantized_layers")
    if mixed is not None and method != "fp8":
        return _mixed_rule(mixed)
    if method in {"compressed-tensors", "compressed_tensors"}:
        return _groups_rule(block)
    stored = _single_type(method, block)
    if stored is None:
        return None
    skipped = ModuleNames(_ignored(block))
    # MXFP4 checkpoints keep everything but the experts in 16 bit
    experts_only = method in {"mxfp4", "gpt_oss_mxfp4"}
    routed = _expert_type(block) or stored

    def rule(part: WeightPart) -> StoredType | None:
        if not is_matrix(part) or skipped.match(part) or (experts_only and not part.name.endswith("experts")):
            return None
        return routed if part.name.endswith("experts") else stored

    return rule


def _single_type(method: str, block: Config) -> StoredType | None:
    """The stored type of a method that treats all matrices alike; None for a method that is not known."""
    bits, group = whole(block, "bits", "w_bit", "num_bits"), whole(block, "group_size", "q_group_size")
    if method in {"fp8", "fbgemm_fp8"}:
        sides = block.get("weight_block_size")
        if isinstance(sides, Sequence) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides):
            area = sides[0] * sides[1]
            return StoredType(name="fp8", bytes_per_group=area + 4, elements_per_group=area)
        return FP8
    if method in {"awq", "gptq", "auto-round", "auto_round", "gptqmodel", "awq_marlin", "gptq_marlin"} and bits:
        zeros = method.startswith("gptq") or switch(block, "zero_point", default=True)
        return _integer_type(bits, group, zeros=zeros)
    if method == "bitsandbytes":
        return _INT8 if switch(block, "load_in_8bit", default=False) else _NF4
    if method in {"mxfp4", "gpt_oss_mxfp4"}:
        return _MXFP4
    if method.startswith("modelopt") or method.upper() in _ALGORITHMS:
        return _ALGORITHMS.get(str(block.get("quant_algo") or method).upper()) or _first_group_type(block)
    return None


def _integer_type(bits: int, group: int | None, *, zeros: bool) -> StoredType:
    """``bits`` per element, a 16-bit scale per group and, with zero points, another ``bits`` per group.

    >>> _integer_type(4, 128, zeros=True).bytes_for(256)
    Fraction(133, 1)
    """
    size = group if group and group > 0 else 4096
    eighths = size * bits + 16 + (bits if zeros else 0)
    return StoredType(name=f"int{bits}", bytes_per_group=eighths, elements_per_group=8 * size)


def _groups_rule(block: Config) -> _Rule | None:
    """compressed-tensors: each group's targets (a class of modules, or names), bits and group size."""
    groups = nested(block, "config_groups") or {}
    kinds: list[tuple[ModuleNames | None, StoredType]] = []
    for group in groups.values():
        stored = _weights_type(group)
        if stored is None or not isinstance(group, Mapping):
            return None
        targets = words(group, "targets") or ()
        everywhere = any(target in {"Linear", "LinearBase", "MoE"} for target in targets)
        kinds.append((None if everywhere else ModuleNames(targets), stored))
    skipped = ModuleNames(_ignored(block))

    def rule(part: WeightPart) -> StoredType | None:
        if not is_matrix(part) or skipped.match(part):
            return None
        return next((stored for names, stored in kinds if names is None or names.match(part)), None)

    return rule if kinds else None


def _weights_type(group: object) -> StoredType | None:
    """The stored type of one config group's ``weights``."""
    weights = nested(group, "weights") if isinstance(group, Mapping) else None
    if weights is None:
        return None
    bits, size = whole(weights, "num_bits"), whole(weights, "group_size")
    if weights.get("type") == "float":
        return {8: MXFP8 if size == 32 else FP8, 4: _MXFP4 if size == 32 else NVFP4}.get(bits or 0)
    return _integer_type(bits, size, zeros=not switch(weights, "symmetric", default=True)) if bits else None


def _first_group_type(block: Config) -> StoredType | None:
    groups = nested(block, "config_groups") or {}
    return next((stored for group in groups.values() if (stored := _weights_type(group)) is not None), None)


def _mixed_rule(layers: Config) -> _Rule:
    """ModelOpt's ``quantized_layers``: an algorithm for each named module."""
    by_type: dict[str, list[str]] = {}
    for name, facts in layers.items():
        if isinstance(facts, Mapping):
            by_type.setdefault(str(facts.get("quant_algo")).upper(), []).append(name)
    tables = [
        (ModuleNames(names), _ALGORITHMS[algorithm]) for algorithm, names in by_type.items() if algorithm in _ALGORITHMS
    ]

    def rule(part: WeightPart) -> StoredType | None:
        return next((stored for names, stored in tables if names.match(part)), None)

    return rule


def _expert_type(block: Config) -> StoredType | None:
    """The experts' own type, where a checkpoint has one beside the other matrices' (DeepSeek-V4)."""
    algorithm = block.get("moe_quant_algo")
    if isinstance(algorithm, str):
        return _ALGORITHMS.get(algorithm.upper())
    return _MXFP4 if block.get("expert_dtype") == "fp4" else None


def _ignored(block: Config) -> tuple[str, ...]:
    """Modules left in 16 bit. The fp8 method only reads its own two keys (vLLM 0.33, ``Fp8Config.from_config``)."""
    if block.get("quant_method") == "fp8":
        return words(block, "modules_to_not_convert") or words(block, "ignored_layers") or ()
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers", "llm_int8_skip_modules"):
        listed = words(block, key)
        if listed is not None:
            return listed
    return ()


def is_matrix(part: WeightPart) -> bool:
    """Whether quantizers convert the part under "all linear layers": matrices of decoder layers."""
    if part.name.startswith(("vision.", "audio.")) or (part.layer is None and not part.name.startswith("mtp.")):
        return False
    return part.name.endswith(("proj", "experts"))
