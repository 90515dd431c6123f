"""vLLM's plan: settings, pages, budget and pool, the pipeline stage with the fewest blocks deciding."""

from dataclasses import replace

from kvplan.engines.base import Budget, CacheLayout, Deployment, EnginePlan, Settings, Unpriced
from kvplan.engines.devices import capability_of
from kvplan.engines.drafting import Drafter
from kvplan.engines.lora import adapters_are_priced
from kvplan.engines.memory_share import others_term
from kvplan.engines.vllm.budget import stage_budgets
from kvplan.engines.vllm.drafting import (
    check_lookahead,
    cut_to_drafter,
    drafter_of,
    drafting_findings,
    with_drafter,
)
from kvplan.engines.vllm.findings import check_asked, layout_findings, uneven_finding
from kvplan.engines.vllm.media import loads_encoder, media_findings, without_encoder
from kvplan.engines.vllm.memory_findings import budget_findings, step_findings
from kvplan.engines.vllm.pages import stage_layouts
from kvplan.engines.vllm.settings import prints_plain_tokens, release_of, resolve_settings, version_findings
from kvplan.engines.vllm.storage import kv_types
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

    blocks = the fewest over the pipeline stages, of KV memory of a rank // bytes of its block; the printed tokens
    are int(concurrency × window), and up to about 0.20 blocks // groups × block.
    """
    check_asked(model, deployment)
    drafter = drafter_of(model, deployment)
    weighed = model if loads_encoder(deployment) else without_encoder(model)
    asked = resolve_settings(model, deployment)
    settings = cut_to_drafter(asked, drafter)
    check_lookahead(drafter, settings)
    kv = kv_types(model, deployment.kv_dtype, capability=capability_of(deployment))
    whole = with_drafter(model, drafter)
    layouts = stage_layouts(whole, deployment, settings, kv, drafter)
    budgets = _budgets(weighed, deployment, settings, drafter)
    memories = [deployment.kv_memory_bytes or 0] * len(layouts) if budgets is None else [b.kv_bytes for b in budgets]
    pools = [max(0, memory // layout.bytes_per_block) for memory, layout in zip(memories, layouts, strict=True)]
    fewest = min(range(len(pools)), key=lambda stage: (pools[stage], memories[stage]))
    layout, blocks = layouts[fewest], pools[fewest]
    return EnginePlan(
        settings=settings,
        kv_types=kv,
        layout=layout,
        kv_bytes=memories[fewest],
        blocks=blocks,
        budget=None if budgets is None else budgets[fewest],
        findings=(
            *version_findings(deployment),
            *layout_findings(model, deployment, settings, layout, blocks),
            *media_findings(model, deployment, settings),
            *drafting_findings(drafter, settings, asked.max_model_len, has_states=model.keeps(RecurrentLayer)),
            *(budget_findings(model, deployment, settings, budgets[fewest]) if budgets is not None else ()),
            *step_findings(model, deployment, settings, None if budgets is None else budgets[fewest]),
            *filter(None, [uneven_finding(pools, fewest)]),
        ),
        tokens=_printed_tokens(deployment, settings, layout, blocks),
        loaded=None if drafter is None else whole,
        unpriced=() if not deployment.lora_slots or adapters_are_priced(model) else (_ADAPTERS,),
    )


def _budgets(
    model: ModelSpec, deployment: Deployment, settings: Settings, drafter: Drafter | None
) -> tuple[Budget, ...] | None:
    """Each stage's budget, of its smallest device; None where the KV memory was given."""
    if deployment.kv_memory_bytes is not None:
        return None
    slots = deployment.lora_slots if adapters_are_priced(model) else 0
    stages = stage_budgets(model, deployment, settings, lora_slots=slots, drafter=drafter)
    others = others_term(deployment, inside_fraction=False)
    return tuple(replace(each, terms=(*each.terms, *others)).corrected(deployment.corrections) for each in stages)


def _printed_tokens(deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int) -> int:
    """The engine's "GPU KV cache size". The product is taken in floating point, as the engine takes it."""
    if prints_plain_tokens(release_of(deployment)):
        shortest = min(group.block_tokens for group in layout.groups)
        return blocks // len(layout.groups) * shortest * deployment.context_parallel
    return int(blocks / layout.request_blocks(settings.max_model_len) * settings.max_model_len)
