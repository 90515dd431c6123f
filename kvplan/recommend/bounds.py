"""What a recommendation must keep, by the same rule for one simulation and for the search."""

from collections.abc import Mapping
from math import isfinite

from kvplan.errors import InputError
from kvplan.recommend.results import Constraints
from kvplan.traffic.spec import Traffic


def constraints(traffic: Traffic, given: Mapping[str, float | None]) -> tuple[Constraints, dict[str, str]]:
    """Each bound and where it comes from: the caller, the file's limits of the whole traffic, or the default."""
    filed = {one.name: one.maximum for one in traffic.limits if one.class_name is None}
    bounds, sources = {}, {}
    for name, asked in given.items():
        bound = filed.get(name) if asked is None else asked
        sources[name] = "asked for" if asked is not None else "the default" if bound is None else "the file's limits"
        if bound is not None:
            bounds[f"max_{name}"] = bound
    limits = Constraints(**bounds)
    for key, share in (("max_truncated", limits.max_truncated_share), ("max_refused", limits.max_refused_share)):
        if not 0 <= share <= 1:
            raise InputError(f"{key} is a share between 0 and 1, not {share}", hint=f"{key}: 0.01 or 1%", key=key)
    late_s = limits.max_e2e_p99_s
    if late_s is not None and not (late_s > 0 and isfinite(late_s)):
        raise InputError(f"max_e2e_p99 of {late_s:g} s is not above zero", hint="--max-e2e-p99 30s", key="max_e2e_p99")
    return limits, sources
