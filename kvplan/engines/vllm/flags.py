"""vLLM's flags for a plan. Source: the argument parser of vLLM 0.33."""

import json
from collections.abc import Mapping
from fractions import Fraction

from kvplan.engines.flag_values import (
    EAGER,
    NO_PREFIX_CACHE,
    ONE_POOL,
    REPLICAS,
    STAGES,
    TENSOR,
    FlagValue,
    Served,
    asked,
    decimal,
    if_so,
    memory_share,
    sequences,
    step_tokens,
    unless,
    window,
)
from kvplan.engines.vllm.drafting import drafter_of
from kvplan.units import GIB


def _speculation(served: Served) -> str | None:
    """The one flag for what guesses ahead, and how far."""
    drafter = drafter_of(served.model, served.deployment)
    if drafter is None:
        return None
    said: dict[str, object] = {"method": drafter.engine_word, "num_speculative_tokens": drafter.tokens}
    return json.dumps(said if drafter.model is None else {"model": drafter.model.id, **said})


def _media_limits(served: Served) -> str | None:
    """Items by sort."""
    limits = served.deployment.media_limits
    return None if limits is None else json.dumps({limit.sort: limit.items for limit in limits})


def _in_gib(size_bytes: int | None) -> Fraction | None:
    """GiB, as vLLM takes the host memory for KV of all ranks together."""
    return None if size_bytes is None else Fraction(size_bytes, GIB)


def _default_cap(served: Served) -> str | None:
    """The generation config, by which vLLM caps every request, also one that asks for more (0.33, get_max_tokens)."""
    cap = served.largest_cap_tokens
    return None if cap is None else json.dumps({"max_new_tokens": cap})


FLAGS: Mapping[str, FlagValue] = {
    "--tensor-parallel-size": TENSOR,
    "--pipeline-parallel-size": STAGES,
    "--data-parallel-size": REPLICAS,
    "--decode-context-parallel-size": unless(1, asked("context_parallel")),
    "--max-model-len": window,
    "--max-num-seqs": sequences,
    "--max-num-batched-tokens": step_tokens,
    "--gpu-memory-utilization": memory_share,
    "--kv-cache-memory-bytes": asked("kv_memory_bytes"),
    "--kv-cache-dtype": unless("auto", asked("kv_dtype")),
    "--block-size": asked("block_size"),
    "--enable-chunked-prefill": if_so(lambda deployment: bool(deployment.chunked_prefill)),
    "--no-enable-chunked-prefill": if_so(lambda deployment: deployment.chunked_prefill is False),
    "--enforce-eager": EAGER,
    "--speculative-config": _speculation,
    "--limit-mm-per-prompt": _media_limits,
    "--enable-expert-parallel": if_so(lambda deployment: deployment.expert_parallel),
    "--enable-lora": if_so(lambda deployment: deployment.lora_slots > 0),
    "--max-loras": unless(0, asked("lora_slots")),
    "--max-lora-rank": lambda served: served.deployment.lora_rank if served.deployment.lora_slots else None,
    "--kv-offloading-size": lambda served: decimal(_in_gib(served.deployment.kv_offload_bytes)),
    "--async-scheduling": if_so(lambda deployment: bool(deployment.async_scheduling)),
    "--no-async-scheduling": if_so(lambda deployment: deployment.async_scheduling is False),
    "--enable-prefix-caching": if_so(lambda deployment: bool(deployment.prefix_caching)),
    "--no-enable-prefix-caching": NO_PREFIX_CACHE,
    "--disable-hybrid-kv-cache-manager": ONE_POOL,
    "--override-generation-config": _default_cap,
}
