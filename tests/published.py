"""Config facts of published models in a short form, and the figures that a person writes down for them.

``{"$repeat": [a, b], "$length": 5}`` is a b a b a; ``{"$runs": [[a, 2], [b, 1]]}`` is a a b; ``{"$blocks": …}`` are
runs of (heads in group, no-op, linear) of Nemotron-NAS.
"""

import ast
import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.hf_config import read_config
from kvplan.layers import BFLOAT16, FLOAT16, FP8, IndexKeys, KvTypes, LatentAttention, Layer
from kvplan.model import ModelSpec, Source

FOLDER = Path(__file__).parent / "configs"


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published model's facts and its golden arithmetic (bytes of one copy, in the type vLLM would use)."""

    id: str
    source: str
    checked_against: str
    config: dict[str, Any]
    quantization: dict[str, Any] | None
    growing: str
    windowed: str
    fixed: str

    def read(self) -> ModelSpec:
        """The model as kvplan reads it."""
        return read_config(
            self.config, model_id=self.id, source=Source(name=self.source), quantization=self.quantization
        )


def load_published() -> list[Published]:
    """All rows of ``tests/configs``."""
    return [
        Published(
            id=row["id"],
            source=row["source"],
            checked_against=row["checked_against"],
            config=_expanded(row["config"]),
            quantization=row.get("hf_quant_config"),
            growing=row["growing_bytes_per_token"],
            windowed=row["windowed_bytes_per_token"],
            fixed=row["fixed_bytes"],
        )
        for path in sorted(FOLDER.glob("*.json"))
        for row in json.loads(path.read_text(encoding="utf-8"))
    ]


def _expanded(value: Any) -> Any:
    if isinstance(value, dict):
        if "$repeat" in value:
            period = value["$repeat"]
            return [period[index % len(period)] for index in range(value["$length"])]
        if "$runs" in value:
            return [item for item, times in value["$runs"] for _ in range(times)]
        if "$blocks" in value:
            return [
                {"attention": {"n_heads_in_group": group, "no_op": no_op, "replace_with_linear": linear}}
                for (group, no_op, linear), times in value["$blocks"]
                for _ in range(times)
            ]
        return {key: _expanded(item) for key, item in value.items()}
    return value


def evaluate(arithmetic: str) -> Fraction:
    """The value of sums, products and quotients of whole numbers, exactly.

    >>> evaluate("2 × (3 + 4) / 4")
    Fraction(7, 2)
    """
    return _value(ast.parse(arithmetic.replace("×", "*"), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    if isinstance(node, ast.Constant):
        assert isinstance(node.value, int)
        return Fraction(node.value)
    assert isinstance(node, ast.BinOp)
    left, right = _value(node.left), _value(node.right)
    if isinstance(node.op, ast.Add):
        return left + right
    if isinstance(node.op, ast.Mult):
        return left * right
    assert isinstance(node.op, ast.Div)
    return left / right


def stored_types(model: ModelSpec, asked: str = "auto") -> KvTypes:
    """The simplest reading of a KV type: 16 bits or fp8; sparse MLA packs its fp8 entries. Engines know more."""
    native = FLOAT16 if model.dtype == "float16" else BFLOAT16
    name = model.kv_scheme or "auto" if asked == "auto" else asked
    if model.ignores_kv_dtype or not name.startswith("fp8"):
        return KvTypes(key=native, value=native)
    kinds: set[type[Layer]] = {type(kept) for layer in model.layers for kept in layer}
    packed = "fp8_ds_mla" if LatentAttention in kinds and IndexKeys in kinds else None
    return KvTypes(key=FP8, value=FP8, packed=packed)
