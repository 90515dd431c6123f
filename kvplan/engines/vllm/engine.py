"""vLLM: exact for 0.33 on Hopper; other releases and GPUs by the rules known of them, with a finding."""

from kvplan.engines.base import Budget, CacheLayout, Deployment, EnginePlan, Settings
from kvplan.engines.corrections import corrected
from kvplan.engines.vllm.budget import budget
from kvplan.engines.vllm.findings import layout_findings, refuse_unmodelled
from kvplan.engines.vllm.lora import adapters_are_priced
from kvplan.engines.vllm.pages import cache_layout
from kvplan.engines.vllm.settings import (
    capability_of,
    prints_plain_tokens,
    release_of,
    resolve_settings,
    version_findings,
)
from kvplan.engines.vllm.storage import kv_types
from kvplan.model import ModelSpec


class Vllm:
    """vLLM as an ``Engine``."""

    name = "vllm"

    def plan(self, model: ModelSpec, deployment: Deployment) -> EnginePlan:
        """Settings, pages, budget and pool of one replica.

        blocks = KV memory of the smallest rank // bytes of a block; the printed tokens are int(concurrency × window),
        and up to about 0.20 blocks // groups × block.
        """
        refuse_unmodelled(deployment)
        settings = resolve_settings(model, deployment)
        kv = kv_types(model, deployment.kv_dtype, capability=capability_of(deployment))
        layout = cache_layout(model, deployment, settings, kv)
        budget, kv_bytes = _memory(model, deployment, settings)
        blocks = max(0, kv_bytes // layout.bytes_per_block)
        return EnginePlan(
            settings=settings,
            kv_types=kv,
            layout=layout,
            kv_bytes=kv_bytes,
            blocks=blocks,
            budget=budget,
            findings=(*version_findings(deployment), *layout_findings(model, deployment, settings, layout, blocks)),
            tokens=_printed_tokens(deployment, settings, layout, blocks),
        )


def _memory(model: ModelSpec, deployment: Deployment, settings: Settings) -> tuple[Budget | None, int]:
    """The smallest rank's budget and its KV memory; no budget where the KV memory was given."""
    if deployment.kv_memory_bytes is not None:
        return None, deployment.kv_memory_bytes
    slots = deployment.lora_slots if adapters_are_priced(model) else 0
    terms = budget(model, deployment, settings, lora_slots=slots, lora_rank=deployment.lora_rank)
    answer = corrected(terms, deployment.corrections)
    return answer, answer.kv_bytes


def _printed_tokens(deployment: Deployment, settings: Settings, layout: CacheLayout, blocks: int) -> int:
    """The engine's "GPU KV cache size". The product is taken in floating point, as the engine takes it."""
    if prints_plain_tokens(release_of(deployment)):
        shortest = min(group.block_tokens for group in layout.groups)
        return blocks // len(layout.groups) * shortest * deployment.context_parallel
    return int(blocks / layout.request_blocks(settings.max_model_len) * settings.max_model_len)


VLLM = Vllm()
