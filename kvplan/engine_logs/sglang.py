"""SGLang's log lines, 0.3 to 0.5.

Source: the loggers of ``model_runner.py``, ``memory_pool.py``, ``pool_configurator.py``, ``scheduler.py`` in the wheels
of 0.3.6, 0.4.6, 0.4.10, 0.5.2, 0.5.6 and 0.5.23. Everything printed as "GB" is divided by 2**30.
"""

import re
from dataclasses import replace

from kvplan.engine_logs.figures import Observation
from kvplan.engine_logs.wording import Observations, Wording, pattern, patterns

_GB = r"(?:-?[\d.]+)"
_WHOLE = {"key_bytes": "kv_bytes", "value_bytes": "kv_bytes", "conv_bytes": "state_bytes", "ssm_bytes": "state_bytes"}
_OF_THE_LOADED_MODEL = {"weight_bytes", "free_before_bytes", "free_after_load_bytes"}


def _combine(seen: Observations) -> Observations:
    """Drops a draft model's figures, and adds K to V and the conv states to the temporal ones.

    A rank that begins to load weights twice loads a draft model the second time.
    """
    drafts = _draft_pools(seen)
    kept: list[Observation] = []
    loads: dict[str | None, int] = {}
    sums: dict[tuple[str, str | None], int] = {}
    for item in seen:
        loads[item.rank] = loads.get(item.rank, 0) + (item.name == "free_before_bytes")
        is_allocation = "allocated" in item.text
        if loads[item.rank] > 1 and (item.name in _OF_THE_LOADED_MODEL or is_allocation):
            continue
        if is_allocation and item.line in drafts:
            continue
        target = _WHOLE.get(item.name)
        if target is not None and isinstance(item.value, int):
            total = sums[target, item.rank] = sums.get((target, item.rank), 0) + item.value
            kept.append(replace(item, name=target, value=total))
        kept.append(item)
    return tuple(kept)


def _draft_pools(seen: Observations) -> set[int]:
    """The lines of a rank's second pool of as many tokens, where an excerpt leaves the loading out: a draft has as many
    as its model, and only windows have a pool of their own."""
    if any(item.name == "window_pool_tokens" for item in seen):
        return set()
    pools = [item for item in seen if item.name == "kv_tokens" and "allocated" in item.text]
    first = {(item.rank, item.value): item.line for item in reversed(pools)}
    return {item.line for item in pools if first[item.rank, item.value] != item.line}


WORDING = Wording(
    engine="sglang",
    triggers=(
        "server_args=|avail mem|KV Cache is allocated|KV Cache VA|#tokens|max_total_num_tokens=|Mamba Cache"
        "|liding window memory|Not enough memory|Using KV cache dtype|SWA pool|sglang"
    ),
    marker=re.compile(r"server_args=ServerArgs\("),
    argument_line=re.compile(r"ServerArgs\("),
    arguments=patterns(
        r"model_path='(?P<model_text>[^']+)'",
        r"[ (]tp_size=(?P<tensor_parallel_count>\d+)",
        r"[ (]pp_size=(?P<pipeline_parallel_count>\d+)",
        r"[ (]dp_size=(?P<data_parallel_count>\d+)",
        r"mem_fraction_static=(?P<memory_utilization_number>[\d.]+)",
        r"max_running_requests=(?P<max_num_seqs_count>\d+)",
        r"chunked_prefill_size=(?P<max_num_batched_tokens>\d+)",
        r"context_length=(?P<max_model_len_count>\d+)",
        r"kv_cache_dtype='(?P<kv_dtype_text>[a-z0-9_]+)'",
        r"[ (]quantization='(?P<quantization_text>[^']+)'",
        r"[ (]page_size=(?P<block_tokens>\d+)",
        r"disable_cuda_graph=(?P<enforce_eager_flag>True|False)",
    ),
    patterns=patterns(
        rf"Load weight begin\..*?avail mem=(?P<free_before_gib>{_GB}) GB",
        rf"Load weight end\..*?avail mem=(?P<free_after_load_gib>{_GB}) GB"
        rf"(?:, mem usage=(?P<weight_gib>{_GB}) GB)?",
        rf"KV Cache is allocated\..*?#tokens: (?P<kv_tokens>\d+)\b(?!,\S)"
        rf"(?:, K size: (?P<key_gib>{_GB}) GB, V size: (?P<value_gib>{_GB}) GB|, KV size: (?P<kv_gib>{_GB}) GB)?",
        rf"KV Cache is allocated\. K size: (?P<key_gib>{_GB}) GB, V size: (?P<value_gib>{_GB}) GB",
        rf"Mamba Cache is allocated\. max_mamba_cache_size: \d+, "
        rf"conv_state size: (?P<conv_gib>{_GB})GB, ssm_state size: (?P<ssm_gib>{_GB})GB",
        r"[Uu]se [Ss]liding window memory pool\. full_layer_tokens=(?P<full_pool_tokens>\d+), "
        r"swa_layer_tokens=(?P<window_pool_tokens>\d+)",
        rf"Capture (?:cuda|CUDA) graph end\..*?(?:avail mem={_GB} GB\. )?mem usage=(?P<graph_gib>{_GB}) GB",
        r"max_total_num_tokens=(?P<kv_tokens>\d+), (?:chunked_prefill_size=(?P<max_num_batched_tokens>\d+), )?"
        r"(?:chunked_prefill_size=-1, )?max_prefill_tokens=\d+, max_running_requests=(?P<max_num_seqs_count>\d+), "
        r"context_len=(?P<max_model_len_count>\d+)",
        r"Using KV cache dtype: torch\.(?P<kv_dtype_text>\w+)",
        r"sglang(?:\[\w+\])?[=-](?:v)?(?P<version_text>\d+\.\d+[\w.]*)",
        pattern(r"speculative_algorithm='(?!None)", has_speculation=True),
    ),
    refusals=(
        ("no_kv_memory", pattern(r"Not enough memory\. Please try to increase --mem-fraction-static")),
        ("window_pool_too_small", pattern(r"SWA pool \((?P<pool_tokens>\d+) tokens\) cannot hold even one request")),
        ("out_of_memory", pattern(r"CUDA out of memory|OutOfMemoryError")),
    ),
    combine=_combine,
)
