"""Which engine has which option of a deployment, and which of those no plan prices: nothing asked for is ignored."""

from collections.abc import Iterator, Mapping
from dataclasses import fields

from kvplan.engines.base import Deployment, Unpriced
from kvplan.errors import InputError

_EXPERTS = ("vllm", "sglang", "tensorrt-llm")

HAVE: Mapping[str, tuple[str, ...]] = {
    "expert_parallel": _EXPERTS,
    "cache_type_k": ("llama.cpp",),
    "cache_type_v": ("llama.cpp",),
    "memory_utilization": ("vllm", "sglang", "tensorrt-llm", "tgi"),
    "async_scheduling": ("vllm", "sglang", "tensorrt-llm"),
    "prefix_caching": ("vllm", "sglang", "tensorrt-llm", "tgi"),
    "chunked_prefill": ("vllm", "sglang", "tensorrt-llm"),
    "hybrid_kv_cache_manager": ("vllm", "sglang"),
    "block_size": ("vllm", "sglang", "tensorrt-llm", "tgi"),
    "kv_unified": ("llama.cpp",),
    "swa_full": ("llama.cpp",),
    "window_pool_ratio": ("sglang",),
    "state_pool_ratio": ("sglang",),
    "pipeline_layers": ("vllm", "sglang", "llama.cpp"),
    "media_limits": ("vllm", "sglang"),
    "kv_offload_bytes": ("vllm", "sglang", "tensorrt-llm"),
}
"""Option → the engines that have one like it; an option that is not named here all of them have."""


_ADAPTERS = Unpriced(
    option="lora_slots",
    word="max-loras",
    takes="adapter weights, by rank and number of adapters, as this engine books them",
)
_OFFLOAD = Unpriced(option="kv_offload_bytes", word="kv-offload", takes="host memory, and staging buffers on the GPU")
_EAGER = Unpriced(
    option="enforce_eager",
    word="enforce-eager",
    takes="another share of the step's memory, which no log was compared with",
)
_EXPERT = Unpriced(
    option="expert_parallel", word="expert-parallel", takes="a share of experts and buffers for sending tokens to them"
)
_STAGES = Unpriced(option="pipeline_layers", word="pp-layers", takes="an uneven share of the layers on each stage")
_MEDIA = Unpriced(option="media_limits", word="limit-mm-per-prompt", takes="the encoder's worst case at start-up")
_CHUNKS = Unpriced(
    option="chunked_prefill", word="chunked-prefill", takes="whole prompts in one step, and the memory of that step"
)

UNPRICED: Mapping[str, tuple[Unpriced, ...]] = {
    "vllm": (_OFFLOAD,),
    "sglang": (_ADAPTERS, _OFFLOAD, _EXPERT, _MEDIA),
    "tensorrt-llm": (_ADAPTERS, _OFFLOAD, _EAGER, _EXPERT, _CHUNKS),
    "llama.cpp": (_ADAPTERS, _EAGER, _STAGES),
    "tgi": (_ADAPTERS, _EAGER),
}
"""Engine → the options that it has and that its plan is made without."""

_DEFAULTS = {field.name: field.default for field in fields(Deployment)}


def is_asked(deployment: Deployment, option: str) -> bool:
    """Whether ``option`` was given: is not what a deployment has unasked."""
    return bool(getattr(deployment, option) != _DEFAULTS[option])


def check_options(deployment: Deployment) -> None:
    """Raises InputError for an option that the engine does not have: there it would change nothing."""
    name = deployment.engine.name
    for option, owners in HAVE.items():
        if name not in owners and is_asked(deployment, option):
            raise InputError(
                f"{option} is an option of {' and '.join(owners)}; {name} has none like it",
                hint=f"leave it out, or plan for --engine {owners[0]}",
                key=option,
            )


def check_belongs(deployment: Deployment) -> None:
    """Raises InputError for an option whose own object is missing: there is nothing that it could say something of."""
    guesses = deployment.draft_model is not None or deployment.speculative_method is not None
    if guesses and not deployment.speculative_tokens:
        raise InputError(
            "a way to guess tokens ahead, but not how many", hint="--speculative-tokens 3", key="speculative_tokens"
        )


def unpriced_options(deployment: Deployment) -> Iterator[Unpriced]:
    """What was asked for and the engine's plan is made without."""
    return (each for each in UNPRICED[deployment.engine.name] if is_asked(deployment, each.option))
