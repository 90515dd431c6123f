"""What a config leaves to its class, as far as weights go: gates, biases, norms, tying; by model type.

Sources: the modules of each class in vLLM 0.33 (``model_executor/models``) and transformers 5.24. ``None`` means that
the config's own key decides (``attention_bias``, ``mlp_bias``, ``tie_word_embeddings``; absent: no bias, not tied).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Tensors that a decoder class has beside the big matrices.

    ``gated``: the MLP has gate, up and down instead of up and down. ``head_norms``: ``head`` one norm of head_dim each
    for Q and K, ``full`` one over all heads' width, ``per_head`` a separate one for every head. ``norm_vectors``:
    vectors of hidden width in a norm (weight and bias: 2; a norm without parameters: 0). ``position_rows`` are the rows
    added to a learned position table beyond the context; None where positions are not learned. ``output_gate``: the
    attention has one unless the config switches it off. ``router_correction``: the router adds a learned correction for
    each expert, whatever the config says. ``expert_bias``: experts have biases though the MLP has none.
    ``mlp_factor``: the MLP is so many times as wide as the residual stream where the config does not say.
    ``width_of_both``: ``intermediate_size`` is the width of gate and up together.
    """

    gated: bool = True
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    head_bias: bool = False
    layer_norms: int = 2
    norm_vectors: int = 1
    head_norms: str | None = None
    tied: bool = False
    position_rows: int | None = None
    embedding_norm: bool = False
    output_gate: bool = False
    router_correction: bool = False
    expert_bias: bool = False
    mlp_factor: int | None = None
    width_of_both: bool = False


_PLAIN = Traits()
_BIASED = Traits(gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_vectors=2)
_QWEN2 = Traits(qkv_bias=True, out_bias=False)
_QWEN3 = Traits(head_norms="head")
_COHERE = Traits(layer_norms=1, tied=True)
_ONE_NORM = Traits(layer_norms=1)
_FALCON = Traits(
    gated=False, qkv_bias=False, out_bias=False, mlp_bias=False, layer_norms=1, norm_vectors=2, tied=True, mlp_factor=4
)
_CORRECTED = Traits(router_correction=True)
_CORRECTED_QWEN3 = replace(_QWEN3, router_correction=True)
_GATED_QWEN3 = replace(_QWEN3, output_gate=True)
_UNBIASED = Traits(qkv_bias=False, out_bias=False, mlp_bias=False)

_PLAIN_DECODERS = (
    "aria_text", "axk1", "baichuan", "dbrx", "bailing_moe", "bamba", "chatglm", "cwm", "deepseek", "deepseek_v2",
    "deepseek_v4", "emu3_text_model", "exaone", "falcon_h1", "glm", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "internlm", "internlm2", "internlm3",
    "llama", "llama4_text", "mimo_v2_flash", "minimax", "minimax_m1", "minimax_text_01", "nemotron-nas",
    "paddleocr_vl_text", "phi3", "seed_oss", "solar", "unlimited_ocr_text", "youtu", "yuan",
)  # fmt: skip
_LIKE_QWEN3 = (
    "bailing_moe_v2", "dots1", "exaone4", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "mellum", "qwen3",
    "qwen3_asr_text", "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text",
)  # fmt: skip
_LIKE_QWEN3_CORRECTED = (
    "exaone_moe", "hy_v3", "laguna", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text", "step3p5",
    "step3p5_text", "step3p7",
)  # fmt: skip
_LIKE_QWEN2 = (
    "mimo", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text",
)  # fmt: skip
_CORRECTED_DECODERS = (
    "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear", "solar_open",
)  # fmt: skip

TRAITS: Mapping[str, Traits] = {
    **dict.fromkeys(_CORRECTED_DECODERS, _CORRECTED),
    **dict.fromkeys(_LIKE_QWEN2, _QWEN2),
    **dict.fromkeys(_LIKE_QWEN3_CORRECTED, _CORRECTED_QWEN3),
    **dict.fromkeys(_LIKE_QWEN3, _QWEN3),
    **dict.fromkeys(_PLAIN_DECODERS, _PLAIN),
    "afmoe": Traits(layer_norms=4, head_norms="head", router_correction=True),
    "apertus": Traits(gated=False, head_norms="head"),
    "arcee": Traits(gated=False),
    "bloom": replace(_BIASED, tied=True, embedding_norm=True, mlp_factor=4),
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "cohere2_moe": _COHERE,
    "cosmos3_edge_text": Traits(gated=False),
    "ernie4_5": Traits(tied=True),
    "ernie4_5_moe": Traits(tied=True),
    "falcon": _FALCON,
    "falcon_mamba": _ONE_NORM,
    "flex_olmo": Traits(head_norms="full"),
    "gemma": Traits(tied=True),
    "gemma2": Traits(tied=True, layer_norms=4),
    "gemma3_text": Traits(tied=True, layer_norms=4, head_norms="head"),
    "gemma4_text": Traits(tied=True, layer_norms=4, head_norms="head"),
    "gemma4_unified_text": Traits(tied=True, layer_norms=4, head_norms="head"),
    "glm4": Traits(layer_norms=4, out_bias=False),
    "glm4_moe": Traits(out_bias=False, router_correction=True),
    "glm4v_moe_text": Traits(out_bias=False, router_correction=True),
    "glm4v_text": Traits(layer_norms=4, out_bias=False),
    "glm_ocr_text": Traits(layer_norms=4, out_bias=False),
    "gpt2": replace(_BIASED, tied=True, position_rows=0, mlp_factor=4),
    "gpt_bigcode": replace(_BIASED, tied=True, position_rows=0, mlp_factor=4),
    "gpt_neox": _BIASED,
    "gpt_oss": Traits(expert_bias=True),
    "gptj": replace(_BIASED, qkv_bias=False, out_bias=False, layer_norms=1, head_bias=True, mlp_factor=4),
    "hyperclovax": Traits(layer_norms=4),
    "jais2": Traits(gated=False, norm_vectors=2),
    "jamba": Traits(tied=False),
    "lfm2": Traits(tied=True, head_norms="head"),
    "lfm2_moe": Traits(tied=True, head_norms="head", router_correction=True),
    "mamba": Traits(layer_norms=1, tied=True),
    "mamba2": Traits(layer_norms=1, tied=False),
    "minicpm": Traits(tied=True),
    "minicpm3": Traits(tied=True),
    "minimax_m2": Traits(head_norms="full", router_correction=True),
    "ministral": _UNBIASED,
    "ministral3": _UNBIASED,
    "mistral": _UNBIASED,
    "mixtral": _UNBIASED,
    "mllama_text_model": _UNBIASED,
    "molmo": Traits(qkv_bias=True, width_of_both=True),
    "mpt": Traits(gated=False, norm_vectors=1, tied=True),
    "nanochat": Traits(gated=False, norm_vectors=0),
    "nemotron": Traits(gated=False, norm_vectors=2),
    "nemotron_h": Traits(gated=False, layer_norms=1, router_correction=True),
    "olmo": Traits(norm_vectors=0),
    "olmo2": Traits(head_norms="full"),
    "olmo3": Traits(head_norms="full"),
    "olmo_hybrid": Traits(head_norms="full"),
    "olmoe": Traits(head_norms="full"),
    "openelm": Traits(tied=True, head_norms="head"),
    "opt": replace(_BIASED, tied=True, position_rows=2),
    "orion": Traits(norm_vectors=2),
    "phi": replace(_BIASED, layer_norms=1, head_bias=True, mlp_factor=4),
    "phi-msft": replace(_BIASED, layer_norms=1, head_bias=True, mlp_factor=4),
    "phi3small": Traits(qkv_bias=True, out_bias=True, mlp_bias=True, norm_vectors=2, tied=True),
    "phi4flash": Traits(qkv_bias=True, out_bias=True, mlp_bias=False, norm_vectors=2, tied=True),
    "phimoe": Traits(norm_vectors=2),
    "qwen": Traits(qkv_bias=True, out_bias=False, mlp_bias=False, width_of_both=True),
    "qwen3_5_moe_text": _GATED_QWEN3,
    "qwen3_5_text": _GATED_QWEN3,
    "qwen3_next": _GATED_QWEN3,
    "recurrent_gemma": Traits(tied=True, width_of_both=True),
    "RefinedWeb": _FALCON,
    "RefinedWebModel": _FALCON,
    "smollm3": Traits(tied=True),
    "stablelm": Traits(norm_vectors=2),
    "starcoder2": replace(_BIASED, tied=True),
    "vaultgemma": Traits(tied=True),
    "zamba2": Traits(layer_norms=1, tied=True),
}
