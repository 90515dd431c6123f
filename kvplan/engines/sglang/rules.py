"""SGLang's own arithmetic: defaults by GPU, what the static share leaves, and how it is shared out.

Source: ``server_args.py`` and ``model_runner.py`` of 0.5.6, ``pool_configurator.py`` of 0.5.23.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.errors import InputError
from kvplan.layers import BFLOAT16, FLOAT16, IndexKeys, KvTypes, LatentAttention, StoredType
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB

_TYPES: dict[str, StoredType] = {
    "bfloat16": BFLOAT16,
    "bf16": BFLOAT16,
    "float16": FLOAT16,
    "fp8_e4m3": StoredType(name="fp8_e4m3", bytes_per_group=1),
    "fp8_e5m2": StoredType(name="fp8_e5m2", bytes_per_group=1),
    "fp8": StoredType(name="fp8", bytes_per_group=1),
    # two values a byte, and a scale byte for 16 values; the log's sizes leave the scales out
    "fp4_e2m1": StoredType(name="fp4_e2m1", bytes_per_group=9, elements_per_group=16),
}
WINDOW_POOL_RATIO = Fraction(8, 10)
STATE_POOL_RATIO = Fraction(9, 10)
STATE_SLOTS_PER_REQUEST = 3
SPARSE_PAGE_TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Defaults of GPUs up to a size: tokens of a prefill chunk; the largest batch in a graph, and that from TP 4 on."""

    below_bytes: int | None
    chunk_tokens: int
    graph_batch: int
    graph_batch_parallel: int


_TIERS = (
    Tier(below_bytes=20 * GIB, chunk_tokens=2048, graph_batch=8, graph_batch_parallel=8),
    Tier(below_bytes=35 * GIB, chunk_tokens=2048, graph_batch=24, graph_batch_parallel=80),
    Tier(below_bytes=60 * GIB, chunk_tokens=4096, graph_batch=32, graph_batch_parallel=160),
    Tier(below_bytes=160 * GIB, chunk_tokens=8192, graph_batch=256, graph_batch_parallel=512),
    Tier(below_bytes=None, chunk_tokens=16384, graph_batch=512, graph_batch_parallel=512),
)


def tier_of(total_bytes: int) -> Tier:
    """The defaults that a device of ``total_bytes`` gets."""
    return next(tier for tier in _TIERS if tier.below_bytes is None or total_bytes < tier.below_bytes)


def default_fraction(total_bytes: int, chunk_tokens: int, tensor_parallel: int, pipeline_parallel: int = 1) -> Fraction:
    """``mem_fraction_static`` where none is given: (memory − reserve) / memory, to three digits.

    Reserve in MiB = 512 + 1.5 × max(chunk, 2,048) + 2 × graph batch + tp × pp / 8 × 1,024; above 60 GiB at least
    10 GiB.

    >>> float(default_fraction(81559 * 2**20, 8192, 1))
    0.835
    """
    tier = tier_of(total_bytes)
    graphs = tier.graph_batch if tensor_parallel < 4 else tier.graph_batch_parallel
    ranks = Fraction(tensor_parallel * pipeline_parallel, 8)
    reserve = 512 + Fraction(3, 2) * max(chunk_tokens, 2048) + 2 * graphs + ranks * 1024
    if total_bytes > 60 * GIB:
        reserve = max(reserve, Fraction(10 * 1024))
    share = 1 - reserve * MIB / total_bytes
    return Fraction(round(share * 1000), 1000)


def kv_memory(free_before_bytes: int, free_after_bytes: int, fraction: Fraction) -> int:
    """Memory of the pools: free after loading − (free before loading) × (1 − mem_fraction_static). May be negative.

    >>> kv_memory(100, 60, Fraction(9, 10))
    50
    """
    return int(free_after_bytes - free_before_bytes * (1 - fraction))


def smallest_fraction(free_before_bytes: int, loaded_bytes: int) -> Fraction:
    """The ``mem_fraction_static`` at which nothing is left for KV: loaded / free before loading."""
    return Fraction(loaded_bytes, free_before_bytes)


def window_pool_tokens(full_tokens: int, ratio: Fraction, page_tokens: int) -> int:
    """Tokens of the window pool: full × ratio, down to whole pages.

    >>> window_pool_tokens(32768, Fraction(1, 10), 256)
    3072
    """
    return int(full_tokens * ratio) // page_tokens * page_tokens


def kv_types(model: ModelSpec, kv_dtype: str) -> KvTypes:
    """The stored types under ``--kv-cache-dtype``; 8-bit KV of sparse MLA is packed with its scales (656 B a token)."""
    word = (model.kv_scheme or model.dtype) if kv_dtype == "auto" else kv_dtype
    if word not in _TYPES:
        raise InputError(
            f"{word!r} is not a KV type of SGLang", hint=f"one of auto, {', '.join(_TYPES)}", key="kv_dtype"
        )
    stored = _TYPES[word]
    packed = "fp8_ds_mla" if word.startswith("fp8") and is_sparse(model) else None
    return KvTypes(key=stored, value=stored, packed=packed)


def is_sparse(model: ModelSpec) -> bool:
    kept = [layer for layers in model.layers for layer in layers]
    return any(isinstance(layer, LatentAttention) for layer in kept) and any(
        isinstance(layer, IndexKeys) for layer in kept
    )


@dataclass(frozen=True, kw_only=True)
class Pools:
    """The memory of the pools shared out: ``kv_bytes`` for tokens, the rest for ``state_slots`` states."""

    kv_bytes: int
    state_bytes: int
    state_slots: int


def share_out(memory: int, state_bytes: int, ratio: Fraction, *, slots: int | None = None) -> Pools:
    """States get ratio / (1 + ratio) of the memory in whole slots, or ``slots`` of them; tokens get the rest.

    The pool has one slot more than it hands out (padding).
    Source: ``_handle_max_mamba_cache``.
    """
    if not state_bytes:
        return Pools(kv_bytes=memory, state_bytes=0, state_slots=0)
    count = slots if slots is not None else max(0, int(memory * ratio / (1 + ratio)) // state_bytes)
    return Pools(kv_bytes=memory - count * state_bytes, state_bytes=count * state_bytes, state_slots=count)
