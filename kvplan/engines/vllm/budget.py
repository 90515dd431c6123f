"""Where the memory of each pipeline stage goes on vLLM: every term with its formula, the pool left over, its band."""

import math
from dataclasses import replace
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.drafting import EAGLE, MTP, Drafter, draft_weights
from kvplan.engines.engine_plan import Budget, BudgetTerm, Settings
from kvplan.engines.lora import expert_slots, lora_bytes
from kvplan.engines.ranks import stage_layers
from kvplan.engines.vllm import budget_terms as size
from kvplan.engines.vllm.budget_constants import PENALTY_ROW_BYTES
from kvplan.engines.vllm.rank_facts import RankFacts, rank_facts
from kvplan.engines.weights import load_rank
from kvplan.model import ModelSpec
from kvplan.units import format_bytes

_ALWAYS = frozenset({"weights", "non_torch", "activation_sampler", "activation_encoder", "cuda_graphs"})
"""Terms that are shown even where they are 0."""


def stage_budgets(
    model: ModelSpec,
    deployment: Deployment,
    settings: Settings,
    *,
    lora_slots: int = 0,
    drafter: Drafter | None = None,
) -> tuple[Budget, ...]:
    """Each pipeline stage's budget, on its smallest device. ``lora_slots`` adapters can be loaded at once.

    Ranks of one stage differ only by their device's memory. Stages differ by layers, embedding and head; only the first
    one encodes, and only the last one samples and holds the ``drafter``. Raises InputError where no memory is known,
    UnsupportedModelError where the weights are not.
    """
    facts, stages = rank_facts(model, deployment, settings), deployment.pipeline_parallel
    experts = expert_slots(model, deployment)
    shares = stage_layers(len(model.layers), stages, deployment.pipeline_layers)
    budgets = []
    for stage in range(stages):
        loaded = load_rank(model, deployment, stage)
        here = replace(
            facts,
            rank=loaded.rank,
            total_bytes=loaded.total_bytes,
            weight_bytes=loaded.weights.bytes,
            weight_formula=loaded.weights.formula,
            weight_uncertainty_share=loaded.weights.uncertainty_share,
            lora_bytes=lora_bytes(
                model.weights.parts,
                model.shape.hidden,
                tensor_parallel=deployment.tensor_parallel,
                slots=lora_slots,
                rank=deployment.lora_rank,
                stage=shares[stage],
                experts=experts,
            ),
            encoder=facts.encoder if stage == 0 else None,
        )
        is_last = stage == stages - 1
        here = _with_drafter(here, model, drafter) if is_last else replace(here, runs_sampler=False)
        budgets.append(rank_budget(here))
    return tuple(budgets)


def _with_drafter(facts: RankFacts, model: ModelSpec, drafter: Drafter | None) -> RankFacts:
    """The drafter's weights, and whether it has graphs of its own: a draft model runs without graphs, and n-grams are
    only looked up (vLLM 0.33, ``StandaloneARSpeculator`` and ``TargetDependentARSpeculator``)."""
    weights = draft_weights(model, drafter, facts.tensor_parallel)
    return replace(
        facts,
        speculative_bytes=weights.bytes,
        speculative_formula=weights.formula,
        is_drafter_captured=drafter is not None and drafter.method in (MTP, EAGLE),
    )


def requested_bytes(total_bytes: int, utilization: Fraction) -> int:
    """ceil(total × utilisation). Source: vLLM, ``request_memory``."""
    return math.ceil(total_bytes * utilization)


def rank_budget(facts: RankFacts) -> Budget:
    """KV = requested − the terms inside the fraction; negative where they need more."""
    requested = requested_bytes(facts.total_bytes, facts.utilization)
    terms = rank_terms(facts)
    left = requested - sum(term.bytes for term in terms if term.inside_fraction)
    half = size.band_bytes(facts)
    return Budget(
        rank=facts.rank,
        total_bytes=facts.total_bytes,
        requested_bytes=requested,
        terms=terms,
        kv_bytes=left,
        kv_bytes_low=left - half,
        kv_bytes_high=left + half,
    )


def rank_terms(facts: RankFacts) -> tuple[BudgetTerm, ...]:
    """Every term that is not 0, and those of ``_ALWAYS``, in the order in which the memory is taken."""
    rows = min(facts.sequences, facts.batched_tokens)
    count = size.graph_count(facts)
    terms = (
        BudgetTerm(name="weights", bytes=facts.weight_bytes, formula=facts.weight_formula),
        BudgetTerm(name="non_torch", bytes=size.non_torch_bytes(facts), formula="CUDA context and libraries"),
        BudgetTerm(
            name="communication",
            bytes=size.communication_bytes(facts),
            formula=f"NCCL and all-reduce buffers at tensor parallelism {facts.tensor_parallel}",
        ),
        *activation_terms(facts),
        BudgetTerm(
            name="sampler_state",
            bytes=size.sampler_state_bytes(facts),
            formula=f"{facts.sequences:,} × {facts.vocabulary:,} × {float(PENALTY_ROW_BYTES):g} B for penalties",
        ),
        BudgetTerm(
            name="attention_workspace",
            bytes=size.workspace_bytes(facts),
            formula="buffers of sparse MLA (5 × window × latent × 2 B + 512 MiB) and of FlashInfer (394 MiB)",
        ),
        BudgetTerm(name="speculative", bytes=facts.speculative_bytes, formula=facts.speculative_formula),
        BudgetTerm(name="lora", bytes=facts.lora_bytes, formula="slots × rank × widths of the adapted matrices × 2 B"),
        BudgetTerm(
            name="cuda_graphs",
            bytes=size.graph_bytes(count),
            formula=f"0.10 GiB + 0.0042 GiB × {count} graphs" if count else "eager mode: none",
            inside_fraction=size.graphs_inside(facts),
        ),
        BudgetTerm(
            name="log_probabilities",
            bytes=rows * facts.vocabulary * 4 if facts.runs_sampler else 0,
            formula=f"{rows:,} rows × {facts.vocabulary:,} × 4 B, if requests ask for log-probabilities",
            inside_fraction=False,
        ),
    )
    return tuple(term for term in terms if term.bytes or term.name in _ALWAYS)


def activation_terms(facts: RankFacts) -> tuple[BudgetTerm, ...]:
    """Encoder, forward pass, sampler and compiler run one after the other, so the largest of the four is the peak; the
    encoder's outputs stay while the others run.

    The forward pass counts in full; each other phase counts with what it needs above all before it.
    """
    forward, sampler, compiling = size.forward_bytes(facts), size.sampler_bytes(facts), size.compile_bytes(facts)
    encoder, outputs = size.encoder_bytes(facts), size.encoder_output_bytes(facts)
    decoding = max(forward, sampler, compiling)
    rows, tokens = min(facts.sequences, facts.batched_tokens), f"{facts.batched_tokens:,} tokens × 2 B"
    width = size.dense_width(facts) + size.expert_width(facts)
    at_a_time = size.expert_tokens(facts)
    chunk = f", experts {at_a_time:,} tokens at a time" if at_a_time < facts.batched_tokens else ""
    latents = f" + {facts.latent_context_width:,} × cached latents" if facts.latent_context_width else ""
    terms = [
        BudgetTerm(name="activation_forward", bytes=forward, formula=f"{tokens} × {width:,} values{latents}{chunk}"),
        BudgetTerm(
            name="activation_sampler",
            bytes=max(0, sampler - forward),
            formula=f"{float(size.sampler_copies(facts)):g} × {rows:,} rows × {facts.vocabulary:,} × 4 B = "
            f"{format_bytes(sampler)}; only the excess over the forward pass counts",
        ),
        BudgetTerm(
            name="activation_compile",
            bytes=decoding - max(forward, sampler),
            formula=f"{facts.vocabulary:,} × {facts.hidden:,} × 2 B / {facts.tensor_parallel} = "
            f"{format_bytes(compiling)} while kernels are tuned; only the excess over the other peaks counts",
        ),
    ]
    if facts.encoder is not None:
        terms += [
            BudgetTerm(
                name="activation_encoder_outputs",
                bytes=outputs,
                formula=f"{size.output_tokens(facts):,} image tokens × {facts.encoder.outputs * facts.hidden:,} × 2 B "
                "while the decoder runs",
            ),
            BudgetTerm(
                name="activation_encoder",
                bytes=max(0, encoder - outputs - decoding),
                formula=f"{size.encoder_tokens(facts):,} tokens × {facts.encoder.patches_per_token} patches × 2 B × "
                f"{size.encoder_width(facts):,} values = {format_bytes(encoder)} before the decoder runs; only the "
                "excess over the other peaks counts",
            ),
        ]
    return tuple(terms)
