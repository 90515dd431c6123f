"""The engine flags that make a server keep to a plan: the plan's settings in the engine's own words."""

from collections.abc import Callable
from fractions import Fraction

from kvplan.capacity import Fit

Value = Callable[[Fit], object]


def _decimal(share: Fraction) -> str:
    return f"{float(share):g}"


def _unless(default: object, value: Value) -> Value:
    """``value``, or None where it is ``default``: the engine does that by itself."""

    def read(fit: Fit) -> object:
        found = value(fit)
        return None if found == default else found

    return read


def _window(fit: Fit) -> int:
    """The window asked for; the longest that fits, where that one does not."""
    longest = fit.longest_window_tokens
    return fit.max_model_len if not longest or fit.verdict == "fits" else min(longest, fit.max_model_len)


_TP: Value = _unless(1, lambda fit: fit.deployment.tensor_parallel)
_PP: Value = _unless(1, lambda fit: fit.deployment.pipeline_parallel)
_DP: Value = _unless(1, lambda fit: fit.deployment.data_parallel)
_DCP: Value = _unless(1, lambda fit: fit.deployment.context_parallel)
_KV: Value = _unless("auto", lambda fit: fit.deployment.kv_dtype)
_BLOCK: Value = lambda fit: fit.deployment.block_size  # noqa: E731
_SHARE: Value = lambda fit: None if fit.deployment.kv_memory_bytes else _decimal(fit.plan.settings.memory_utilization)  # noqa: E731
_SEQUENCES: Value = lambda fit: fit.plan.settings.max_num_seqs  # noqa: E731
_STEP: Value = lambda fit: fit.plan.settings.max_num_batched_tokens  # noqa: E731

FLAGS: dict[str, dict[str, Value]] = {
    "vllm": {
        "--tensor-parallel-size": _TP,
        "--pipeline-parallel-size": _PP,
        "--data-parallel-size": _DP,
        "--decode-context-parallel-size": _DCP,
        "--max-model-len": _window,
        "--max-num-seqs": _SEQUENCES,
        "--max-num-batched-tokens": _STEP,
        "--gpu-memory-utilization": _SHARE,
        "--kv-cache-memory-bytes": lambda fit: fit.deployment.kv_memory_bytes,
        "--kv-cache-dtype": _KV,
        "--block-size": _BLOCK,
        "--enforce-eager": lambda fit: fit.deployment.enforce_eager or None,
        "--enable-expert-parallel": lambda fit: fit.deployment.expert_parallel or None,
        "--no-async-scheduling": lambda fit: fit.deployment.async_scheduling is False or None,
        "--enable-prefix-caching": lambda fit: fit.deployment.prefix_caching or None,
        "--no-enable-prefix-caching": lambda fit: fit.deployment.prefix_caching is False or None,
        "--disable-hybrid-kv-cache-manager": lambda fit: not fit.deployment.hybrid_kv_cache_manager or None,
    },
    "sglang": {
        "--tp-size": _TP,
        "--pp-size": _PP,
        "--dp-size": _DP,
        "--context-length": _window,
        "--max-running-requests": _SEQUENCES,
        "--chunked-prefill-size": lambda fit: fit.deployment.max_num_batched_tokens,
        "--mem-fraction-static": _SHARE,
        "--kv-cache-dtype": _KV,
        "--page-size": _BLOCK,
        "--disable-cuda-graph": lambda fit: fit.deployment.enforce_eager or None,
        "--disable-radix-cache": lambda fit: fit.deployment.prefix_caching is False or None,
    },
    "tensorrt-llm": {
        "--tp_size": _TP,
        "--pp_size": _PP,
        "--max_seq_len": _window,
        "--max_batch_size": _SEQUENCES,
        "--max_num_tokens": _STEP,
        "--kv_cache_free_gpu_memory_fraction": _SHARE,
    },
    "llama.cpp": {
        "--ctx-size": _window,
        "--parallel": _SEQUENCES,
        "--ubatch-size": lambda fit: fit.deployment.max_num_batched_tokens,
        "--cache-type-k": lambda fit: fit.deployment.cache_type_k,
        "--cache-type-v": lambda fit: fit.deployment.cache_type_v,
    },
    "tgi": {
        "--num-shard": _TP,
        "--max-total-tokens": _window,
        "--max-batch-total-tokens": lambda fit: fit.pool_tokens,
        "--max-batch-prefill-tokens": _STEP,
        "--cuda-memory-fraction": _SHARE,
        "--kv-cache-dtype": _KV,
    },
}
"""Engine → flag → its value; None leaves the flag out, True is a flag without a value."""

COMMANDS = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "tensorrt-llm": "trtllm-serve {model}",
    "llama.cpp": "llama-server --model {model}",
    "tgi": "text-generation-launcher --model-id {model}",
}
"""How each engine is started."""


def engine_flags(fit: Fit) -> dict[str, object]:
    """The flags that ``fit`` stands for, in the order in which they are written."""
    values = ((flag, value(fit)) for flag, value in FLAGS[fit.deployment.engine.name].items())
    return {flag: value for flag, value in values if value is not None}


def command_words(fit: Fit) -> list[str]:
    """The whole command line, one word or flag with its value an entry."""
    start = COMMANDS[fit.deployment.engine.name].format(model=fit.model.id)
    return [start, *(flag if value is True else f"{flag} {value}" for flag, value in engine_flags(fit).items())]
