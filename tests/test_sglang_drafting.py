"""SGLang's speculative decoding: what a draft adds to every token of the pool, by hand, and what is refused."""

from dataclasses import replace

import pytest

from kvplan.engines import parse_engine
from kvplan.engines.base import Deployment
from kvplan.engines.sglang.drafting import draft_term
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import FullAttention
from kvplan.model import ModelSpec
from kvplan.sources import read_model
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


def test_a_draft_s_copies_of_embedding_and_head_are_there_while_the_pool_is_sized() -> None:
    """DeepSeek-V3's next-token layer over 8 ranks: its checkpoint carries both copies, and they are all that it loads.

    What the files hold of it, a rank's share: 1.98 GiB.
    """
    deep = read_model("deepseek-ai/DeepSeek-V3", offline=True)
    asked = Deployment(
        engine=parse_engine("sglang"),
        gpu_memory_bytes=(141 * GIB,) * 8,
        tensor_parallel=8,
        speculative_tokens=3,
    )
    term = draft_term(deep, asked)
    assert term is not None
    assert abs(term.bytes / GIB - 1.98) < 0.01
    third = draft_term(DENSE, replace(asked, tensor_parallel=1, draft_model=EAGLE))
    assert third is not None
    assert third.bytes == GIB + 32_000 * 4096 * 2


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
