"""From a client library's profile to the rule that the kernel plays."""

from dataclasses import replace
from math import inf
from pathlib import Path

from kvplan.profiles.kinds import ClientProfile
from kvplan.profiles.loader import load_loops
from kvplan.simulation.types import UNLIMITED, ClientRule


def client_rule(profile: ClientProfile) -> ClientRule:
    """The profile with "without end" and "no bound" written out."""
    return ClientRule(
        tries=UNLIMITED if profile.tries is None else profile.tries,
        honours_retry_after=profile.honours_retry_after != "no",
        whole_seconds=profile.honours_retry_after == "whole_seconds",
        longest_honoured_s=inf if profile.longest_honoured_s is None else profile.longest_honoured_s,
        gives_up_when_longer=profile.when_longer == "give_up",
        backoff_base_s=profile.backoff_base_s,
        backoff_max_s=profile.backoff_max_s,
        jitter_share=profile.jitter_share,
        jitter_add_s=profile.jitter_add_s,
        jitter_on_header=profile.jitter_on_header,
    )


def client_table(
    names: tuple[str, ...], *, profiles_folder: str | Path | None = None
) -> tuple[tuple[ClientRule, ...], tuple[float, ...]]:
    """A rule and a time-out for each name; the empty name tries once and waits for ever. Where loops run in one
    another, the time-out is the shortest of theirs."""
    rules, timeouts_s = [], []
    for name in names:
        loops = load_loops(name, extra_folder=profiles_folder) if name else ()
        nested: ClientRule | None = None
        for profile in loops:
            nested = replace(client_rule(profile), outer=nested)
        rules.append(nested or ClientRule())
        timeouts_s.append(min((loop.timeout_s for loop in loops if loop.timeout_s is not None), default=inf))
    return tuple(rules), tuple(timeouts_s)
