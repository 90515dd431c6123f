"""vLLM's plan: settings, pages, budget and pool; the pipeline stage with the fewest blocks decides."""

from dataclasses import replace

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import capability_of
from kvplan.engines.drafting import Drafter
from kvplan.engines.engine_plan import Budget, CacheLayout, EnginePlan, Settings, Unpriced
from kvplan.engines.lora import adapters_are_priced
from kvplan.engines.memory_share import others_term
from kvplan.engines.vllm.budget import stage_budgets
from kvplan.engines.vllm.drafting import check_lookahead, cut_to_drafter, drafter_of, with_drafter
from kvplan.engines.vllm.findings import (
    drafting_findings,
    loads_encoder,
    media_findings,
    plan_findings,
    uneven_findings,
)
from kvplan.engines.vllm.kv_types import kv_types
from kvplan.engines.vllm.memory_findings import budget_findings, step_findings
from kvplan.engines.vllm.pages import stage_layouts
from kvplan.engines.vllm.releases import prints_plain_tokens, release_findings, release_of
from kvplan.engines.vllm.settings import check_supported, resolve_settings
from kvplan.engines.weights import all_bytes
from kvplan.layers import RecurrentLayer
from kvplan.model import ModelSpec

_ADAPTERS = Unpriced(
    option="lora_slots",
    word="max-loras",
    takes="adapters of recurrent layers, or of MLA beside experts, which have shapes of their own",
    only_takes=True,
)


def plan(model: ModelSpec, deployment: Deployment) -> EnginePlan:
    """Settings, pages, budget and pool of one replica.

    blocks = the fewest over the pipeline stages, each a rank's KV memory // bytes of its block. The printed tokens are
    int(concurrency × window), and up to about 0.20 blocks // groups × block.
    """
    check_supported(model, deployment)
    drafter = drafter_of(model, deployment)
    asked = resolve_settings(model, deployment)
    settings = cut_to_drafter(asked, drafter)
    check_lookahead(drafter, settings)
    kv = kv_types(model, deployment.kv_dtype, capability=capability_of(deployment))
    whole = with_drafter(model, drafter)
    layouts = stage_layouts(whole, deployment, settings, kv, drafter)
    budgets = _budgets(model, deployment, settings, drafter)
    memories = [deployment.kv_memory_bytes or 0] * len(layouts) if budgets is None else [b.kv_bytes for b in budgets]
    pools = [max(0, memory // layout.bytes_per_block) for memory, layout in zip(memories, layouts, strict=True)]
    fewest = min(range(len(pools)), key=lambda stage: (pools[stage], memories[stage]))
    layout, blocks = layouts[fewest], pools[fewest]
    budget = None if budgets is None else budgets[fewest]
    return EnginePlan(
        settings=settings,
        kv_types=kv,
        layout=layout,
        kv_bytes=memories[fewest],
        blocks=blocks,
        budget=budget,
        findings=(
            *release_findings(deployment),
            *plan_findings(model, deployment, settings, layout, blocks),
            *media_findings(model, deployment, settings),
            *drafting_findings(drafter, settings, asked.max_model_len, has_states=model.keeps(RecurrentLayer)),
            *(() if budget is None else budget_findings(model, deployment, settings, budget)),
            *step_findings(model, deployment, settings, budget),
            *uneven_findings(pools, fewest),
        ),
        tokens=_printed_tokens(deployment, settings, layout, blocks),
        loaded=None if drafter is None else whole,
        unpriced=() if not deployment.lora_slots or adapters_are_priced(model) else (_ADAPTERS,),
    )


def _budgets(
    model: ModelSpec, deployment: Deployment, settings: Settings, drafter: Drafter | None
) -> tuple[Budget, ...] | None:
    """Each stage's budget, on its smallest device; None where the KV memory was given."""
    if deployment.kv_memory_bytes is not None:
        return None
    loaded = model if loads_encoder(deployment) else _without_encoder(model)
    slots = deployment.lora_slots if adapters_are_priced(model) else 0
    stages = stage_budgets(loaded, deployment, settings, lora_slots=slots, drafter=drafter)
    others = others_term(deployment, inside_fraction=False)
    return tuple(replace(each, terms=(*each.terms, *others)).corrected(deployment.corrections) for each in stages)


def _without_encoder(model: ModelSpec) -> ModelSpec:
    """``model`` without its vision tower; file sizes shrink by the tower's share."""
    weights = model.weights
    kept = tuple(part for part in weights.parts if not part.name.startswith("vision."))
    stored = weights.stored_bytes
    if stored is not None and weights.parts:
        stored = int(stored * all_bytes(kept, model.dtype) / all_bytes(weights.parts, model.dtype))
    return replace(
        model,
        weights=replace(weights, parts=kept, stored_bytes=stored),
        shape=replace(model.shape, has_vision=False),
    )


def _printed_tokens(deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int) -> int:
    """The engine's "GPU KV cache size". The product is in floating point, as in the engine."""
    if prints_plain_tokens(release_of(deployment)):
        shortest = min(group.block_tokens for group in layout.groups)
        return blocks // len(layout.groups) * shortest * deployment.context_parallel
    return int(blocks / layout.request_blocks(settings.max_model_len) * settings.max_model_len)
