"""What a planner knows of a model: its layers in order, its context, its weights; and what they cost."""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.layers import IndexKeys, KvTypes, LatentAttention, Layer, StoredType, share

MAX_LAYERS = 10_000
"""Each layer is an object here, so an absurd number is refused; the deepest published decoder has 126."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a model's facts came from. ``name`` is shown to the user; ``checked`` dates bundled facts."""

    name: str
    revision: str | None = None
    checked: str | None = None


@dataclass(frozen=True, kw_only=True)
class EncoderShape:
    """A vision encoder: the widths of its layers, how many patches become one token, the tokens of the largest item
    that it receives (0: not known), and how many vectors of the text model's width it makes of each token."""

    hidden: int
    intermediate: int
    patches_per_token: int
    item_tokens: int = 0
    outputs: int = 1


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Widths that the engines' activation terms need; null where the config does not state them."""

    hidden: int
    vocabulary: int | None = None
    intermediate: int | None = None
    experts: int | None = None
    experts_per_token: int | None = None
    expert_intermediate: int | None = None
    has_vision: bool = False
    vision_layers: int | None = None
    vision_hidden: int | None = None
    encoder: EncoderShape | None = None
    is_pooling: bool = False


@dataclass(frozen=True, kw_only=True)
class WeightPart:
    """Parameters of one kind, and how tensor parallelism splits them.

    ``split``: ``heads`` (query side, always divided), ``kv_heads`` (divided, then replicated; ``kv_heads`` says how
    many there are), ``columns`` (MLP and experts, divided), ``vocabulary`` (embedding and head, divided after padding
    the vocabulary) or ``none`` (a copy on every rank). ``layer`` is the index of the decoder layer, None outside them.
    """

    name: str
    parameters: int
    split: str
    layer: int | None = None
    kv_heads: int | None = None
    stored: StoredType | None = None


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A model's weights: published totals (Hub metadata or catalogue), and parts counted from the config."""

    parameters: int | None = None
    stored_bytes: int | None = None
    parts: tuple[WeightPart, ...] = ()
    quantization: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as read from its config.

    ``layers[i]`` holds what decoder layer i keeps: usually one kind, none for a layer without KV, several where a
    layer keeps more than one cache (Falcon-H1: attention and Mamba state; sparse MLA: latent and index keys).
    ``max_context_tokens`` is null where the config does not say; ``query_heads`` holds every number of query heads that
    must divide among tensor-parallel ranks. ``dtype`` is the type vLLM would run the model in ("bfloat16" where the
    config has none or float32); ``kv_scheme`` is the KV type that the checkpoint asks for under ``auto``.
    ``ignores_kv_dtype`` marks the classes whose cache stays 16-bit whatever type is asked for (Falcon). ``notes`` says
    in words what the source leaves open. ``states_context`` is False where ``max_context_tokens`` is only what the
    class fills in: a longer window is then not refused. ``next_token_layers`` is what each MTP (multi-token prediction)
    layer of the checkpoint keeps where an engine loads it for speculation; such layers are not among ``layers``.
    """

    id: str
    architecture: str
    source: Source
    layers: tuple[tuple[Layer, ...], ...]
    max_context_tokens: int | None
    query_heads: tuple[int, ...]
    dtype: str
    shape: Shape
    weights: Weights
    kv_scheme: str | None = None
    ignores_kv_dtype: bool = False
    is_encoder_decoder: bool = False
    notes: tuple[str, ...] = ()
    states_context: bool = True
    next_token_layers: tuple[tuple[Layer, ...], ...] = ()

    @property
    def caches(self) -> tuple[Layer, ...]:
        """What the decoder layers keep, in order."""
        return tuple(kept for layer in self.layers for kept in layer)

    @property
    def has_sparse_latents(self) -> bool:
        """Whether an indexer picks among MLA's latents (DeepSeek-V3.2, GLM-5)."""
        return self.keeps(LatentAttention) and self.keeps(IndexKeys)

    def keeps(self, *kinds: type[Layer]) -> bool:
        """Whether any layer keeps a cache of one of ``kinds``."""
        return any(isinstance(kept, kinds) for kept in self.caches)

    def rank_layers(self, tensor_parallel: int) -> tuple[tuple[Layer, ...], ...]:
        """One tensor-parallel rank's share of every layer; InputError where the heads do not divide."""
        for heads in self.query_heads:
            share(heads, tensor_parallel, "query heads")
        return tuple(tuple(kept.shard(tensor_parallel) for kept in layer) for layer in self.layers)

    def growing_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that every token adds, over all layers of one copy of the model."""
        return sum((kept.growing_bytes_per_token(kv) for kept in self.caches), Fraction(0))

    def windowed_bytes_per_token(self, kv: KvTypes) -> Fraction:
        """Bytes that a token adds in window and chunk layers while those fill."""
        return sum((kept.windowed_bytes_per_token(kv) for kept in self.caches), Fraction(0))

    def fixed_bytes(self, kv: KvTypes) -> int:
        """Bytes that a sequence of any length holds: recurrent state and cross-attention KV."""
        return sum(kept.fixed_bytes(kv) for kept in self.caches)

    def sequence_bytes(self, tokens: int, kv: KvTypes) -> int:
        """Bytes of one sequence of ``tokens`` tokens, before an engine rounds to pages."""
        return sum(kept.bytes_for(tokens, kv) for kept in self.caches)
