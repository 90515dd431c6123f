"""Model classes that vLLM dropped: the last release that could run each. Source: vLLM 0.33, ``registry.py``."""

LAST_RELEASE: dict[str, tuple[int, ...]] = {
    "MotifForCausalLM": (0, 10, 2),
    "Phi3SmallForCausalLM": (0, 9, 2),
    "Phi4FlashForCausalLM": (0, 10, 2),
    "Phi4MultimodalForCausalLM": (0, 12, 0),
    "DonutForConditionalGeneration": (0, 10, 2),
    "MllamaForConditionalGeneration": (0, 10, 2),
    "JAISLMHeadModel": (0, 22, 0),
    "InternLM2VEForCausalLM": (0, 23, 0),
    "QWenLMHeadModel": (0, 23, 0),
    "QwenVLForConditionalGeneration": (0, 23, 0),
    "InternLMForCausalLM": (0, 23, 0),
    "XverseForCausalLM": (0, 23, 0),
    "Dots1ForCausalLM": (0, 23, 0),
    "BambaForCausalLM": (0, 23, 0),
    "MiniMaxForCausalLM": (0, 23, 0),
    "MiniMaxText01ForCausalLM": (0, 23, 0),
    "MiniMaxM1ForCausalLM": (0, 23, 0),
    "MiniMaxVL01ForConditionalGeneration": (0, 23, 0),
    "BaiChuanForCausalLM": (0, 23, 0),
    "BaichuanForCausalLM": (0, 23, 0),
    "AquilaModel": (0, 24, 0),
    "AquilaForCausalLM": (0, 24, 0),
    "Grok1ModelForCausalLM": (0, 24, 0),
    "Grok1ForCausalLM": (0, 24, 0),
    "TeleChatForCausalLM": (0, 25, 0),
    "PersimmonForCausalLM": (0, 25, 0),
    "FuyuForCausalLM": (0, 25, 0),
    "Plamo2ForCausalLM": (0, 26, 0),
    "OuroForCausalLM": (0, 26, 0),
    "AyaVisionForConditionalGeneration": (0, 24, 0),
    "ArcticForCausalLM": (0, 28, 0),
    "ChameleonForConditionalGeneration": (0, 28, 0),
    "MPTForCausalLM": (0, 28, 0),
    "MptForCausalLM": (0, 28, 0),
    "RWForCausalLM": (0, 28, 0),
    "StableLMEpochForCausalLM": (0, 28, 0),
}

LAST_FIRST_ENGINE = (0, 10, 2)
ENCODER_DECODERS = frozenset(
    {
        "whisper",  # a config that does not name its class
        "WhisperForConditionalGeneration",
        "CohereAsrForConditionalGeneration",
        "NemotronParseForConditionalGeneration",
    }
)
"""The encoder-decoders that vLLM 0.33 has classes for; others need a plugin (BART's is named there), and its generic
Transformers class runs none. The first engine, up to 0.10.2, had BART's."""


def last_release(architecture: str, release: tuple[int, ...]) -> str | None:
    """The last release with a class of its own for ``architecture``, where ``release`` is newer.

    >>> last_release("MptForCausalLM", (0, 33)), last_release("MptForCausalLM", (0, 28))
    ('0.28.0', None)
    """
    last = LAST_RELEASE.get(architecture)
    if last is None or release <= last:
        return None
    return ".".join(map(str, last))
