"""What a recommendation must keep: as the caller asks, else as the file's limits say, else by default."""

from collections.abc import Mapping
from math import isfinite

from kvplan.errors import InputError
from kvplan.recommend.results import Constraints
from kvplan.traffic.kinds import Traffic


def constraints(traffic: Traffic, given: Mapping[str, float | None]) -> tuple[Constraints, dict[str, str]]:
    """Each bound and where it comes from: the caller, the file's limits of the whole traffic, or the default."""
    filed = {
        limit.name: limit.maximum
        for limit in traffic.limits
        if limit.class_name is None and limit.maximum is not None and limit.name in given
    }
    default = Constraints()
    values: dict[str, float | None] = {
        "truncated_share": default.max_truncated_share,
        "refused_share": default.max_refused_share,
        "e2e_p99_s": default.max_e2e_p99_s,
    }
    sources = {}
    for name, wanted in given.items():
        sources[name] = "asked for" if wanted is not None else "the file's limits" if name in filed else "the default"
        values[name] = wanted if wanted is not None else filed.get(name, values[name])
    truncated, refused, time_s = values["truncated_share"], values["refused_share"], values["e2e_p99_s"]
    for name, share in (("max_truncated", truncated), ("max_refused", refused)):
        if share is None or not 0 <= share <= 1:
            raise InputError(f"{name} is a share between 0 and 1, not {share}", hint=f"{name}: 0.01 or 1%", key=name)
    if time_s is not None and not (time_s > 0 and isfinite(time_s)):
        raise InputError(f"max_e2e_p99 of {time_s:g} s is not above zero", hint="--max-e2e-p99 30s", key="max_e2e_p99")
    assert truncated is not None
    assert refused is not None
    return Constraints(max_truncated_share=truncated, max_refused_share=refused, max_e2e_p99_s=time_s), sources
