"""What a config leaves to its class, as far as weights go: gates, biases, norms, tying; by model type.

Sources: the modules of each class in vLLM 0.33 (``model_executor/models``) and transformers 5.24. ``None`` means that
the config's own key decides (``attention_bias``, ``mlp_bias``, ``tie_word_embeddings``; absent: no bias, not tied).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Traits:
    """Tensors that a decoder class has beside the big matrices.

    ``gated``: the MLP has gate, up and down rather than up and down. ``head_norms``: ``head``, a norm of head_dim for Q
    and one for K; ``full``, norms over the width of all heads. ``norm_vectors``: vectors of hidden width in a norm
    (weight and bias: 2; no parameters: 0). ``position_rows``: rows of a learned position table beyond the context; None
    where positions are not learned. ``output_gate``: attention has one unless the config switches it off.
    ``router_correction``: the router adds a learned correction per expert, whatever the config says. ``expert_bias``:
    experts have biases although the MLP has none. ``mlp_factor``: width of the MLP over the hidden width, where the
    config has none. ``width_of_both``: ``intermediate_size`` is the width of gate and up together.
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


_PLAIN = (
    "aria_text", "axk1", "baichuan", "dbrx", "bailing_moe", "bamba", "chatglm", "cwm", "deepseek", "deepseek_v2",
    "deepseek_v4", "emu3_text_model", "exaone", "falcon_h1", "glm", "granite", "granite_swa", "granitemoe",
    "granitemoe_swa", "granitemoehybrid", "granitemoeshared", "helium", "internlm", "internlm2", "internlm3", "jamba",
    "llama", "llama4_text", "mimo_v2_flash", "minimax", "minimax_m1", "minimax_text_01", "nemotron-nas",
    "paddleocr_vl_text", "phi3", "seed_oss", "solar", "unlimited_ocr_text", "youtu", "yuan",
)  # fmt: skip
_PLAIN_WITH_CORRECTION = (
    "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "kimi_linear", "solar_open",
)  # fmt: skip
_PLAIN_TIED = ("ernie4_5", "ernie4_5_moe", "gemma", "minicpm", "minicpm3", "smollm3", "vaultgemma")
_PLAIN_WITHOUT_BIAS = ("ministral", "ministral3", "mistral", "mixtral", "mllama_text_model")
_LIKE_QWEN2 = (
    "mimo", "qwen2", "qwen2_5_omni_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text",
)  # fmt: skip
_LIKE_QWEN3 = (
    "bailing_moe_v2", "dots1", "exaone4", "hunyuan", "hunyuan_v1_dense", "hunyuan_v1_moe", "mellum", "qwen3",
    "qwen3_asr_text", "qwen3_moe", "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text",
)  # fmt: skip
_LIKE_QWEN3_WITH_CORRECTION = (
    "exaone_moe", "hy_v3", "laguna", "minimax_m3_text", "minimax_m3_vl", "minimax_m3_vl_text", "step3p5",
    "step3p5_text", "step3p7",
)  # fmt: skip
_LIKE_QWEN3_WITH_GATE = ("qwen3_5_moe_text", "qwen3_5_text", "qwen3_next")
_LIKE_FALCON = ("falcon", "RefinedWeb", "RefinedWebModel")
_LIKE_GLM4 = ("glm4", "glm4v_text", "glm_ocr_text")
_LIKE_GEMMA3 = ("gemma3_text", "gemma4_text", "gemma4_unified_text")

# Matrices with biases throughout, as in GPT-2.
_BIASED = Traits(gated=False, qkv_bias=True, out_bias=True, mlp_bias=True, norm_vectors=2)

TRAITS: Mapping[str, Traits] = {
    **dict.fromkeys(_PLAIN, Traits()),
    **dict.fromkeys(_PLAIN_WITH_CORRECTION, Traits(router_correction=True)),
    **dict.fromkeys(_PLAIN_TIED, Traits(tied=True)),
    **dict.fromkeys(_PLAIN_WITHOUT_BIAS, Traits(qkv_bias=False, out_bias=False, mlp_bias=False)),
    **dict.fromkeys(_LIKE_QWEN2, Traits(qkv_bias=True, out_bias=False)),
    **dict.fromkeys(_LIKE_QWEN3, Traits(head_norms="head")),
    **dict.fromkeys(_LIKE_QWEN3_WITH_CORRECTION, Traits(head_norms="head", router_correction=True)),
    **dict.fromkeys(_LIKE_QWEN3_WITH_GATE, Traits(head_norms="head", output_gate=True)),
    **dict.fromkeys(
        _LIKE_FALCON,
        replace(_BIASED, qkv_bias=False, out_bias=False, mlp_bias=False, layer_norms=1, tied=True, mlp_factor=4),
    ),
    **dict.fromkeys(_LIKE_GLM4, Traits(layer_norms=4, out_bias=False)),
    **dict.fromkeys(_LIKE_GEMMA3, Traits(tied=True, layer_norms=4, head_norms="head")),
    **dict.fromkeys(("cohere", "cohere2", "cohere2_moe", "mamba", "zamba2"), Traits(layer_norms=1, tied=True)),
    **dict.fromkeys(("falcon_mamba", "mamba2"), Traits(layer_norms=1)),
    **dict.fromkeys(("flex_olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe"), Traits(head_norms="full")),
    **dict.fromkeys(("glm4_moe", "glm4v_moe_text"), Traits(out_bias=False, router_correction=True)),
    **dict.fromkeys(("gpt2", "gpt_bigcode"), replace(_BIASED, tied=True, position_rows=0, mlp_factor=4)),
    **dict.fromkeys(("lfm2", "openelm"), Traits(tied=True, head_norms="head")),
    **dict.fromkeys(("orion", "phimoe", "stablelm"), Traits(norm_vectors=2)),
    **dict.fromkeys(("arcee", "cosmos3_edge_text"), Traits(gated=False)),
    **dict.fromkeys(("jais2", "nemotron"), Traits(gated=False, norm_vectors=2)),
    **dict.fromkeys(("phi", "phi-msft"), replace(_BIASED, layer_norms=1, head_bias=True, mlp_factor=4)),
    "afmoe": Traits(layer_norms=4, head_norms="head", router_correction=True),
    "apertus": Traits(gated=False, head_norms="head"),
    "bloom": replace(_BIASED, tied=True, embedding_norm=True, mlp_factor=4),
    "gemma2": Traits(tied=True, layer_norms=4),
    "gpt_neox": _BIASED,
    "gpt_oss": Traits(expert_bias=True),
    "gptj": replace(_BIASED, qkv_bias=False, out_bias=False, layer_norms=1, head_bias=True, mlp_factor=4),
    "hyperclovax": Traits(layer_norms=4),
    "lfm2_moe": Traits(tied=True, head_norms="head", router_correction=True),
    "minimax_m2": Traits(head_norms="full", router_correction=True),
    "molmo": Traits(qkv_bias=True, width_of_both=True),
    "mpt": Traits(gated=False, tied=True),
    "nanochat": Traits(gated=False, norm_vectors=0),
    "nemotron_h": Traits(gated=False, layer_norms=1, router_correction=True),
    "olmo": Traits(norm_vectors=0),
    "opt": replace(_BIASED, tied=True, position_rows=2),
    "phi3small": Traits(qkv_bias=True, out_bias=True, mlp_bias=True, norm_vectors=2, tied=True),
    "phi4flash": Traits(qkv_bias=True, out_bias=True, mlp_bias=False, norm_vectors=2, tied=True),
    "qwen": Traits(qkv_bias=True, out_bias=False, mlp_bias=False, width_of_both=True),
    "recurrent_gemma": Traits(tied=True, width_of_both=True),
    "starcoder2": replace(_BIASED, tied=True),
}
