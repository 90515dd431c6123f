"""States of recurrent layers as configs describe them: Mamba, gated delta net, KDA, lightning, short convolution …

Source of shapes and types: vLLM 0.33, ``MambaStateShapeCalculator`` and ``MambaStateDtypeCalculator``.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from kvplan.hf_config.config import Fields, LayerStack, ModelConfig
from kvplan.layers import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    GatedDeltaState,
    KdaState,
    LightningState,
    Mamba1State,
    Mamba2State,
    RecurrentLayer,
    RgLruState,
    RwkvState,
    ShortConvState,
    StoredType,
)

_STATE_TYPES = {"bfloat16": BFLOAT16, "float16": FLOAT16, "float32": FLOAT32}

# Class defaults of the state's keys (transformers 5.20).
_MAMBA1 = {"state_size": 16, "conv_kernel": 4, "expand": 2}
_JAMBA = {"mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
_MAMBA2 = {"num_heads": 128, "head_dim": 64, "state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8}
_BAMBA = {"mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4, "mamba_expand": 2}
_ZAMBA2 = {"mamba_d_state": 64, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_ngroups": 1, "n_mamba_heads": 8}
_NEMOTRON_H = {"ssm_state_size": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "n_groups": 8, "conv_kernel": 4}
GLM5_KDA = {"linear_num_heads": 64, "linear_head_dim": 128, "linear_conv_kernel_dim": 4}
_GATED_DELTA = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
}


def _state_type(text: Fields, name: str, default: StoredType) -> StoredType:
    """The type under ``name``, ``default`` where it is absent or ``auto``."""
    stated = text.text(name)
    if stated in (None, "auto"):
        return default
    if stated not in _STATE_TYPES:
        raise text.refused(name, "only bfloat16, float16 and float32 states are known")
    return _STATE_TYPES[stated]


def _is_called(model: ModelConfig, *starts: str) -> bool:
    """Whether the file's architecture begins with one of ``starts``, or is absent.

    vLLM sets the state's type up by architecture: a wrapper of another name does without (0.33, ``MODELS_CONFIG_MAP``).
    """
    return (model.outer.texts("architectures") or starts)[0].startswith(starts)


State = TypeVar("State", bound=RecurrentLayer)


def _typed(model: ModelConfig, state: State, temporal: StoredType | None = None) -> State:
    """``state`` in the model's type; its temporal part in ``temporal`` where that has a type of its own."""
    return replace(state, conv_type=model.dtype, temporal_type=temporal or model.dtype)


def mamba1_state(model: ModelConfig) -> Mamba1State:
    """Mamba and FalconMamba: ``intermediate_size`` is the inner width and wins over ``expand`` × hidden."""
    text = model.text.with_defaults(_MAMBA1)
    inner = text.optional_count("intermediate_size", "d_inner") or text.count("expand") * model.hidden
    state = Mamba1State(inner=inner, state=text.count("state_size"), conv_kernel=text.count("conv_kernel"))
    return _typed(model, state)


def jamba_state(model: ModelConfig) -> Mamba1State:
    """Mamba-1 layers of Jamba and Phi-4-mini-flash: ``mamba_expand`` × hidden channels."""
    text = model.text.with_defaults(_JAMBA)
    inner = text.count("mamba_expand") * model.hidden
    state = Mamba1State(inner=inner, state=text.count("mamba_d_state"), conv_kernel=text.count("mamba_d_conv"))
    return _typed(model, state)


def _mamba2(model: ModelConfig, text: Fields, names: tuple[str, str, str, str, str], inner: int | None) -> Mamba2State:
    """Heads, head width, state, groups and kernel under ``names``; a head width that is absent or ``auto`` is the inner
    width / heads."""
    heads_name, width_name, state_name, groups_name, kernel_name = names
    heads = text.count(heads_name)
    width = None if text.value(width_name) == "auto" else text.optional_count(width_name)
    if width is None:
        if inner is None or inner % heads:
            raise text.missing(width_name)
        width = inner // heads
    if inner is not None and inner != heads * width:
        raise text.contradicts(width_name, f"{heads} heads of {width} do not add up to the inner width {inner}")
    return _typed(
        model,
        Mamba2State(
            heads=heads,
            head_dim=width,
            state=text.count(state_name),
            groups=text.count(groups_name),
            conv_kernel=text.count(kernel_name),
        ),
    )


def mamba2_state(model: ModelConfig) -> Mamba2State:
    """Mamba2ForCausalLM: ``expand`` × hidden channels."""
    text = model.text.with_defaults(_MAMBA2)
    names = ("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    return _mamba2(model, text, names, text.count("expand") * model.hidden)


def bamba_state(model: ModelConfig) -> Mamba2State:
    """Bamba, Granite hybrids, Falcon-H1: ``mamba_d_ssm`` wins over ``mamba_expand`` × hidden."""
    text = model.text.with_defaults(_BAMBA)
    inner = text.optional_count("mamba_d_ssm") or text.count("mamba_expand") * model.hidden
    names = ("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv")
    return _mamba2(model, text, names, inner)


def zamba2_state(model: ModelConfig) -> Mamba2State:
    """Zamba2; older revisions name the keys ``conv_dimension``, ``state_size``."""
    text = model.text.with_defaults(_ZAMBA2)
    state = "state_size" if text.says("state_size") and not text.says("mamba_d_state") else "mamba_d_state"
    kernel = "conv_dimension" if text.says("conv_dimension") and not text.says("mamba_d_conv") else "mamba_d_conv"
    inner = text.count("mamba_expand", "expansion_factor") * model.hidden
    width = text.optional_count("mamba_headdim")
    if width is not None and not text.says("n_mamba_heads") and inner % width == 0:
        text = text.with_defaults({"n_mamba_heads": inner // width})
    return _mamba2(model, text, ("n_mamba_heads", "mamba_headdim", state, "mamba_ngroups", kernel), inner)


def nemotron_state(model: ModelConfig) -> Mamba2State:
    """Nemotron-H: the temporal state is float32 unless ``mamba_ssm_cache_dtype`` says otherwise; in the Omni wrappers
    it has the model's type.

    Source: vLLM 0.33, ``NemotronHForCausalLMConfig.update_mamba_ssm_cache_dtype``.
    """
    text = model.text.with_defaults(_NEMOTRON_H)
    groups = "mamba_n_groups" if text.says("mamba_n_groups") else "n_groups"
    kernel = "mamba_d_conv" if text.says("mamba_d_conv") else "conv_kernel"
    state = _mamba2(model, text, ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", groups, kernel), None)
    if not _is_called(model, "NemotronHFor", "NemotronHPuzzle", "NemotronH_Nano_VL"):
        return state
    return _typed(model, state, _state_type(text, "mamba_ssm_cache_dtype", FLOAT32))


def gated_delta_state(model: ModelConfig) -> GatedDeltaState:
    """Gated delta net. The temporal state of Qwen3.5 and Qwen4-Exp follows ``mamba_ssm_dtype``; every other class,
    including wrappers of Qwen3.5 (MiniCPM-V 4.6), ignores that key and keeps the model's type.

    Source: vLLM 0.33, ``Qwen3_5ForConditionalGenerationConfig``.
    """
    text = model.text.with_defaults(_GATED_DELTA)
    follows = model.family.startswith(("qwen3_5", "qwen4")) and _is_called(model, "Qwen3_5", "Qwen4")
    temporal = _state_type(text, "mamba_ssm_dtype", model.dtype) if follows else model.dtype
    return _typed(
        model,
        GatedDeltaState(
            key_heads=text.count("linear_num_key_heads"),
            key_dim=text.count("linear_key_head_dim"),
            value_heads=text.count("linear_num_value_heads"),
            value_dim=text.count("linear_value_head_dim"),
            conv_kernel=text.count("linear_conv_kernel_dim"),
            negative_eigenvalues=model.family.startswith("olmo"),
        ),
        temporal,
    )


def kda_state(model: ModelConfig, defaults: Mapping[str, object] | None = None) -> KdaState:
    """Kimi delta attention: sizes from ``linear_attn_config``, else flat ``linear_`` keys, else class ``defaults``.

    Transformers 5 saves the flat keys; AliceAI's are the gated delta net's. The recurrent state is float32.
    """
    flat = model.text.with_defaults(defaults or {})
    nested = model.text.section("linear_attn_config") or Fields({})
    return _typed(
        model,
        KdaState(
            heads=nested.optional_count("num_heads") or flat.count("linear_num_heads", "linear_num_key_heads"),
            dim=nested.optional_count("head_dim") or flat.count("linear_head_dim", "linear_key_head_dim"),
            conv_kernel=nested.optional_count("short_conv_kernel_size") or flat.count("linear_conv_kernel_dim"),
            bounded_gate=nested.says("gate_lower_bound") and nested.flag("use_full_rank_gate"),
        ),
        FLOAT32,
    )


def bailing_kda_state(model: ModelConfig) -> KdaState:
    """Ling 3's KDA layers: the attention's own heads. Source: vLLM 0.33, ``_get_kda_state_shape_for_config``."""
    kernel = model.text.optional_count("short_conv_kernel_size") or 4
    state = KdaState(heads=model.query_heads, dim=_linear_head_dim(model), conv_kernel=kernel)
    return _typed(model, state, FLOAT32)


def lightning_state(model: ModelConfig) -> LightningState:
    """MiniMax-Text-01, Ling 2.5: query heads × head_dim × head_dim, in the model's type."""
    return _typed(model, LightningState(heads=model.query_heads, head_dim=_linear_head_dim(model)))


def _linear_head_dim(model: ModelConfig) -> int:
    """Width of a linear layer's heads.

    A flat Ling file without a config class of its own (``auto_map``) is read by the class in transformers, which sets
    ``head_dim`` to ``qk_rope_head_dim`` (5.20, ``BailingHybridConfig``).
    """
    if model.outer.text("model_type") == "bailing_hybrid" and not model.outer.says("auto_map"):
        return model.text.count("qk_rope_head_dim")
    return model.text.optional_count("head_dim") or model.hidden // model.query_heads


def plamo2_state(model: ModelConfig) -> Mamba2State:
    """PLaMo 2: heads of ``hidden_size_per_head``; only the inner channels pass the convolution (no groups).

    Source: the published ``modeling_plamo.py``; vLLM's ``Plamo2MambaMixer`` (n_groups 0).
    """
    text = model.text
    return _typed(
        model,
        Mamba2State(
            heads=text.count("mamba_num_heads"),
            head_dim=text.count("hidden_size_per_head"),
            state=text.count("mamba_d_state"),
            groups=0,
            conv_kernel=text.count("mamba_d_conv"),
        ),
    )


def short_conv_state(model: ModelConfig) -> ShortConvState:
    """LFM2: ``conv_L_cache`` (3 where absent) − 1 steps of ``conv_dim`` (hidden where absent) channels."""
    text = model.text.with_defaults({"conv_L_cache": 3})
    channels = text.optional_count("conv_dim") or model.hidden
    return _typed(model, ShortConvState(channels=channels, conv_kernel=text.count("conv_L_cache")))


def rg_lru_state(model: ModelConfig) -> RgLruState:
    """RecurrentGemma: ``lru_width`` (hidden where absent) channels; the recurrent state is float32.

    Source: transformers 5.20, ``RecurrentGemmaRglru`` (``recurrent_states`` in float32, ``conv1d_state`` in the
    model's type).
    """
    text = model.text.with_defaults({"conv1d_width": 4})
    width = text.optional_count("lru_width") or model.hidden
    return _typed(model, RgLruState(width=width, conv_kernel=text.count("conv1d_width")), FLOAT32)


def read_rwkv(model: ModelConfig) -> LayerStack:
    """RWKV-5 and 6: heads of ``head_size`` over the attention width, and twice the previous token's vector."""
    text = model.text
    head = text.count("head_size")
    width = text.optional_count("attention_hidden_size", "dim_att") or model.hidden
    if width % head:
        raise text.contradicts("head_size", f"it does not divide the width {width}")
    state = _typed(model, RwkvState(heads=width // head, head_dim=head), FLOAT32)
    return ((state,),) * model.layers


def read_mamba1(model: ModelConfig) -> LayerStack:
    """Every layer keeps a Mamba-1 state."""
    return ((mamba1_state(model),),) * model.layers


def read_mamba2(model: ModelConfig) -> LayerStack:
    """Every layer keeps a Mamba-2 state."""
    return ((mamba2_state(model),),) * model.layers
