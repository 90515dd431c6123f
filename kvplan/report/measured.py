"""``kvplan calibrate --run`` as text or JSON: the efficiency, what it predicts of the rest, what the roofline alone
says."""

from collections.abc import Iterator
from dataclasses import asdict
from shlex import quote

from kvplan.report.calibrate import kept_and_used
from kvplan.report.fit_text import engine_words, settings_line
from kvplan.report.json_text import document, picked
from kvplan.report.numbers import count
from kvplan.report.page import ACTION, BLANK, QUIET, Part, answer, columns, headline, labelled, paragraph
from kvplan.simulation.efficiency import GOOD_SHARE, Compared, EfficiencyFit
from kvplan.simulation.efficiency import Part as RunPart
from kvplan.simulation.step_time import BAND_SHARE, EFFICIENCY

_WEAK = (
    f"more than {GOOD_SHARE:.0%} off. One constant cannot make up for another pool, cap on sequences or parallelism "
    "than those that ran: check them against the engine's start-up log first. A time to first token that is mostly "
    "queueing moves several times as much as the steps it waits for."
)


def text(found: EfficiencyFit, run_name: str, traffic: str | None, written: str | None, command: str) -> Iterator[Part]:
    """``traffic`` is the file that was given, ``written`` the calibration file, ``command`` what the user ran."""
    backend, rest = found.backend, found.rest
    model = "" if backend.model is None else backend.model.id
    yield headline(model, f"{run_name}, {count(found.requests)} requests")
    for line in _setting(found):
        yield paragraph(line, style=QUIET, indent=0)
    first_token, end = _error(rest.ttft.error_share), _error(rest.e2e.error_share)
    yield answer(
        f"efficiency {found.efficiency:.3f}: the last {count(rest.requests)} requests are predicted with an error "
        f"of {first_token} in the mean time to first token and of {end} end to end"
    )
    yield BLANK
    yield columns(("mean of each part", "measured", "predicted", "error"), _rows(found))
    yield BLANK
    step = backend.service.step
    yield labelled(
        "A step takes",
        f"{step.base_s * 1e3:.1f} ms + {step.prefill_token_s * 1e6:.1f} µs a prompt token + "
        f"{step.decode_sequence_s * 1e6:.1f} µs a sequence + {step.kv_token_s * 1e9:.0f} ns a context token",
    )
    yield labelled("Uncalibrated", _unfitted(found))
    if found.skipped:
        yield labelled("Left out", f"{count(found.skipped)} requests that lack a time")
    if found.ran_otherwise:
        yield labelled(
            "Note",
            f"at most {count(found.running_peak_measured)} requests ran at once, {count(found.running_peak)} in the "
            "plan: the engine had another --max-num-seqs, KV pool or parallelism",
            style=ACTION,
        )
    if not found.is_good:
        yield labelled("Note", _WEAK, style=ACTION)
    yield from kept_and_used(written, command, f"kvplan simulate {quote(traffic or 'traffic.yaml')}")


def _setting(found: EfficiencyFit) -> tuple[str, str]:
    backend = found.backend
    replicas = f"{backend.replicas} × " if backend.replicas > 1 else ""
    blocks = f"{replicas}{count(backend.blocks)} blocks of {backend.layout.block_tokens}"
    return f"{backend.gpu} · {engine_words(backend.engine)} · {blocks}", settings_line(backend.settings)


def _rows(found: EfficiencyFit) -> Iterator[tuple[str, ...]]:
    names = ((found.fitted, f"first {count(found.fitted.requests)}, fitted"), (found.rest, "the rest"))
    for part, name in names:
        yield _row(f"{name}: TTFT", part.ttft)
        yield _row(f"{name}: E2E", part.e2e)
    for name in ("p50", "p99"):
        yield _quantile(found.rest.e2e, name)


def _row(name: str, times: Compared) -> tuple[str, ...]:
    return name, _seconds(times.measured.mean_s), _seconds(times.predicted.mean_s), _error(times.error_share)


def _quantile(times: Compared, name: str) -> tuple[str, ...]:
    measured, predicted = (getattr(one, f"{name}_s") for one in (times.measured, times.predicted))
    return f"the rest: E2E {name}", _seconds(measured), _seconds(predicted), _error(times.quantile_error_share(name))


def _unfitted(found: EfficiencyFit) -> str:
    middle, slow, fast = (part.e2e.predicted for part in (found.unfitted, found.unfitted_slow, found.unfitted_fast))
    return (
        f"a roofline at efficiency {EFFICIENCY:g} says {_seconds(middle.mean_s)} end to end, with its band of "
        f"± {BAND_SHARE:.0%}: {_seconds(fast.mean_s)} to {_seconds(slow.mean_s)}; the measured "
        f"{_seconds(found.rest.e2e.measured.mean_s)} lies {'inside' if found.is_in_default_band else 'OUTSIDE'}"
    )


def _error(share: float) -> str:
    """With its sign; what rounds to nothing has none of its own."""
    return f"{round(share, 3) + 0.0:+.1%}"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s"


_SETTINGS = "max_model_len max_num_seqs max_num_batched_tokens async_scheduling prefix_caching"


def json(found: EfficiencyFit, calibration_file: str) -> str:
    """The efficiency, both parts of the run measured and predicted, and the text of the calibration file."""
    backend = found.backend
    return document(
        "calibration_run",
        {
            "model": None if backend.model is None else backend.model.id,
            "gpu": backend.gpu,
            "engine": backend.engine,
            "pool": {
                "blocks": backend.blocks,
                "block_tokens": backend.layout.block_tokens,
                "replicas": backend.replicas,
            },
            "settings": picked(backend.settings, _SETTINGS),
            "efficiency_share": found.efficiency,
            "service": vars(backend.service.step),
            "requests": found.requests,
            "skipped": found.skipped,
            "preemptions_predicted": found.preemptions,
            "running_peak": {"measured": found.running_peak_measured, "predicted": found.running_peak},
            "fitted": _part_object(found.fitted),
            "rest": _part_object(found.rest),
            "uncalibrated": {
                "efficiency_share": EFFICIENCY,
                "band_share": BAND_SHARE,
                "rest": _part_object(found.unfitted),
                "rest_slow": _part_object(found.unfitted_slow),
                "rest_fast": _part_object(found.unfitted_fast),
            },
            "calibration_file": calibration_file,
        },
    )


def _part_object(part: RunPart) -> dict[str, object]:
    return {"requests": part.requests, "ttft_s": _times_object(part.ttft), "e2e_s": _times_object(part.e2e)}


def _times_object(times: Compared) -> dict[str, object]:
    return {
        "measured": _named(asdict(times.measured)),
        "predicted": _named(asdict(times.predicted)),
        "mean_error_share": times.error_share,
    }


def _named(times: dict[str, float]) -> dict[str, float]:
    return {name.removesuffix("_s"): value for name, value in times.items()}
