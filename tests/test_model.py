"""Questions one asks a model."""

from fractions import Fraction

import pytest

from kvplan.errors import InputError
from kvplan.layers import BFLOAT16, FLOAT32, FullAttention, KvTypes, Mamba2State, SlidingAttention
from kvplan.model import ModelSpec
from tests.models import model_of

HALF = KvTypes(key=BFLOAT16, value=BFLOAT16)
FULL = FullAttention(kv_heads=8, head_dim=128, value_head_dim=128)
SLIDING = SlidingAttention(kv_heads=8, head_dim=128, value_head_dim=128, window=1000)
STATE = Mamba2State(heads=8, head_dim=64, state=128, groups=1, conv_kernel=4, temporal_type=FLOAT32)


def _model() -> ModelSpec:
    """One layer with attention and state side by side, one with a window, one that keeps nothing."""
    return model_of([(FULL, STATE), (SLIDING,), ()], query_heads=(32,))


def test_a_sequence_is_priced_piecewise() -> None:
    model = _model()
    state = 3 * (8 * 64 + 2 * 128) * 2 + 8 * 64 * 128 * 4
    assert model.growing_bytes_per_token(HALF) == Fraction(4096)
    assert model.windowed_bytes_per_token(HALF) == Fraction(4096)
    assert model.fixed_bytes(HALF) == state
    assert model.sequence_bytes(500, HALF) == state + 2 * 500 * 4096
    assert model.sequence_bytes(5000, HALF) == state + 5000 * 4096 + 1000 * 4096


def test_a_rank_holds_its_share_of_every_layer() -> None:
    mine = _model().rank_layers(4)
    assert [len(kept) for kept in mine] == [2, 1, 0]
    assert mine[1] == (SlidingAttention(kv_heads=2, head_dim=128, value_head_dim=128, window=1000),)


def test_query_heads_must_divide() -> None:
    model = model_of([(FullAttention(kv_heads=1, head_dim=64, value_head_dim=64),)], query_heads=(71,))
    with pytest.raises(InputError, match="does not divide 71 query heads") as caught:
        model.rank_layers(2)
    assert caught.value.key == "tensor_parallel"
