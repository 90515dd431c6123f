"""One rank's budget from plain numbers: every term with its formula, the pool that is left, and its band."""

import math
from fractions import Fraction

from kvplan.engines.base import Budget, BudgetTerm
from kvplan.engines.vllm import budget_constants as c
from kvplan.engines.vllm.graphs import captured_graphs, drafter_graphs, graph_bytes, graph_ceiling
from kvplan.engines.vllm.peaks import (
    RankFacts,
    compile_bytes,
    default_sampler,
    dense_width,
    encoder_bytes,
    encoder_output_bytes,
    encoder_tokens,
    encoder_width,
    expert_tokens,
    expert_width,
    forward_bytes,
    output_tokens,
    sampler_bytes,
    sampler_copies,
    sampler_state_bytes,
)
from kvplan.units import format_bytes

_ALWAYS = frozenset({"weights", "non_torch", "activation_sampler", "activation_encoder", "cuda_graphs"})


def requested_bytes(total_bytes: int, utilization: Fraction) -> int:
    """ceil(total × utilisation). Source: vLLM, ``request_memory``."""
    return math.ceil(total_bytes * utilization)


def non_torch_bytes(facts: RankFacts) -> int:
    """CUDA's and the libraries' own memory on this device, by release and size of the device."""
    if facts.unified_memory:
        return c.NON_TORCH_UNIFIED
    if _is_context_counted(facts) or _is_all_counted_once(facts):
        turing = facts.capability is not None and facts.capability < (8, 0)
        return c.NON_TORCH_WITH_CONTEXT_TURING if turing else c.NON_TORCH_WITH_CONTEXT
    if facts.vendor == "amd":
        return c.NON_TORCH_BEFORE_CONTEXT_ROCM
    large = facts.total_bytes >= c.LARGE_CARD_BYTES
    return c.NON_TORCH_BEFORE_CONTEXT_LARGE if large else c.NON_TORCH_BEFORE_CONTEXT_SMALL


def _is_context_counted(facts: RankFacts) -> bool:
    return facts.release >= c.FIRST_CONTEXT_COUNTED


def _is_all_counted_once(facts: RankFacts) -> bool:
    once, until = c.CONTEXT_COUNTED_ONCE
    return once <= facts.release < until


def communication_bytes(facts: RankFacts) -> int:
    """NCCL and all-reduce buffers by what joins the cards: the next measured tensor-parallel size, and transport
    buffers across nodes."""
    capability = facts.capability if facts.vendor == "nvidia" else None
    measured = c.COMMUNICATION
    if capability is not None and not facts.is_linked:
        measured = c.COMMUNICATION_THROUGH_HOST if capability < c.BLACKWELL else c.COMMUNICATION_OVER_PCIE
    elif capability is not None and c.HOPPER <= capability < c.BLACKWELL:
        measured = c.COMMUNICATION_HOPPER
    inside = measured[next((size for size in measured if size >= facts.tensor_parallel), max(measured))]
    return inside + (c.COMMUNICATION_PER_NODE_PAIR if facts.gpus > c.GPUS_PER_NODE else 0)


def workspace_bytes(facts: RankFacts) -> int:
    """Buffers that attention kernels keep: sparse MLA's gathered latents and scores, FlashInfer's own."""
    sparse = 0
    if facts.sparse_latent_width:
        gathered = c.SPARSE_PREFILL_FACTOR * facts.window_tokens * facts.sparse_latent_width * c.ACTIVATION_BYTES
        sparse = gathered + c.SPARSE_LOGITS
    return sparse + flashinfer_bytes(facts)


def flashinfer_bytes(facts: RankFacts) -> int:
    """FlashInfer's own buffer, where its attention is the default and the start-up run reaches it: sparse MLA's layers
    make it themselves, others with the graphs."""
    reached = facts.sparse_latent_width > 0 or (graphs_inside(facts) and not facts.enforce_eager)
    return c.FLASHINFER_WORKSPACE if facts.runs_flashinfer and reached else 0


def cuda_graph_bytes(facts: RankFacts) -> int:
    """Memory of the captured graphs; none in eager mode."""
    return graph_bytes(graph_count(facts))


def graphs_inside(facts: RankFacts) -> bool:
    """Whether the estimate of the graphs is taken from the engine's share of the memory."""
    first = c.FIRST_GRAPHS_OF_SECOND_RUNNER if facts.is_second_runner else c.FIRST_GRAPHS_INSIDE
    return facts.release >= first


def graph_count(facts: RankFacts) -> int:
    """Graphs that are captured, the drafter's own among them."""
    if facts.enforce_eager:
        return 0
    ceiling = graph_ceiling(facts.capability)
    own = captured_graphs(facts.sequences, facts.query_tokens, ceiling=ceiling)
    if not facts.is_drafter_captured:
        return own
    return own + drafter_graphs(facts.sequences, facts.query_tokens, ceiling=ceiling)


def rank_terms(facts: RankFacts) -> tuple[BudgetTerm, ...]:
    """Every term, in the order in which it is taken; those of ``_ALWAYS`` also where they add nothing."""
    rows = min(facts.sequences, facts.batched_tokens)
    count = graph_count(facts)
    terms = (
        BudgetTerm(name="weights", bytes=facts.weight_bytes, formula=facts.weight_formula),
        BudgetTerm(
            name="non_torch", bytes=non_torch_bytes(facts), formula="CUDA context and libraries, by release and device"
        ),
        BudgetTerm(
            name="communication",
            bytes=communication_bytes(facts),
            formula=f"NCCL and all-reduce buffers at tensor parallelism {facts.tensor_parallel}",
        ),
        *activation_terms(facts),
        BudgetTerm(
            name="sampler_state",
            bytes=sampler_state_bytes(facts),
            formula=f"{facts.sequences:,} × {facts.vocabulary:,} × {float(c.PENALTY_ROW_BYTES):g} B for penalties",
        ),
        BudgetTerm(
            name="attention_workspace",
            bytes=workspace_bytes(facts),
            formula="buffers of sparse MLA (5 × window × latent × 2 B + 512 MiB) and of FlashInfer (394 MiB)",
        ),
        BudgetTerm(name="speculative", bytes=facts.speculative_bytes, formula=facts.speculative_formula),
        BudgetTerm(name="lora", bytes=facts.lora_bytes, formula="slots × rank × widths of the adapted matrices × 2 B"),
        BudgetTerm(
            name="cuda_graphs",
            bytes=graph_bytes(count),
            formula=f"0.10 GiB + 0.0042 GiB × {count} graphs" if count else "eager mode: none",
            inside_fraction=graphs_inside(facts),
        ),
        BudgetTerm(
            name="log_probabilities",
            bytes=rows * facts.vocabulary * 4 if facts.runs_sampler else 0,
            formula=f"{rows:,} rows × {facts.vocabulary:,} × 4 B, once requests ask for log-probabilities",
            inside_fraction=False,
        ),
    )
    return tuple(term for term in terms if term.bytes or term.name in _ALWAYS)


def activation_terms(facts: RankFacts) -> tuple[BudgetTerm, ...]:
    """Encoder, forward pass, sampler and compiler run one after the other, so the peak is the largest of the four; what
    the encoder made stays while the others run.

    The forward pass stands whole, each other one with what it needs above all before it.
    """
    forward, sampler, compiling = forward_bytes(facts), sampler_bytes(facts), compile_bytes(facts)
    encoder, outputs = encoder_bytes(facts), encoder_output_bytes(facts)
    decoding = max(forward, sampler, compiling)
    rows, tokens = min(facts.sequences, facts.batched_tokens), f"{facts.batched_tokens:,} tokens × 2 B"
    width = dense_width(facts) + expert_width(facts)
    chunk = (
        f", experts {chunked:,} tokens at a time" if (chunked := expert_tokens(facts)) < facts.batched_tokens else ""
    )
    latents = f" + {facts.latent_context_width:,} × cached latents" if facts.latent_context_width else ""
    terms = [
        BudgetTerm(name="activation_forward", bytes=forward, formula=f"{tokens} × {width:,} values{latents}{chunk}"),
        BudgetTerm(
            name="activation_sampler",
            bytes=max(0, sampler - forward),
            formula=f"{float(sampler_copies(facts)):g} × {rows:,} rows × {facts.vocabulary:,} × 4 B = "
            f"{format_bytes(sampler)}; here what exceeds the forward pass",
        ),
        BudgetTerm(
            name="activation_compile",
            bytes=decoding - max(forward, sampler),
            formula=f"{facts.vocabulary:,} × {facts.hidden:,} × 2 B / {facts.tensor_parallel} = "
            f"{format_bytes(compiling)} while kernels are timed; here what exceeds the others",
        ),
    ]
    if facts.encoder is not None:
        pictures = encoder_tokens(facts)
        terms += [
            BudgetTerm(
                name="activation_encoder_outputs",
                bytes=outputs,
                formula=f"{output_tokens(facts):,} tokens of pictures × {facts.encoder.outputs * facts.hidden:,} × 2 B "
                "while the decoder runs",
            ),
            BudgetTerm(
                name="activation_encoder",
                bytes=max(0, encoder - outputs - decoding),
                formula=f"{pictures:,} tokens × {facts.encoder.patches_per_token} patches × 2 B × "
                f"{encoder_width(facts):,} values = {format_bytes(encoder)} before the decoder runs; here what exceeds "
                "the others",
            ),
        ]
    return tuple(terms)


def band_bytes(facts: RankFacts) -> int:
    """Half width of the band: root of the summed squares of what each term is unsure of.

    The terms are independent causes, so their errors add in squares.
    """
    forward, sampler, encoder = forward_bytes(facts), sampler_bytes(facts), encoder_bytes(facts)
    compiling = max(0, compile_bytes(facts) - max(forward, sampler, encoder))
    parts = (
        _sampler_share(facts) * sampler if sampler >= forward else 0,
        c.FORWARD_SHARE * forward,
        c.ENCODER_SHARE * encoder,
        c.COMPILE_SHARE * compiling,
        _graph_share(facts) * cuda_graph_bytes(facts) if graphs_inside(facts) else 0,
        c.WORKSPACE_SHARE * flashinfer_bytes(facts),
        _communication_share(facts) * communication_bytes(facts),
        _non_torch_band(facts),
        facts.weight_share_unsure * facts.weight_bytes,
    )
    return math.isqrt(sum(int(part) ** 2 for part in parts))


def _sampler_share(facts: RankFacts) -> Fraction:
    """Narrow where peaks were printed."""
    sampler = facts.sampler or default_sampler(facts)
    return c.SAMPLER_SHARE_PRINTED if sampler == "torch" and facts.vendor == "nvidia" else c.SAMPLER_SHARE


def _graph_share(facts: RankFacts) -> Fraction:
    """Wide where several ranks share experts."""
    shared = facts.tensor_parallel > 1 and facts.experts_per_token
    return c.GRAPH_SHARE_EXPERTS if shared else c.GRAPH_SHARE


def _communication_share(facts: RankFacts) -> Fraction:
    """Whole where no NVLink joins the cards."""
    return c.COMMUNICATION_SHARE if facts.is_linked else c.COMMUNICATION_SHARE_UNLINKED


def _non_torch_band(facts: RankFacts) -> int:
    """How far the printed non-torch figures and pools spread around the constants."""
    if facts.unified_memory:
        return c.UNIFIED_BAND
    if _is_context_counted(facts):
        return c.NON_TORCH_BAND_WITH_CONTEXT
    if facts.vendor == "amd":
        return c.NON_TORCH_BAND_ROCM
    return c.NON_TORCH_BAND_COUNTED_ONCE if _is_all_counted_once(facts) else c.NON_TORCH_BAND_BEFORE_CONTEXT


def rank_budget(facts: RankFacts) -> Budget:
    """KV = requested − the terms inside the fraction; negative where they need more."""
    requested = requested_bytes(facts.total_bytes, facts.utilization)
    terms = rank_terms(facts)
    left = requested - sum(term.bytes for term in terms if term.inside_fraction)
    half = band_bytes(facts)
    return Budget(
        rank=facts.rank,
        total_bytes=facts.total_bytes,
        requested_bytes=requested,
        terms=terms,
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half,
    )
