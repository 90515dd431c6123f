"""What a benchmark found beside a rival, measured in turns in one run; kept with pytest-benchmark's own figures."""

import statistics
from collections.abc import Sequence
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

KEPT = "comparisons"


def compare(
    benchmark: BenchmarkFixture, what: str, rival: str, unit: str, ours: Sequence[float], theirs: Sequence[float]
) -> float:
    """Keep both medians, the median of the rounds' ratios ours / theirs and their range; print them; the ratio.

    Round i of both stands side by side, so that a machine that is busy for a while is busy for both.
    """
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    found = {
        "what": what,
        "rival": rival,
        "unit": unit,
        "ours": statistics.median(ours),
        "theirs": statistics.median(theirs),
        "ratio": statistics.median(ratios),
        "least": min(ratios),
        "most": max(ratios),
        "rounds": len(ratios),
    }
    benchmark.extra_info.setdefault(KEPT, []).append(found)
    print(f"\n{line(found)}")
    return float(statistics.median(ratios))


def line(found: dict[str, Any]) -> str:
    """A comparison as a sentence."""
    return (
        f"{found['what']}: {found['ours']:.4g} {found['unit']}, {found['rival']} {found['theirs']:.4g}; "
        f"ratio {found['ratio']:.3g} ({found['least']:.3g} … {found['most']:.3g} over {found['rounds']} rounds)"
    )
