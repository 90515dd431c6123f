"""SGLang: a static fraction of memory holds weights and a pool of tokens, with pools for windows and states beside it.

The rules are those of 0.5; older releases had other defaults. Source of the flags: ``server_args.py`` of 0.5.23.
"""

import shlex
from collections.abc import Callable, Mapping

from kvplan.engines.drafting import Drafter
from kvplan.engines.engine import Engine, EngineMetrics
from kvplan.engines.flag_values import (
    EXPERT_RANKS,
    LORA,
    LORA_SLOTS,
    NO_GRAPHS,
    NO_PREFIX_CACHE,
    ONE_POOL,
    REPLICAS,
    STAGES,
    FlagValue,
    Served,
    asked,
    attention_ranks,
    decimal,
    kv_word,
    lora_rank,
    media_items,
    memory_share,
    partition_variable,
    pool_tokens,
    unless,
    when,
    window,
)
from kvplan.engines.sglang.drafting import algorithm_of, drafter_of
from kvplan.engines.sglang.findings import host_bytes
from kvplan.engines.sglang.plan import plan
from kvplan.engines.sglang.storage import kv_types


def _of_draft(value: Callable[[Drafter], object], *, with_layers: bool = False) -> FlagValue:
    """``value`` of what drafts tokens; ``with_layers``: n-grams take no such flag."""

    def read(served: Served) -> object:
        drafter = drafter_of(served.model, served.deployment)
        return None if drafter is None or (with_layers and not drafter.layers) else value(drafter)

    return read


def _chunk(served: Served) -> int | None:
    """The prefill chunk as asked for; −1 turns chunks off."""
    return -1 if served.deployment.chunked_prefill is False else served.deployment.max_num_batched_tokens


_FLAGS: Mapping[str, FlagValue] = {
    "--tp-size": unless(1, attention_ranks),
    "--pp-size": STAGES,
    "--dp-size": REPLICAS,
    "--enable-dp-attention": when(lambda deployment: deployment.data_parallel > 1),
    "--ep-size": EXPERT_RANKS,
    "--enable-lora": LORA,
    "--max-loras-per-batch": LORA_SLOTS,
    "--max-lora-rank": lora_rank,
    "--limit-mm-data-per-request": media_items,
    "--context-length": window,
    "--max-running-requests": lambda served: served.settings.max_num_seqs * served.deployment.data_parallel,
    "--chunked-prefill-size": _chunk,
    "--speculative-algorithm": _of_draft(algorithm_of),
    "--speculative-draft-model-path": _of_draft(lambda drafter: drafter.model and drafter.model.id),
    "--speculative-num-steps": _of_draft(lambda drafter: drafter.tokens, with_layers=True),
    "--speculative-eagle-topk": _of_draft(lambda _: 1, with_layers=True),
    "--speculative-num-draft-tokens": _of_draft(lambda drafter: drafter.tokens + 1),
    "--mem-fraction-static": memory_share,
    "--max-total-tokens": pool_tokens,
    "--disable-overlap-schedule": when(lambda deployment: deployment.async_scheduling is False),
    "--kv-cache-dtype": kv_word({"fp8": "fp8_e4m3"}),
    "--page-size": asked("block_size"),
    "--swa-full-tokens-ratio": lambda served: decimal(served.deployment.window_pool_ratio),
    "--mamba-full-memory-ratio": lambda served: decimal(served.deployment.state_pool_ratio),
    "--disable-hybrid-swa-memory": ONE_POOL,
    "--disable-cuda-graph": NO_GRAPHS,
    "--disable-radix-cache": NO_PREFIX_CACHE,
    "--enable-hierarchical-cache": when(lambda deployment: deployment.kv_offload_bytes is not None),
    "--hicache-size": lambda served: host_bytes(served.deployment) // 10**9 or None,
}


def _command(served: Served) -> str:
    stages = partition_variable(served, "SGLANG_PP_LAYER_PARTITION")
    return f"{stages}python -m sglang.launch_server --model-path {shlex.quote(served.model.id)}"


ENGINE = Engine(
    name="sglang",
    default_release=(0, 5, 23),
    has=frozenset(
        {
            "expert_parallel",
            "memory_utilization",
            "async_scheduling",
            "prefix_caching",
            "chunked_prefill",
            "hybrid_kv_cache_manager",
            "block_size",
            "window_pool_ratio",
            "state_pool_ratio",
            "pipeline_layers",
            "media_limits",
            "kv_offload_bytes",
        }
    ),
    kv_types=kv_types,
    plan=plan,
    flags=_FLAGS,
    command=_command,
    metrics=lambda _: EngineMetrics(kv_usage="sglang:token_usage", waiting="sglang:num_queue_reqs"),
)
