"""A GGUF file's keys → what each layer keeps. Layers are read by feature; what is not understood is refused.

Source: llama.cpp (as of llama-cpp-python 0.3.36): ``llama-hparams.cpp``, ``llama-kv-cache*.cpp`` and the readers of
single architectures in ``src/models``.
"""

from collections.abc import Mapping

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.gguf.header import LongArray
from kvplan.gguf.keys import CONFIG_HINT, WHOLE_FILE_HINT, Keys
from kvplan.gguf.states import PURELY_RECURRENT, STATE_BESIDE_ATTENTION, recurrent_layers, recurrent_state
from kvplan.gguf.windows import read_windows
from kvplan.layers import ChunkedAttention, FullAttention, LatentAttention, Layer, SharedKv, SlidingAttention
from kvplan.model import ModelSpec, Shape, Source, Weights

_MOST_LAYERS = 10_000
_KEEPS_NO_KV = {
    "bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "eurobert",
    "modern-bert",
    "gemma-embedding",
}
_REFUSED = {
    "clip": "the projector beside a vision model, not the model",
    "deepseek4": "compressed KV",
    "dots3note": "window layers beside an indexer",
    "glm5-next": "pooled index keys",
    "hy-v4": "an indexer of its own layout",
    "minimax-m3": "index keys beside grouped attention",
    "qwen4exp": "index keys beside recurrent state",
    "t5": "an encoder whose output length sets the cross-attention cache",
}


def read_gguf_metadata(
    metadata: Mapping[str, object],
    *,
    model_id: str = "model.gguf",
    source: Source | None = None,
    parameters: int | None = None,
    stored_bytes: int | None = None,
) -> ModelSpec:
    """The model that a GGUF file's keys describe. ``stored_bytes`` are those of its tensors.

    ``block_count`` includes next-token (MTP) layers; the main context keeps nothing for them, so they are left out.
    Raises InputError for a missing or malformed key, UnsupportedModelError for a cache that is not modelled.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not architecture:
        raise InputError(
            f"{model_id} does not say general.architecture",
            hint=WHOLE_FILE_HINT,
            file=model_id,
            key="general.architecture",
        )
    keys = Keys(metadata=metadata, architecture=architecture, file=model_id)
    _refuse(keys)
    count = keys.needed("block_count") - (keys.number("nextn_predict_layers") or 0)
    if not 0 < count <= _MOST_LAYERS:
        raise keys.wrong(
            f"{architecture}.block_count", keys.raw("block_count"), f"a number of layers from 1 to {_MOST_LAYERS:,}"
        )
    layers, notes = _layers(keys, count)
    heads = keys.per_layer("attention.head_count", count) or ()
    return ModelSpec(
        id=model_id,
        architecture=architecture,
        source=source or Source(name=model_id),
        layers=layers,
        max_context_tokens=keys.number("context_length"),
        query_heads=tuple(sorted({number for number in heads if number})),
        dtype="float16",
        shape=_shape(keys, count),
        weights=Weights(parameters=parameters, stored_bytes=stored_bytes, quantization=_quantization(metadata)),
        notes=notes,
    )


def _refuse(keys: Keys) -> None:
    reason = _REFUSED.get(keys.architecture)
    if reason is None and keys.raw("attention.cross_attention_layers") is not None:
        reason = "cross-attention layers"
    if reason is not None:
        raise UnsupportedModelError(
            f"{keys.file}: the GGUF architecture {keys.architecture!r} ({reason}) is not modelled",
            hint=CONFIG_HINT,
            file=keys.file,
            key="general.architecture",
        )


def _layers(keys: Keys, count: int) -> tuple[tuple[tuple[Layer, ...], ...], tuple[str, ...]]:
    """What each layer keeps, and what the file leaves open."""
    if keys.architecture in _KEEPS_NO_KV:
        return ((),) * count, ()
    heads = keys.per_layer("attention.head_count", count)
    kv_heads = keys.per_layer("attention.head_count_kv", count) or heads
    if kv_heads is None and keys.architecture not in PURELY_RECURRENT:
        keys.needed("attention.head_count_kv")
    kv_heads = kv_heads or (0,) * count
    recurrent = recurrent_layers(keys, count, kv_heads)
    state = (
        recurrent_state(keys, max(heads or (0,)), keys.number("attention.key_length") or 0) if any(recurrent) else ()
    )
    windows, ignored = read_windows(keys, count)
    shared_from = _shared_from(keys, count)
    layers: list[tuple[Layer, ...]] = []
    for index in range(count):
        kept: tuple[Layer, ...] = ()
        if not recurrent[index] or keys.architecture in STATE_BESIDE_ATTENTION:
            kept = _attention(keys, index, kv_heads[index], heads, windows[index])
            if index >= shared_from:
                kept = (SharedKv(read=kept[0] if kept else None),)
        layers.append((*kept, *state) if recurrent[index] else kept)
    unsaid = None
    if any(recurrent) and not state:
        unsaid = f"the file has no {keys.architecture}.ssm keys: the state of {sum(recurrent)} layers is not counted"
    return tuple(layers), tuple(note for note in (ignored, unsaid) if note)


def _shared_from(keys: Keys, count: int) -> int:
    """The first layer that reads another layer's KV; ``count`` where none does. Gemma 3n's first 20 keep theirs."""
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
    """What an attention layer keeps. MLA (both ``*_mla`` lengths given) keeps K only; V is a part of it."""
    if kv_heads == 0:
        return ()
    key_length, value_length = _head_lengths(keys, heads, is_window=window is not None)
    if keys.number("attention.key_length_mla") and keys.number("attention.value_length_mla"):
        rank = keys.needed("attention.kv_lora_rank")
        return (LatentAttention(latent_dim=rank, rope_dim=key_length - rank), *_index_keys(keys, index))
    if keys.number("attention.indexer.key_length"):
        raise UnsupportedModelError(
            f"{keys.file}: {keys.architecture} has an indexer without MLA, which is not modelled",
            hint=CONFIG_HINT,
            file=keys.file,
            key=f"{keys.architecture}.attention.indexer.key_length",
        )
    heads_kept = {"kv_heads": kv_heads, "head_dim": key_length, "value_head_dim": value_length}
    if window is None:
        return (FullAttention(**heads_kept),)
    if keys.architecture == "llama4":
        return (ChunkedAttention(**heads_kept, chunk=window),)
    return (SlidingAttention(**heads_kept, window=window),)


def _index_keys(keys: Keys, index: int) -> tuple[Layer, ...]:
    """Keys of a sparse-attention indexer: one head without values, in the K type, where the layer has its own."""
    width = keys.number("attention.indexer.key_length")
    if not width:
        return ()
    types = keys.raw("attention.indexer.types")
    if isinstance(types, (list, tuple)) and index < len(types) and not types[index]:
        return ()
    return (FullAttention(kv_heads=1, head_dim=width, value_head_dim=0),)


def _head_lengths(keys: Keys, heads: tuple[int, ...] | None, *, is_window: bool) -> tuple[int, int]:
    """Widths of K and V of one head: the window's own, the file's, or ``embedding_length / head_count``."""
    key_length, value_length = keys.number("attention.key_length"), keys.number("attention.value_length")
    if is_window:
        key_length = keys.number("attention.key_length_swa") or key_length
        value_length = keys.number("attention.value_length_swa") or value_length
    if key_length is None or value_length is None:
        queries = next((number for number in heads or () if number), 0)
        width = keys.needed("embedding_length")
        if not queries:
            keys.needed("attention.key_length")
        key_length = key_length if key_length is not None else width // queries
        value_length = value_length if value_length is not None else width // queries
    return key_length, value_length


def _shape(keys: Keys, count: int) -> Shape:
    vocabulary = keys.number("vocab_size")
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if vocabulary is None and isinstance(tokens, LongArray):
        vocabulary = tokens.elements
    elif vocabulary is None and isinstance(tokens, list):
        vocabulary = len(tokens)
    widths = keys.per_layer("feed_forward_length", count)
    expert_widths = keys.per_layer("expert_feed_forward_length", count)
    experts = keys.number("expert_count")
    return Shape(
        hidden=keys.number("embedding_length") or 0,
        vocabulary=vocabulary,
        intermediate=max(widths) if widths else None,
        experts=experts or None,
        experts_per_token=keys.number("expert_used_count") or None,
        expert_intermediate=max(expert_widths) if expert_widths else None,
        is_pooling=keys.architecture in _KEEPS_NO_KV,
    )


# ``general.file_type``: what most tensors are stored in (llama.cpp's ``llama_ftype``).
_FILE_TYPES = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    25: "IQ4_NL",
    30: "IQ4_XS",
    32: "BF16",
    38: "MXFP4",
    39: "NVFP4",
}


def _quantization(metadata: Mapping[str, object]) -> str | None:
    number = metadata.get("general.file_type")
    if not isinstance(number, int):
        return None
    name = _FILE_TYPES.get(number, f"file type {number}")
    return f"gguf {name}"
