"""SGLang's speculative decoding: what a draft adds to every token of the pool, by hand, and what is refused."""

from dataclasses import replace

import pytest

from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import FullAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB
from tests.test_engines_others import FULL, LATENT, STATE, WINDOW, model_of, plan_of

DEEP = replace(model_of(*[LATENT] * 61), next_token_layers=((LATENT,),))
DENSE = model_of(*[FULL] * 32)
DRAFT = replace(
    model_of(*[FullAttention(kv_heads=8, head_dim=64, value_head_dim=64)] * 16, weights_gib=2), id="a/draft"
)
EAGLE = replace(model_of(FULL, weights_gib=1), id="an/eagle", architecture="LlamaForCausalLMEagle3")


@pytest.mark.parametrize(
    ("model", "asked", "cell_bytes"),
    [
        (DEEP, {}, 62 * 1152),
        (DEEP, {"speculative_method": "ngram"}, 61 * 1152),
        (DENSE, {"draft_model": DRAFT}, 48 * 4096),
        (DENSE, {"draft_model": EAGLE}, 33 * 4096),
    ],
)
def test_a_draft_widens_every_token(model: ModelSpec, asked: dict[str, object], cell_bytes: int) -> None:
    """A draft's layer counts as wide as the model's own, however wide it is."""
    plan = plan_of("sglang", model, speculative_tokens=3, **asked)
    assert plan.tokens == plan.kv_bytes // cell_bytes
    assert plan.settings.max_num_seqs == 48
    assert plan_of("sglang", model, speculative_tokens=3, max_num_seqs=200, **asked).settings.max_num_seqs == 200


def test_a_draft_s_weights_are_taken_from_the_pool() -> None:
    alone = plan_of("sglang", DENSE)
    drafted = plan_of("sglang", DENSE, speculative_tokens=3, draft_model=DRAFT)
    assert alone.budget is not None
    assert drafted.budget is not None
    assert alone.budget.kv_bytes - drafted.budget.kv_bytes == 2 * GIB


@pytest.mark.parametrize(
    ("engine", "model", "asked", "error"),
    [
        ("sglang@0.5.12", DEEP, {}, UnsupportedModelError),
        ("sglang", DENSE, {}, UnsupportedModelError),
        ("sglang", DENSE, {"speculative_method": "lookahead"}, UnsupportedModelError),
        ("sglang", model_of(*[FULL] * 4, *[STATE] * 12), {"draft_model": DRAFT}, UnsupportedModelError),
        ("sglang", replace(model_of(FULL, WINDOW), architecture="GptOssForCausalLM"), {"draft_model": DRAFT},
         UnsupportedModelError),
        ("sglang", DENSE, {"draft_model": model_of(STATE)}, UnsupportedModelError),
        ("sglang", DEEP, {"pipeline_parallel": 2, "gpu_memory_bytes": (80 * GIB,) * 2}, UnsupportedModelError),
        ("sglang", DENSE, {"speculative_method": "mtp"}, InputError),
        ("sglang", DENSE, {"speculative_method": "eagle"}, InputError),
        ("sglang", DENSE, {"speculative_method": "ngram", "draft_model": DRAFT}, InputError),
        ("sglang", DENSE, {"draft_model": DRAFT, "data_parallel": 2, "gpu_memory_bytes": (80 * GIB,) * 2}, InputError),
    ],
)  # fmt: skip
def test_what_is_not_known_of_a_draft_is_refused(
    engine: str, model: ModelSpec, asked: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error) as refused:
        plan_of(engine, model, speculative_tokens=3, **asked)
    assert getattr(refused.value, "hint", None)
