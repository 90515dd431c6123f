"""Situations at an engine's start that are neither a config nor a load: the functions behind them, by their sources."""

from fractions import Fraction

from kvplan.engines.deployment import MediaLimit
from kvplan.engines.engine_plan import Budget, BudgetTerm, Finding
from kvplan.engines.vllm.findings import uneven_findings, worst_case_tokens
from kvplan.engines.vllm.memory_findings import graphs_inside_findings, prompt_logits_findings
from kvplan.units import GIB, MIB


def test_the_share_that_keeps_the_pool_when_graphs_count() -> None:
    """0.58 GiB of graphs on a card of 23.56 GiB at 0.935: 0.9596. Source: github.com/wtdcode/vllm-backport/issues/34"""
    total, graphs = round(23.56 * GIB), round(0.58 * GIB)

    def answer(*, inside: bool, size: int = graphs) -> list[Finding]:
        term = BudgetTerm(name="cuda_graphs", bytes=size, formula="", inside_fraction=inside)
        budget = Budget(
            rank=0, total_bytes=total, requested_bytes=0, terms=(term,), kv_bytes=0, kv_bytes_low=0, kv_bytes_high=0
        )
        return list(graphs_inside_findings(budget, Fraction(935, 1000)))

    (found,) = answer(inside=True)
    assert "a share of 0.9596" in found.message
    assert answer(inside=False) == []
    assert answer(inside=True, size=2 * GIB) == [], "no share above 1"


def test_prompt_log_probabilities_beside_a_tight_pool() -> None:
    """302.5 MiB of logits, 218.81 MiB left. Source: github.com/local-inference-lab/vllm/issues/257"""
    (finding,) = prompt_logits_findings(154_880, 1024, round(218.81 * MIB))
    assert "302.5 MiB" in finding.message
    assert "reject or cap prompt_logprobs" in (finding.hint or "")
    assert list(prompt_logits_findings(154_880, 1024, round(302.5 * MIB))) == []


def test_media_of_the_worst_prompt() -> None:
    """Ten images and a video of 16,384 tokens each. Source: github.com/vllm-project/vllm/issues/22173"""
    limits = [
        MediaLimit(modality="image", items=10, item_tokens=16_384),
        MediaLimit(modality="video", items=1, item_tokens=16_384),
    ]
    assert worst_case_tokens(limits) == 180_224


def test_stages_of_one_layer_more_are_even() -> None:
    assert list(uneven_findings([1000, 1030], 0)) == []
    assert list(uneven_findings([0, 1030], 0)) == []
    (found,) = uneven_findings([46_800, 327_680], 0)
    assert "14.3% is used" in found.message
