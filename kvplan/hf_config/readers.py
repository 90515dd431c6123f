"""The table from a family to the function that reads what its layers keep, and what its MTP layers keep."""

from collections.abc import Callable, Mapping

from kvplan.hf_config import attention, heterogeneous, hybrid, latent, recurrent
from kvplan.hf_config.config import LayerStack, ModelConfig
from kvplan.layers import CompressedWindow, FullAttention, Layer

Reader = Callable[[ModelConfig], LayerStack]

READERS: Mapping[str, Reader] = {
    "alice_ai": hybrid.read_kda,
    "bailing_hybrid": hybrid.read_grouped_kda,
    "bailing_moe_v2_5": hybrid.read_grouped_lightning,
    "bamba": hybrid.read_bamba,
    "bart": attention.read_seq2seq,
    "decilm": heterogeneous.read_blocks,
    "deepseek_v2": latent.read_latent,
    "deepseek_v3": latent.read_latent,
    "deepseek_v32": latent.read_sparse_latent,
    "deepseek_v4": latent.read_compressed,
    "deepseek_v41": latent.read_compressed_sources,
    "diffusion_gemma_text": heterogeneous.read_wide_full,
    "dory": heterogeneous.read_recurrent_depth,
    "falcon_h1": hybrid.read_parallel_hybrid,
    "falcon_mamba": recurrent.read_mamba1,
    "gemma3n_text": attention.read_tail_shared,
    "gemma4_text": heterogeneous.read_wide_full,
    "gemma4_unified_text": heterogeneous.read_wide_full,
    "glm4_moe_lite": latent.read_latent,
    "glm5_next_text": hybrid.read_pooled_sparse,
    "glm_moe_dsa": latent.read_sparse_latent,
    "granitemoehybrid": hybrid.read_granite_hybrid,
    "hrm_text": heterogeneous.read_cycles,
    "hunyuan": attention.read_cross_layer_shared,
    "hunyuan_v1_dense": attention.read_cross_layer_shared,
    "hunyuan_v1_moe": attention.read_cross_layer_shared,
    "hy_v4": latent.read_listed_sparse,
    "iquestloopcoder": heterogeneous.read_looped,
    "jamba": hybrid.read_jamba,
    "kimi_linear": hybrid.read_kda,
    "lfm2": hybrid.read_short_conv,
    "lfm2_moe": hybrid.read_short_conv,
    "longcat_flash": latent.read_double_latent,
    "mamba": recurrent.read_mamba1,
    "mamba2": recurrent.read_mamba2,
    "mimo_v2_flash": heterogeneous.read_asymmetric,
    "minicpm3": latent.read_expanded_latent,
    "minimax": hybrid.read_lightning,
    "minimax_m3_vl_text": latent.read_indexed_heads,
    "mllama_text_model": attention.read_vision_cross,
    "nemotron_h": heterogeneous.read_nemotron_hybrid,
    "olmo_hybrid": hybrid.read_gated_delta,
    "openelm": heterogeneous.read_listed_heads,
    "phi4flash": heterogeneous.read_yoco,
    "plamo2": hybrid.read_plamo2,
    "qwen3_5_moe_text": hybrid.read_gated_delta,
    "qwen3_5_text": hybrid.read_gated_delta,
    "qwen3_next": hybrid.read_gated_delta,
    "qwen4_exp_text": hybrid.read_pooled_gated_delta,
    "recurrent_gemma": hybrid.read_rg_lru,
    "rwkv5": recurrent.read_rwkv,
    "step3p5": heterogeneous.read_sliding_override,
    "t5": attention.read_t5,
    "whisper": attention.read_seq2seq,
    "zamba2": hybrid.read_zamba2,
}


def reader_of(model: ModelConfig) -> Reader:
    """The reader of a model: its family's, else by what the file says.

    A latent rank means latent attention (sparse, where it also has an index width), whatever the class is called;
    anything else is a plain decoder.
    """
    if model.family in READERS:
        return READERS[model.family]
    if model.text.says("kv_lora_rank"):
        return latent.read_sparse_latent if model.text.says("index_head_dim") else latent.read_latent
    return attention.read_standard


MTP_COUNT_NAMES = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
MTP_UNSTATED = frozenset({"qwen3_next"})
"""Families that have one MTP layer although their files do not state it."""
_MTP_LIKE_THE_MODEL = frozenset(
    {"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "glm4_moe", "glm4_moe_lite", "mimo", "ernie4_5_moe"}
)
"""Families whose MTP layers are like the model's own, with an indexer where any of those has one."""
_MTP_FULL_ATTENTION = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
"""Families whose MTP layers have full attention, though most of the model's layers are recurrent."""


def next_token_layers(model: ModelConfig, layers: LayerStack) -> LayerStack:
    """What each MTP (multi-token prediction) layer keeps; () where the checkpoint has none or vLLM loads none.

    Sources: vLLM 0.33, ``SpeculativeConfig.hf_config_override`` (which classes, how many layers) and each class's
    ``*_mtp.py`` (what a layer is).
    """
    found = model.text.value(*MTP_COUNT_NAMES)
    if not found and (found is not None or model.family not in MTP_UNSTATED):
        return ()
    count = 1 if found is None else model.text.layers(*MTP_COUNT_NAMES)
    full = next((kept for layer in layers for kept in layer if isinstance(kept, FullAttention)), None)
    kept: tuple[Layer, ...] | None = None
    if model.family in _MTP_LIKE_THE_MODEL:
        kept = max(layers, key=len)
    elif model.family in _MTP_FULL_ATTENTION and full is not None:
        kept = (full,)
    elif model.family == "nemotron_h" and full is not None:
        kept = (full,) * _nemotron_mtp_attention(model)
    elif model.family == "deepseek_v4":
        kept = tuple(each for each in layers[-1] if isinstance(each, CompressedWindow))
    return () if kept is None else (kept,) * count


def _nemotron_mtp_attention(model: ModelConfig) -> int:
    """Attention layers in one of Nemotron-H's MTP layers, from its pattern of letters or its list of names."""
    pattern = model.text.text("mtp_hybrid_override_pattern")
    if pattern is not None:
        return pattern.count("*")
    names = model.text.texts("mtp_layers_block_type") or []
    return sum(name in ("attention", "full_attention") for name in names)
