"""Text Generation Inference's log lines, text and JSON.

Source: the router's ``main.rs`` and ``server.rs``, the launcher's argument dump, and ``flash_causal_lm.py``.
"""

import re

from kvplan.engine_logs.wording import Wording, pattern, patterns

WORDING = Wording(
    engine="tgi",
    triggers="text_generation|max batch total tokens|KV-cache blocks|Args {|Warming up|max_total_tokens",
    marker=re.compile(r"text_generation_launcher: Args \{|^Args \{"),
    argument_line=re.compile(
        r"Args \{|^ +(?:model_id|num_shard|max_\w+|quantize|kv_cache_dtype|cuda_memory_fraction): "
    ),
    arguments=patterns(
        r"model_id: \"(?P<model_text>[^\"]+)\"",
        r"num_shard: Some\(\s*(?P<tensor_parallel_count>\d+)",
        r"max_total_tokens: (?:Some\()?\s*(?P<max_model_len_count>\d+)",
        r"max_concurrent_requests: (?P<max_num_seqs_count>\d+)",
        r"max_batch_prefill_tokens: (?:Some\()?\s*(?P<max_num_batched_tokens>\d+)",
        r"cuda_memory_fraction: (?P<memory_utilization_number>[\d.]+)",
        r"quantize: Some\(\s*(?P<quantization_text>\w+)",
        r"kv_cache_dtype: Some\(\s*(?P<kv_dtype_text>\w+)",
    ),
    patterns=patterns(
        r"Setting max batch total tokens to (?P<kv_tokens>\d+)",
        r"KV-cache blocks: (?P<blocks>\d+), size: (?P<block_tokens>\d+)",
        r"Default `?max_batch_prefill_tokens`? to (?P<max_num_batched_tokens>\d+)",
        r"Maximum input tokens defaulted to (?P<max_input_tokens>\d+)",
        r"Docker label: sha-(?P<version_text>\w+)",
        r"Default `?max_total_tokens`? to (?P<max_model_len_count>\d+)",
    ),
    refusals=(
        ("no_kv_memory", pattern(r"Not enough memory to handle (?P<max_model_len_count>\d+)? ?.*prefill tokens")),
        (
            "window_too_long",
            pattern(
                r"`max_total_tokens` must be <= `max_batch_total_tokens`. "
                r"Given: (?P<max_model_len_count>\d+) and (?P<pool_tokens>\d+)"
            ),
        ),
        ("out_of_memory", pattern(r"CUDA out of memory|OutOfMemoryError")),
    ),
)
