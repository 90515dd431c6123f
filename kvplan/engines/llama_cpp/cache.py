"""llama.cpp's cache: the types of K and V, how slots share the context, and the buffers allocated at start-up.

Source: ``llama-context.cpp``, ``llama-kv-cache*.cpp`` and ``tools/server`` of the build in llama-cpp-python 0.3.36, and
ggml's block sizes.
"""

from dataclasses import dataclass, replace

from kvplan.engines.ranks import CacheSizes, cache_sizes
from kvplan.engines.token_pool import windows_as_full
from kvplan.errors import InputError
from kvplan.layers import (
    FLOAT16,
    FLOAT32,
    FullAttention,
    IndexKeys,
    KvTypes,
    Layer,
    RecurrentLayer,
    SlidingAttention,
    StoredType,
)
from kvplan.model import ModelSpec

CACHE_TYPES = {
    "f32": FLOAT32,
    "f16": FLOAT16,
    "bf16": StoredType(name="bf16", bytes_per_group=2),
    "q8_0": StoredType(name="q8_0", bytes_per_group=34, elements_per_group=32),
    "q5_1": StoredType(name="q5_1", bytes_per_group=24, elements_per_group=32),
    "q5_0": StoredType(name="q5_0", bytes_per_group=22, elements_per_group=32),
    "q4_1": StoredType(name="q4_1", bytes_per_group=20, elements_per_group=32),
    "q4_0": StoredType(name="q4_0", bytes_per_group=18, elements_per_group=32),
    "iq4_nl": StoredType(name="iq4_nl", bytes_per_group=18, elements_per_group=32),
}
"""The types of ``--cache-type-k`` and ``--cache-type-v``."""
_OTHER_WORDS = {"auto": "f16", "float16": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32"}
AUTO_SLOTS = 4
UBATCH_TOKENS = 512
"""Default of ``--ubatch-size``: tokens computed in one pass."""
PADDING_CELLS = 256
"""Caches are whole multiples of this (``llama-context.cpp``)."""
FIRST_PADDED_BUILD = (2775,)
"""The build of pull request 5021 (April 2024); before it a cache had as many cells as were asked for."""
FIRST_WINDOW_CACHES = (5428,)
"""About the build of pull request 13194 (20 May 2025); before it window layers kept every token."""
FIRST_AUTO_SLOTS = (6929,)
"""About the build of pull request 16736 (2 November 2025); before it a server had one slot by default."""


def cache_types(key: str | None, value: str | None, kv_dtype: str = "auto") -> KvTypes:
    """The stored types: K's and V's own words, else ``kv_dtype`` for both, else f16.

    >>> types = cache_types("q8_0", "q4_0")
    >>> types.key.bytes_for(1024), types.value.bytes_for(1024)
    (Fraction(1088, 1), Fraction(576, 1))
    """
    return KvTypes(
        key=_named(key, "cache_type_k") if key else _named(kv_dtype, "kv_dtype"),
        value=_named(value, "cache_type_v") if value else _named(kv_dtype, "kv_dtype"),
    )


def cache_word(kv_dtype: str) -> str:
    """llama.cpp's own word for a KV type.

    >>> cache_word("float16"), cache_word("q8_0")
    ('f16', 'q8_0')
    """
    return _OTHER_WORDS.get(kv_dtype, kv_dtype)


def _named(word: str, option: str) -> StoredType:
    name = cache_word(word)
    if name not in CACHE_TYPES:
        raise InputError(
            f"{word!r} is not a cache type of llama.cpp", hint=f"one of {', '.join(CACHE_TYPES)}", key=option
        )
    return CACHE_TYPES[name]


@dataclass(frozen=True, kw_only=True)
class Slots:
    """How a server divides its context among slots.

    ``window_tokens`` is what each slot can use at least. ``cells`` are those of one stream, rounded up to 256. A
    unified cache is one stream that all slots share; otherwise each slot has its own.
    """

    slots: int
    is_unified: bool
    window_tokens: int
    cells: int

    @property
    def streams(self) -> int:
        """Separate caches."""
        return 1 if self.is_unified else self.slots

    @property
    def all_cells(self) -> int:
        """Cells of all streams."""
        return self.streams * self.cells


def divide_context(
    context_tokens: int,
    slots: int | None,
    unified: bool | None,  # noqa: FBT001
    padding_cells: int = PADDING_CELLS,
) -> Slots:
    """The slots of ``--ctx-size``, ``--parallel`` and ``--kv-unified``.

    By default there are 4 slots and the cache is unified; with a number of slots it is divided by default.
    Source: ``tools/server/server.cpp`` and ``llama-context.cpp`` (``n_ctx_seq``).

    >>> divide_context(163840, 6, None).window_tokens, divide_context(1024, None, None).window_tokens
    (27306, 1024)
    """
    is_unified = slots is None if unified is None else unified
    count = slots or AUTO_SLOTS
    whole = _padded(context_tokens, padding_cells)
    window = context_tokens if is_unified else context_tokens // count
    if window < 1:
        raise InputError(
            f"{context_tokens:,} tokens of context for {count} slots leave none for a slot",
            hint="raise --context, or lower --max-num-seqs (the slots)",
            key="max_num_seqs",
        )
    return Slots(
        slots=count,
        is_unified=is_unified,
        window_tokens=window,
        cells=whole if is_unified else _padded(whole // count, padding_cells),
    )


def served_tokens(model: ModelSpec, slots: Slots) -> int:
    """The longest request: the slot's window, at most the context that the model was trained for.

    A longer window is allocated all the same, and the server caps the slot (``n_ctx_slot`` of ``server-context.cpp``).
    """
    native = model.max_context_tokens
    return slots.window_tokens if native is None or not model.states_context else min(slots.window_tokens, native)


def window_cells(window: int, slots: Slots, ubatch_tokens: int, *, swa_full: bool = False) -> int:
    """Cells of one stream of the window cache: min(cells, window × slots that share it + micro-batch), up to 256.

    Source: ``llama-kv-cache-iswa.cpp``.

    >>> window_cells(1024, divide_context(131072, 1, None), 512)
    1536
    """
    if swa_full:
        return slots.cells
    sharing = slots.slots if slots.is_unified else 1
    return _padded(min(slots.cells, window * sharing + ubatch_tokens))


def _padded(cells: int, padding_cells: int = PADDING_CELLS) -> int:
    return -(-cells // padding_cells) * padding_cells


def compute_buffer_bytes(ubatch_tokens: int, vocabulary: int, hidden: int) -> int:
    """The compute buffer: float32 logits and one hidden state for every token of a micro-batch.

    512 × 4 B × (vocabulary + hidden): 307 MiB for Qwen2.5-14B, 70.5 MiB for Llama-2-7B, as their logs say; 4% less
    than the log for Nemotron-3-Nano. Without flash attention it also holds scores over the context. Builds from June
    2026 on (pull request 23861) reserve the logits of one token per slot, so this is the most they take.
    """
    return logits_bytes(ubatch_tokens, vocabulary) + ubatch_tokens * 4 * hidden


def logits_bytes(tokens: int, vocabulary: int) -> int:
    """Float32 logits of ``tokens`` tokens."""
    return tokens * 4 * vocabulary


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """What is allocated on one device when the server starts."""

    full_bytes: int
    window_bytes: int
    state_bytes: int
    compute_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Both KV caches, the sum of the log's "KV buffer size" lines."""
        return self.full_bytes + self.window_bytes

    @property
    def pool_bytes(self) -> int:
        """What requests share: the full cache, or the states of all slots where no layer grows."""
        return self.full_bytes or self.state_bytes


def buffers(model: ModelSpec, kv: KvTypes, slots: Slots, ubatch_tokens: int, *, swa_full: bool, part: range) -> Buffers:
    """Buffers of the decoder layers ``part``: cells × bytes per cell, and one float32 state per slot."""
    kept = part_sizes(model, kv, part)
    cells = 0
    if kept.window_tokens is not None:
        cells = window_cells(kept.window_tokens, slots, ubatch_tokens, swa_full=swa_full)
    return Buffers(
        full_bytes=int(kept.growing_per_token * slots.all_cells),
        window_bytes=int(kept.windowed_per_token * cells * slots.streams),
        state_bytes=kept.state_bytes * slots.slots,
        compute_bytes=compute_buffer_bytes(ubatch_tokens, model.shape.vocabulary or 0, model.shape.hidden),
    )


def ignored_windows(model: ModelSpec) -> int:
    """Layers whose window llama.cpp ignores: it has window caches only beside full attention or recurrent state.

    Mistral, Phi-3, Phi-MoE and Starcoder 2, whose every layer has a window, keep all tokens: their classes set no
    ``swa_type`` in ``src/models`` (Phi-3 says so: "Phi SWA is currently disabled").
    """
    kept = model.caches
    has_others = any(isinstance(layer, (FullAttention, RecurrentLayer)) for layer in kept)
    return 0 if has_others else sum(isinstance(layer, SlidingAttention) for layer in kept)


def part_sizes(model: ModelSpec, kv: KvTypes, part: range) -> CacheSizes:
    """What the decoder layers ``part`` keep as llama.cpp stores it."""
    kept = cache_sizes((_stored(layer, kv) for index in part for layer in model.layers[index]), kv)
    return windows_as_full(kept) if ignored_windows(model) else kept


def _stored(layer: Layer, kv: KvTypes) -> Layer:
    """Recurrent states are float32 whatever the model's type; an indexer's keys are one head of the K type.

    Source: ``llama-kv-cache-dsa.cpp``. A config's index keys are priced as 8-bit values with a 4-byte scale for 128.
    """
    if isinstance(layer, RecurrentLayer):
        return replace(layer, conv_type=FLOAT32, temporal_type=FLOAT32)
    if isinstance(layer, IndexKeys):
        return replace(layer, bytes_per_entry=int(kv.key.bytes_for(layer.bytes_per_entry * 128 // 132)))
    return layer
