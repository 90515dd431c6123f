"""Which classes slide, and by what rule of their own, where a config does not say it layer by layer."""

# Classes with a switch: ``use_sliding_window`` false (also the default) wins over any ``sliding_window``.
SWITCHED = frozenset(
    {
        "qwen2",
        "qwen2_5_omni_text",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_omni_moe_text",
        "qwen3_vl_moe_text",
        "smollm3",
    }
)
# ... of these, the classes that slide only from layer ``max_window_layers`` (28 where absent) on. dots.llm1 has no
# switch, but the same rule (62 where absent).
FROM_LAYER = {
    "qwen2": 28,
    "qwen2_vl_text": 80,
    "qwen2_5_vl_text": 80,
    "qwen2_5_omni_text": 28,
    "qwen3": 28,
    "dots1": 62,
}
# Classes that alternate without a key: period, and whether the first (else the last) layer of each period is full.
# Source: ``layer_types`` that the config classes of transformers 5.20 build; vLLM 0.33's model classes read those.
PERIODS = {
    "afmoe": (4, False),
    "cohere2": (4, False),
    "cohere2_moe": (4, False),
    "cwm": (4, True),
    "diffusion_gemma_text": (6, False),
    "exaone4": (4, False),
    "exaone_moe": (4, False),
    "gemma2": (2, False),
    "gemma3_text": (6, False),
    "gemma3n_text": (5, False),
    "gemma4_text": (6, False),
    "gemma4_unified_text": (6, False),
    "gpt_oss": (2, False),
    "granite_swa": (4, True),
    "kolibri1": (5, False),
    "muse_glimmer_text": (4, False),
    "granitemoe_swa": (4, True),
    "olmo3": (4, False),
    "vaultgemma": (2, False),
}
# Classes that count their periods from the last layer back.
COUNTED_BACK = frozenset({"muse_glimmer_text"})
# Classes whose last layer is full, whatever the list says.
ENDS_FULL = frozenset({"diffusion_gemma_text", "gemma4_text", "gemma4_unified_text"})
# Classes of vLLM 0.33 that give every layer the same window: with a list that mixes kinds, all layers keep everything.
ONE_WINDOW = frozenset(
    {
        "bailing_moe",
        "chatglm",
        "clip_text_model",
        "cohere",
        "deepseek",
        "ernie4_5_moe",
        "ernie4_5_vl_moe_text",
        "exaone",
        "falcon",
        "gemma",
        "glm4",
        "glm4_moe",
        "glm4v_moe_text",
        "glm4v_text",
        "glm_ocr_text",
        "gpt2",
        "gptj",
        "hy_v3",
        "hyperclovax",
        "internlm2",
        "k2_horizon",
        "mimo",
        "minicpm",
        "minimax_m2",
        "mixtral",
        "molmo",
        "molmo2_text",
        "nemotron",
        "olmoe",
        "opt",
        "orion",
        "pangu",
        "param2moe",
        "phimoe",
        "qwen2",
        "qwen2_5_omni_text",
        "qwen2_5_vl_text",
        "qwen2_moe",
        "qwen2_vl_text",
        "qwen3",
        "qwen3_moe",
        "qwen3_omni_moe_text",
        "qwen3_vl_moe_text",
        "qwen3_vl_text",
        "sarvam",
        "solar",
        "stablelm",
        "step1",
        "step3_text",
    }
)
# Classes with a window whose layers are all full unless ``layer_types`` says otherwise.
# Qwen2-MoE's config class mixes kinds where none are listed, which its model class does not read.
FULL_UNLESS_LISTED = frozenset({"laguna", "mellum", "qwen2_moe", "step3p5"})
PERIOD_NAMES = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers")
# vLLM's Cohere2 classes pass ``sliding_window + 1`` to the attention layer.
EXTRA_TOKENS = {"cohere2": 1, "cohere2_moe": 1}
