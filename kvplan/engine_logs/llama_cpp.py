"""llama.cpp's log lines, which Ollama and llama-cpp-python print too.

Source: ``llama-context.cpp``, ``llama-kv-cache.cpp``, ``llama-memory-recurrent.cpp``, ``llama-model.cpp``,
``llama-model-loader.cpp`` and ``server-context.cpp`` of the build in llama-cpp-python 0.3.36, and older forms of the
same lines (``llama_kv_cache_unified``, ``llm_load_tensors``, ``llama_new_context_with_model``).
"""

import re
from dataclasses import replace

from kvplan.engine_logs.figures import Observation
from kvplan.engine_logs.wording import Observations, Wording, pattern, patterns

_MIB = r"[\d.,]+"  # some locales write a comma
_DEVICE = re.compile(r"(\w+) +(?:KV |RS |model |compute )?buffer size")
_WHOLE = {
    "weight_bytes": "weight_bytes",
    "free_before_bytes": "free_before_bytes",
    "total_part_bytes": "total_bytes",
    "kv_part_bytes": "kv_bytes",
    "key_part_bytes": "key_bytes",
    "value_part_bytes": "value_bytes",
    "state_part_bytes": "state_bytes",
    "compute_part_bytes": "compute_bytes",
}


def _combine(seen: Observations) -> Observations:
    """Adds up the buffers of all devices and caches. A device may reserve its compute buffer again: the last counts.

    A second file read in the same start is a draft model's: its buffers are left out.
    """
    kept: list[Observation] = []
    sums: dict[str, int] = {}
    compute: dict[str, int] = {}
    files: set[object] = set()
    for item in seen:
        if item.name == "file":
            files.add(item.value)
        if len(files) > 1:
            continue
        target = _WHOLE.get(item.name)
        if target is None or not isinstance(item.value, int):
            kept.append(item)
            continue
        if target == "compute_bytes":
            match = _DEVICE.search(item.text)
            compute[match[1] if match else ""] = item.value
            sums[target] = sum(compute.values())
        else:
            sums[target] = sums.get(target, 0) + item.value
        kept.append(replace(item, name=target, value=sums[target]))
    names = {item.name: item for item in kept}
    if "kv_bytes" not in sums and "value_bytes" in sums:  # an excerpt without the "KV buffer size" lines
        kept.append(replace(names["value_bytes"], name="kv_bytes", value=sums["key_bytes"] + sums["value_bytes"]))
    cells, key_type, value_type = (names.get(name) for name in ("cells_tokens", "key_dtype", "value_dtype"))
    parts = [(item.value, item) for item in kept if item.name == "cells_part_tokens" and isinstance(item.value, int)]
    if cells is not None:
        kept.append(replace(cells, name="kv_tokens"))
    elif parts:  # an excerpt without n_ctx: the largest cache is that of layers without a window
        (most, largest), streams = max(parts, key=lambda part: part[0]), names.get("streams")
        count = streams.value if streams is not None and isinstance(streams.value, int) else 1
        kept.append(replace(largest, name="kv_tokens", value=most * count))
    if key_type is not None and value_type is not None:
        both = key_type.value if key_type.value == value_type.value else f"{key_type.value}/{value_type.value}"
        kept.append(replace(key_type, name="kv_dtype", value=both))
    return tuple(kept)


WORDING = Wording(
    engine="llama.cpp",
    triggers=(
        "llama_|llama-|llm_load|load_tensors|load_model|print_info|KV self|buffer size|compute buffer|n_ctx"
        "|n_slots|VRAM: |build:|build =|ggml_cuda|using device"
    ),
    marker=re.compile(r"^(?:.*\b)?build(?:_info)?(?::| =) *b?\d+|load_model: loading model '|ggml_cuda_init: found"),
    patterns=patterns(
        r"\bbuild(?:_info)?(?::| =) *(?P<version_text>b?\d+)",
        r"loaded meta data with \d+ key-value pairs and \d+ tensors from (?P<file_text>\S+)",
        r"general\.name +(?:str +)?= (?P<model_text>.+?)\s*$",
        r"(?:file type|model ftype) += (?P<quantization_text>[A-Z]\S+)",
        r"using device (?P<device_text>\w+) \((?P<gpu_text>[^)]+)\).* - (?P<free_before_mib>\d+) MiB free",
        r"Device \d+: (?P<gpu_text>[^,]+), compute capability .*VRAM: (?P<total_part_mib>\d+) MiB",
        r"offloaded (?P<layers_on_gpu_count>\d+)/(?P<layers_count>\d+) layers to GPU",
        r"^(?!.*(?:CPU|_Host|KV |RS |compute |output )).*\b(?P<device_text>\w+) +(?:model )?buffer size = +"
        rf"(?P<weight_mib>{_MIB}) MiB",
        r"n_seq_max += (?P<slots_count>\d+)",
        r"\bn_ctx +?= (?P<cells_tokens>\d+)",
        r"n_ctx_(?:seq|per_seq) += (?P<max_model_len_count>\d+)",
        r"\bn_ubatch += (?P<max_num_batched_tokens>\d+)",
        r"kv_unified += (?P<kv_unified_flag>true|false)",
        r"initializing(?: slots)?, n_slots = (?P<slots_count>\d+)(?:, n_ctx_slot = (?P<max_model_len_count>\d+))?",
        rf"KV buffer size = +(?P<kv_part_mib>{_MIB}) MiB",
        rf"(?:size = +{_MIB} MiB \( *(?P<cells_part_tokens>\d+) cells, +\d+ layers,"
        rf" +\d+(?:/ *(?P<streams_count>\d+))? seqs\),"
        rf" K \((?P<key_dtype_text>\w+)\): +(?P<key_part_mib>{_MIB}) MiB, V \((?P<value_dtype_text>\w+)\): +"
        rf"(?P<value_part_mib>{_MIB}) MiB)",
        rf"KV self size += +{_MIB} MiB, K \((?P<key_dtype_text>\w+)\): +(?P<key_part_mib>{_MIB}) MiB,"
        rf" V \((?P<value_dtype_text>\w+)\): +(?P<value_part_mib>{_MIB}) MiB",
        rf"RS buffer size = +(?P<state_part_mib>{_MIB}) MiB",
        rf"^(?!.*(?:CPU|Host)).*compute buffer size (?:= |of )+ *(?P<compute_part_mib>{_MIB}) MiB",
        r"creating +SWA KV cache, size = (?P<window_pool_tokens>\d+) cells",
    ),
    refusals=(
        (
            "out_of_memory",
            pattern(
                rf"failed to allocate buffer for (?:kv|rs) cache|allocating (?P<needed_mib>{_MIB}) MiB on device"
                r" .*out of memory"
                r"|failed to allocate compute|cudaMalloc failed: out of memory|unable to allocate \S+ buffer"
            ),
        ),
    ),
    combine=_combine,
)
