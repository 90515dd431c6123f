"""``kvplan calibrate`` of a log: which term differs and by how much, which lines mislead; as text or JSON."""

from collections.abc import Iterator
from shlex import quote

from kvplan.calibration import Calibration, TermDifference
from kvplan.report.fit_json import budget_object, finding_object
from kvplan.report.fit_text import engine_words, findings, settings_line, term_words
from kvplan.report.json_text import document, picked
from kvplan.report.numbers import count, format_bytes, ratio
from kvplan.report.page import BLANK, QUIET, Part, answer, columns, headline, labelled, next_steps, paragraph
from kvplan.units import GIB

CALIBRATION_FILE = "calibration.yaml"
"""What the next step calls the file that was not asked for yet."""


def text(found: Calibration, log_name: str, which: str, written: str | None, command: str) -> Iterator[Part]:
    """The comparison. ``which`` names the start where the log holds several, ``written`` the calibration file;
    ``command`` is what the user ran."""
    start = found.start
    yield headline(found.planned.model.id, f"{log_name}, lines {start.first_line} to {start.last_line}")
    for setting in _setting(found, which):
        yield paragraph(setting, style=QUIET, indent=0)
    yield answer(_answer(found))
    yield BLANK
    yield columns(("GiB of one GPU", "planned", "log", "difference"), _rows(found))
    yield BLANK
    if found.misleading:
        yield paragraph("lines that mislead", style=QUIET, indent=2)
        for line in found.misleading:
            yield labelled(f"line {line.line}", line.reason)
    yield BLANK
    yield from findings(found.findings)
    yield BLANK
    engine = "" if start.engine == "vllm" else f" --engine {start.engine}"
    yield from kept_and_used(written, command, f"kvplan fit {quote(found.planned.model.id)}{engine}")


def kept_and_used(written: str | None, command: str, use: str) -> Iterator[Part]:
    """What to run next: the same command with a file to write to, unless there is one, and the command that uses it."""
    keep = () if written is not None else (f"{command} --output {CALIBRATION_FILE}",)
    yield from next_steps(*keep, f"{use} --calibration {quote(written or CALIBRATION_FILE)}")


def _setting(found: Calibration, which: str) -> tuple[str, str]:
    engine = engine_words(found.deployment.engine)
    return f"{which} · {engine}" if which else engine, settings_line(found.planned.plan.settings)


def _answer(found: Calibration) -> str:
    culprit = found.culprit
    if found.kv_bytes_logged is None:
        pool = "the log does not say its KV pool"
    else:
        calibrated = found.calibrated
        pool = (
            f"KV pool {format_bytes(found.kv_bytes_logged)}: {count(calibrated.plan.blocks)} blocks, "
            f"{ratio(calibrated.concurrency)} requests of {calibrated.max_model_len:,}"
        )
    if culprit is None:
        return f"{pool}; every printed term is as planned"
    difference = culprit.difference_bytes or 0
    term, word = term_words(culprit.name), "more" if difference > 0 else "less"
    return f"{pool}; most of the difference: {term}, {_gib(abs(difference))} GiB {word} than planned"


def _rows(found: Calibration) -> Iterator[tuple[str, ...]]:
    for term in found.terms:
        yield _row(term)
    budget = found.planned.plan.budget
    if budget is None:
        return
    planned = found.planned.plan.kv_bytes
    yield _row(TermDifference(name="KV pool", names=(), planned_bytes=planned, logged_bytes=found.kv_bytes_logged))


def _row(term: TermDifference) -> tuple[str, ...]:
    difference = term.difference_bytes
    return (
        term_words(term.name),
        _gib(term.planned_bytes),
        "-" if term.logged_bytes is None else _gib(term.logged_bytes),
        "-" if difference is None else f"{difference / GIB:+.2f}",
    )


def _gib(amount: int) -> str:
    return f"{amount / GIB:.2f}"


_LOG = (
    "total_bytes requested_bytes weight_bytes activation_bytes non_torch_bytes graph_estimate_bytes graph_bytes "
    "compute_bytes state_bytes kv_bytes blocks kv_tokens concurrency concurrency_tokens max_model_len max_num_seqs "
    "max_num_batched_tokens"
)
_TERM = "name planned_bytes logged_bytes difference_bytes"
_REFUSAL = "line reason text max_model_len needed_bytes available_bytes estimated_max_model_len"


def json(found: Calibration, calibration_file: str) -> str:
    """The comparison, and the text of the file that reproduces the log."""
    start, plan = found.start, found.planned.plan
    calibrated = found.calibrated
    culprit = found.culprit
    return document(
        "calibration",
        {
            "model": {"id": found.planned.model.id, "as_printed": start.model},
            "engine": str(found.deployment.engine),
            "engine_version": start.version,
            "lines": {"first": start.first_line, "last": start.last_line},
            "log": {
                **picked(start, _LOG),
                "memory_utilization_share": start.memory_utilization,
                "tensor_parallel": start.tensor_parallel,
            },
            "terms": [picked(term, _TERM) for term in found.terms],
            "culprit": None if culprit is None else culprit.name,
            "pool": {
                "kv_bytes_planned": plan.kv_bytes,
                "kv_bytes_logged": found.kv_bytes_logged,
                "blocks_planned": plan.blocks,
                "kv_bytes_calibrated": calibrated.plan.kv_bytes,
                "blocks_calibrated": calibrated.plan.blocks,
                "tokens_calibrated": calibrated.pool_tokens,
                "concurrency_calibrated": float(calibrated.concurrency),
            },
            "budget": None if calibrated.plan.budget is None else budget_object(calibrated.plan.budget),
            "corrections": dict(found.corrections),
            "misleading": [picked(line, "line text reason") for line in found.misleading],
            "refusals": [picked(refusal, _REFUSAL) for refusal in start.refusals],
            "findings": [finding_object(finding) for finding in found.findings],
            "calibration_file": calibration_file,
        },
    )
