"""How long an engine step takes, and how far that is to be trusted."""

from dataclasses import dataclass

from kvplan.traffic.spec import StepCost

EFFICIENCY = 0.79
"""Share of the roofline that vLLM reaches: the geometric mean over three measured runs of vLLM 0.19, 0.95 for
Llama-3.1-8B on an RTX 4090, 0.79 for it on an RTX PRO 6000, 0.66 for Qwen3-30B-A3B on two of those that share the
experts (github.com/casys-kaist/LLMServingSim @ 5daddb21). A measured run refits it."""
BAND_SHARE = 0.25
"""How far a step may be off when only the roofline is known: steps of those three runs took 17 % less to 20 % more."""
CALIBRATED_BAND_SHARE = 0.05
"""What is left of that after the efficiency was fitted on a measured run: the errors on the rest of those runs."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """A step's cost and where it comes from. ``band_share`` is 0 for constants that were measured."""

    step: StepCost
    source: str
    band_share: float
    efficiency: float | None = None


def at_efficiency(service: Service, efficiency: float, band_share: float = 0.0) -> Service:
    """A roofline's service with another efficiency: every term of its step is as much longer as that is smaller."""
    assert service.efficiency is not None, "these constants were measured, not made from a roofline"
    source = service.source.replace(f"efficiency {service.efficiency:g}", f"efficiency {efficiency:g}")
    step = service.step.times(service.efficiency / efficiency)
    return Service(step=step, source=source, band_share=band_share, efficiency=efficiency)
