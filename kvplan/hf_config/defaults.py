"""What each config class fills in where config.json is silent.

Source: the config classes of transformers 5.20, each built without the key. Classes that transformers does not have
(remote code) have no row, so their configs must state what is needed.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClassDefaults:
    """One config class: the ``keys`` that it fills in; ``strict`` classes refuse an explicit null.

    A null ``num_key_value_heads`` means one per query head, a null ``head_dim`` hidden / query heads.
    """

    keys: Mapping[str, object]
    strict: bool


def _class(
    layers: int,
    heads: int,
    hidden: int,
    *,
    kv: int | None = None,
    head_dim: int | None = None,
    window: int | None = None,
    context: int | None = None,
    tied: bool = False,
    strict: bool = False,
    experts: int | None = None,
) -> ClassDefaults:
    keys = {
        "num_hidden_layers": layers,
        "num_attention_heads": heads or None,
        "hidden_size": hidden,
        "num_key_value_heads": kv,
        "head_dim": head_dim,
        "sliding_window": window,
        "max_position_embeddings": context,
        "tie_word_embeddings": tied,
        "num_local_experts": experts,
    }
    return ClassDefaults(keys=keys, strict=strict)


CLASS_DEFAULTS: Mapping[str, ClassDefaults] = {
    "afmoe": _class(32, 16, 2048, head_dim=128, window=1024, context=16_384),
    "apertus": _class(32, 32, 4096, context=65_536),
    "arcee": _class(32, 32, 2560, context=4096),
    "aria_text": _class(32, 32, 4096, context=2048),
    "axk1": _class(61, 64, 7168, kv=64, head_dim=64, context=32_768, strict=True),
    "bamba": _class(32, 32, 4096, kv=8, context=262_144),
    "beam": _class(24, 32, 2048, kv=4, window=4096, context=32_768),
    "biogpt": _class(24, 16, 1024, context=1024, tied=True),
    "bitnet": _class(30, 20, 2560, kv=5, context=2048),
    "bloom": _class(2, 8, 64, tied=True),
    "chameleon": _class(32, 32, 4096, kv=32, context=4096),
    "clip_text_model": _class(12, 8, 512, context=77),
    "codegen": _class(28, 16, 4096, context=2048),
    "cohere": _class(40, 64, 8192, context=8192, tied=True),
    "cohere2": _class(40, 64, 8192, window=4096, context=8192, tied=True),
    "cohere2_moe": _class(40, 64, 8192, head_dim=128, window=4096, context=8192, tied=True),
    "cosmos3_edge_text": _class(28, 16, 2048, kv=8, head_dim=128, context=131_072),
    "csm": _class(16, 32, 2048, kv=8, context=2048),
    "cwm": _class(64, 48, 6144, kv=8, head_dim=128, window=8192, context=131_072, strict=True),
    "dbrx": _class(24, 16, 2048, kv=1, context=2048),
    "deepseek_v2": _class(32, 32, 4096, head_dim=64, context=2048),
    "deepseek_v3": _class(61, 128, 7168, kv=128, head_dim=64, context=4096),
    "deepseek_v32": _class(61, 128, 7168, kv=128, head_dim=64, context=163_840, strict=True),
    "deepseek_v4": _class(43, 64, 4096, kv=1, head_dim=512, window=128, context=1_048_576, strict=True),
    "diffusion_gemma_text": _class(
        30, 8, 2304, kv=4, head_dim=256, window=512, context=131_072, tied=True, strict=True
    ),
    "diffllama": _class(16, 32, 2048, context=2048),
    "doge": _class(32, 8, 1024, context=2048),
    "dory": _class(72, 16, 2560, kv=4, head_dim=256, window=1024, context=8192, strict=True),
    "dots1": _class(62, 32, 4608, kv=32, window=4096, context=2048),
    "emu3_text_model": _class(32, 32, 4096, kv=8, context=9216),
    "ernie4_5": _class(18, 16, 1024, kv=2, head_dim=128, context=131_072, tied=True),
    "ernie4_5_moe": _class(28, 20, 2560, kv=4, context=131_072, tied=True),
    "ernie4_5_vl_moe_text": _class(28, 20, 2560, kv=4, context=131_072, tied=True),
    "evolla": _class(32, 32, 4096, kv=8, context=8192),
    "exaone4": _class(32, 32, 4096, kv=32, window=4096, context=2048, strict=True),
    "exaone_moe": _class(32, 32, 4096, kv=32, window=4096, context=2048, strict=True),
    "falcon": _class(32, 71, 4544, context=2048, tied=True),
    "falcon_h1": _class(32, 32, 4096, kv=8, context=8192),
    "falcon_mamba": _class(32, 0, 768, tied=True),
    "flex_olmo": _class(32, 32, 4096, context=4096),
    "gemma": _class(28, 16, 3072, kv=16, head_dim=256, context=8192, tied=True, strict=True),
    "gemma2": _class(26, 8, 2304, kv=4, head_dim=256, window=4096, context=8192, tied=True, strict=True),
    "gemma3_text": _class(26, 8, 2304, kv=4, head_dim=256, window=4096, context=131_072, tied=True, strict=True),
    "gemma3n_text": _class(35, 8, 2048, kv=2, head_dim=256, window=512, context=32_768, tied=True, strict=True),
    "gemma4_text": _class(30, 8, 2304, kv=4, head_dim=256, window=512, context=131_072, tied=True, strict=True),
    "gemma4_unified_text": _class(
        30, 8, 2304, kv=4, head_dim=256, window=1024, context=262_144, tied=True, strict=True
    ),
    "glm": _class(40, 32, 4096, kv=2, head_dim=128, context=131_072),
    "glm4": _class(40, 32, 4096, kv=2, head_dim=128, context=131_072, strict=True),
    "glm4_moe": _class(46, 96, 4096, kv=8, context=131_072, strict=True),
    "glm4_moe_lite": _class(47, 20, 2048, kv=20, head_dim=64, context=202_752, strict=True),
    "glm4v_moe_text": _class(46, 96, 4096, kv=8, context=65_536, strict=True),
    "glm4v_text": _class(40, 32, 4096, kv=2, context=32_768),
    "glm5_next_text": _class(45, 64, 4096, kv=64, head_dim=0, context=1_048_576, strict=True),
    "glm_image_text": _class(40, 32, 4096, kv=2, context=131_072),
    "glm_moe_dsa": _class(78, 64, 6144, kv=64, head_dim=64, context=202_752, strict=True),
    "glm_ocr_text": _class(16, 16, 1024, kv=8, context=131_072, strict=True),
    "gpt2": _class(12, 12, 768, context=1024, tied=True),
    "gpt_bigcode": _class(12, 12, 768, kv=1, context=1024, tied=True),
    "gpt_neo": _class(24, 16, 2048, context=2048, tied=True),
    "gpt_neox": _class(44, 64, 6144, context=2048),
    "gpt_neox_japanese": _class(32, 32, 2560, context=2048, tied=True),
    "gpt_oss": _class(36, 64, 2880, kv=8, head_dim=64, window=128, context=131_072, strict=True),
    "gptj": _class(28, 16, 4096, context=2048),
    "granite": _class(32, 32, 4096, context=2048),
    "granite4_vision_text": _class(32, 32, 4096, context=2048),
    "granite_swa": _class(24, 20, 2560, kv=4, window=128, context=8192, tied=True),
    "granitemoe": _class(32, 32, 4096, context=2048),
    "granitemoe_swa": _class(32, 32, 4096, window=128, context=2048),
    "granitemoehybrid": _class(32, 32, 4096, kv=32, context=2048),
    "granitemoeshared": _class(32, 32, 4096, context=2048),
    "helium": _class(24, 20, 2560, kv=20, head_dim=128, context=4096, strict=True),
    "hrm_text": _class(128, 12, 1536, head_dim=128, context=2048),
    "hunyuan_v1_dense": _class(32, 32, 4096, context=2048),
    "hunyuan_v1_moe": _class(32, 32, 4096, context=2048),
    "hunyuan_vl_text": _class(32, 32, 4096, context=2048, tied=True),
    "hy_v3": _class(80, 64, 4096, kv=8, head_dim=128, context=131_072, strict=True),
    "hyperclovax": _class(32, 32, 4096, context=2048),
    "jais2": _class(32, 26, 3328, context=8192),
    "jamba": _class(32, 32, 4096, kv=8, context=262_144, strict=True),
    "jetmoe": _class(12, 32, 2048, kv=16, head_dim=128, context=4096, tied=True, strict=True),
    "kimi_linear": _class(32, 32, 4096, context=4096),
    "kolibri1": _class(50, 48, 2560, kv=4, head_dim=128, window=513, context=262_144, strict=True),
    "laguna": _class(40, 48, 2048, kv=8, head_dim=128, window=512, context=131_072, strict=True),
    "lfm2": _class(32, 32, 2560, kv=8, context=128_000, tied=True, strict=True),
    "lfm2_moe": _class(32, 32, 2048, kv=8, context=128_000, tied=True, strict=True),
    "llama": _class(32, 32, 4096, context=2048),
    "llama4_text": _class(48, 40, 5120, kv=8, head_dim=128, context=131_072, strict=True),
    "longcat_flash": _class(56, 64, 6144, head_dim=64, context=131_072),
    "mamba": _class(32, 0, 768, tied=True),
    "mamba2": _class(64, 0, 4096),
    "mellum": _class(28, 32, 2304, kv=4, head_dim=128, window=1024, context=131_072, strict=True),
    "mimo_v2_flash": _class(48, 64, 4096, kv=4, head_dim=192, window=129, context=131_072, strict=True),
    "minicpm3": _class(62, 40, 2560, kv=40, head_dim=32, context=32_768, tied=True),
    "minimax": _class(32, 32, 4096, kv=8, context=131_072, strict=True),
    "minimax_m2": _class(62, 48, 3072, kv=8, head_dim=128, context=196_608, strict=True),
    "minimax_m3_vl_text": _class(60, 64, 6144, kv=4, head_dim=128, context=524_288, strict=True),
    "ministral": _class(32, 32, 4096, kv=8, window=4096, context=131_072, strict=True),
    "ministral3": _class(34, 32, 4096, kv=8, head_dim=128, context=262_144, strict=True),
    "mistral": _class(32, 32, 4096, kv=8, window=4096, context=131_072, strict=True),
    "mistral4": _class(36, 32, 4096, kv=32, head_dim=128, context=1_048_576),
    "mixtral": _class(32, 32, 4096, kv=8, context=131_072, strict=True, experts=8),
    "mllama_text_model": _class(40, 32, 4096, kv=8, context=131_072, strict=True),
    "molmo2_text": _class(36, 32, 4096, kv=8, head_dim=128, context=36_864, strict=True),
    "mpt": _class(24, 16, 2048, tied=True),
    "muse_glimmer_text": _class(52, 32, 6656, kv=2, head_dim=128, window=2048, context=131_072, strict=True),
    "nanochat": _class(12, 6, 768, context=2048),
    "nemotron": _class(32, 48, 6144, context=4096),
    "nemotron_h": _class(4, 32, 4096, kv=8, head_dim=128, context=4096, strict=True),
    "olmo": _class(32, 32, 4096, context=2048),
    "olmo2": _class(32, 32, 4096, context=2048),
    "olmo3": _class(32, 32, 4096, window=4096, context=2048),
    "olmo_hybrid": _class(32, 30, 3840, context=65_536),
    "olmoe": _class(16, 16, 2048, context=4096),
    "opt": _class(12, 12, 768, context=2048, tied=True),
    "paddleocr_vl_text": _class(18, 16, 1024, kv=2, head_dim=128, context=131_072, tied=True),
    "persimmon": _class(36, 64, 4096, context=16_384),
    "phi": _class(24, 32, 2048, context=2048),
    "phi3": _class(32, 32, 3072, context=4096),
    "phi4_multimodal": _class(32, 32, 3072, kv=8, context=131_072),
    "phimoe": _class(32, 32, 4096, kv=8, context=131_072, strict=True),
    "qwen2": _class(32, 32, 4096, kv=32, context=32_768),
    "qwen2_5_omni_text": _class(28, 28, 3584, kv=4, context=32_768, tied=True),
    "qwen2_5_vl_text": _class(80, 64, 8192, kv=8, context=32_768),
    "qwen2_moe": _class(24, 16, 2048, kv=16, context=32_768),
    "qwen2_vl_text": _class(80, 64, 8192, kv=8, context=32_768),
    "qwen3": _class(32, 32, 4096, kv=32, head_dim=128, context=32_768),
    "qwen3_5_moe_text": _class(40, 16, 2048, kv=2, head_dim=256, context=32_768, strict=True),
    "qwen3_5_text": _class(32, 16, 4096, kv=4, head_dim=256, context=32_768, strict=True),
    "qwen3_moe": _class(24, 32, 2048, kv=4, context=32_768, strict=True),
    "qwen3_next": _class(48, 16, 2048, kv=2, head_dim=256, context=32_768, strict=True),
    "qwen3_omni_moe_text": _class(28, 28, 2048, kv=4, context=32_768, strict=True),
    "qwen3_vl_moe_text": _class(24, 16, 2048, kv=16, context=128_000, tied=True, strict=True),
    "qwen3_vl_text": _class(32, 32, 4096, kv=32, head_dim=128, context=128_000),
    "qwen4_exp_text": _class(40, 16, 2048, kv=2, head_dim=256, context=32_768, strict=True),
    "recurrent_gemma": _class(26, 10, 2560, window=2048, tied=True),
    "seed_oss": _class(64, 80, 4096, kv=8, head_dim=128, context=524_288),
    "smollm3": _class(36, 16, 2048, kv=4, context=32_768, tied=True),
    "solar_open": _class(48, 64, 4096, kv=8, head_dim=128, context=131_072, strict=True),
    "stablelm": _class(32, 32, 2560, kv=32, context=4096, strict=True),
    "starcoder2": _class(30, 24, 3072, kv=2, context=4096, tied=True, strict=True),
    "step3p5": _class(45, 64, 4096, kv=8, head_dim=128, context=128_000, strict=True),
    "vaultgemma": _class(26, 8, 2304, kv=4, head_dim=256, window=4096, context=8192, tied=True, strict=True),
    "voxtral_realtime_text": _class(32, 32, 4096, kv=8, window=4096, context=131_072, strict=True),
    "youtu": _class(32, 16, 2048, kv=16, head_dim=64, context=131_072, tied=True, strict=True),
    "zamba2": _class(54, 32, 2560, head_dim=80, context=4096, tied=True),
}

_NESTED_DEFAULTS: Mapping[str, Mapping[str, int]] = {
    # vLLM 0.33, ``BailingMoeV3TextConfig``: the language block of Ling 3 VL
    "bailing_hybrid": {"layer_group_size": 5, "head_dim": 128, "kv_lora_rank": 512, "qk_rope_head_dim": 64},
    "diffusion_gemma_text": {"vocab_size": 262_144, "intermediate_size": 9216},
    "gemma3_text": {"vocab_size": 262_208, "intermediate_size": 9216},
    "llama": {"vocab_size": 32_000, "intermediate_size": 11_008},
    "mistral": {"vocab_size": 32_000, "intermediate_size": 14_336},
    "mixtral": {"vocab_size": 32_000, "intermediate_size": 14_336},
    "muse_glimmer_text": {"vocab_size": 202_048, "intermediate_size": 19_968},
    "qwen2": {"vocab_size": 151_936, "intermediate_size": 22_016},
    "qwen2_moe": {"vocab_size": 151_936, "intermediate_size": 5632, "shared_expert_intermediate_size": 5632},
}
"""Further values that a nested block leaves to its class, mostly widths that only weights and activations need."""


STRICT_FAMILIES = frozenset(family for family, defaults in CLASS_DEFAULTS.items() if defaults.strict)


def class_keys(family: str, *, is_nested: bool) -> Mapping[str, object]:
    """What the class of ``family`` fills in.

    A flat file must state its layers, heads and width, because transformers always writes them there; a nested block
    may leave out whatever its class fills in.
    """
    keys = CLASS_DEFAULTS[family].keys if family in CLASS_DEFAULTS else {}
    if is_nested:
        return {**keys, **_NESTED_DEFAULTS.get(family, {})}
    needed = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    return {name: value for name, value in keys.items() if name not in needed}
