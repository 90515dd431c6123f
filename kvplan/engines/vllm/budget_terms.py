"""How large each term of a rank's budget is: what the start-up run holds at its peak, and what stays beside KV."""

import math
from collections.abc import Sequence
from fractions import Fraction

from kvplan.engines.vllm import budget_constants as c
from kvplan.engines.vllm.rank_facts import RankFacts

SAMPLERS = {
    "torch": c.SAMPLER_COPIES_TORCH,
    "triton": c.SAMPLER_COPIES_TRITON,
    "flashinfer": c.SAMPLER_COPIES_FLASHINFER,
}

# --- peaks of the start-up run, one after the other ---


def expert_width(facts: RankFacts) -> int:
    """Values per token in the experts' two workspaces: top_k × 2 × max(2 × expert width / slices, hidden).

    Gate and up share one with the expert's output; their product has the other (vLLM,
    ``TritonExperts.workspace_shapes``). Slices: tp × dp, 1 under expert parallelism.
    """
    widest = max(2 * facts.expert_intermediate // facts.expert_slices, facts.hidden)
    return facts.experts_per_token * c.EXPERT_WORKSPACES * widest


def dense_width(facts: RankFacts) -> int:
    """Values per token alive at the peak of a layer, without experts: 3 × hidden, plus the wider of a dense MLP's
    3 × intermediate / tp and a recurrent layer's own."""
    mlp = 0 if facts.experts_per_token else c.FORWARD_INTERMEDIATES * facts.intermediate // facts.tensor_parallel
    return c.FORWARD_HIDDENS * facts.hidden + max(mlp, facts.recurrent_width)


def expert_tokens(facts: RankFacts) -> int:
    """Tokens that experts process at a time."""
    whole = facts.release >= c.FIRST_WHOLE_EXPERTS
    return facts.batched_tokens if whole else min(facts.batched_tokens, c.EXPERT_CHUNK_TOKENS)


def forward_bytes(facts: RankFacts) -> int:
    """2 B × (T × dense width + tokens at a time × experts' width), and with MLA the K and V of up to 65,536 cached
    tokens, which a prefill computes back from latents."""
    latent = c.LATENT_CONTEXT_TOKENS if facts.latent_context_width else 0
    context = min(latent, 8 * facts.window_tokens) * facts.latent_context_width
    values = facts.batched_tokens * dense_width(facts) + expert_tokens(facts) * expert_width(facts)
    return c.ACTIVATION_BYTES * (values + context)


def sampler_of(facts: RankFacts) -> str:
    """The top-k and top-p sampler: the one a log names, else the release's default on this device.

    FlashInfer's runs on NVIDIA only, Triton's anywhere.
    """
    if facts.sampler:
        return facts.sampler
    if facts.release < c.FIRST_TRITON_SAMPLER:
        return "torch"
    old = facts.vendor != "nvidia" or (facts.capability is not None and facts.capability < (8, 0))
    return "triton" if old or facts.release < c.FIRST_FLASHINFER_SAMPLER else "flashinfer"


def sampler_copies(facts: RankFacts) -> Fraction:
    """Float32 copies of the logits that the start-up run's sampler holds; 0 on a rank that does not sample."""
    if not facts.runs_sampler:
        return Fraction(0)
    if not facts.is_second_runner:
        return SAMPLERS[sampler_of(facts)]
    if facts.release < c.FIRST_WARM_UP_PASS:
        return c.SAMPLER_COPIES_LOGITS
    return c.SAMPLER_COPIES_WARM_UP[sampler_of(facts)]


def sampler_bytes(facts: RankFacts) -> int:
    """Copies × min(S, T) × vocabulary × 4 B."""
    rows = min(facts.sequences, facts.batched_tokens)
    return int(sampler_copies(facts) * rows * facts.vocabulary * 4)


def compile_bytes(facts: RankFacts) -> int:
    """Vocabulary / tp × hidden × 2 B: the embedding table on which torch.compile times its kernels."""
    if facts.enforce_eager or facts.release < c.FIRST_COMPILE_BENCHMARK:
        return 0
    return facts.vocabulary * facts.hidden * c.ACTIVATION_BYTES // facts.tensor_parallel


def encoder_tokens(facts: RankFacts) -> int:
    """Image tokens that the start-up run encodes: as many of the largest item as a step's tokens hold, at least one
    item (vLLM 0.33, ``compute_mm_encoder_budget`` and ``MultiModalBudget``)."""
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
    """Tokens × patches per token × 2 B × encoder width."""
    if facts.encoder is None:
        return 0
    return encoder_tokens(facts) * facts.encoder.patches_per_token * c.ACTIVATION_BYTES * encoder_width(facts)


def output_tokens(facts: RankFacts) -> int:
    """Tokens that the encoder's outputs are kept for."""
    is_wide = facts.encoder is not None and facts.encoder.outputs > 1 and facts.release[:2] == c.WIDE_VIDEO_RELEASE
    return c.WIDE_VIDEO_TOKENS if is_wide else encoder_tokens(facts)


def encoder_output_bytes(facts: RankFacts) -> int:
    """Tokens × vectors per token × hidden × 2 B, kept while the decoder and the sampler run."""
    if facts.encoder is None:
        return 0
    return output_tokens(facts) * facts.encoder.outputs * facts.hidden * c.ACTIVATION_BYTES


# --- what stays beside KV ---


def non_torch_bytes(facts: RankFacts) -> int:
    """The memory of CUDA and its libraries, by release and device."""
    if facts.unified_memory:
        return c.NON_TORCH_UNIFIED
    if is_context_counted(facts) or is_all_counted_once(facts):
        turing = facts.capability is not None and facts.capability < (8, 0)
        return c.NON_TORCH_WITH_CONTEXT_TURING if turing else c.NON_TORCH_WITH_CONTEXT
    if facts.vendor == "amd":
        return c.NON_TORCH_BEFORE_CONTEXT_ROCM
    large = facts.total_bytes >= c.LARGE_CARD_BYTES
    return c.NON_TORCH_BEFORE_CONTEXT_LARGE if large else c.NON_TORCH_BEFORE_CONTEXT_SMALL


def is_context_counted(facts: RankFacts) -> bool:
    """Whether the release counts the CUDA context as taken."""
    return facts.release >= c.FIRST_CONTEXT_COUNTED


def is_all_counted_once(facts: RankFacts) -> bool:
    """Whether the release is one of the few early ones that counted all that the device held."""
    once, until = c.CONTEXT_COUNTED_ONCE
    return once <= facts.release < until


def communication_bytes(facts: RankFacts) -> int:
    """NCCL and all-reduce buffers by how the cards are joined: those of the next measured tensor-parallel size, and
    transport buffers across nodes."""
    capability = facts.capability if facts.vendor == "nvidia" else None
    measured = c.COMMUNICATION
    if capability is not None and not facts.is_linked:
        measured = c.COMMUNICATION_THROUGH_HOST if capability < c.BLACKWELL else c.COMMUNICATION_OVER_PCIE
    elif capability is not None and c.HOPPER <= capability < c.BLACKWELL:
        measured = c.COMMUNICATION_HOPPER
    inside = measured[next((size for size in measured if size >= facts.tensor_parallel), max(measured))]
    return inside + (c.COMMUNICATION_PER_NODE_PAIR if facts.gpus > c.GPUS_PER_NODE else 0)


def sampler_state_bytes(facts: RankFacts) -> int:
    """S × vocabulary × (4 B + 1 bit) for penalties, which the second runner keeps from the start.

    It is allocated after the weights are measured, so it counts in releases that count all that left the device (0.27).
    """
    if not (facts.is_second_runner and facts.runs_sampler and facts.release >= c.FIRST_ALL_COUNTED):
        return 0
    return int(c.PENALTY_ROW_BYTES * facts.sequences * facts.vocabulary)


def workspace_bytes(facts: RankFacts) -> int:
    """Buffers of attention kernels: sparse MLA's gathered latents and scores, and FlashInfer's own."""
    sparse = 0
    if facts.sparse_latent_width:
        gathered = c.SPARSE_PREFILL_FACTOR * facts.window_tokens * facts.sparse_latent_width * c.ACTIVATION_BYTES
        sparse = gathered + c.SPARSE_LOGITS
    return sparse + flashinfer_bytes(facts)


def flashinfer_bytes(facts: RankFacts) -> int:
    """FlashInfer's buffer, where its attention is the default and the start-up run reaches it: sparse MLA's layers make
    it themselves, others with the graphs."""
    reached = facts.sparse_latent_width > 0 or (graphs_inside(facts) and not facts.enforce_eager)
    return c.FLASHINFER_WORKSPACE if facts.runs_flashinfer and reached else 0


# --- CUDA graphs ---


def graphs_inside(facts: RankFacts) -> bool:
    """Whether the estimated size of the graphs counts within the memory utilisation."""
    first = c.FIRST_GRAPHS_OF_SECOND_RUNNER if facts.is_second_runner else c.FIRST_GRAPHS_INSIDE
    return facts.release >= first


def graph_count(facts: RankFacts) -> int:
    """Graphs captured, those of the drafter included; none in eager mode.

    The largest batch with a graph is 1,024 tokens on compute capability 10, else 512 (vLLM 0.33).
    """
    if facts.enforce_eager:
        return 0
    ceiling = 1024 if facts.capability is not None and facts.capability[0] == 10 else 512
    sizes = capture_sizes(facts.sequences, facts.query_tokens, ceiling=ceiling, every_size=facts.captures_every_size)
    own = captured_graphs(sizes, facts.sequences * facts.query_tokens)
    return own + drafter_graphs(sizes, facts.sequences, facts.query_tokens) if facts.is_drafter_captured else own


def capture_sizes(
    sequences: int, query_tokens: int = 1, *, ceiling: int = 512, every_size: bool = False
) -> tuple[int, ...]:
    """Batch sizes (in tokens) with a graph: 1, 2, 4, then steps of 8 to 256 and of 16 up to
    min(2 × sequences × query tokens, ceiling); ``every_size``: all up to 32. Source: vLLM 0.33,
    ``VllmConfig._set_cudagraph_sizes``.

    >>> capture_sizes(16)
    (1, 2, 4, 8, 16, 24, 32)
    >>> len(capture_sizes(256)), len(capture_sizes(256, every_size=True))
    (51, 76)
    """
    largest = min(2 * sequences * query_tokens, ceiling)
    small = range(1, 33) if every_size else (1, 2, 4)
    sizes = {size for size in small if size <= largest}
    return tuple(sorted(sizes | {*range(8, min(largest + 1, 256), 8)} | {*range(256, largest + 1, 16)}))


def captured_graphs(sizes: Sequence[int], decode_tokens: int) -> int:
    """One graph per size for mixed batches, and one per size up to ``decode_tokens`` = sequences × query tokens.

    >>> captured_graphs(capture_sizes(16), 16), captured_graphs(capture_sizes(256), 256)
    (12, 86)
    """
    return len(sizes) + sum(size <= decode_tokens for size in sizes)


def drafter_graphs(sizes: Sequence[int], sequences: int, query_tokens: int) -> int:
    """Graphs of a captured drafter: its first token runs in steps like the model's own, the others in steps of one
    token per sequence. Source: vLLM 0.33, ``TargetDependentARSpeculator.init_cudagraph_manager``; GLM-5.1 on 8 GPUs
    printed 1.2 GiB of graphs alone and 2.2 to 2.4 with its drafter.

    >>> captured_graphs(capture_sizes(16, 4), 64), drafter_graphs(capture_sizes(16, 4), 16, 4)
    (30, 35)
    """
    return captured_graphs(sizes, sequences * query_tokens) + sum(size <= sequences for size in sizes)


def graph_bytes(graphs: int) -> int:
    """0.10 GiB + 0.0042 GiB × graphs, which fits vLLM's estimates in real logs (0.15 GiB at 12, 0.46 at 86)."""
    return c.GRAPH_BASE + c.GRAPH_EACH * graphs if graphs else 0


# --- the band ---


def band_bytes(facts: RankFacts) -> int:
    """Half the width of the band: the root of the summed squares of each term's uncertainty.

    The terms have independent causes, so their errors add in squares.
    """
    forward, sampler, encoder = forward_bytes(facts), sampler_bytes(facts), encoder_bytes(facts)
    compiling = max(0, compile_bytes(facts) - max(forward, sampler, encoder))
    has_printed_peaks = sampler_of(facts) == "torch" and facts.vendor == "nvidia"
    shares_experts = facts.tensor_parallel > 1 and facts.experts_per_token
    parts = (
        (c.SAMPLER_SHARE_PRINTED if has_printed_peaks else c.SAMPLER_SHARE) * sampler if sampler >= forward else 0,
        c.FORWARD_SHARE * forward,
        c.ENCODER_SHARE * encoder,
        c.COMPILE_SHARE * compiling,
        (c.GRAPH_SHARE_EXPERTS if shares_experts else c.GRAPH_SHARE) * graph_bytes(graph_count(facts))
        if graphs_inside(facts)
        else 0,
        _delta_transient_bytes(facts),
        c.WORKSPACE_SHARE * flashinfer_bytes(facts),
        (c.COMMUNICATION_SHARE if facts.is_linked else c.COMMUNICATION_SHARE_UNLINKED) * communication_bytes(facts),
        _non_torch_band(facts),
        facts.weight_uncertainty_share * facts.weight_bytes,
    )
    return math.isqrt(sum(int(part) ** 2 for part in parts))


def _delta_transient_bytes(facts: RankFacts) -> int:
    """What the estimate of graphs may count of a gated delta net's step."""
    counts = graphs_inside(facts) and not facts.is_second_runner and facts.release >= c.FIRST_DELTA_TRANSIENT
    return facts.batched_tokens * facts.recurrent_width if counts else 0


def _non_torch_band(facts: RankFacts) -> int:
    """How far printed non-torch figures and pools spread around the constants."""
    if facts.unified_memory:
        return c.UNIFIED_BAND
    if is_context_counted(facts):
        return c.NON_TORCH_BAND_WITH_CONTEXT
    if facts.vendor == "amd":
        return c.NON_TORCH_BAND_ROCM
    return c.NON_TORCH_BAND_COUNTED_ONCE if is_all_counted_once(facts) else c.NON_TORCH_BAND_BEFORE_CONTEXT
