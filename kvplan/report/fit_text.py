"""``kvplan fit`` as text: does it fit, where the memory goes, what the pool holds, what to do; or the flags alone."""

import json
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from shlex import quote

from kvplan.capacity import Fit
from kvplan.engines import engine_of, parse_engine
from kvplan.engines.deployment import EngineVersion
from kvplan.engines.engine_plan import OVER_STATE_BLOCKS, Budget, Finding, Settings
from kvplan.remedies import MAX_GPUS, Remedy
from kvplan.report.model import provenance
from kvplan.report.numbers import count, format_bytes, ratio
from kvplan.report.page import (
    ACTION,
    BLANK,
    QUIET,
    Columns,
    Part,
    answer,
    columns,
    headline,
    labelled,
    next_steps,
    paragraph,
)
from kvplan.units import GIB

_SEVERITIES = ("error", "warning", "info")
_POOL, _LEFT = "KV pool", "left for KV"
"""A static cache (llama.cpp) does not take all that is left."""


def text(fit: Fit, remedies: Sequence[Remedy], command: str) -> Iterator[Part]:
    """The plan; ``command`` is what the user ran."""
    yield headline(fit.model.id, provenance(fit.model))
    yield paragraph(_hardware(fit), style=QUIET, indent=0)
    yield paragraph(settings_line(fit.plan.settings), style=QUIET, indent=0)
    yield answer(_answer(fit))
    for remedy in remedies:
        yield labelled("change", _remedy(remedy), style=ACTION)
    if fit.verdict == "does_not_fit" and not remedies:
        yield labelled(
            "change", f"none found: no shorter window, fp8 KV or {MAX_GPUS} of these GPUs is enough", style=ACTION
        )
    yield BLANK
    if fit.plan.budget is not None:
        rows = budget_rows(fit.plan.budget, fit.plan.kv_bytes)
        yield columns(("memory of one GPU", "GiB", ""), rows, left={0, 2}, wrap=2)
    yield BLANK
    if fit.plan.blocks:
        yield from _pool(fit)
    yield BLANK
    if fit.reservations:
        yield _reservations(fit)
    yield BLANK
    yield from findings(fit.findings)
    yield BLANK
    yield from next_steps(*_next(fit, command))


def _reservations(fit: Fit) -> Columns:
    """What a request of each shape is charged; if layers form several groups, also what they store of it. ``at least``
    is how many fit if the pool turns out as small as its ± allows."""
    is_mixed = len(fit.plan.layout.groups) > 1
    is_unsure = any(each.fewest_sequences < each.sequences for each in fit.reservations)
    charged = "per GPU" if fit.deployment.gpus > 1 else "memory"
    stored = ("stored",) if is_mixed else ()
    return columns(
        ("worst case of", "tokens", "blocks", charged, *stored, "at once", *(("at least",) if is_unsure else ())),
        [
            (
                each.name,
                count(each.reserved_tokens),
                count(each.blocks),
                format_bytes(each.reserved_bytes),
                *((format_bytes(each.logical_bytes),) if is_mixed else ()),
                count(each.sequences),
                *((count(each.fewest_sequences),) if is_unsure else ()),
            )
            for each in fit.reservations
        ],
    )


def _hardware(fit: Fit) -> str:
    """What it runs on, and in which type KV is kept."""
    asked = fit.deployment
    gpu = f"{asked.gpus} × {asked.gpu.name}" if asked.gpu is not None else f"{asked.gpus} GPU{'s' * (asked.gpus > 1)}"
    split = [
        f"{name} {ranks}"
        for name, ranks in (
            ("TP", asked.tensor_parallel),
            ("PP", asked.pipeline_parallel),
            ("DP", asked.data_parallel),
            ("DCP", asked.context_parallel),
        )
        if ranks > 1
    ]
    shared = f" ({', '.join(split)})" if split else ""
    return " · ".join((f"{gpu}{shared}", engine_words(asked.engine), f"KV {fit.plan.kv_types.name}"))


def engine_words(engine: EngineVersion | str) -> str:
    """The engine and its release, or the one whose rules are used where none is named.

    >>> engine_words("vllm"), engine_words("vllm@0.20"), engine_words("tgi")
    ('vllm 0.33', 'vllm 0.20', 'tgi')
    """
    version = parse_engine(engine) if isinstance(engine, str) else engine
    release = version.release or engine_of(version.name).default_release
    return version.name if release is None else f"{version.name} {'.'.join(map(str, release))}"


def settings_line(settings: Settings) -> str:
    """The engine's limits."""
    return (
        f"window {settings.max_model_len:,} · ≤ {settings.max_num_seqs:,} sequences · "
        f"{settings.max_num_batched_tokens:,} tokens per step"
    )


def _answer(fit: Fit) -> str:
    budget = fit.plan.budget
    if budget is not None and budget.kv_bytes <= 0:
        weights = next((term.bytes for term in budget.terms if term.name.startswith("weight")), None)
        need = "" if weights is None else f"weights {format_bytes(weights)}, "
        return f"does not fit: {need}one GPU has {format_bytes(budget.requested_bytes)} for everything"
    pool = f"KV pool {format_bytes(fit.plan.kv_bytes)}{' per GPU' if fit.deployment.gpus > 1 else ''}"
    held = f"{ratio(fit.concurrency)} requests of {fit.max_model_len:,} tokens at once"
    if fit.verdict == "fits":
        fewer = any(finding.code == OVER_STATE_BLOCKS for finding in fit.findings)
        return f"fits{f' with --max-num-seqs {fit.plan.blocks}' if fewer else ''}: {pool}, {held}"
    if not fit.plan.starts:
        return f"does not fit: {fit.deployment.engine.name} refuses to start ({pool}, {held})"
    if fit.verdict == "does_not_fit" and not fit.serves_window:
        return f"does not fit: {pool} holds {held}; the longest window is {fit.longest_window_tokens:,}"
    if fit.verdict == "does_not_fit":
        return f"does not fit: {pool}, {held}, but a request that was asked about is never admitted"
    return f"cannot tell: a part is not modelled; without it {pool}, {held}"


def _remedy(remedy: Remedy) -> str:
    plan = remedy.fit.plan
    return (
        f"{remedy.change}   KV pool {format_bytes(plan.kv_bytes)} per GPU, "
        f"{ratio(remedy.fit.concurrency)} requests of {remedy.fit.max_model_len:,}"
    )


def _gib(amount: int) -> str:
    return f"{amount / GIB:,.2f}"


def budget_rows(budget: Budget, kv_bytes: int) -> Iterator[tuple[str, ...]]:
    """Name, GiB and formula of every term; terms outside the engine's share come last."""
    yield ("the driver reports", _gib(budget.total_bytes), "")
    yield ("the engine may use", _gib(budget.requested_bytes), "")
    for term in budget.terms:
        if term.inside_fraction:
            yield (f"  {term_words(term.name)}", _gib(-term.bytes), term.formula)
    low, high = budget.kv_bytes - budget.kv_bytes_low, budget.kv_bytes_high - budget.kv_bytes
    band = f"± {low / GIB:.2f}" if low == high else f"− {low / GIB:.2f} + {high / GIB:.2f}"
    yield (_POOL if budget.kv_bytes == kv_bytes else _LEFT, _gib(budget.kv_bytes), band if low or high else "")
    for term in budget.terms:
        if not term.inside_fraction:
            yield (f"on top: {term_words(term.name)}", _gib(term.bytes), term.formula)


def term_words(name: str) -> str:
    """A budget's term as tables name it.

    >>> term_words("activation_peak"), term_words("non_torch"), term_words("cuda_graphs")
    ('activation peak', 'non-torch', 'CUDA graphs')
    """
    return name.replace("non_torch", "non-torch").replace("cuda", "CUDA").replace("_", " ")


def _pool(fit: Fit) -> Iterator[Part]:
    layout = fit.plan.layout
    yield paragraph(
        f"pool of {fit.plan.blocks:,} blocks of {format_bytes(layout.bytes_per_block)} "
        f"({fit.pool_tokens:,} tokens as the engine prints it)"
    )
    yield columns(("group", "layers", "block", "window", "blocks of a full window"), _group_rows(fit))


def _group_rows(fit: Fit) -> Iterator[tuple[str, ...]]:
    """Equal groups in one row: ``4 × 9`` layers are four groups of nine."""
    in_flight = fit.plan.layout.in_flight_tokens
    rows = Counter(
        (
            group.kind,
            group.layers,
            group.block_tokens,
            group.window_tokens,
            group.request_blocks(fit.max_model_len, in_flight),
        )
        for group in fit.plan.layout.groups
    )
    for (kind, layers, block, window, blocks), groups in rows.items():
        times = f"{groups} × " if groups > 1 else ""
        yield (kind, f"{times}{layers}", count(block), count(window), f"{times}{blocks:,}")


def findings(found: Iterable[Finding]) -> Iterator[Part]:
    """What the reader should know, errors first; what needs action is highlighted."""
    for finding in sorted(found, key=lambda each: _SEVERITIES.index(each.severity)):
        hint = f". {finding.hint[0].upper()}{finding.hint[1:]}" if finding.hint else ""
        style = "" if finding.severity == "info" else ACTION
        yield labelled(finding.severity, f"{finding.message}{hint}", style=style)


def _next(fit: Fit, command: str) -> tuple[str, ...]:
    if fit.verdict == "fits":
        return (f"{command} --flags cli", _traffic_file(fit))
    gpu = fit.deployment.gpu
    if fit.verdict == "does_not_fit" and gpu is not None:
        return (f"kvplan compare {quote(fit.model.id)} --gpu {gpu.name}", "kvplan explain budget")
    return (f"kvplan model {quote(fit.model.id)}", "kvplan explain budget")


def _traffic_file(fit: Fit) -> str:
    """The command that writes a traffic file for this model, GPU and engine."""
    asked = fit.deployment
    gpu = "" if asked.gpu is None else f" --gpu {asked.gpu.name}"
    engine = "" if str(asked.engine) == "vllm" else f" --engine {asked.engine}"
    return f"kvplan init --model {quote(fit.model.id)}{gpu}{engine} --output traffic.yaml"


def flags(words: Sequence[str], form: str, model_id: str) -> str:
    """``words`` as a shell command over several lines, or as YAML for a Kubernetes container: ``args`` from the model
    on, and ``env``. The image's entry point is the program, so it is only a comment.

    >>> print(flags(["LIST=20,12 vllm serve org/m", "--max-model-len 4096"], "k8s", "org/m"), end="")
    # a container that runs: vllm serve
    args:
      - "org/m"
      - "--max-model-len"
      - "4096"
    env:
      - name: "LIST"
        value: "20,12"
    """
    if form == "cli":
        return " \\\n  ".join(words) + "\n"
    spoken = shlex.split(" ".join(words))
    variables = list(takewhile(lambda word: "=" in word, spoken))
    command = spoken[len(variables) :]
    program = list(takewhile(lambda word: word != model_id and not word.startswith("--"), command))
    lines = [f"# a container that runs: {shlex.join(program)}", *_items("args", command[len(program) :])]
    if variables:
        lines.append("env:")
        for name, _, value in (variable.partition("=") for variable in variables):
            lines += [f"  - name: {json.dumps(name)}", f"    value: {json.dumps(value)}"]
    return "".join(f"{line}\n" for line in lines)


def _items(key: str, values: Sequence[str]) -> list[str]:
    return [f"{key}:", *(f"  - {json.dumps(value)}" for value in values)] if values else [f"{key}: []"]
