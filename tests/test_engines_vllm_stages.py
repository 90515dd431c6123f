"""Pipeline stages of unequal size: what vLLM 0.33 itself plans for each, given its layers' caches stage by stage."""

import pytest

from kvplan.capacity import fit
from kvplan.engines.deployment import Deployment
from kvplan.engines.ranks import stage_layers
from kvplan.engines.vllm.pages import stage_layouts
from kvplan.engines.vllm.plan import plan as plan_of
from kvplan.errors import InputError
from kvplan.profiles.loader import load_gpu
from kvplan.sources import read_model
from kvplan.units import GIB

WINDOW = 32_768


@pytest.mark.parametrize(
    ("model", "sizes", "memories", "block_bytes", "blocks", "tokens"),
    [
        ("google/gemma-3-27b-it", (40, 22), (20, 20), (786_432, 524_288), 27_306, 76_777),
        ("google/gemma-3-27b-it", (50, 12), (20, 8), (1_048_576, 262_144), 20_480, 57_584),
        ("Qwen/Qwen3.5-9B", (20, 12), (10, 10), (11_796_480, 7_077_888), 910, 451_801),
        ("openai/gpt-oss-120b", (24, 12), (10, 6), (393_216, 196_608), 27_306, 249_029),
    ],
)
def test_the_stage_with_the_fewest_blocks_decides(
    model: str,
    sizes: tuple[int, ...],
    memories: tuple[int, ...],
    block_bytes: tuple[int, ...],
    blocks: int,
    tokens: int,
) -> None:
    """Bytes of a block on each stage, blocks of the pool and printed tokens: answers of vLLM's planner, H100."""
    spec = read_model(model, offline=True)
    asked = Deployment(pipeline_parallel=len(sizes), pipeline_layers=sizes, max_model_len=WINDOW)
    same = fit(spec, Deployment(**{**vars(asked), "kv_memory_bytes": memories[0] * GIB}))
    layouts = stage_layouts(spec, asked, same.plan.settings, same.plan.kv_types)
    assert tuple(layout.bytes_per_block for layout in layouts) == block_bytes
    pools = [memory * GIB // each for memory, each in zip(memories, block_bytes, strict=True)]
    assert min(pools) == blocks
    if len(set(memories)) == 1:
        assert (same.plan.blocks, same.pool_tokens) == (blocks, tokens)
    charge = layouts[pools.index(blocks)].request_blocks(WINDOW)
    assert int(blocks / charge * WINDOW) == tokens


def test_a_budget_of_each_stage_decides_with_its_own_pages() -> None:
    """A small first stage with the larger pages against a large last one: the fewest blocks, not the least memory."""
    model = read_model("Qwen/Qwen3-32B", offline=True)
    asked = Deployment(gpu=load_gpu("h100"), pipeline_parallel=2, pipeline_layers=(44, 20), max_model_len=WINDOW)
    plan = plan_of(model, asked)
    assert plan.budget is not None
    assert plan.budget.rank == 0
    assert plan.blocks == plan.budget.kv_bytes // (44 * 65_536)
    even = plan_of(model, Deployment(**{**vars(asked), "pipeline_layers": None}))
    assert even.blocks > plan.blocks


@pytest.mark.parametrize("sizes", [(30, 34, 0), (64,), (32, 31), (65, -1)])
def test_stages_must_divide_the_layers(sizes: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match="do not divide 64 layers into 2 stages"):
        stage_layers(64, 2, sizes)
