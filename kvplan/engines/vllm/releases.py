"""What depends on the release of vLLM: its engine and model runner, what it prints and reserves, its model classes."""

from collections.abc import Iterator
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Finding
from kvplan.engines.vllm.budget_constants import FIRST_GRAPHS_INSIDE
from kvplan.model import ModelSpec

CHECKED_RELEASE = (0, 33)
"""The release whose figures were compared one by one; others are priced by the same rules, with a finding."""

_FIRST_V1 = (0, 8)
_FIRST_WINDOW_GROUPS = (0, 9, 1)
"""Before it, every layer kept the same tokens, so layers with a window beside full ones were charged in full
(vllm-project/vllm issue 11382, resolved by pull 17996)."""
_FIRST_WHOLE_WINDOWS = (0, 20, 2)
"""A log of 0.20.0 prints 79,648 tokens beside 4.03 × 65,536; one of 0.20.2 prints 5,463,232 beside 20.84 × 262,144."""

_FIRST_SECOND_RUNNER, _FIRST_DENSE, _FIRST_EVERY = (0, 24), (0, 26), (0, 29)
_DENSE_LISTED = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen3ForCausalLM"})
_EXPERTS_LISTED = frozenset({"DeepseekV2ForCausalLM", "GraniteMoeForCausalLM", "Qwen2MoeForCausalLM"})
"""The second model runner's first release, its first for dense models and for every model, and the classes that were
listed by name before: see ``is_second_runner``."""

_LAST_RELEASE: dict[str, tuple[int, ...]] = {
    "MotifForCausalLM": (0, 10, 2),
    "Phi3SmallForCausalLM": (0, 9, 2),
    "Phi4FlashForCausalLM": (0, 10, 2),
    "Phi4MultimodalForCausalLM": (0, 12, 0),
    "DonutForConditionalGeneration": (0, 10, 2),
    "MllamaForConditionalGeneration": (0, 10, 2),
    "JAISLMHeadModel": (0, 22, 0),
    **dict.fromkeys(
        (
            "InternLM2VEForCausalLM",
            "QWenLMHeadModel",
            "QwenVLForConditionalGeneration",
            "InternLMForCausalLM",
            "XverseForCausalLM",
            "Dots1ForCausalLM",
            "BambaForCausalLM",
            "MiniMaxForCausalLM",
            "MiniMaxText01ForCausalLM",
            "MiniMaxM1ForCausalLM",
            "MiniMaxVL01ForConditionalGeneration",
            "BaiChuanForCausalLM",
            "BaichuanForCausalLM",
        ),
        (0, 23, 0),
    ),
    "AquilaModel": (0, 24, 0),
    "AquilaForCausalLM": (0, 24, 0),
    "Grok1ModelForCausalLM": (0, 24, 0),
    "Grok1ForCausalLM": (0, 24, 0),
    "AyaVisionForConditionalGeneration": (0, 24, 0),
    "TeleChatForCausalLM": (0, 25, 0),
    "PersimmonForCausalLM": (0, 25, 0),
    "FuyuForCausalLM": (0, 25, 0),
    "Plamo2ForCausalLM": (0, 26, 0),
    "OuroForCausalLM": (0, 26, 0),
    "ArcticForCausalLM": (0, 28, 0),
    "ChameleonForConditionalGeneration": (0, 28, 0),
    "MPTForCausalLM": (0, 28, 0),
    "MptForCausalLM": (0, 28, 0),
    "RWForCausalLM": (0, 28, 0),
    "StableLMEpochForCausalLM": (0, 28, 0),
}
"""Model classes that vLLM dropped → the last release that has each. Source: vLLM 0.33, ``registry.py``."""

_LAST_V0 = (0, 10, 2)
_FIRST_STATES_ALIGNED = (0, 28)
_STATES_OF_ALL = frozenset(
    {
        "BambaForCausalLM",
        "FalconH1ForCausalLM",
        "GraniteMoeHybridForCausalLM",
        "JambaForCausalLM",
        "Mamba2ForCausalLM",
        "MambaForCausalLM",
        "NemotronHForCausalLM",
        "Zamba2ForCausalLM",
    }
)
"""Classes that cached prefixes with a state for every block before 0.28 (``SupportsMambaPrefixCaching``: Mamba cache
mode "all" in ``MambaModelConfig`` of 0.13 to 0.26, "align" in 0.28)."""
_ENCODER_DECODERS = frozenset(
    {
        "whisper",  # a config that does not name its class
        "WhisperForConditionalGeneration",
        "CohereAsrForConditionalGeneration",
        "NemotronParseForConditionalGeneration",
    }
)
"""The encoder-decoders that vLLM 0.33 has classes for. Others need a plugin (its registry names BART's), because the
generic Transformers class does not run them; V0, up to 0.10.2, had BART's."""


def release_of(deployment: Deployment) -> tuple[int, ...]:
    """The release asked for, by default the newest that was checked."""
    return deployment.engine.release or CHECKED_RELEASE


def is_first_engine(release: tuple[int, ...]) -> bool:
    """Whether the release runs vLLM's first engine (V0) by default."""
    return release < _FIRST_V1


def groups_windows(release: tuple[int, ...]) -> bool:
    """Whether the release can keep fewer tokens in window layers than in the full layers beside them."""
    return release >= _FIRST_WINDOW_GROUPS


def prints_plain_tokens(release: tuple[int, ...]) -> bool:
    """Whether "GPU KV cache size" is blocks × block / groups in the release, not concurrency × window."""
    return release < _FIRST_WHOLE_WINDOWS


def reserved_blocks(release: tuple[int, ...]) -> int:
    """Blocks that no request may take: none in V0; V1 keeps one as the null block.

    229 blocks of 16 hold 3,664 tokens in 0.2.7 ("larger than the maximum number of tokens that can be stored in KV
    cache (3664)", vllm-project/vllm issue 2418); 0.33 refuses a charge above blocks − 1.
    """
    return 0 if is_first_engine(release) else 1


def keeps_every_state(architecture: str, release: tuple[int, ...]) -> bool:
    """Whether prefix caching keeps a recurrent state for every block, not one or two per request."""
    return architecture in _STATES_OF_ALL and release < _FIRST_STATES_ALIGNED


def default_utilization(release: tuple[int, ...]) -> Fraction:
    """The default share of the device: 0.90, and 0.92 since the release that counts graphs inside."""
    return Fraction(92, 100) if release >= FIRST_GRAPHS_INSIDE else Fraction(90, 100)


def is_second_runner(
    release: tuple[int, ...], architecture: str, *, has_experts: bool, has_states: bool, is_pooling: bool
) -> bool:
    """Whether the default is the second model runner ("Using V2 Model Runner"), which keeps other buffers.

    0.24: for a few architectures; 0.26: for generating models without experts and without recurrent state, and a few
    with experts; 0.29: for every model. Source: ``VllmConfig.use_v2_model_runner`` and
    ``DEFAULT_V2_MODEL_RUNNER_ARCHITECTURES`` of 0.24, 0.26, 0.28, 0.29, 0.31 and 0.33 (0.19: only on request).

    >>> qwen = {"architecture": "Qwen2ForCausalLM", "has_experts": False, "has_states": False, "is_pooling": False}
    >>> [is_second_runner(release, **qwen) for release in ((0, 24), (0, 27, 1), (0, 33))]
    [False, True, True]
    """
    if release >= _FIRST_EVERY:
        return True
    if release < _FIRST_SECOND_RUNNER or is_pooling or has_states:
        return False
    if release < _FIRST_DENSE:
        return architecture in _DENSE_LISTED | _EXPERTS_LISTED
    return not has_experts or architecture in _EXPERTS_LISTED


def release_findings(deployment: Deployment) -> Iterator[Finding]:
    """How the plan treats a release that was not checked."""
    release = release_of(deployment)
    asked = ".".join(map(str, release))
    if release[:2] == CHECKED_RELEASE:
        return
    if release > CHECKED_RELEASE:
        yield Finding(
            code="engine-version-unknown",
            severity="warning",
            message=f"vLLM {asked} is newer than 0.33, the newest release whose figures were checked",
            hint="the plan uses the rules of 0.33; compare with a start-up log (kvplan calibrate)",
        )
    else:
        yield Finding(
            code="engine-version-priced-as-0.33",
            severity="info",
            message=f"vLLM {asked}: defaults, utilisation, graphs and the printed tokens follow that release; "
            "pages, groups and blocks are priced as 0.33",
            hint=None if deployment.corrections else "compare with a start-up log (kvplan calibrate)",
        )


def class_findings(model: ModelSpec, release: tuple[int, ...]) -> Iterator[Finding]:
    """Whether the release has the model's class."""
    last = _LAST_RELEASE.get(model.architecture)
    if last is not None and release > last:
        name = ".".join(map(str, last))
        yield Finding(
            code="model-class-dropped",
            severity="warning",
            message=f"vLLM dropped its class for {model.architecture} after {name}: it starts only if the generic "
            "Transformers class can run the model",
            hint=f"--engine vllm@{name}",
        )
    if model.is_encoder_decoder and model.architecture not in _ENCODER_DECODERS and release > _LAST_V0:
        yield Finding(
            code="model-class-by-plugin",
            severity="warning",
            message=f"vLLM has no class for {model.architecture}, and its generic Transformers class does not run "
            "encoder-decoders: it starts only with a plugin for it",
            hint=f"price it without an engine: kvplan model {model.id}",
        )
