"""Writes the traffic file whose drawn requests resemble a recorded trace."""

import json
import textwrap
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from kvplan.errors import InputError
from kvplan.traffic.arrival_processes import ArrivalProcess, Gamma, Recorded
from kvplan.traffic.traces.describe import TraceDescription
from kvplan.traffic.traces.prefix_reuse import Part, PrefixReuse
from kvplan.traffic.traces.statistics import Lengths

_FINE = (*range(99), 98.5, 99, 99.5, 99.9, 100)
_CHANCE = 0.02
"""A correlation up to this is none."""


def traffic_text(description: TraceDescription, *, name: str = "recorded") -> str:
    """A traffic file whose drawn requests have the trace's rate, burstiness and length quantiles.

    Arrivals cluster as ``fitted_arrivals`` finds; lengths follow the recorded quantiles and are correlated so that the
    mean of prompt × output is the recorded one. Requests that share prefixes are a class of their own. The end of the
    file shows how to replay the trace itself.
    """
    if description.rate_per_s <= 0:
        raise InputError(
            f"{description.file}: all timestamps are equal, so there is no rate to write",
            hint="replay it instead: name it as the trace of a class",
            file=description.file,
        )
    model, window, remark = _model_and_window(description)
    span_s = round(description.span_s)
    whole = any(isinstance(part.arrivals, Recorded) for part in description.parts)
    return f"""\
# Drawn like {Path(description.file).name}: {description.requests:,} requests in {description.span_s:,.0f} s,
# prompt mean {description.prompt.mean:,.1f}, output mean {description.output.mean:,.1f} tokens.
model: {model}   # assumed: traces do not name it
deployment:
  gpu: h100
  max_model_len: {window}{remark}
admission:
  policy: worst_case_default_cap
traffic:
  duration: {max(600, span_s if whole else min(3600, span_s))}s
  classes:
{"".join(_classes(description, name))}\
    # To replay the trace itself, leave one class with its name, max_tokens and
    #   trace: {description.file}
    #   scale: 1.0
"""


def _classes(description: TraceDescription, name: str) -> Iterator[str]:
    for part in description.parts:
        label = f"{name}, shared prefixes" if part.reuse and len(description.parts) > 1 else name
        yield f"""\
    - name: {json.dumps(label, ensure_ascii=False) if set(label) & _NOT_PLAIN else label}
      rate: {_plain(description.rate_per_s * part.prompt.rows / description.requests, 6)}/s
      arrivals: {_arrivals_text(part.arrivals)}
      prompt_tokens: {_quantiles_text(part.prompt)}
      output_tokens: {_quantiles_text(part.output)}
{_correlation_text(part)}\
      max_tokens:{_caps_text(description)}
"""
        if part.reuse is not None:
            yield _prefix_text(part.reuse)


def _correlation_text(part: Part) -> str:
    found = part.length_correlation
    return f"      length_correlation: {found:g}   # of prompt and output\n" if abs(found) > _CHANCE else ""


def _prefix_text(found: PrefixReuse) -> str:
    lifetime = "" if found.lifetime_s is None else f"\n        lifetime: {_plain(found.lifetime_s, 3)}s"
    return f"""\
      shared_prefix:
        groups: {found.groups}{lifetime}
        tokens: {_quantiles_text(found.shared, indent=10)}
"""


def _arrivals_text(process: ArrivalProcess) -> str:
    """The process as a traffic file writes it."""
    if isinstance(process, Gamma):
        return f"{{gamma: {{cv: {process.cv:g}}}}}"
    if not isinstance(process, Recorded):
        return "poisson"
    cv = "" if process.cv == 1.0 else f", cv: {process.cv:g}"
    counts = _wrapped(", ".join(f"{count:g}" for count in process.counts), indent=10)
    return f"{{recorded: {{step: {process.step_s:g}s{cv}, counts: [{counts}]}}}}"


_NOT_PLAIN = frozenset(":#{}[],&*!|>'\"%@`?-~ \\\n\t")
"""Characters that may mean something to YAML."""
_MODELS = (("meta-llama/Llama-3.1-8B-Instruct", 131_072), ("Qwen/Qwen3-4B-Instruct-2507", 262_144))
"""Bundled models that one H100 serves at their full window."""


def _model_and_window(description: TraceDescription) -> tuple[str, int, str]:
    """A model whose window holds the longest recorded request, the smallest power of two that does (at least 8,192),
    and a remark where no model's window is long enough."""
    longest = max(description.prompt.counts) + max(description.output.counts)
    window = max(8192, 1 << longest.bit_length())
    for name, context in _MODELS:
        if window <= context:
            return name, window, ""
    name, context = _MODELS[-1]
    return name, context, "   # longer requests are refused for good"


def _quantiles_text(lengths: Lengths, indent: int = 8) -> str:
    """The recorded quantiles at every percent; of a run of equal values only the ends."""
    points = list(lengths.quantiles(_FINE).items())
    kept = [
        (name, value)
        for place, (name, value) in enumerate(points)
        if place in (0, len(points) - 1) or not points[place - 1][1] == value == points[place + 1][1]
    ]
    text = ", ".join(f"{name}:_{value}" for name, value in kept)  # the underscore keeps each pair on one line
    return "{quantiles: {" + _wrapped(text, indent=indent + 2).replace("_", " ") + "\n" + " " * indent + "}}"


def _wrapped(text: str, *, indent: int) -> str:
    """The text wrapped on lines of its own."""
    space = "\n" + " " * indent
    return space + space.join(textwrap.wrap(text, 80 - indent, break_long_words=False, break_on_hyphens=False))


def _caps_text(description: TraceDescription) -> str:
    """The recorded caps: choices where there are few, else quantiles of those sent."""
    sent = description.max_tokens
    if not sent.counts:
        return " {unset: true}"
    unset = description.requests - sent.rows
    if len(sent.counts) > 8:
        return " " + _quantiles_text(sent)
    shares = [(f"value: {cap}", count) for cap, count in sorted(sent.counts.items())]
    if unset:
        shares.append(("unset: true", unset))
    whole = [round(count / description.requests, 6) for _, count in shares]
    whole[0] += round(1.0 - sum(whole), 6)
    lines = (f"\n          - {{{what}, share: {share:g}}}" for (what, _), share in zip(shares, whole, strict=True))
    return "\n        choices:" + "".join(lines)


def _plain(value: float, digits: int) -> str:
    """A number with that many significant digits and no exponent, which times and rates of a traffic file cannot have.

    >>> _plain(1e-7, 6), _plain(1487.2, 3)
    ('0.0000001', '1490')
    """
    return f"{Decimal(f'{value:.{digits}g}'):f}"
