"""What SGLang decides by a model's class instead of its config, and since which release.

Source: ``is_hybrid_swa_model``, ``mm_disabled_models`` and ``multimodal_breakable_cuda_graph_supported_model_archs`` of
``model_config.py``, ``_MAMBA_EXTRA_BUFFER_ARCHS`` of ``overrides.py``, in the wheels of 0.5.6, 0.5.9, 0.5.12, 0.5.16,
0.5.19, 0.5.21 and 0.5.23; a release between two of these counts as the older one.
"""

from kvplan.engines.deployment import is_since

Release = tuple[int, ...]

CHECKED_RELEASE: Release = (0, 5, 23)
"""The newest release whose rules were read."""
FIRST_LISTED: Release = (0, 5, 9)
"""The first release that lists the classes with a window pool."""

WINDOW_POOLS: dict[str, Release] = {
    "Llama4ForConditionalGeneration": (0, 5, 9),
    "GptOssForCausalLM": (0, 5, 9),
    "MiMoV2FlashForCausalLM": (0, 5, 9),
    "Step3p5ForCausalLM": (0, 5, 9),
    "Gemma4ForCausalLM": (0, 5, 12),
    "Gemma4ForConditionalGeneration": (0, 5, 12),
    "LagunaForCausalLM": (0, 5, 12),
    "MiMoV2ForCausalLM": (0, 5, 12),
    "Gemma4UnifiedForConditionalGeneration": (0, 5, 16),
    "MellumForCausalLM": (0, 5, 16),
    "Step3p7ForConditionalGeneration": (0, 5, 16),
    "UnlimitedOCRForCausalLM": (0, 5, 16),
    "GraniteMoeSWAForCausalLM": (0, 5, 19),
    "GraniteSWAForCausalLM": (0, 5, 19),
    "MuseGlimmerForCausalLM": (0, 5, 19),
    "MuseGlimmerForConditionalGeneration": (0, 5, 19),
    "BeamForCausalLM": (0, 5, 23),
}
"""Classes whose window layers have a pool of their own, and the release that first lists them. In every other class
(Gemma 2 and 3, Mistral, Cohere 2, Olmo 3, Phi-3 …) all layers keep every token. Before 0.5.9 there was no list: every
class with a window had the pool, except Llama 4."""

TRACKED_STATES: Release = (0, 5, 16)
TRACKED_STATE_CLASSES = frozenset(
    {
        "BailingMoeV2_5ForCausalLM",
        "BailingMoeV3ForCausalLM",
        "FalconH1ForCausalLM",
        "Glm5NextForConditionalGeneration",
        "GraniteMoeHybridForCausalLM",
        "KimiK3ForConditionalGeneration",
        "KimiLinearForCausalLM",
        "NemotronHForCausalLM",
        "NemotronHPuzzleForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)
"""Classes that keep two more states per request for the prefix cache (``extra_buffer``), from that release on."""

SAYS_STATE_TYPE = "qwen3_5"
"""How the names of classes begin whose configs state the type of the temporal state under the key that SGLang reads."""

SERVED_AS_TEXT = frozenset(
    {
        "Gemma3ForConditionalGeneration",
        "InklingForConditionalGeneration",
        "Llama4ForConditionalGeneration",
        "Step3VLForConditionalGeneration",
    }
)
"""Classes with a vision encoder that is off unless ``--enable-multimodal`` is given."""

VISION_WITH_PREFILL_GRAPHS = frozenset(
    {
        "Cohere2VisionForConditionalGeneration",
        "Glm5NextForConditionalGeneration",
        "KimiK25ForConditionalGeneration",
        "KimiK3ForConditionalGeneration",
        "MiniMaxM3SparseForConditionalGeneration",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen4ExpForConditionalGeneration",
    }
)
"""Classes with a vision encoder whose prefill is captured in graphs, unlike that of all others."""

KDA_WITH_PREFILL_GRAPHS = frozenset({"Glm5NextForConditionalGeneration"})
"""Classes with KDA layers whose prefill is captured, unlike that of all others."""


def has_window_pool(architecture: str, release: Release | None) -> bool:
    """Whether the window layers of the class have a pool of their own."""
    if not is_since(release, FIRST_LISTED):
        return architecture != "Llama4ForConditionalGeneration"
    return architecture in WINDOW_POOLS and is_since(release, WINDOW_POOLS[architecture])
