"""Parameters of the feed-forward half: a dense MLP, or experts with their router and shared experts."""

from kvplan.hf_config.weights.decoder import Decoder
from kvplan.hf_config.weights.parts import float32, linear, numbers, switch, whole, words
from kvplan.model import WeightPart


def dense_parts(decoder: Decoder, layer: int, width: int, *, name: str = "mlp") -> list[WeightPart]:
    """A dense MLP: hidden × width × 3 (2 without a gate), split by columns. The last matrix's bias is copied."""
    matrices = 3 if decoder.traits.gated else 2
    parts = [linear(f"{name}.proj", matrices * decoder.hidden, width, "columns", layer)]
    if decoder.mlp_bias:
        parts.append(linear(f"{name}.bias", matrices - 1, width, "columns", layer))
        parts.append(linear(f"{name}.out_bias", 1, decoder.hidden, "none", layer))
    return parts


def experts(decoder: Decoder) -> int:
    """Routed experts of a mixture layer; 0 for a dense model."""
    return whole(decoder.config, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts") or 0


def expert_width(decoder: Decoder) -> int | None:
    """Width of one routed expert; the dense width where it has no key of its own (Mixtral)."""
    return whole(decoder.config, "moe_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size") or (
        decoder.intermediate
    )


def is_mixture(decoder: Decoder, layer: int) -> bool:
    """Whether ``layer`` has experts: by a list, or by its position after the first dense layers and in a period.

    MTP layers follow the same rules, except in Step-3.5, where they are dense.
    """
    config = decoder.config
    if not experts(decoder) or (layer >= decoder.layers and decoder.model_type.startswith("step3p")):
        return False
    types = words(config, "mlp_layer_types")
    if types is not None and layer < len(types):
        return types[layer] != "dense"
    frequency = numbers(config, "moe_layer_freq") or numbers(config, "moe_layers_freq")
    if frequency is not None and layer < len(frequency):
        return bool(frequency[layer])
    if layer in (numbers(config, "mlp_only_layers") or ()):
        return False
    listed = numbers(config, "moe_layers")
    if listed is not None:
        return layer in listed
    spelled = config.get("moe_layers_enum")
    if isinstance(spelled, str):  # Step-3.5: "3,4,5,…"
        return str(layer) in spelled.replace(" ", "").split(",")
    if layer < (whole(config, "first_k_dense_replace", "num_dense_layers", "moe_layer_start_index") or 0):
        return False
    if period := whole(config, "expert_layer_period"):  # Jamba
        return layer % period == (whole(config, "expert_layer_offset") or 0)
    if period := whole(config, "interleave_moe_layer_step"):  # Llama 4, ERNIE 4.5: the last of a period
        return (layer + 1) % period == 0
    if period := whole(config, "decoder_sparse_step"):  # Qwen
        return (layer + 1) % period == 0
    return layer % (whole(config, "moe_layer_freq") or 1) == 0


def mixture_parts(decoder: Decoder, layer: int) -> list[WeightPart]:
    """The experts of one layer: count × 3 × hidden × width, a router of hidden × count, the shared experts' MLP.

    Experts are split by columns (whole experts under expert parallelism), the router is copied. A DeepSeek router has
    one float32 correction per expert (``e_score_correction_bias``).
    """
    config, hidden = decoder.config, decoder.hidden
    count, width = experts(decoder), expert_width(decoder) or 0
    matrices = 3 if decoder.traits.gated else 2
    latent = whole(config, "moe_latent_size")
    parts = [
        linear("mlp.experts", count * matrices * (latent or hidden), width, "columns", layer),
        linear("mlp.gate", hidden, count, "none", layer),
    ]
    if latent:
        parts.append(linear("mlp.latent_proj", 2 * hidden, latent, "none", layer))
    if _has_correction(decoder):
        parts.append(float32("mlp.gate_correction", count, layer))
    if decoder.mlp_bias or decoder.traits.expert_bias:
        parts.append(linear("mlp.expert_bias", count, (matrices - 1) * width, "columns", layer))
        parts.append(linear("mlp.expert_out_bias", count, hidden, "none", layer))
    shared = shared_width(decoder)
    if shared:
        parts += dense_parts(decoder, layer, shared, name="mlp.shared_experts")
    if whole(config, "shared_expert_intermediate_size") and decoder.model_type != "laguna":
        parts.append(linear("mlp.shared_expert_gate", hidden, 1, "none", layer))
    return parts


def _has_correction(decoder: Decoder) -> bool:
    """Whether the router adds a learned correction, as DeepSeek-V3's ``noaux_tc`` and later classes do."""
    config = decoder.config
    if switch(config, "use_routing_bias", default=False) or config.get("topk_method") == "noaux_tc":
        return True
    return decoder.traits.router_correction


def shared_width(decoder: Decoder) -> int:
    """Width of all shared experts together; 0 where there are none."""
    config = decoder.config
    stated = whole(
        config,
        "shared_expert_intermediate_size",
        "shared_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
    )
    if stated is not None:
        return stated
    if decoder.model_type == "llama4_text":
        return decoder.intermediate or 0
    count = whole(config, "n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts") or 0
    return count * (expert_width(decoder) or 0)
