"""The engine flags that make a server keep to a plan: the plan's settings in the engine's own words."""

import shlex

from kvplan.capacity import Fit
from kvplan.engines import engine_of
from kvplan.engines.statement import Served


def _served(fit: Fit) -> Served:
    """What is served: the window asked for, or the longest that fits, where that one does not."""
    longest, window = fit.longest_window_tokens, fit.max_model_len
    caps = [shape.max_output_tokens for shape in fit.reservations if shape.max_output_tokens]
    return Served(
        model=fit.model,
        deployment=fit.deployment,
        settings=fit.plan.settings,
        window_tokens=window if not longest or fit.verdict == "fits" else min(longest, window),
        largest_cap_tokens=max(caps, default=None),
    )


def engine_flags(fit: Fit) -> dict[str, object]:
    """The flags that ``fit`` stands for, in the order in which they are written."""
    served = _served(fit)
    values = ((flag, value(served)) for flag, value in engine_of(fit.deployment.engine.name).flags().items())
    return {flag: value for flag, value in values if value is not None}


def command_words(fit: Fit) -> list[str]:
    """The whole command line, one word or flag with its value an entry."""
    start = engine_of(fit.deployment.engine.name).command(_served(fit))
    flags = engine_flags(fit).items()
    return [start, *(flag if value is True else f"{flag} {shlex.quote(str(value))}" for flag, value in flags)]
