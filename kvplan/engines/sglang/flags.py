"""SGLang's flags for a plan. Source: ``server_args.py`` of 0.5.23."""

import json
from collections.abc import Callable, Mapping

from kvplan.engines.drafting import Drafter
from kvplan.engines.flag_values import (
    EAGER,
    EXPERT_RANKS,
    NO_PREFIX_CACHE,
    ONE_POOL,
    REPLICAS,
    STAGES,
    FlagValue,
    Served,
    asked,
    attention_ranks,
    decimal,
    if_so,
    kv_word,
    memory_share,
    pool_tokens,
    unless,
    window,
)
from kvplan.engines.sglang.drafting import algorithm_of, drafter_of
from kvplan.engines.sglang.findings import host_bytes


def _of_draft(value: Callable[[Drafter], object], *, drafted: bool = False) -> FlagValue:
    """``value`` of what guesses ahead; ``drafted``: n-grams take no such flag."""

    def read(served: Served) -> object:
        drafter = drafter_of(served.model, served.deployment)
        return None if drafter is None or (drafted and not drafter.layers) else value(drafter)

    return read


def _all_sequences(served: Served) -> int:
    """Sequences of all attention replicas together."""
    return served.settings.max_num_seqs * served.deployment.data_parallel


def _media_limits(served: Served) -> str | None:
    """Items by sort."""
    limits = served.deployment.media_limits
    return None if limits is None else json.dumps({limit.sort: limit.items for limit in limits})


def _chunk(served: Served) -> int | None:
    """The prefill chunk as asked for; −1 where there are none."""
    return -1 if served.deployment.chunked_prefill is False else served.deployment.max_num_batched_tokens


FLAGS: Mapping[str, FlagValue] = {
    "--tp-size": unless(1, attention_ranks),
    "--pp-size": STAGES,
    "--dp-size": REPLICAS,
    "--enable-dp-attention": if_so(lambda deployment: deployment.data_parallel > 1),
    "--ep-size": EXPERT_RANKS,
    "--enable-lora": if_so(lambda deployment: deployment.lora_slots > 0),
    "--max-loras-per-batch": unless(0, asked("lora_slots")),
    "--max-lora-rank": lambda served: served.deployment.lora_rank if served.deployment.lora_slots else None,
    "--limit-mm-data-per-request": _media_limits,
    "--context-length": window,
    "--max-running-requests": _all_sequences,
    "--chunked-prefill-size": _chunk,
    "--speculative-algorithm": _of_draft(algorithm_of),
    "--speculative-draft-model-path": _of_draft(lambda drafter: drafter.model and drafter.model.id),
    "--speculative-num-steps": _of_draft(lambda drafter: drafter.tokens, drafted=True),
    "--speculative-eagle-topk": _of_draft(lambda _: 1, drafted=True),
    "--speculative-num-draft-tokens": _of_draft(lambda drafter: drafter.tokens + 1),
    "--mem-fraction-static": memory_share,
    "--max-total-tokens": pool_tokens,
    "--disable-overlap-schedule": if_so(lambda deployment: deployment.async_scheduling is False),
    "--kv-cache-dtype": kv_word({"fp8": "fp8_e4m3"}),
    "--page-size": asked("block_size"),
    "--swa-full-tokens-ratio": lambda served: decimal(served.deployment.window_pool_ratio),
    "--mamba-full-memory-ratio": lambda served: decimal(served.deployment.state_pool_ratio),
    "--disable-hybrid-swa-memory": ONE_POOL,
    "--disable-cuda-graph": EAGER,
    "--disable-radix-cache": NO_PREFIX_CACHE,
    "--enable-hierarchical-cache": if_so(lambda deployment: deployment.kv_offload_bytes is not None),
    "--hicache-size": lambda served: host_bytes(served.deployment) // 10**9 or None,
}
