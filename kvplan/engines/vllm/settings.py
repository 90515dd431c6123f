"""vLLM's settings: the user's, else the defaults of the release and the GPU; and which combinations it refuses.

Each rule names the releases it holds for; what is not known of an older release is priced as 0.33, with a finding.
"""

from dataclasses import dataclass

from kvplan.engines.deployment import Deployment
from kvplan.engines.devices import capability_of, device_bytes, window_of
from kvplan.engines.engine_plan import Settings
from kvplan.engines.memory_share import utilization_of_total
from kvplan.engines.vllm.releases import default_utilization, is_first_engine, release_of
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import LatentAttention, NgramConvState, RecurrentLayer, SlidingAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB

_FIRST_LATENTS = (0, 7)
"""The first release whose cache holds MLA's latents ("MLA is enabled", logs of 0.7.1). Before it, DeepSeek-V2 with 16
heads a rank had 13,360 tokens where latents would be fourteen times as many (deepseek-ai/DeepSeek-V2 issue 83)."""
_LATENTS_IN_ONE_STEP = (0, 7)
"""Its MLA computes a prompt in one step ("MLA is enabled; forcing chunked prefill and prefix caching to be disabled",
logs of 0.7.1 and 0.7.3)."""
_FIRST_LONG_CHUNKS = (0, 6, 5)
"""The first release whose chunks are 2,048 tokens by default, not 512 (vllm-project/vllm pull 10544)."""
_V0_MEDIA_TOKENS = 5120
"""A step of V0 holds at least this many tokens for multimodal models (0.6.6 and 0.7.3,
``_MULTIMODAL_MODEL_MAX_NUM_BATCHED_TOKENS``)."""
_MODES = ("balanced", "interactivity", "throughput")
_FIRST_MODES = (0, 17)
_FIRST_MANY_SEQUENCES, _FIRST_HUGE = (0, 9), (0, 28)
"""Before them, large GPUs had 256 sequences by default, and the largest GPUs had no defaults of their own."""
_FIRST_ASYNC = (0, 14)
_FIRST_CACHED_STATES = (0, 28)
"""The first release that caches prefixes of models with recurrent states by default: up to 0.25.1
``is_prefix_caching_supported`` returns False for hybrids, and 0.26 and 0.27 keep it opt-in (``EngineArgs``)."""
_FIRST_IN_FLIGHT = (0, 26)
"""Before it, windows were sized for the tokens of one batch, however many were in flight (vllm-project/vllm pull 47728
and issue 49878, which compares 0.25.1 with 0.26)."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Defaults by size of GPU: sequences, and tokens of a step of the server (``LLM`` in a script has others)."""

    max_num_seqs: int
    server_tokens: int


_SMALL = Tier(max_num_seqs=256, server_tokens=2048)
_LARGE = Tier(max_num_seqs=1024, server_tokens=8192)
_LARGE_FEW_SEQUENCES = Tier(max_num_seqs=256, server_tokens=8192)
_HUGE = Tier(max_num_seqs=1024, server_tokens=16384)

_ATTENTION_FREE = frozenset({"MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM"})
"""Classes without attention (vLLM 0.33, ``IsAttentionFree``); a hybrid that has no attention layers is not one."""

_WHOLE_POOLERS = frozenset({"ColPaliForRetrieval", "Qwen2ForProcessRewardModel"})
"""Classes that pool the first token or every step: by default their prompts are neither chunked nor cached (vLLM 0.33,
``default_pooling_type`` CLS and STEP, ``ModelConfig.is_prefix_caching_supported``)."""

_SEQUENCES_OF = {"DiffusionGemmaForBlockDiffusion": 8}
"""Classes with a default of their own (vLLM 0.33): a step denoises whole canvases."""

_WHOLE_ITEMS = frozenset({"Gemma4ForConditionalGeneration"})
"""Classes whose images and videos cannot be split over steps, so that a step must hold the largest item (vLLM 0.33,
``gemma4_mm.py``; logs print steps of 2,496 tokens)."""

_ALL_OR_NO_WINDOWS = frozenset(
    {
        "Qwen2ForCausalLM",
        "Qwen2VLForConditionalGeneration",
        "Qwen2_5_VLForConditionalGeneration",
        "Qwen3ForCausalLM",
    }
)
"""Classes built on vLLM 0.33's ``Qwen2Model``, which asserts that every layer has a window or none has."""

_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The adapter ranks that vLLM 0.33 takes (``config/lora.py``)."""


def check_supported(model: ModelSpec, deployment: Deployment) -> None:
    """Raises for what vLLM refuses whatever the pool: InputError for an option, UnsupportedModelError for a model."""
    if deployment.lora_slots and deployment.lora_rank not in _LORA_RANKS:
        raise InputError(
            f"vLLM does not take adapters of rank {deployment.lora_rank}",
            hint=f"--max-lora-rank is one of {', '.join(map(str, _LORA_RANKS))}",
            key="max_lora_rank",
        )
    if deployment.performance_mode not in _MODES:
        raise InputError(
            f"{deployment.performance_mode!r} is not a performance mode of vLLM",
            hint=f"one of {', '.join(_MODES)}",
            key="performance_mode",
        )
    if deployment.performance_mode != _MODES[0] and release_of(deployment) < _FIRST_MODES:
        raise InputError(
            "vLLM before 0.17 has no performance modes", hint="give --max-num-seqs instead", key="performance_mode"
        )
    if model.keeps(NgramConvState) and deployment.pipeline_parallel > 1:
        raise InputError(
            f"vLLM refuses pipeline parallelism for {model.id}: later stages do not get the tokens of its n-grams",
            hint="--pipeline-parallel 1",
            key="pipeline_parallel",
        )
    if release_of(deployment)[:2] < _FIRST_LATENTS and model.keeps(LatentAttention):
        raise UnsupportedModelError(
            f"vLLM before 0.7 stores padded keys and values of every head of {model.id} in place of MLA's latents, "
            "many times as much: not modelled",
            hint="--engine vllm@0.7.3 or newer",
            key="engine",
        )
    slides = [isinstance(kept, SlidingAttention) for kept in model.caches]
    slides_from_a_layer_on = any(slides) and not all(slides) and slides == sorted(slides)  # max_window_layers
    if model.architecture in _ALL_OR_NO_WINDOWS and slides_from_a_layer_on:
        raise UnsupportedModelError(
            f"vLLM refuses {model.id}: a sliding window for some but not all layers (max_window_layers below the "
            "number of layers) is not supported in this class",
            hint="set use_sliding_window to false in its config (--hf-overrides), which is how the class is served",
            key="max_window_layers",
        )


def tier_of(deployment: Deployment) -> Tier:
    """The device's tier of defaults: below 70 GiB, any A100 and GB10 the smallest; from 160 GiB the largest.

    Source: vLLM 0.33, ``EngineArgs.get_batch_defaults``; the largest tier since 0.28.
    """
    memory_bytes, release = device_bytes(deployment), release_of(deployment)
    name = "" if deployment.gpu is None else f"{deployment.gpu.name} {deployment.gpu.family}".lower()
    if memory_bytes >= 160 * GIB and release >= _FIRST_HUGE:
        return _HUGE
    if memory_bytes < 70 * GIB or "a100" in name or capability_of(deployment) == (12, 1):
        return _SMALL
    return _LARGE if release >= _FIRST_MANY_SEQUENCES else _LARGE_FEW_SEQUENCES


def _default_tokens(model: ModelSpec, deployment: Deployment, window: int) -> int:
    """The default tokens of a step, before the limits; twice the tier's in throughput mode.

    V0: a whole prompt, or a chunk where prompts are chunked.
    """
    release = release_of(deployment)
    if is_first_engine(release):
        chunk = 2048 if release >= _FIRST_LONG_CHUNKS else 512
        tokens = chunk if _chunks_in_v0(model, deployment, window) else max(2048, window)
        return max(tokens, _V0_MEDIA_TOKENS) if model.shape.has_vision else tokens
    encoder = model.shape.encoder if model.architecture in _WHOLE_ITEMS and model.shape.has_vision else None
    item_tokens = 0 if encoder is None else encoder.item_tokens
    whole_prompt = 0 if _chunks(model, deployment) else window
    return max(tier_of(deployment).server_tokens * _doubling(deployment), item_tokens, whole_prompt)


def _doubling(deployment: Deployment) -> int:
    """2 in throughput mode, which doubles the defaults (vLLM 0.17 to 0.33, ``EngineArgs``), else 1."""
    return 2 if deployment.performance_mode == "throughput" else 1


def _chunks(model: ModelSpec, deployment: Deployment) -> bool:
    """Whether V1 computes prompts in chunks: as asked, by default where the class can."""
    asked = deployment.chunked_prefill
    return model.architecture not in _WHOLE_POOLERS if asked is None else asked


def _chunks_in_v0(model: ModelSpec, deployment: Deployment, window: int) -> bool:
    """Whether V0 computes prompts in chunks: as asked, by default for windows above 32,768 of plain decoders.

    Source: vLLM 0.6.6, ``EngineArgs.create_engine_config`` ("Chunked prefill is enabled by default for models with
    max_model_len > 32K"; not for multimodal or pooling models, sliding windows, adapters or speculative decoding).
    """
    if release_of(deployment)[:2] == _LATENTS_IN_ONE_STEP and model.keeps(LatentAttention):
        return False
    if deployment.chunked_prefill is not None:
        return deployment.chunked_prefill
    is_plain = not (
        model.shape.has_vision
        or model.shape.is_pooling
        or model.keeps(SlidingAttention)
        or deployment.lora_slots
        or deployment.speculative_tokens
    )
    return is_plain and window > 32768


def _default_sequences(model: ModelSpec, deployment: Deployment) -> int:
    own = _SEQUENCES_OF.get(model.architecture)
    if own is not None:
        return own
    if is_first_engine(release_of(deployment)):
        return 256
    return tier_of(deployment).max_num_seqs * _doubling(deployment)


def is_whole_prompt(model: ModelSpec, deployment: Deployment, settings: Settings) -> bool:
    """Whether a step is as long as the window because V0 computes prompts whole."""
    window = settings.max_model_len
    is_as_long = 2048 < window <= settings.max_num_batched_tokens
    return is_first_engine(release_of(deployment)) and is_as_long and not _chunks_in_v0(model, deployment, window)


def resolve_settings(model: ModelSpec, deployment: Deployment) -> Settings:
    """Every setting: the user's where given, else vLLM's default for the release and the GPU.

    A default T (tokens of a step) is at most S × window, and at least the window where prompts are not chunked. A
    default S (sequences) is at most T; a given S above T is refused. T tokens are in flight for each concurrent batch:
    one per pipeline stage, and one more with async scheduling.
    Source: vLLM 0.33, ``EngineArgs`` and ``VllmConfig.max_concurrent_batches``.
    """
    release, window = release_of(deployment), window_of(model, deployment)
    sequences = deployment.max_num_seqs or _default_sequences(model, deployment)
    tokens = deployment.max_num_batched_tokens or min(sequences * window, _default_tokens(model, deployment, window))
    if deployment.max_num_seqs is None:
        sequences = min(sequences, tokens)
    if sequences > tokens:
        raise InputError(
            f"max_num_seqs {sequences:,} is above max_num_batched_tokens {tokens:,}: vLLM refuses to start",
            hint="every running sequence needs one token of a step; raise --max-num-batched-tokens",
            key="max_num_batched_tokens",
        )
    chunked = _chunks(model, deployment)
    if not chunked and tokens < window and not is_first_engine(release):
        raise InputError(
            f"without chunked prefill a step of {tokens:,} tokens is shorter than the window of {window:,}: vLLM "
            "refuses to start",
            hint="raise max_num_batched_tokens to the prompt length or enable chunked prefill",
            key="max_num_batched_tokens",
        )
    async_scheduling = deployment.async_scheduling
    if async_scheduling is None:
        async_scheduling = release >= _FIRST_ASYNC and not model.shape.is_pooling
    prefix_caching = deployment.prefix_caching
    if prefix_caching is None:
        has_states_in_early = model.keeps(RecurrentLayer) and release < _FIRST_CACHED_STATES
        is_uncached = model.is_encoder_decoder or model.architecture in _ATTENTION_FREE | _WHOLE_POOLERS
        prefix_caching = not (is_first_engine(release) or is_uncached or has_states_in_early)
    batches = deployment.pipeline_parallel + int(async_scheduling) if release >= _FIRST_IN_FLIGHT else 1
    return Settings(
        max_model_len=window,
        max_num_seqs=sequences,
        max_num_batched_tokens=tokens,
        memory_utilization=utilization_of_total(deployment) or default_utilization(release),
        async_scheduling=async_scheduling,
        prefix_caching=prefix_caching,
        in_flight_tokens=batches * tokens,
        chunked_prefill=chunked,
    )
