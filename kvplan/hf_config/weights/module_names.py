"""Which parts a quantization config means by its lists of module names and patterns."""

import fnmatch
import re
from collections.abc import Iterator, Mapping, Sequence

from kvplan.errors import InputError
from kvplan.hf_config.config import CHECK_HINT
from kvplan.model import WeightPart

_MODULES: Mapping[str, tuple[str, ...]] = {
    # the checkpoint's modules that make up one part
    "self_attn.kv_proj": ("self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.kv_a_proj": ("self_attn.kv_a_proj_with_mqa",),
    "self_attn.indexer.wq_b_proj": ("self_attn.indexer.wq_b",),
    "mlp.proj": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "mlp.experts": (
        "mlp.experts",
        "block_sparse_moe.experts",
        "experts",
        "mlp.experts.0.gate_proj",
        "mlp.experts.0.up_proj",
        "block_sparse_moe.experts.0.gate_proj",
        "block_sparse_moe.experts.0.w1",
    ),
    "mlp.shared_experts.proj": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_expert.gate_proj",
        "mlp.shared_experts.up_proj",
        "mlp.shared_experts",
        "block_sparse_moe.shared_experts.gate_proj",
    ),
    "linear_attn.in_proj": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.in_proj_qkvz"),
    "mixer.in_groups_proj": ("mixer.in_proj",),
}
_BESIDE_LAYERS = ("vision", "visual", "mtp", "audio", "multi_modal", "embed_vision")


class ModuleNames:
    """Module names and patterns from a config, matched against parts.

    Patterns that name a layer are kept by layer, because a checkpoint may list thousands of them.
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._plain: set[str] = set()
        self._globs: list[str] = []
        self._globs_by_layer: dict[int, list[str]] = {}
        self._expressions: list[re.Pattern[str]] = []
        for entry in entries:
            if entry.startswith("re:"):
                self._expressions.append(_compile(entry[3:]))
            elif not entry.startswith(_BESIDE_LAYERS) and ".visual" not in entry and "vision" not in entry:
                self._add(_from_layers(entry))

    def _add(self, name: str) -> None:
        if "*" not in name:
            self._plain.add(name)
        elif (found := re.match(r"layers\.(\d+)\.", name)) is not None:
            self._globs_by_layer.setdefault(int(found[1]), []).append(name)
        else:
            self._globs.append(name)

    def match(self, part: WeightPart) -> bool:
        """Whether an entry names the part, a module that contains it, or one of the modules in it."""
        globs = self._globs if part.layer is None else self._globs + self._globs_by_layer.get(part.layer, [])
        return any(self._match_name(name, globs) for name in module_names(part))

    def _match_name(self, name: str, globs: Sequence[str]) -> bool:
        pieces = name.split(".")
        for start in range(len(pieces)):
            for end in range(start + 1, len(pieces) + 1):
                if ".".join(pieces[start:end]) in self._plain:
                    return True
        full = f"model.{name}"
        if any(fnmatch.fnmatchcase(name, glob) or fnmatch.fnmatchcase(full, glob) for glob in globs):
            return True
        return any(expression.match(full) or expression.match(name) for expression in self._expressions)


def _compile(expression: str) -> re.Pattern[str]:
    try:
        return re.compile(expression)
    except re.error as error:
        raise InputError(
            f"quantization_config names modules by {expression!r}, which is not a regular expression", hint=CHECK_HINT
        ) from error


def _from_layers(entry: str) -> str:
    """``entry`` without what precedes ``layers.``, where a checkpoint and the class that loads it differ."""
    _, found, rest = entry.partition("layers.")
    return f"layers.{rest}" if found else entry


def module_names(part: WeightPart) -> Iterator[str]:
    """Names that a checkpoint may give to the modules in ``part``.

    >>> from kvplan.model import WeightPart
    >>> list(module_names(WeightPart(name="self_attn.kv_a_proj", parameters=1, split="none", layer=3)))[0]
    'layers.3.self_attn.kv_a_proj_with_mqa'
    """
    name = part.name.removeprefix("mtp.")
    prefix = "" if part.layer is None else f"layers.{part.layer}."
    for module in _MODULES.get(name, (name,)):
        yield prefix + module
        if part.layer is not None:
            for ours, theirs in (
                ("self_attn.", "mixer."),
                ("self_attn.", "attn."),
                ("mlp.", "mixer."),
                ("mlp.", "ffn."),
            ):
                if module.startswith(ours):
                    yield prefix + theirs + module.removeprefix(ours)
