"""The engine flags that make a server keep to a plan: the plan's settings in the engine's own words."""

import json
import shlex
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path

from kvplan.capacity import Fit
from kvplan.engines.drafting import Drafter
from kvplan.engines.ggml_types import cache_types
from kvplan.engines.sglang import drafting as sglang_drafting
from kvplan.engines.vllm.drafting import drafter_of

Value = Callable[[Fit], object]

ALL_LAYERS = 999
"""More layers than any model has."""


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


def _decimal_or_none(share: Fraction | None) -> str | None:
    return None if share is None else _decimal(share)


def _is_unified(fit: Fit) -> bool:
    """Whether llama.cpp's slots share one cache: unless it is said, when their number is left to the server."""
    asked = fit.deployment.kv_unified
    return fit.deployment.max_num_seqs is None if asked is None else asked


def _context(fit: Fit) -> int:
    """The whole context of a server: one slot's window, for each slot where the cache is divided."""
    return _window(fit) * (1 if _is_unified(fit) else fit.plan.settings.max_num_seqs)


def _largest_cap(fit: Fit) -> int | None:
    """The largest output cap among the shapes asked for: what a request without one should get."""
    return max((one.max_output_tokens for one in fit.reservations if one.max_output_tokens), default=None)


def _default_cap(fit: Fit) -> str | None:
    """The generation config, by which vLLM caps every request, also one that asks for more (0.33, get_max_tokens)."""
    cap = _largest_cap(fit)
    return None if cap is None else json.dumps({"max_new_tokens": cap})


def _speculation(fit: Fit) -> str | None:
    """VLLM's one flag for what guesses ahead, and how far."""
    asked = fit.deployment
    if not asked.speculative_tokens:
        return None
    drafter = drafter_of(fit.model, asked)
    assert drafter is not None
    said: dict[str, object] = {"method": drafter.engine_word, "num_speculative_tokens": drafter.tokens}
    return json.dumps(said if drafter.model is None else {"model": drafter.model.id, **said})


def _media_limits(fit: Fit) -> str | None:
    """Items by sort, as vLLM takes them."""
    limits = fit.deployment.media_limits
    return None if limits is None else json.dumps({limit.sort: limit.items for limit in limits})


def _ranks(fit: Fit) -> int:
    """GPUs over which attention's replicas and their tensor parallelism spread."""
    return fit.deployment.tensor_parallel * fit.deployment.data_parallel


def _all_sequences(fit: Fit) -> int:
    """Sequences of all attention replicas together."""
    return fit.plan.settings.max_num_seqs * fit.deployment.data_parallel


def _kv_word(words: Mapping[str, str | None]) -> Value:
    """The KV type asked for, in the engine's spelling where ``words`` has one; None there: it has no word for it."""
    return lambda fit: (
        None if fit.deployment.kv_dtype == "auto" else words.get(fit.deployment.kv_dtype, fit.deployment.kv_dtype)
    )


def _cache_type(option: str) -> Value:
    """llama.cpp's word for K's or V's type: its own, else that of both."""

    def read(fit: Fit) -> object:
        own, both = getattr(fit.deployment, option), fit.deployment.kv_dtype
        return own or (None if both == "auto" else cache_types(None, None, both).key.name)

    return read


def _of_draft(value: Callable[[Drafter], object], *, drafted: bool = False) -> Value:
    """``value`` of what guesses ahead under SGLang; ``drafted``: n-grams take no such flag."""

    def read(fit: Fit) -> object:
        drafter = sglang_drafting.drafter_of(fit.model, fit.deployment)
        return None if drafter is None or (drafted and not drafter.layers) else value(drafter)

    return read


def _chunk(fit: Fit) -> int | None:
    """SGLang's prefill chunk as asked for; −1 where there are none."""
    return -1 if fit.deployment.chunked_prefill is False else fit.deployment.max_num_batched_tokens


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
        "--no-enable-chunked-prefill": lambda fit: fit.deployment.chunked_prefill is False or None,
        "--enforce-eager": lambda fit: fit.deployment.enforce_eager or None,
        "--speculative-config": _speculation,
        "--limit-mm-per-prompt": _media_limits,
        "--enable-expert-parallel": lambda fit: fit.deployment.expert_parallel or None,
        "--enable-lora": lambda fit: fit.deployment.lora_slots > 0 or None,
        "--max-loras": lambda fit: fit.deployment.lora_slots or None,
        "--max-lora-rank": lambda fit: fit.deployment.lora_rank if fit.deployment.lora_slots else None,
        "--no-async-scheduling": lambda fit: fit.deployment.async_scheduling is False or None,
        "--enable-prefix-caching": lambda fit: fit.deployment.prefix_caching or None,
        "--no-enable-prefix-caching": lambda fit: fit.deployment.prefix_caching is False or None,
        "--disable-hybrid-kv-cache-manager": lambda fit: not fit.deployment.hybrid_kv_cache_manager or None,
        "--override-generation-config": _default_cap,
    },
    "sglang": {
        "--tp-size": _unless(1, _ranks),
        "--pp-size": _PP,
        "--dp-size": _DP,
        "--enable-dp-attention": lambda fit: fit.deployment.data_parallel > 1 or None,
        "--ep-size": lambda fit: _ranks(fit) if fit.deployment.expert_parallel else None,
        "--context-length": _window,
        "--max-running-requests": _all_sequences,
        "--chunked-prefill-size": _chunk,
        "--speculative-algorithm": _of_draft(sglang_drafting.algorithm_of),
        "--speculative-draft-model-path": _of_draft(lambda drafter: drafter.model and drafter.model.id),
        "--speculative-num-steps": _of_draft(lambda drafter: drafter.tokens, drafted=True),
        "--speculative-eagle-topk": _of_draft(lambda _: 1, drafted=True),
        "--speculative-num-draft-tokens": _of_draft(lambda drafter: drafter.tokens + 1),
        "--mem-fraction-static": _SHARE,
        "--kv-cache-dtype": _kv_word({"fp8": "fp8_e4m3"}),
        "--page-size": _BLOCK,
        "--swa-full-tokens-ratio": lambda fit: _decimal_or_none(fit.deployment.window_pool_ratio),
        "--mamba-full-memory-ratio": lambda fit: _decimal_or_none(fit.deployment.state_pool_ratio),
        "--disable-hybrid-swa-memory": lambda fit: not fit.deployment.hybrid_kv_cache_manager or None,
        "--disable-cuda-graph": lambda fit: fit.deployment.enforce_eager or None,
        "--disable-radix-cache": lambda fit: fit.deployment.prefix_caching is False or None,
    },
    "tensorrt-llm": {
        "--tp_size": _unless(1, _ranks),
        "--pp_size": _PP,
        "--enable_attention_dp": lambda fit: fit.deployment.data_parallel > 1 or None,
        "--ep_size": lambda fit: _ranks(fit) if fit.deployment.expert_parallel else None,
        "--max_seq_len": _window,
        "--max_batch_size": _SEQUENCES,
        "--max_num_tokens": _STEP,
        "--kv_cache_free_gpu_memory_fraction": _SHARE,
        "--kv_cache_dtype": _kv_word({"bfloat16": None, "float16": None}),
    },
    "llama.cpp": {
        "--n-gpu-layers": lambda _fit: ALL_LAYERS,
        "--ctx-size": _context,
        "--parallel": _SEQUENCES,
        "--kv-unified": lambda fit: _is_unified(fit) or None,
        "--no-kv-unified": lambda fit: not _is_unified(fit) or None,
        "--swa-full": lambda fit: fit.deployment.swa_full or None,
        "--ubatch-size": lambda fit: fit.deployment.max_num_batched_tokens,
        "--predict": _largest_cap,
        "--cache-type-k": _cache_type("cache_type_k"),
        "--cache-type-v": _cache_type("cache_type_v"),
    },
    "tgi": {
        "--num-shard": _TP,
        "--max-total-tokens": _window,
        "--max-batch-prefill-tokens": _STEP,
        "--max-concurrent-requests": lambda fit: fit.deployment.max_num_seqs,
        "--cuda-memory-fraction": _unless("1", _SHARE),
        "--kv-cache-dtype": _kv_word({"bfloat16": None, "float16": None}),
    },
}
"""Engine → flag → its value; None leaves the flag out, True is a flag without a value.

Source: the argument parsers of vLLM 0.33, SGLang 0.5.23, llama.cpp (``common/arg.cpp``), ``trtllm-serve`` and TGI's
launcher. ``--n-gpu-layers`` says what the plan takes for granted: every layer is on the GPUs, whatever
``--fit`` would choose, or an older build's default of none.
"""

COMMANDS = {
    "vllm": "vllm serve {model}",
    "sglang": "python -m sglang.launch_server --model-path {model}",
    "tensorrt-llm": "trtllm-serve {model}",
    "llama.cpp": "llama-server {model}",
    "tgi": "text-generation-launcher --model-id {model}",
}
"""How each engine is started."""


def engine_flags(fit: Fit) -> dict[str, object]:
    """The flags that ``fit`` stands for, in the order in which they are written."""
    values = ((flag, value(fit)) for flag, value in FLAGS[fit.deployment.engine.name].items())
    return {flag: value for flag, value in values if value is not None}


def _llama_model(model_id: str) -> str:
    """Which GGUF file llama.cpp loads: the one named, a repository's, or one of the name that a conversion makes."""
    if not model_id.endswith(".gguf"):
        return f"--model {shlex.quote(model_id.rsplit('/', 1)[-1])}.gguf"
    repository, _, file = model_id.partition("/")
    name, _, path = file.partition("/")
    if not path or Path(model_id).exists():
        return f"--model {shlex.quote(model_id)}"
    return f"--hf-repo {shlex.quote(f'{repository}/{name}')} --hf-file {shlex.quote(path)}"


def command_words(fit: Fit) -> list[str]:
    """The whole command line, one word or flag with its value an entry."""
    engine = fit.deployment.engine.name
    model = _llama_model(fit.model.id) if engine == "llama.cpp" else shlex.quote(fit.model.id)
    stages = fit.deployment.pipeline_layers
    partition = f"{engine.upper()}_PP_LAYER_PARTITION={','.join(map(str, stages))} " if stages else ""
    start = partition + COMMANDS[engine].format(model=model)
    flags = engine_flags(fit).items()
    return [start, *(flag if value is True else f"{flag} {shlex.quote(str(value))}" for flag, value in flags)]
