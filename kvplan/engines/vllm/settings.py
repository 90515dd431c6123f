"""The settings that vLLM fills in by itself: sequences, batched tokens, utilisation, caching, async scheduling.

Each rule names the releases it holds for; what is not known of an older release is priced as 0.33 and said so.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.base import Deployment, Finding, Settings
from kvplan.engines.devices import capability_of, device_bytes, window_of
from kvplan.engines.memory_share import utilization_of_total
from kvplan.engines.vllm.budget_constants import FIRST_GRAPHS_INSIDE
from kvplan.errors import InputError
from kvplan.layers import LatentAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB

CHECKED_RELEASE = (0, 33)
"""The release whose figures were compared one by one; others are priced by the same rules, with a finding."""

_FIRST_V1 = (0, 8)
_LATENTS_IN_ONE_STEP = (0, 7)
"""Its MLA computes a prompt in one step ("MLA is enabled; forcing chunked prefill and prefix caching to be disabled",
logs of 0.7.1 and 0.7.3)."""
_FIRST_LARGE_TIER = (0, 28)
_FIRST_ASYNC = (0, 14)
_FIRST_IN_FLIGHT = (0, 26)
"""Before, windows were sized for the tokens of one batch, however many are under way (vllm-project/vllm pull 47728 and
issue 49878, which compares 0.25.1 with 0.26)."""

_FIRST_WINDOW_GROUPS = (0, 9, 1)
"""Before, every layer kept the same tokens, so that layers with a window beside full ones were charged in full
(vllm-project/vllm issue 11382, ended by pull 17996)."""
_FIRST_WHOLE_WINDOWS = (0, 20, 2)
"""A log of 0.20.0 prints 79,648 tokens beside 4.03 × 65,536, one of 0.20.2 5,463,232 beside 20.84 × 262,144."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Defaults of one size of GPU: sequences, and tokens of one step when serving (``LLM`` in a script has others)."""

    max_num_seqs: int
    server_tokens: int


_SMALL = Tier(max_num_seqs=256, server_tokens=2048)
_LARGE = Tier(max_num_seqs=1024, server_tokens=8192)
_FIRST_LARGE = Tier(max_num_seqs=256, server_tokens=8192)
_HUGE = Tier(max_num_seqs=1024, server_tokens=16384)


def release_of(deployment: Deployment) -> tuple[int, ...]:
    """The release whose rules are asked for; the newest known where none was named."""
    return deployment.engine.release or CHECKED_RELEASE


def tier_of(deployment: Deployment) -> Tier:
    """Which defaults the device gets: below 70 GiB, any A100 and GB10 the small ones; from 160 GiB the largest.

    Source: vLLM 0.33, ``EngineArgs.get_batch_defaults``; the largest tier since 0.28.
    """
    memory_bytes, release = device_bytes(deployment), release_of(deployment)
    name = "" if deployment.gpu is None else f"{deployment.gpu.name} {deployment.gpu.family}".lower()
    if memory_bytes >= 160 * GIB and release >= _FIRST_LARGE_TIER:
        return _HUGE
    if memory_bytes < 70 * GIB or "a100" in name or capability_of(deployment) == (12, 1):
        return _SMALL
    return _LARGE if release > (*_FIRST_V1, 99) else _FIRST_LARGE


_ATTENTION_FREE = frozenset({"MambaForCausalLM", "Mamba2ForCausalLM", "FalconMambaForCausalLM"})

_WHOLE_POOLERS = frozenset({"ColPaliForRetrieval", "Qwen2ForProcessRewardModel"})
"""Classes that pool the first token or every step: by default their prompts are neither chunked nor cached (vLLM 0.33,
``default_pooling_type`` CLS and STEP, ``ModelConfig.is_prefix_caching_supported``)."""

_SEQUENCES_OF = {"DiffusionGemmaForBlockDiffusion": 8}
"""Classes with a number of sequences of their own by default (vLLM 0.33): a step denoises whole canvases."""

_ONE_ITEM_TOKENS = {"Gemma4ForConditionalGeneration": 32 * (70 + 8)}
"""Classes whose images and videos cannot be split over steps: a step must hold the largest item. Gemma 4's is a video
of 32 frames, each 70 tokens and 8 of frame and time marks (source: vLLM 0.33, ``gemma4_mm.py``; logs print 2,496)."""


def _default_tokens(model: ModelSpec, deployment: Deployment, window: int) -> int:
    """Tokens of one step by default, before the limits. V0: a whole prompt, 2,048 where it is chunked."""
    release = release_of(deployment)
    if is_first_engine(release):
        return 2048 if _chunks_by_default(model, deployment, window) else max(2048, window)
    item_tokens = _ONE_ITEM_TOKENS.get(model.architecture, 0) if model.shape.has_vision else 0
    whole_prompt = 0 if _chunks(model, deployment) else window
    return max(tier_of(deployment).server_tokens, item_tokens, whole_prompt)


def _chunks(model: ModelSpec, deployment: Deployment) -> bool:
    """Whether V1 computes prompts in chunks: as asked, else where the class can."""
    asked = deployment.chunked_prefill
    return model.architecture not in _WHOLE_POOLERS if asked is None else asked


def _chunks_by_default(model: ModelSpec, deployment: Deployment, window: int) -> bool:
    """Whether V0 computes prompts in chunks: where asked, else above a window of 32,768.

    Source: vLLM 0.6, ``EngineArgs.create_engine_config`` ("Chunked prefill is enabled by default for models with
    max_model_len > 32K").
    """
    if release_of(deployment)[:2] == _LATENTS_IN_ONE_STEP and model.keeps(LatentAttention):
        return False
    return window > 32768 if deployment.chunked_prefill is None else deployment.chunked_prefill


def _default_sequences(model: ModelSpec, deployment: Deployment) -> int:
    own = _SEQUENCES_OF.get(model.architecture)
    if own is not None:
        return own
    return 256 if is_first_engine(release_of(deployment)) else tier_of(deployment).max_num_seqs


def default_utilization(release: tuple[int, ...]) -> Fraction:
    """The share of the device asked for by default: 0.90, and 0.92 from the release that books graphs inside."""
    return Fraction(92, 100) if release >= FIRST_GRAPHS_INSIDE else Fraction(90, 100)


def groups_windows(release: tuple[int, ...]) -> bool:
    """Whether the release can keep fewer tokens of layers with a window than of full ones beside them."""
    return release >= _FIRST_WINDOW_GROUPS


def prints_plain_tokens(release: tuple[int, ...]) -> bool:
    """Whether the release prints blocks × block / groups as its "GPU KV cache size", not concurrency × window."""
    return release < _FIRST_WHOLE_WINDOWS


def is_first_engine(release: tuple[int, ...]) -> bool:
    """Whether the release runs vLLM's first engine (V0) by default."""
    return release < _FIRST_V1


def reserved_blocks(release: tuple[int, ...]) -> int:
    """Blocks that no request may take: the first engine (V0) had none, the second keeps one that stands for no block.

    229 blocks of 16 hold 3,664 tokens in 0.2.7 ("larger than the maximum number of tokens that can be stored in KV
    cache (3664)", vllm-project/vllm issue 2418); 0.33 refuses a charge above blocks − 1.
    """
    return 0 if is_first_engine(release) else 1


def is_whole_prompt(model: ModelSpec, deployment: Deployment, settings: Settings) -> bool:
    """Whether a step is as long as the window because V0 computes prompts whole."""
    window = settings.max_model_len
    is_as_long = 2048 < window <= settings.max_num_batched_tokens
    return is_first_engine(release_of(deployment)) and is_as_long and not _chunks_by_default(model, deployment, window)


def is_attention_free(model: ModelSpec) -> bool:
    """Whether the class knows no attention; a hybrid's class without attention layers is not of that sort.

    Source: vLLM 0.33, ``IsAttentionFree``.
    """
    return model.architecture in _ATTENTION_FREE


def resolve_settings(model: ModelSpec, deployment: Deployment) -> Settings:
    """Every setting, the user's where given, else vLLM's default for the release and the GPU.

    A default T is at most S × window, and at least the window where prompts are not chunked; a default S is at most T;
    S above T is refused. In flight are T tokens for each concurrent batch: the pipeline stages, and one more under
    async scheduling.
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
    if not chunked and tokens < window and release >= _FIRST_V1:
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
        is_uncached = is_attention_free(model) or model.is_encoder_decoder or model.architecture in _WHOLE_POOLERS
        prefix_caching = release >= _FIRST_V1 and not is_uncached
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


def version_findings(deployment: Deployment) -> tuple[Finding, ...]:
    """What the reader must know when the release is not the one that was checked."""
    release = release_of(deployment)
    if release[:2] == CHECKED_RELEASE:
        return ()
    asked = ".".join(map(str, release))
    if release > CHECKED_RELEASE:
        return (
            Finding(
                code="engine-version-unknown",
                severity="warning",
                message=f"vLLM {asked} is newer than 0.33, the newest release whose figures were checked",
                hint="the plan uses the rules of 0.33; compare with a start-up log (kvplan calibrate)",
            ),
        )
    return (
        Finding(
            code="engine-version-priced-as-0.33",
            severity="info",
            message=f"vLLM {asked}: defaults, utilisation, graphs and the printed tokens follow that release; "
            "pages, groups and blocks are priced as 0.33",
            hint="compare with a start-up log (kvplan calibrate)",
        ),
    )
