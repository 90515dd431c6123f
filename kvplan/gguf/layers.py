"""What each layer of a GGUF file keeps: attention, windows and shared KV, as llama.cpp decides it.

Source: llama.cpp (as of llama-cpp-python 0.3.36), ``llama-hparams.cpp``, ``llama-kv-cache*.cpp`` and the readers of
single architectures in ``src/models``. Recurrent states are in ``states``.
"""

from kvplan.gguf.header import Keys
from kvplan.gguf.states import PURELY_RECURRENT, STATE_BESIDE_ATTENTION, recurrent_layers, recurrent_state
from kvplan.layers import ChunkedAttention, FullAttention, LatentAttention, Layer, SharedKv, SlidingAttention

KEEPS_NO_KV = frozenset({
    "bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert", "modern-bert",
    "gemma-embedding",
})  # fmt: skip
"""Architectures of encoders."""
# Periods of the architectures whose files state no pattern: the last layer of each period is full …
_LAST_IS_FULL = {
    "afmoe": 4,
    "cohere2": 4,
    "exaone-moe": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "mellum": 4,
    "olmo2": 4,
    "plamo3": 8,
}
# … or the first one.
_FIRST_IS_FULL = {"cohere2moe": 4, "laguna": 4, "smallthinker": 4}
# Windows of the architectures that need not state one, in tokens.
_WINDOW_DEFAULTS = {"gemma2": 4096, "llama4": 8192}
# For these, llama.cpp only reads windows from a list with one entry per layer.
_NEEDS_LIST = {"gemma4", "granite-swa", "maple", "mimo2", "step35", "spark2-5"}


def _windows(keys: Keys, count: int) -> tuple[tuple[int | None, ...], str | None]:
    """Each layer's window in tokens (None for full attention), and a note where llama.cpp ignores the file's window.

    A list in the file wins; else a period, the file's or the architecture's own.
    """
    architecture = keys.architecture
    window = _window(keys)
    if not window:
        return (None,) * count, None
    name = "attention.sliding_window_pattern"
    key = f"{architecture}.{name}"
    if not keys.raw(name):
        name = "sliding_window_pattern"
    pattern = keys.raw(name)
    if pattern is not None and not isinstance(pattern, int):
        slides = keys.per_layer(name, count) or ()
        return tuple(window if each else None for each in slides), None
    if pattern is None and architecture in _NEEDS_LIST:
        message = f"{architecture} has a window of {window} but no list of the layers that use it"
        raise keys.unsupported(message, key=key)
    if architecture == "lfm2":
        return (window,) * count, None
    if architecture == "exaone4" and count != 64:  # only the 32B model has windows; 64 layers tell it
        return (None,) * count, None
    period = pattern if pattern is not None else {**_FIRST_IS_FULL, **_LAST_IS_FULL}.get(architecture)
    if period is None:
        return (None,) * count, f"llama.cpp ignores the window of {window} tokens for {architecture}"
    if period < 0:
        raise keys.wrong(key, period, "a list or a period")
    full_at = 0 if architecture in _FIRST_IS_FULL else period - 1
    return tuple(None if period and index % period == full_at else window for index in range(count)), None


def _window(keys: Keys) -> int | None:
    """Tokens of the window or chunk; None or 0 where there is none."""
    window = keys.number("attention.sliding_window")
    if keys.architecture == "llama4":
        return 0 if window == 0 else keys.number("attention.chunk_size") or _WINDOW_DEFAULTS["llama4"]
    if keys.architecture == "smallthinker" and window:
        return 4096
    return window if window is not None else _WINDOW_DEFAULTS.get(keys.architecture)


def read_layers(keys: Keys, count: int) -> tuple[tuple[tuple[Layer, ...], ...], tuple[str, ...]]:
    """What each layer keeps, and what the file leaves open."""
    if keys.architecture in KEEPS_NO_KV:
        return ((),) * count, ()
    heads = keys.per_layer("attention.head_count", count)
    kv_heads = keys.per_layer("attention.head_count_kv", count) or heads
    if kv_heads is None and keys.architecture not in PURELY_RECURRENT:
        raise keys.missing("attention.head_count_kv")
    kv_heads = kv_heads or (0,) * count
    recurrent = recurrent_layers(keys, count, kv_heads)
    state = (
        recurrent_state(keys, max(heads or (0,)), keys.number("attention.key_length") or 0) if any(recurrent) else ()
    )
    windows, ignored = _windows(keys, count)
    shared_from = _shared_from(keys, count)
    layers: list[tuple[Layer, ...]] = []
    for index in range(count):
        kept: tuple[Layer, ...] = ()
        if not recurrent[index] or keys.architecture in STATE_BESIDE_ATTENTION:
            kept = _attention(keys, index, kv_heads[index], heads, windows[index])
            if index >= shared_from:
                kept = (SharedKv(read=kept[0] if kept else None),)
        layers.append((*kept, *state) if recurrent[index] else kept)
    missing = None
    if any(recurrent) and not state:
        missing = f"the file has no {keys.architecture}.ssm keys: the state of {sum(recurrent)} layers is not counted"
    return tuple(layers), tuple(note for note in (ignored, missing) if note)


def _shared_from(keys: Keys, count: int) -> int:
    """The first layer that reads another layer's KV; ``count`` where none does. Gemma 3n's first 20 keep their own."""
    shared = keys.number("attention.shared_kv_layers")
    if shared is not None:
        return count - shared
    return min(20, count) if keys.architecture == "gemma3n" else count


def _attention(
    keys: Keys,
    index: int,
    kv_heads: int,
    heads: tuple[int, ...] | None,
    window: int | None,
) -> tuple[Layer, ...]:
    """What an attention layer keeps. MLA (both ``*_mla`` lengths given) only keeps K, of which V is a part."""
    if kv_heads == 0:
        return ()
    key_length, value_length = _head_lengths(keys, heads, is_window=window is not None)
    if keys.number("attention.key_length_mla") and keys.number("attention.value_length_mla"):
        rank = keys.needed("attention.kv_lora_rank")
        return (LatentAttention(latent_dim=rank, rope_dim=key_length - rank), *_index_keys(keys, index))
    if keys.number("attention.indexer.key_length"):
        message = f"{keys.architecture} has an indexer without MLA, which is not modelled"
        raise keys.unsupported(message, key=f"{keys.architecture}.attention.indexer.key_length")
    full = FullAttention(kv_heads=kv_heads, head_dim=key_length, value_head_dim=value_length)
    if window is None:
        return (full,)
    if keys.architecture == "llama4":
        return (ChunkedAttention(**vars(full), chunk=window),)
    return (SlidingAttention(**vars(full), window=window),)


def _index_keys(keys: Keys, index: int) -> tuple[Layer, ...]:
    """Keys of a sparse-attention indexer, where the layer has its own: one head without values, in the K type."""
    width = keys.number("attention.indexer.key_length")
    if not width:
        return ()
    types = keys.raw("attention.indexer.types")
    if isinstance(types, (list, tuple)) and index < len(types) and not types[index]:
        return ()
    return (FullAttention(kv_heads=1, head_dim=width, value_head_dim=0),)


def _head_lengths(keys: Keys, heads: tuple[int, ...] | None, *, is_window: bool) -> tuple[int, int]:
    """Widths of K and V of one head: those of window layers, the file's, or ``embedding_length / head_count``."""
    key_length, value_length = keys.number("attention.key_length"), keys.number("attention.value_length")
    if is_window:
        key_length = keys.number("attention.key_length_swa") or key_length
        value_length = keys.number("attention.value_length_swa") or value_length
    if key_length is None or value_length is None:
        queries = next((number for number in heads or () if number), 0)
        width = keys.needed("embedding_length")
        if not queries:
            raise keys.missing("attention.key_length" if key_length is None else "attention.value_length")
        key_length = key_length if key_length is not None else width // queries
        value_length = value_length if value_length is not None else width // queries
    return key_length, value_length
