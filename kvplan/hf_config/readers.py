"""The one table from a language model's family to the function that reads its layers.

A new kind of attention takes a dataclass in ``kvplan/layers`` (exported from its ``__init__``), a reader beside the
others and its line here; and in the tests a strategy (``strategies.py``), a golden row (``test_layers.py``) and a
published model (``configs``). Its weights are counted, and engines refuse it by name until they know how they store it.
"""

from collections.abc import Callable, Mapping

from kvplan.hf_config import encoder_decoder, hybrid, latent, linear, recurrent, standard, varying
from kvplan.hf_config.described import Described, LayerStack

Reader = Callable[[Described], LayerStack]

READERS: Mapping[str, Reader] = {
    "alice_ai": linear.read_kda,
    "bailing_hybrid": linear.read_grouped_kda,
    "bailing_moe_v2_5": linear.read_grouped_lightning,
    "bamba": hybrid.read_bamba,
    "bart": encoder_decoder.read_seq2seq,
    "decilm": varying.read_blocks,
    "deepseek_v2": latent.read_latent,
    "deepseek_v3": latent.read_latent,
    "deepseek_v32": latent.read_sparse_latent,
    "deepseek_v4": latent.read_compressed,
    "deepseek_v41": latent.read_compressed_sources,
    "diffusion_gemma_text": varying.read_wide_full,
    "dory": varying.read_recurrent_depth,
    "falcon_h1": hybrid.read_parallel_hybrid,
    "falcon_mamba": recurrent.read_mamba1,
    "gemma3n_text": standard.read_tail_shared,
    "gemma4_text": varying.read_wide_full,
    "gemma4_unified_text": varying.read_wide_full,
    "glm4_moe_lite": latent.read_latent,
    "glm5_next_text": linear.read_pooled_sparse,
    "glm_moe_dsa": latent.read_sparse_latent,
    "granitemoehybrid": hybrid.read_granite_hybrid,
    "hrm_text": varying.read_cycles,
    "hunyuan": standard.read_cross_layer_shared,
    "hunyuan_v1_dense": standard.read_cross_layer_shared,
    "hunyuan_v1_moe": standard.read_cross_layer_shared,
    "hy_v4": latent.read_listed_sparse,
    "iquestloopcoder": varying.read_looped,
    "jamba": hybrid.read_jamba,
    "kimi_linear": linear.read_kda,
    "lfm2": hybrid.read_short_conv,
    "lfm2_moe": hybrid.read_short_conv,
    "longcat_flash": latent.read_double_latent,
    "mamba": recurrent.read_mamba1,
    "mamba2": recurrent.read_mamba2,
    "mimo_v2_flash": varying.read_asymmetric,
    "minicpm3": latent.read_expanded_latent,
    "minimax": linear.read_lightning,
    "minimax_m3_vl_text": latent.read_indexed_heads,
    "mllama_text_model": encoder_decoder.read_vision_cross,
    "nemotron_h": hybrid.read_nemotron_hybrid,
    "olmo_hybrid": linear.read_gated_delta,
    "openelm": varying.read_listed_heads,
    "phi4flash": varying.read_yoco,
    "plamo2": hybrid.read_plamo2,
    "qwen3_5_moe_text": linear.read_gated_delta,
    "qwen3_5_text": linear.read_gated_delta,
    "qwen3_next": linear.read_gated_delta,
    "recurrent_gemma": hybrid.read_rg_lru,
    "rwkv5": recurrent.read_rwkv,
    "step3p5": varying.read_sliding_override,
    "t5": encoder_decoder.read_t5,
    "whisper": encoder_decoder.read_seq2seq,
    "zamba2": hybrid.read_zamba2,
}

# Plain decoders that transformers has no class for, or whose class adds nothing to what their files say.
PLAIN_FAMILIES = frozenset({
    "aquila", "arctic", "baichuan", "bailing_moe", "chatglm", "decicoder", "deepseek", "domyn_edge", "dots_ocr",
    "exaone", "explicit", "grok", "internlm", "internlm2", "internlm3", "iquestcoder", "jais", "k2_horizon", "mimo",
    "minicpm", "molmo", "nanbeige", "orion", "pangu", "param2moe", "phi3small", "plamo3", "qwen", "sarvam",
    "skywork", "solar", "step1", "step3_text", "telechat", "telechat3", "teleflm", "xverse", "yi", "yuan",
})  # fmt: skip


def reader_of(model: Described) -> Reader:
    """The reader of a model: by its family where the table has one, else by what its file says.

    A latent rank means latent attention (with an index width: sparse), whatever the class is called; anything else is
    a plain decoder.
    """
    if model.family in READERS:
        return READERS[model.family]
    if model.text.says("kv_lora_rank"):
        return latent.read_sparse_latent if model.text.says("index_head_dim") else latent.read_latent
    return standard.read_standard
