"""Which family a config belongs to: by its language block's model type, or by its architecture's name."""

from collections.abc import Mapping

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.defaults import CLASS_DEFAULTS
from kvplan.hf_config.fields import Fields
from kvplan.hf_config.readers import PLAIN_FAMILIES, READERS

# Architecture names without their last word (ForCausalLM, Model …), where they are not the family's own name without
# underscores. A wrapper stands for the language model that its class puts inside.
_ARCHITECTURES: Mapping[str, str] = {
    "AfMoe": "afmoe",
    "AudioFlamingo3": "qwen2",
    "AyaVision": "cohere2",
    "BaiChuan": "baichuan",
    "BailingMoeV2": "bailing_moe",
    "Bee": "qwen3",
    "Cohere2Vision": "cohere2",
    "DeciLM": "decilm",
    "DeepseekV41": "deepseek_v41",
    "DeepseekVLV2": "deepseek_v2",
    "DeepseekOCR": "deepseek_v2",
    "DotsOCR": "qwen2",
    "Dots1": "dots1",
    "Ernie4_5_VLMoe": "ernie4_5_vl_moe_text",
    "Exaone4_5_": "exaone4",
    "ExaoneMoE": "exaone_moe",
    "GLM4V": "chatglm",
    "Gemma3": "gemma3_text",
    "Gemma3n": "gemma3n_text",
    "Gemma4": "gemma4_text",
    "Gemma4Unified": "gemma4_unified_text",
    "Glm4v": "glm4v_text",
    "Glm4vMoe": "glm4v_moe_text",
    "GlmOcr": "glm_ocr_text",
    "GPTBigCode": "gpt_bigcode",
    "GPTJ": "gptj",
    "GPTNeoX": "gpt_neox",
    "HunYuan": "hunyuan",
    "HunYuanDenseV1": "hunyuan_v1_dense",
    "HunYuanMoE": "hunyuan",
    "Hunyuan": "hunyuan",
    "HunYuanMoEV1": "hunyuan_v1_moe",
    "Idefics3": "llama",
    "JAIS": "jais",
    "KimiK25": "deepseek_v3",
    "KimiVL": "deepseek_v3",
    "LLaMA": "llama",
    "Lfm2Vl": "lfm2",
    "Lfm2VL": "lfm2",
    "Llama4": "llama4_text",
    "LlavaOnevision": "qwen2",
    "MPT": "mpt",
    "MiMoV2": "mimo_v2_flash",
    "MiMoV2Flash": "mimo_v2_flash",
    "MiniCPM": "minicpm",
    "MiniCPMV": "qwen2",
    "MiniCPMO": "qwen2",
    "MiniMaxM1": "minimax",
    "MiniMaxText01": "minimax",
    "MiniMaxVL01": "minimax",
    "MiniMaxM3Sparse": "minimax_m3_vl_text",
    "Ministral3": "ministral3",
    "Mistral3": "mistral",
    "MistralLarge3": "deepseek_v3",
    "Mllama": "mllama_text_model",
    "Molmo": "molmo",
    "Molmo2": "molmo2_text",
    "MuseGlimmer": "muse_glimmer_text",
    "NemotronHPuzzle": "nemotron_h",
    "OPT": "opt",
    "Ovis": "qwen2",
    "PanguEmbedded": "pangu",
    "PanguUltraMoE": "deepseek_v3",
    "PaddleOCRVL": "paddleocr_vl_text",
    "PaliGemma": "gemma",
    "Phi3V": "phi3",
    "Phi4Flash": "phi4flash",
    "Phi4MM": "phi3",
    "Phi3Small": "phi3small",
    "PhiMoE": "phimoe",
    "Pixtral": "mistral",
    "QWen": "qwen",
    "Qwen2Audio": "qwen2",
    "Qwen2VL": "qwen2_vl_text",
    "Qwen2_5Omni": "qwen2_5_omni_text",
    "Qwen2_5_VL": "qwen2_5_vl_text",
    "Qwen3ASR": "qwen3",
    "Qwen3Omni": "qwen3_omni_moe_text",
    "Qwen3OmniMoe": "qwen3_omni_moe_text",
    "Qwen3VL": "qwen3_vl_text",
    "Qwen3VLMoe": "qwen3_vl_moe_text",
    "Qwen3_5": "qwen3_5_text",
    "Qwen3_5Moe": "qwen3_5_moe_text",
    "RW": "falcon",
    "SarvamMLA": "deepseek_v3",
    "SarvamMoE": "sarvam",
    "Rwkv": "rwkv5",
    "Rwkv5": "rwkv5",
    "Rwkv6": "rwkv5",
    "SmolVLM": "llama",
    "Step3p5": "step3p5",
    "Step3p7": "step3p5",
    "Step3p7Flash": "step3p5",
    "TeleChat2": "telechat",
    "TeleFLM": "teleflm",
    "Voxtral": "llama",
    "Xverse": "xverse",
}

# Model types that are another name of a family.
_MODEL_TYPES: Mapping[str, str] = {
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "PanguEmbedded": "pangu",
    "pangu_ultra_moe": "deepseek_v3",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "sarvam",
    "bailing_moe_v2": "bailing_moe",
    "cohere2_text": "cohere2",
    "deepseek_ocr": "deepseek_v2",
    "deepseek_ref": "deepseek_v4",
    "deepseek_v41_text": "deepseek_v41",
    "deepseek_vl_v2": "deepseek_v2",
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "glm4v": "glm4v_text",
    "glm4v_moe": "glm4v_moe_text",
    "gpt-sw3": "gpt2",
    "hunyuan_moe": "hunyuan",
    "idefics3": "llama",
    "kimi_k2": "deepseek_v3",
    "lfm2_vl": "lfm2",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "mbart": "bart",
    "mimo_v2": "mimo_v2_flash",
    "minicpmo": "qwen2",
    "minicpmv": "qwen2",
    "minimax_m1": "minimax",
    "minimax_text_01": "minimax",
    "minimax_vl_01": "minimax",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mllama": "mllama_text_model",
    "mt5": "t5",
    "nemotron-nas": "decilm",
    "deci": "decilm",
    "phi-msft": "phi",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "qwen2_audio": "qwen2",
    "qwen2_5_vl": "qwen2_5_vl_text",
    "qwen2_vl": "qwen2_vl_text",
    "qwen3_asr": "qwen3",
    "qwen3_asr_text": "qwen3",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
    "rwkv": "rwkv5",
    "rwkv6": "rwkv5",
    "step3p7": "step3p5",
    "step3p5_text": "step3p5",
    "umt5": "t5",
    "voxtral": "llama",
}

# Encoders: every token sees the whole input at once, so nothing is kept (vLLM makes no KV cache for them).
_ENCODERS = frozenset(
    {
        "Albert",
        "Bert",
        "BertSpladeSparse",
        "BgeM3",
        "CLIP",
        "Camembert",
        "DebertaV2",
        "DistilBert",
        "Electra",
        "Gte",
        "GteNew",
        "MPNet",
        "ModernBert",
        "NomicBert",
        "Roberta",
        "Siglip",
        "XLMRoberta",
    }
)

_LAST_WORDS = (
    "ForCausalLM",
    "ForConditionalGeneration",
    "LMHeadModel",
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForRewardModel",
    "ForProcessRewardModel",
    "ForMaskedLM",
    "ForQuestionAnswering",
    "ForEmbedding",
    "EmbeddingModel",
    "TextModel",
    "ChatModel",
    "Model",
)


def known_family(name: str | None) -> str | None:
    """The family of a model type, or None."""
    if name is None:
        return None
    name = _MODEL_TYPES.get(name, name)
    return name if name in CLASS_DEFAULTS or name in READERS or name in PLAIN_FAMILIES else None


def architecture_family(architecture: str | None) -> str | None:
    """The family of an architecture's name, or None.

    >>> architecture_family("Qwen3MoeForCausalLM"), architecture_family("MadeUpForCausalLM")
    ('qwen3_moe', None)
    """
    if architecture is None:
        return None
    stem = _stem(architecture)
    if stem in _ARCHITECTURES:
        return _ARCHITECTURES[stem]
    return _BY_PLAIN_NAME.get(stem.lower().replace("_", ""))


def _stem(architecture: str) -> str:
    return next((architecture.removesuffix(word) for word in _LAST_WORDS if architecture.endswith(word)), architecture)


_BY_PLAIN_NAME: Mapping[str, str] = {
    family.replace("_", "").replace("-", ""): family for family in (*CLASS_DEFAULTS, *READERS, *PLAIN_FAMILIES)
}


def find_family(outer: Fields, text: Fields) -> str:
    """The family of the language model.

    A nested block's own model type decides; else the architecture; else the outer model type. A config that names
    neither is read by what it says itself (``explicit``): every needed key must be there. A name that is not known is
    refused.
    """
    nested = text.values is not outer.values
    architectures = outer.texts("architectures") or []
    model_type = outer.text("model_type")
    if nested:
        inner = known_family(text.text("model_type"))
        if inner is not None:
            return inner
        listed = text.texts("architectures") or []
        if listed and architecture_family(listed[0]):
            return architecture_family(listed[0]) or ""
        if text.text("model_type") is not None:
            raise _unknown(f"{text.path}model_type", text.text("model_type"))
    if architectures:
        family = architecture_family(architectures[0])
        if family is None:
            raise _unknown("architectures", architectures[0])
        return family
    return known_family(model_type) or "explicit"


def _unknown(key: str, name: str | None) -> UnsupportedModelError:
    if name is not None and _stem(name) in _ENCODERS:
        return UnsupportedModelError(
            f"{key} names {name!r}, an encoder: it keeps no KV cache, so there is none to plan", key=key
        )
    return UnsupportedModelError(
        f"{key} names {name!r}, which kvplan does not know: it refuses rather than guesses what such a model keeps",
        hint="give a local config.json without architectures and with a known model_type, if one describes its layers",
        key=key,
    )
