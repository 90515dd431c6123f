"""Writes start-up logs in the engines' own forms from a row of printed figures."""

import re
from collections.abc import Mapping
from typing import Any


def vllm_log(row: Mapping[str, Any]) -> str:
    """The lines that vLLM of the row's version prints; figures that the row lacks are left out."""
    version = row.get("engine_version") or "0.11.0"
    release = tuple(int(part) for part in version.split(".")[:2])
    is_v0 = row.get("engine_core") == "V0"
    word = {"kv_cache_dtype": "auto", "tp": 1, "pp": 1, "dp": 1}
    known = {**word, **{key: value for key, value in row.items() if value is not None}}
    arguments = [
        f"model='{known['model']}'",
        f"tensor_parallel_size={known['tp']}",
        f"dtype=torch.{known.get('dtype')}",
    ]
    arguments += [f"pipeline_parallel_size={known['pp']}", f"kv_cache_dtype={known['kv_cache_dtype']}"]
    for name, key in (
        ("max_model_len", "max_seq_len" if is_v0 else "max_model_len"),
        ("enforce_eager", "enforce_eager"),
        ("prefix_caching", "enable_prefix_caching"),
        ("context_parallel_dcp", "decode_context_parallel_size"),
        ("max_num_seqs", "max_num_seqs"),
        ("gpu_memory_utilization", "gpu_memory_utilization"),
    ):
        if known.get(name) is not None:
            arguments.append(f"{key}={known[name]}")
    if known.get("speculative"):
        arguments.append(f"speculative_config={known['speculative']}")
    core = "an LLM engine" if release < (0, 7) else f"a {'V0' if is_v0 else 'V1'} LLM engine"
    out = [f"INFO 01-01 00:00:00 core.py:77] Initializing {core} (v{version}) with config: {', '.join(arguments)}"]
    if known.get("max_num_batched_tokens"):
        tokens = known["max_num_batched_tokens"]
        out.append(f"INFO 01-01 00:00:00 s.py:1] Chunked prefill is enabled with max_num_batched_tokens={tokens}.")
    if known.get("model_load_gib") is not None:
        out.append(f"INFO 01-01 00:00:01 m.py:1] Model loading took {known['model_load_gib']:.4f} GiB and 9 seconds")
    total, kv = known.get("gpu_mem_total_gib"), known.get("available_kv_gib")
    if is_v0 and total and kv is not None and known.get("activation_peak_gib") is not None:
        share = known["gpu_memory_utilization"]
        out.append(
            f"the current vLLM instance can use total_gpu_memory ({total:.2f}GiB) x gpu_memory_utilization "
            f"({share:.2f}) = {total * share:.2f}GiB"
        )
        out.append(
            f"model weights take {known['model_load_gib']:.2f}GiB; non_torch_memory takes "
            f"{known['non_torch_gib']:.2f}GiB; PyTorch activation peak memory takes "
            f"{known['activation_peak_gib']:.2f}GiB; the rest of the memory reserved for KV Cache is {kv:.2f}GiB."
        )
    if known.get("graph_est_gib") is not None:
        out.append(f"INFO 01-01 00:00:02 r.py:1] Estimated CUDA graph memory: {known['graph_est_gib']:.2f} GiB total")
    block = re.search(r"attention block size set to (\d+)", known.get("other_flags", ""))
    if block is not None:
        out.append(f"INFO 01-01 00:00:01 i.py:1] Setting attention block size to {block[1]} tokens to ensure that …")
    if not is_v0 and kv is not None:
        out.append(f"INFO 01-01 00:00:02 w.py:1] Available KV cache memory: {kv:.2f} GiB")
    if known.get("gpu_blocks") is not None:
        out.append(f"INFO 01-01 00:00:03 e.py:1] # GPU blocks: {known['gpu_blocks']}, # CPU blocks: 2048")
    if not is_v0 and known.get("kv_tokens") is not None:
        out.append(f"INFO 01-01 00:00:03 k.py:1] GPU KV cache size: {known['kv_tokens']:,} tokens")
    if known.get("max_concurrency") is not None:
        out.append(
            f"INFO 01-01 00:00:03 k.py:1] Maximum concurrency for {known['max_concurrency_len']:,} tokens per request:"
            f" {known['max_concurrency']:.2f}x"
        )
    if known.get("graph_gib") is not None:
        out.append(f"INFO 01-01 00:00:09 r.py:1] Graph capturing finished in 9 secs, took {known['graph_gib']:.2f} GiB")
    return "\n".join(out) + "\n"
