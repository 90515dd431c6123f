"""Options that no engine room prices yet, or not for this model: the plan is made without them, and the verdict becomes
"cannot tell"."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvplan.capacity import CANNOT_TELL, DOES_NOT_FIT, Fit
from kvplan.engines.base import Finding


@dataclass(frozen=True, kw_only=True)
class Unmodelled:
    """What an option takes, and whether it can only take memory: then "does not fit" stays true with it."""

    takes: str
    only_takes: bool


UNMODELLED: dict[str, Unmodelled] = {
    "draft_model": Unmodelled(takes="the draft model's weights and its own KV layers", only_takes=True),
    "max_loras": Unmodelled(takes="adapter weights, by rank and number of adapters", only_takes=True),
    "limit_mm_per_prompt": Unmodelled(takes="the encoder's worst case at start-up", only_takes=False),
    "kv_offload": Unmodelled(takes="host memory, and staging buffers on the GPU", only_takes=False),
    "pp_layers": Unmodelled(takes="an uneven share of the layers on each stage", only_takes=False),
}


def _prices_adapters(fit: Fit) -> bool:
    """Whether the plan holds the adapters' slots: on vLLM, for dense models of a known class."""
    if fit.deployment.engine.name != "vllm":
        return False
    from kvplan.engines.vllm.lora import adapters_are_priced

    return adapters_are_priced(fit.model)


def with_unmodelled(fit: Fit, asked: Mapping[str, object]) -> Fit:
    """``fit`` with a finding for every option in ``asked`` that was given (is neither None nor 0)."""
    given = [name for name, value in asked.items() if value and not (name == "max_loras" and _prices_adapters(fit))]
    if not given:
        return fit
    surely_not = fit.verdict == DOES_NOT_FIT and all(UNMODELLED[name].only_takes for name in given)
    findings = tuple(
        Finding(
            code=f"{name.replace('_', '-')}-not-modelled",
            severity="error",
            message=f"cannot tell with {name.replace('_', '-')}: it takes {UNMODELLED[name].takes}; "
            "the plan is without it",
            hint="start the engine once with it, and plan from its log: kvplan calibrate LOG",
        )
        for name in given
    )
    return replace(fit, verdict=DOES_NOT_FIT if surely_not else CANNOT_TELL, findings=(*findings, *fit.findings))
