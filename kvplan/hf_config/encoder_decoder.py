"""Decoders that also attend to an encoder's output: Whisper, T5, BART, Llama 3.2 Vision."""

from kvplan.hf_config.described import Described, LayerStack
from kvplan.hf_config.heads import read_heads
from kvplan.hf_config.standard import attention
from kvplan.hf_config.windows import FULL
from kvplan.layers import CrossAttention, FullAttention


def _self_and_cross(layers: int, heads: int, head_dim: int, source_tokens: int) -> LayerStack:
    own = FullAttention(kv_heads=heads, head_dim=head_dim, value_head_dim=head_dim)
    cross = CrossAttention(kv_heads=heads, head_dim=head_dim, value_head_dim=head_dim, source_tokens=source_tokens)
    return ((own, cross),) * layers


def read_seq2seq(model: Described) -> LayerStack:
    """Whisper, BART, mBART, Marian, Pegasus: ``num_hidden_layers`` may count the encoder. Whisper's cross KV always
    holds ``max_source_positions`` (1,500 where absent) tokens; the others' is as long as the source text, and the
    longest is priced: ``max_position_embeddings``. Source: vLLM 0.33, ``WhisperAttention``, ``WhisperCrossAttention``.
    """
    text = model.text
    heads, width = text.count("decoder_attention_heads"), text.count("d_model")
    if width % heads:
        raise text.contradicts("decoder_attention_heads", f"it does not divide d_model {width}")
    if model.family == "whisper":
        source = text.optional_count("max_source_positions") or 1500
    else:
        source = text.count("max_position_embeddings")
    return _self_and_cross(text.layers("decoder_layers"), heads, width // heads, source)


def read_t5(model: Described) -> LayerStack:
    """T5: heads × ``d_kv`` need not be ``d_model``. Positions are relative, so the file does not bound the source text:
    cross KV is priced for ``n_positions``, or else for the 512 tokens that the model was trained on. Source: Raffel et
    al. 2020, section 3.1.1."""
    text = model.text
    layers = text.layers("num_decoder_layers", "num_layers")
    heads, head_dim = text.count("num_heads"), text.count("d_kv")
    return _self_and_cross(layers, heads, head_dim, text.optional_count("n_positions") or 512)


def read_vision_cross(model: Described) -> LayerStack:
    """Llama 3.2 Vision: the layers in ``cross_attention_layers`` hold the KV of the image instead of tokens.

    An image is at most ``max_num_tiles`` (4) tiles of (image_size / patch_size)² + 1 patches. Source: transformers
    5.20, ``MllamaVisionModel`` (one class token per tile), ``MllamaTextCrossAttention``.
    """
    text = model.text
    heads = read_heads(model)
    indices = text.counts("cross_attention_layers", least=0)
    if indices is None:
        # transformers' MllamaTextConfig
        indices = [3, 8, 13, 18, 23, 28, 33, 38]
    vision = model.outer.section("vision_config")
    side = (vision.optional_count("image_size") if vision else None) or 448
    patch = (vision.optional_count("patch_size") if vision else None) or 14
    tiles = (vision.optional_count("max_num_tiles") if vision else None) or 4
    cross = CrossAttention(
        kv_heads=heads.kv,
        head_dim=heads.head_dim,
        value_head_dim=heads.value_head_dim,
        source_tokens=tiles * ((side // patch) ** 2 + 1),
    )
    own = attention(heads, FULL)
    return tuple((cross,) if index in indices else (own,) for index in range(model.layers))
