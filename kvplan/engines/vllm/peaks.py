"""What one rank's start-up run holds at its peak: forward pass, sampler, encoder and compiler, from plain numbers."""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.vllm import budget_constants as c

SAMPLERS = {
    "torch": c.SAMPLER_COPIES_TORCH,
    "triton": c.SAMPLER_COPIES_TRITON,
    "flashinfer": c.SAMPLER_COPIES_FLASHINFER,
}


@dataclass(frozen=True, kw_only=True)
class RankFacts:
    """What one rank's start-up depends on. Widths are the whole model's; ``weight_bytes`` are this rank's.

    ``sampler``: torch, triton or flashinfer where it is known (a log says so), else None: the release's default.
    ``is_linked``: NVLink joins the cards. ``latent_context_width``: K and V values per token that this rank's MLA heads
    make of a latent, 0 without MLA. ``sparse_latent_width``: width of a sparse MLA's latent, else 0.
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
    tensor_parallel: int = 1
    gpus: int = 1
    rank: int = 0
    vendor: str = "nvidia"
    capability: tuple[int, int] | None = None
    unified_memory: bool = False
    is_linked: bool = False
    sampler: str | None = None
    is_second_runner: bool = False
    runs_sampler: bool = True
    has_encoder: bool = False
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
    """The top-k and top-p sampler of the release on this device."""
    if facts.vendor != "nvidia" or facts.release < c.FIRST_TRITON_SAMPLER:
        return "torch"
    old = facts.capability is not None and facts.capability < (8, 0)
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
    """Values per token in the experts' two workspaces: top_k × 2 × max(2 × expert width / tp, hidden).

    Gate and up share one with the expert's output, their product has the other (vLLM,
    ``TritonExperts.workspace_shapes``).
    """
    widest = max(2 * facts.expert_intermediate // facts.tensor_parallel, facts.hidden)
    return facts.experts_per_token * c.EXPERT_WORKSPACES * widest


def dense_width(facts: RankFacts) -> int:
    """Values per token alive at the peak of a layer beside experts: 3 × hidden, and 3 × intermediate / tp where the MLP
    is dense."""
    mlp = 0 if facts.experts_per_token else c.FORWARD_INTERMEDIATES * facts.intermediate // facts.tensor_parallel
    return c.FORWARD_HIDDENS * facts.hidden + mlp


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


def encoder_bytes(facts: RankFacts) -> int:
    """The largest batch of images: T tokens are T × 4 patches × 2 B × encoder width."""
    return c.ENCODER_MERGE * facts.batched_tokens * c.ACTIVATION_BYTES * c.ENCODER_WIDTH if facts.has_encoder else 0
