"""What one rank's start-up run holds at its peak: forward pass, sampler, encoder and compiler, from plain numbers."""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.vllm import budget_constants as c
from kvplan.model import EncoderShape

SAMPLERS = {
    "torch": c.SAMPLER_COPIES_TORCH,
    "triton": c.SAMPLER_COPIES_TRITON,
    "flashinfer": c.SAMPLER_COPIES_FLASHINFER,
}


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank's start-up depends on. Widths are the whole model's; ``weight_bytes`` are this rank's.

    ``sampler``: torch, triton or flashinfer where it is known (a log says so), else None: the release's default.
    ``is_linked``: NVLink joins the cards. ``recurrent_width``: values per token that this rank's recurrent layer works
    with. ``latent_context_width``: K and V values per token that this rank's MLA heads make of a latent, 0 without MLA.
    ``sparse_latent_width``: width of a sparse MLA's latent, else 0. ``runs_flashinfer``: its attention is the default.
    ``is_drafter_captured``: what guesses ahead has graphs of its own. ``weight_share_unsure``: relative uncertainty of
    the weights.
    """

    release: tuple[int, ...]
    total_bytes: int
    utilization: Fraction
    weight_bytes: int
    sequences: int
    batched_tokens: int
    window_tokens: int
    hidden: int
    vocabulary: int = 0
    intermediate: int = 0
    experts_per_token: int = 0
    expert_intermediate: int = 0
    expert_slices: int = 1
    recurrent_width: int = 0
    tensor_parallel: int = 1
    gpus: int = 1
    rank: int = 0
    vendor: str = "nvidia"
    capability: tuple[int, int] | None = None
    unified_memory: bool = False
    is_linked: bool = False
    sampler: str | None = None
    is_second_runner: bool = False
    runs_flashinfer: bool = False
    runs_sampler: bool = True
    encoder: EncoderShape | None = None
    enforce_eager: bool = False
    query_tokens: int = 1
    latent_context_width: int = 0
    sparse_latent_width: int = 0
    speculative_bytes: int = 0
    speculative_formula: str = "weights of what guesses ahead"
    is_drafter_captured: bool = False
    lora_bytes: int = 0
    weight_share_unsure: Fraction = Fraction(0)
    weight_formula: str = "as given"


def sampler_copies(facts: RankFacts) -> Fraction:
    """Float32 copies of the logits that the start-up run's sampler holds; 0 where the rank does not sample."""
    if not facts.runs_sampler:
        return Fraction(0)
    sampler = facts.sampler or default_sampler(facts)
    if not facts.is_second_runner:
        return SAMPLERS[sampler]
    if facts.release < c.FIRST_WARM_UP_PASS:
        return c.SAMPLER_COPIES_LOGITS
    return c.SAMPLER_COPIES_WARM_UP[sampler]


def default_sampler(facts: RankFacts) -> str:
    """The top-k and top-p sampler of the release on this device: FlashInfer's on NVIDIA only, Triton's anywhere."""
    if facts.release < c.FIRST_TRITON_SAMPLER:
        return "torch"
    old = facts.vendor != "nvidia" or (facts.capability is not None and facts.capability < (8, 0))
    return "triton" if old or facts.release < c.FIRST_FLASHINFER_SAMPLER else "flashinfer"


def sampler_state_bytes(facts: RankFacts) -> int:
    """S × vocabulary × (4 B + 1 bit) for penalties, which the second runner keeps from the start.

    It is made after the weights are measured, so it counts once all that left the device is taken (0.27).
    """
    if not (facts.is_second_runner and facts.runs_sampler and facts.release >= c.FIRST_ALL_COUNTED):
        return 0
    return int(c.PENALTY_ROW_BYTES * facts.sequences * facts.vocabulary)


def compile_bytes(facts: RankFacts) -> int:
    """Vocabulary / tp × hidden × 2 B: the embedding table that torch.compile times its kernels on."""
    if facts.enforce_eager or facts.release < c.FIRST_COMPILE_BENCHMARK:
        return 0
    return facts.vocabulary * facts.hidden * c.ACTIVATION_BYTES // facts.tensor_parallel


def sampler_bytes(facts: RankFacts) -> int:
    """Copies × min(S, T) × vocabulary × 4 B."""
    rows = min(facts.sequences, facts.batched_tokens)
    return int(sampler_copies(facts) * rows * facts.vocabulary * 4)


def expert_width(facts: RankFacts) -> int:
    """Values per token in the experts' two workspaces: top_k × 2 × max(2 × expert width / slices, hidden).

    Gate and up share one with the expert's output, their product has the other (vLLM,
    ``TritonExperts.workspace_shapes``). Slices: tp × dp, 1 under expert parallelism.
    """
    widest = max(2 * facts.expert_intermediate // facts.expert_slices, facts.hidden)
    return facts.experts_per_token * c.EXPERT_WORKSPACES * widest


def dense_width(facts: RankFacts) -> int:
    """Values per token alive at the peak of a layer beside experts: 3 × hidden, and the wider of a dense MLP's
    3 × intermediate / tp and a recurrent layer's own."""
    mlp = 0 if facts.experts_per_token else c.FORWARD_INTERMEDIATES * facts.intermediate // facts.tensor_parallel
    return c.FORWARD_HIDDENS * facts.hidden + max(mlp, facts.recurrent_width)


def delta_width(*, key_heads: int, key_dim: int, value_heads: int, value_dim: int) -> int:
    """Values per token of a gated delta net's heads on one rank: 10 × keys + 9 × values + what its chunks of 64 make.

    Keys: queries and keys as projected, joined, convolved, laid out by heads and normed. Values: the same without the
    norm, the gate, the output, and three of the chunked kernel. Each head has 64 products of a token with its chunk in
    32 and in 16 bit, a row of keys, and its share of the chunk's state, dk × dv / 64. Source: vLLM 0.20 and 0.33,
    ``chunk_gated_delta_rule_fwd``; with steps of 32,768 tokens two starts of Qwen3.6-35B-A3B take 240 and 270 kB a
    token with their experts, with 65,536 one of Qwen3.6-27B 230 kB.

    >>> delta_width(key_heads=16, key_dim=128, value_heads=32, value_dim=128)
    75776
    """
    chunk = c.DELTA_CHUNK_TOKENS
    kept = 10 * key_heads * key_dim + 9 * value_heads * value_dim
    return kept + value_heads * (3 * chunk + key_dim + key_dim * value_dim // chunk)


def expert_tokens(facts: RankFacts) -> int:
    """Tokens that experts work on at a time."""
    whole = facts.release >= c.FIRST_WHOLE_EXPERTS
    return facts.batched_tokens if whole else min(facts.batched_tokens, c.EXPERT_CHUNK_TOKENS)


def forward_bytes(facts: RankFacts) -> int:
    """2 B × (T × dense width + tokens at a time × experts' width), and for MLA the K and V of up to 65,536 cached
    tokens that a prefill turns back from latents."""
    latent = c.LATENT_CONTEXT_TOKENS if facts.latent_context_width else 0
    context = min(latent, 8 * facts.window_tokens) * facts.latent_context_width
    values = facts.batched_tokens * dense_width(facts) + expert_tokens(facts) * expert_width(facts)
    return c.ACTIVATION_BYTES * (values + context)


def encoder_tokens(facts: RankFacts) -> int:
    """Tokens of the pictures that the start-up run encodes: as many of the largest item as a step's tokens hold, and
    one at least (vLLM 0.33, ``compute_mm_encoder_budget`` and ``MultiModalBudget``)."""
    if facts.encoder is None:
        return 0
    item = facts.encoder.item_tokens
    return max(facts.batched_tokens, item) // item * item if item else facts.batched_tokens


def encoder_width(facts: RankFacts) -> int:
    """Values per patch alive in the encoder, as in a decoder layer: 3 × intermediate / tp + 3 × hidden."""
    if facts.encoder is None:
        return 0
    mlp = c.FORWARD_INTERMEDIATES * facts.encoder.intermediate // facts.tensor_parallel
    return mlp + c.FORWARD_HIDDENS * facts.encoder.hidden


def encoder_bytes(facts: RankFacts) -> int:
    """Tokens × patches a token × 2 B × encoder width."""
    if facts.encoder is None:
        return 0
    return encoder_tokens(facts) * facts.encoder.patches_per_token * c.ACTIVATION_BYTES * encoder_width(facts)


def output_tokens(facts: RankFacts) -> int:
    """Tokens that the encoder's outputs are kept for."""
    is_wide = facts.encoder is not None and facts.encoder.outputs > 1 and facts.release[:2] == c.WIDE_VIDEO_RELEASE
    return c.WIDE_VIDEO_TOKENS if is_wide else encoder_tokens(facts)


def encoder_output_bytes(facts: RankFacts) -> int:
    """Tokens × vectors a token × hidden × 2 B, which stay while the decoder and the sampler run."""
    if facts.encoder is None:
        return 0
    return output_tokens(facts) * facts.encoder.outputs * facts.hidden * c.ACTIVATION_BYTES
