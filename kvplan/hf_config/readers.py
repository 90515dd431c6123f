"""The one table from a language model's family to the function that reads its layers."""

from collections.abc import Callable, Mapping

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.encoder_decoder import read_bart, read_t5, read_vision_cross, read_whisper
from kvplan.hf_config.hybrid import (
    read_bamba,
    read_flat_kda,
    read_gated_delta,
    read_granite_hybrid,
    read_grouped_kda,
    read_grouped_lightning,
    read_jamba,
    read_kda,
    read_lightning,
    read_nemotron_hybrid,
    read_parallel_hybrid,
    read_plamo2,
    read_pooled_sparse,
    read_rg_lru,
    read_short_conv,
    read_zamba2,
)
from kvplan.hf_config.latent import (
    read_compressed,
    read_compressed_sources,
    read_double_latent,
    read_expanded_latent,
    read_indexed_heads,
    read_latent,
    read_listed_sparse,
    read_sparse_latent,
)
from kvplan.hf_config.recurrent import read_mamba1, read_mamba2, read_rwkv
from kvplan.hf_config.standard import read_cross_layer_shared, read_standard, read_tail_shared
from kvplan.hf_config.varying import (
    read_asymmetric,
    read_blocks,
    read_cycles,
    read_listed_heads,
    read_looped,
    read_recurrent_depth,
    read_sliding_override,
    read_wide_full,
    read_yoco,
)

Reader = Callable[[Described], LayerStack]

READERS: Mapping[str, Reader] = {
    "alice_ai": read_flat_kda,
    "bailing_hybrid": read_grouped_lightning,
    "bailing_hybrid_v3": read_grouped_kda,
    "bamba": read_bamba,
    "bart": read_bart,
    "decilm": read_blocks,
    "deepseek_v2": read_latent,
    "deepseek_v3": read_latent,
    "deepseek_v32": read_sparse_latent,
    "deepseek_v4": read_compressed,
    "deepseek_v41": read_compressed_sources,
    "diffusion_gemma_text": read_wide_full,
    "dory": read_recurrent_depth,
    "falcon_h1": read_parallel_hybrid,
    "falcon_mamba": read_mamba1,
    "gemma3n_text": read_tail_shared,
    "gemma4_text": read_wide_full,
    "gemma4_unified_text": read_wide_full,
    "glm4_moe_lite": read_latent,
    "glm5_next_text": read_pooled_sparse,
    "glm_moe_dsa": read_sparse_latent,
    "granitemoehybrid": read_granite_hybrid,
    "hrm_text": read_cycles,
    "hunyuan": read_cross_layer_shared,
    "hunyuan_v1_dense": read_cross_layer_shared,
    "hunyuan_v1_moe": read_cross_layer_shared,
    "hy_v4": read_listed_sparse,
    "iquestloopcoder": read_looped,
    "jamba": read_jamba,
    "kimi_linear": read_kda,
    "lfm2": read_short_conv,
    "lfm2_moe": read_short_conv,
    "longcat_flash": read_double_latent,
    "mamba": read_mamba1,
    "mamba2": read_mamba2,
    "mimo_v2_flash": read_asymmetric,
    "minicpm3": read_expanded_latent,
    "minimax": read_lightning,
    "minimax_m3_vl_text": read_indexed_heads,
    "mllama_text_model": read_vision_cross,
    "nemotron_h": read_nemotron_hybrid,
    "olmo_hybrid": read_gated_delta,
    "openelm": read_listed_heads,
    "phi4flash": read_yoco,
    "plamo2": read_plamo2,
    "qwen3_5_moe_text": read_gated_delta,
    "qwen3_5_text": read_gated_delta,
    "qwen3_next": read_gated_delta,
    "recurrent_gemma": read_rg_lru,
    "rwkv5": read_rwkv,
    "step3p5": read_sliding_override,
    "t5": read_t5,
    "whisper": read_whisper,
    "zamba2": read_zamba2,
}

# Plain decoders that transformers has no class for, or whose class adds nothing to what their files say.
PLAIN_FAMILIES = frozenset(
    {
        "aquila",
        "arctic",
        "baichuan",
        "bailing_moe",
        "chatglm",
        "decicoder",
        "deepseek",
        "domyn_edge",
        "dots_ocr",
        "exaone",
        "grok",
        "explicit",
        "internlm",
        "internlm2",
        "internlm3",
        "iquestcoder",
        "jais",
        "k2_horizon",
        "mimo",
        "minicpm",
        "molmo",
        "nanbeige",
        "orion",
        "pangu",
        "param2moe",
        "phi3small",
        "plamo3",
        "qwen",
        "sarvam",
        "skywork",
        "solar",
        "step1",
        "step3_text",
        "telechat",
        "telechat3",
        "teleflm",
        "xverse",
        "yi",
        "yuan",
    }
)


def reader_of(model: Described) -> Reader:
    """The reader of a model: by its family where the table has one, else by what its file says.

    A latent rank means latent attention (with an index width: sparse), whatever the class is called; anything else is
    a plain decoder.
    """
    if model.family in READERS:
        return READERS[model.family]
    if model.text.says("kv_lora_rank"):
        return read_sparse_latent if model.text.says("index_head_dim") else read_latent
    return read_standard
