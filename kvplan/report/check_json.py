"""``kvplan check`` as JSON (``kvplan.check``)."""

from kvplan.check.results import Check, Difference, LimitResult
from kvplan.report.check_text import message, summary
from kvplan.report.json_text import document, picked
from kvplan.report.model import model_object


def json(check: Check) -> str:
    """The document. ``figures`` is what ``--baseline`` reads."""
    simulation = check.measured.simulation
    fit = check.measured.fit
    model = simulation.backend.model if simulation is not None else None if fit is None else fit.model
    return document(
        "check",
        {
            "traffic_file": check.traffic.file,
            "passed": check.passed,
            "summary": summary(check),
            "strict": check.strict,
            "model": None if model is None else model_object(model),
            "judged": None if simulation is None else simulation.inputs.judged,
            "seed": None if simulation is None else simulation.inputs.seed,
            "seeds": None if simulation is None else simulation.inputs.seeds,
            "assumptions": [] if simulation is None else list(simulation.inputs.assumptions),
            "limits": [limit_object(limit) for limit in check.limits],
            "figures": {name: whole(value) for name, value in check.figures.items()},
            "comparison": None if check.comparison is None else _comparison_object(check.comparison),
        },
    )


def limit_object(limit: LimitResult) -> dict[str, object]:
    """One bound of one limit."""
    reading = limit.reading
    ends = None if reading.low is None or reading.high is None else [reading.low, reading.high]
    return {
        "name": limit.name,
        "class": limit.class_name,
        "passed": limit.passed,
        "measured": whole(reading.value),
        "limit": whole(limit.limit),
        "bound": limit.bound,
        "certainty": limit.certainty,
        "interval": ends,
        "at_slow_end": whole(limit.at_slow_end),
        "at_fast_end": whole(limit.at_fast_end),
        "of": reading.how or None,
        "line": limit.line,
        "message": message(limit),
    }


def _comparison_object(found: Difference) -> dict[str, object]:
    """What changed."""
    return {
        "base": found.base,
        "settings": [picked(one, "key before after") for one in found.settings],
        "changes": [
            {"name": one.name, "before": whole(one.before), "after": whole(one.after)} for one in found.changes
        ],
        "base_limits": [limit_object(limit) for limit in found.base_limits],
    }


def whole(value: float | None) -> float | int | None:
    """Bytes, tokens and counts as integers.

    >>> whole(40.0), whole(0.25), whole(None)
    (40, 0.25, None)
    """
    return int(value) if value is not None and value == int(value) else value
