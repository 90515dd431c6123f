"""Which family a config belongs to, by its architecture's name or its language block's model type.

A family is named after the model type of its language model's config class. Unknown names are refused.
"""

from collections.abc import Mapping

from kvplan.errors import UnsupportedModelError
from kvplan.hf_config.config import Fields
from kvplan.hf_config.defaults import CLASS_DEFAULTS
from kvplan.hf_config.readers import READERS

# Architecture names without their suffix (ForCausalLM, Model …). A name that spells a family or a model type, apart
# from capitals, underscores and a trailing ``_text``, needs no row. A wrapper maps to the language model inside.
ARCHITECTURES: Mapping[str, str] = {
    "AudioFlamingo3": "qwen2",
    "AyaVision": "cohere2",
    "BailingMoeV3": "bailing_hybrid",
    "BailingMoeV3VL": "bailing_hybrid",
    "Bee": "qwen3",
    "Cohere2Vision": "cohere2",
    "DiffusionGemmaForBlockDiffusion": "diffusion_gemma_text",
    "Eagle3Llama": "llama",
    "EagleLlama": "llama",
    "Exaone4_5_": "exaone4",
    "GLM4V": "chatglm",
    "Grok1Model": "grok",
    "HunYuanDenseV1": "hunyuan_v1_dense",
    "HunYuanMoEV1": "hunyuan_v1_moe",
    "KimiK25": "deepseek_v3",
    "KimiVL": "deepseek_v3",
    "LlamaForCausalLMEagle3": "llama",
    "LlavaLlama": "llama",
    "LlavaMistral": "mistral",
    "LlavaQwen": "qwen2",
    "MiniMaxM3Sparse": "minimax_m3_vl_text",
    "Mistral3": "mistral",
    "MistralLarge3": "deepseek_v3",
    "NemotronHPuzzle": "nemotron_h",
    "Ovis": "qwen2",
    "PaliGemma": "gemma",
    "PanguProMoEV2": "pangu",
    "Pixtral": "mistral",
    "Qwen3Omni": "qwen3_omni_moe_text",
    "Rnj1": "gemma3_text",
    "RW": "falcon",
    "SmolVLM": "llama",
    "StableLMEpoch": "stablelm",
    "Step3p7Flash": "step3p5",
    "TeleChat2": "telechat",
}

# Model types that are another name for a family.
MODEL_TYPES: Mapping[str, str] = {
    "aria_moe_lm": "aria_text",
    "bailing_hybrid_v3": "bailing_hybrid",
    "bailing_moe_v2": "bailing_moe",
    "deci": "decilm",
    "deepseek_ocr": "deepseek_v2",
    "deepseek_ref": "deepseek_v4",
    "deepseek_vl_v2": "deepseek_v2",
    "ernie4_5_moe_vl": "ernie4_5_vl_moe_text",
    "gpt-sw3": "gpt2",
    "grok-1": "grok",
    "hunyuan_moe": "hunyuan",
    "idefics3": "llama",
    "kimi_k2": "deepseek_v3",
    "kimi_k3": "kimi_linear",
    "lfm2_vl": "lfm2",
    "llava": "llama",
    "llava_next": "llama",
    "llava_onevision": "qwen2",
    "longcat_flash_ngram": "longcat_flash",
    "m2m_100": "bart",
    "marian": "bart",
    "mbart": "bart",
    "mimo_v2": "mimo_v2_flash",
    "minicpmo": "qwen2",
    "minicpmv": "qwen2",
    "minimax_m1": "minimax",
    "minimax_m3": "minimax_m3_vl_text",
    "minimax_text_01": "minimax",
    "minimax_vl_01": "minimax",
    "mllama": "mllama_text_model",
    "mt5": "t5",
    "nemotron-nas": "decilm",
    "pangu_ultra_moe": "deepseek_v3",
    "PanguEmbedded": "pangu",
    "pegasus": "bart",
    "phi-msft": "phi",
    "phi3_v": "phi3",
    "phi4mm": "phi3",
    "qwen2_audio": "qwen2",
    "qwen3_asr": "qwen3",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "rwkv": "rwkv5",
    "rwkv6": "rwkv5",
    "sarvam_mla": "deepseek_v3",
    "sarvam_moe": "sarvam",
    "step3p7": "step3p5",
    "umt5": "t5",
    "voxtral": "llama",
}

# Plain decoders that transformers has no class for, or whose class adds nothing to what their files say.
PLAIN_FAMILIES = frozenset({
    "aquila", "arctic", "baichuan", "bailing_moe", "chatglm", "decicoder", "deepseek", "domyn_edge", "dots_ocr",
    "exaone", "explicit", "grok", "internlm", "internlm2", "internlm3", "iquestcoder", "jais", "k2_horizon", "mimo",
    "minicpm", "molmo", "nanbeige", "orion", "pangu", "param2moe", "phi3small", "plamo3", "qwen", "sarvam",
    "skywork", "solar", "step1", "step3_text", "telechat", "telechat3", "teleflm", "xverse", "yi", "yuan",
})  # fmt: skip

# Encoders: every token sees the whole input at once, so nothing is kept (vLLM allocates no KV cache for them).
ENCODERS = frozenset({
    "Albert", "Bert", "BertSpladeSparse", "BgeM3", "Camembert", "ColBERTModernBert", "ColModernVBert",
    "ColUltraVBert", "DebertaV2", "DistilBert", "Electra", "EmbeddingGemma2", "Gte", "GteNew", "ModernBert",
    "ModernVBert", "MPNet", "NomicBert", "OpenAIPrivacyFilter", "Roberta", "Siglip", "XLMRoberta",
})  # fmt: skip
ENCODER_HINT = "beside its weights, the engine's max_num_batched_tokens bounds the memory that it needs"

_SUFFIXES = (
    "ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForSequenceClassification", "ForTokenClassification",
    "ForRewardModel", "ForProcessRewardModel", "ForMaskedLM", "ForRetrieval", "ForQuestionAnswering",
    "ForEmbedding", "EmbeddingModel", "TextModel", "ChatModel", "Model",
)  # fmt: skip
_LANGUAGE_BLOCKS = ("thinker_config", "text_config", "llm_config", "language_config", "lm_config")


def language_block(outer: Fields) -> Fields:
    """The block that describes the language model: nested under one of the usual names, or the file itself."""
    block = (None if outer.says(*_LANGUAGE_BLOCKS) else outer.section("vlm_config")) or outer
    for name in _LANGUAGE_BLOCKS:
        inner = block.section(name)
        if inner is not None:
            block = inner
    return block


def known_family(name: str | None) -> str | None:
    """The family of a model type, or None. A wrapper's type and its text model's differ in ``_text`` only.

    >>> known_family("gemma3"), known_family("qwen3_asr_text")
    ('gemma3_text', 'qwen3')
    """
    name = name or ""
    for each in (name, f"{name}_text", name.removesuffix("_text")):
        family = MODEL_TYPES.get(each, each)
        if family in _FAMILIES:
            return family
    return None


def architecture_family(architecture: str) -> str | None:
    """The family of an architecture's name, or None.

    >>> architecture_family("Qwen3MoeForCausalLM"), architecture_family("MadeUpForCausalLM")
    ('qwen3_moe', None)
    """
    stem = _stem(architecture)
    return ARCHITECTURES.get(stem) or plain_family(stem)


def plain_family(stem: str) -> str | None:
    """The family that ``stem`` spells in capitals and without underscores, or None."""
    return known_family(_BY_PLAIN_NAME.get(_plain(stem)))


def _stem(architecture: str) -> str:
    return next((architecture.removesuffix(word) for word in _SUFFIXES if architecture.endswith(word)), architecture)


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")


_FAMILIES = frozenset({*CLASS_DEFAULTS, *READERS, *PLAIN_FAMILIES})
_BY_PLAIN_NAME: Mapping[str, str] = {
    **{_plain(name.removesuffix("_text")): name for name in _FAMILIES},
    **{_plain(name): name for name in (*MODEL_TYPES, *_FAMILIES)},
}


def find_family(outer: Fields, text: Fields) -> str:
    """The family of the language model: a nested block's own model type, else the architecture, else the model type.

    A config that names none of them is ``explicit``: read by its own keys, all of which must be there. An unknown name
    is refused.
    """
    nested = text.values is not outer.values
    architectures = outer.texts("architectures") or []
    model_type = outer.text("model_type")
    if architectures and _stem(architectures[0]) in ENCODERS:
        raise UnsupportedModelError(
            f"architectures names {architectures[0]!r}, an encoder: it keeps no KV cache, so there is none to plan",
            hint=ENCODER_HINT,
            key="architectures",
        )
    if nested:
        inner = known_family(text.text("model_type"))
        if inner is not None:
            return inner
        listed = text.texts("architectures") or []
        inner = architecture_family(listed[0]) if listed else None
        if inner is not None:
            return inner
        if text.text("model_type") is not None:
            raise _unknown(f"{text.path}model_type", text.text("model_type"))
    if architectures:
        family = architecture_family(architectures[0])
        if family is None:
            raise _unknown("architectures", architectures[0])
        return family
    return known_family(model_type) or "explicit"


def _unknown(key: str, name: str | None) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{key} names {name!r}, which kvplan does not know: it refuses rather than guesses what such a model keeps",
        hint="if a known model_type describes its layers, give a local config.json with it and without architectures",
        key=key,
    )
