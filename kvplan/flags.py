"""The command line that makes a server keep to a plan, in the engine's own flags."""

import shlex
from dataclasses import replace

from kvplan.capacity import FITS, Fit
from kvplan.engines import engine_of
from kvplan.engines.engine_plan import OVER_STATE_BLOCKS
from kvplan.engines.flag_values import Served


def _served(fit: Fit) -> Served:
    """What the flags are written from; sequences are lowered to the blocks there are for their states."""
    is_given = fit.deployment.kv_memory_bytes is not None
    is_whole = all(group.rule == "full" for group in fit.plan.layout.groups)
    settings, codes = fit.plan.settings, {finding.code for finding in fit.findings}
    if OVER_STATE_BLOCKS in codes:
        settings = replace(settings, max_num_seqs=fit.plan.blocks)
    return Served(
        model=fit.model,
        deployment=fit.deployment,
        settings=settings,
        window_tokens=served_window(fit),
        largest_cap_tokens=fit.default_max_tokens,
        pool_tokens=fit.plan.tokens if is_given and is_whole else None,
    )


def served_window(fit: Fit) -> int:
    """The window asked for, else the longest that fits."""
    longest, window = fit.longest_window_tokens, fit.max_model_len
    return window if not longest or fit.verdict == FITS else min(longest, window)


def engine_flags(fit: Fit) -> dict[str, object]:
    """The flags of the plan and their values, in the engine's order."""
    served = _served(fit)
    values = ((flag, value(served)) for flag, value in engine_of(fit.deployment.engine.name).flags.items())
    return {flag: value for flag, value in values if value is not None}


def command_words(fit: Fit) -> list[str]:
    """The whole command line; each entry is a command, or a flag with its value."""
    start = engine_of(fit.deployment.engine.name).command(_served(fit))
    flags = engine_flags(fit).items()
    return [start, *(flag if value is True else f"{flag} {shlex.quote(str(value))}" for flag, value in flags)]
