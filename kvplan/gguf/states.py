"""Recurrent layers of a GGUF file: what llama.cpp keeps for one sequence, always in float32.

Source: llama.cpp (as of llama-cpp-python 0.3.36), ``llama-hparams.cpp`` (``n_embd_r``, ``n_embd_s``) and the float32
types that ``llama-model.cpp`` passes to its recurrent memory.
"""

from dataclasses import replace

from kvplan.gguf.header import Keys
from kvplan.layers import (
    FLOAT32,
    GatedDeltaState,
    KdaState,
    Layer,
    LightningState,
    Mamba1State,
    Mamba2State,
    RecurrentLayer,
    RwkvState,
    ShortConvState,
)

# Architectures without attention, and those whose every layer has both attention and a state.
PURELY_RECURRENT = {"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"}
STATE_BESIDE_ATTENTION = {"falcon-h1"}
# Every n-th layer is full attention and the others are recurrent, where the file has no interval of its own.
FULL_ATTENTION_INTERVALS = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}


def recurrent_layers(keys: Keys, layers: int, kv_heads: tuple[int, ...]) -> tuple[bool, ...]:
    """Which layers keep a recurrent state.

    In this order: architectures that are recurrent throughout; a list ``attention.recurrent_layers``; an interval of
    full attention (layer i is recurrent unless (i + 1) % interval = 0); layers with 0 KV heads. Nemotron-H's layers
    with 0 KV heads and a feed-forward width are plain MLPs.
    """
    if keys.architecture in PURELY_RECURRENT | STATE_BESIDE_ATTENTION:
        return (True,) * layers
    listed = keys.per_layer("attention.recurrent_layers", layers)
    if listed is not None:
        return tuple(bool(flag) for flag in listed)
    interval = keys.number("full_attention_interval") or FULL_ATTENTION_INTERVALS.get(keys.architecture)
    if interval:
        return tuple((index + 1) % interval != 0 for index in range(layers))
    if not _has_state_keys(keys):
        return (False,) * layers
    widths = keys.per_layer("feed_forward_length", layers) or (0,) * layers
    is_nemotron = keys.architecture.startswith("nemotron_h")
    return tuple(heads == 0 and not (is_nemotron and width) for heads, width in zip(kv_heads, widths, strict=True))


def _has_state_keys(keys: Keys) -> bool:
    return any(
        keys.number(name) is not None
        for name in ("ssm.inner_size", "ssm.conv_kernel", "shortconv.l_cache", "kda.head_dim", "wkv.head_size")
    )


def recurrent_state(keys: Keys, heads: int, key_length: int) -> tuple[Layer, ...]:
    """What one recurrent layer keeps; () where the file does not say enough (an ``ssm`` key is missing)."""
    return tuple(replace(state, conv_type=FLOAT32, temporal_type=FLOAT32) for state in _states(keys, heads, key_length))


def _states(keys: Keys, heads: int, key_length: int) -> tuple[RecurrentLayer, ...]:
    """The state by the keys in the file: RWKV, a short convolution, KDA, else the ``ssm`` keys."""
    width, kernel = keys.number("embedding_length") or 0, keys.number("ssm.conv_kernel")
    if (wkv_head := keys.number("wkv.head_size")) and width:
        return _rwkv(keys, width, wkv_head)
    if short_conv := keys.number("shortconv.l_cache"):
        return (ShortConvState(channels=width, conv_kernel=short_conv),)
    if kda := keys.number("kda.head_dim"):
        return (KdaState(heads=heads, dim=kda, conv_kernel=kernel or 4),)
    if keys.architecture == "minimax-01":
        return (LightningState(heads=heads, head_dim=key_length),)
    inner, state = keys.number("ssm.inner_size"), keys.number("ssm.state_size")
    if not kernel or not inner or not state:
        return ()
    return (_ssm(keys, inner, state, kernel),)


def _ssm(keys: Keys, inner: int, state: int, kernel: int) -> RecurrentLayer:
    """Mamba-1 where the file has no groups; with groups Mamba-2, or, in a model with an interval of full attention, the
    gated delta net, whose key heads are the groups."""
    ranks, groups = keys.number("ssm.time_step_rank"), keys.number("ssm.group_count")
    if not groups:
        return Mamba1State(inner=inner, state=state, conv_kernel=kernel)
    if not ranks or inner % ranks:
        raise keys.wrong(f"{keys.architecture}.ssm.time_step_rank", ranks, f"a divisor of ssm.inner_size {inner}")
    width = inner // ranks
    if keys.number("full_attention_interval") or keys.architecture in FULL_ATTENTION_INTERVALS:
        return GatedDeltaState(key_heads=groups, key_dim=state, value_heads=ranks, value_dim=width, conv_kernel=kernel)
    return Mamba2State(heads=ranks, head_dim=width, state=state, groups=groups, conv_kernel=kernel)


def _rwkv(keys: Keys, width: int, head_size: int) -> tuple[RecurrentLayer, ...]:
    """RWKV: width × head_size values, and the last token's vector ``token_shift_count`` times (2 unless given)."""
    if width % head_size:
        raise keys.wrong(f"{keys.architecture}.wkv.head_size", head_size, f"a divisor of embedding_length {width}")
    heads = width // head_size
    if (keys.number("token_shift_count") or 2) == 2:
        return (RwkvState(heads=heads, head_dim=head_size),)
    return LightningState(heads=heads, head_dim=head_size), ShortConvState(channels=width, conv_kernel=2)
