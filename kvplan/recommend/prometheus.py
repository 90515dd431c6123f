"""A reader of the Prometheus text format, as far as the metrics of engines and of the gateway need it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from kvplan.errors import InputError
from kvplan.files import read_small_text

_LINE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One line: a name, its labels, its value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """A histogram over all its label sets: (upper edge, requests up to it), their number and their sum."""

    edges: tuple[tuple[float, float], ...]
    count: float
    sum: float

    @property
    def mean(self) -> float | None:
        """The mean observation, None where there are none."""
        return self.sum / self.count if self.count else None

    def above(self, edge: float) -> float:
        """Share of observations above the largest known edge that is not above ``edge``; 1 where there is none."""
        below = max((reached for upper, reached in self.edges if upper <= edge), default=0.0)
        return 1.0 - below / self.count if self.count else 0.0

    def least_edge(self, share: float) -> float | None:
        """The smallest finite edge above which at most ``share`` lies; None if there is none."""
        fitting = (upper for upper, _ in self.edges if isfinite(upper) and self.above(upper) <= share + 1e-12)
        return min(fitting, default=None)


class Metrics:
    """All samples of a scrape, looked up by name; label sets (models, engines) are summed."""

    def __init__(self, samples: tuple[Sample, ...]) -> None:
        self._by_name: dict[str, list[Sample]] = {}
        for sample in samples:
            self._by_name.setdefault(sample.name, []).append(sample)

    def has(self, prefix: str) -> bool:
        """Whether any name begins with this."""
        return any(name.startswith(prefix) for name in self._by_name)

    def total(self, *names: str) -> float | None:
        """The sum of the first of these counters that is present, with or without its ``_total``."""
        found = next(
            (self._by_name[known] for name in names for known in (f"{name}_total", name) if known in self._by_name),
            None,
        )
        return None if found is None else sum(sample.value for sample in found)

    def highest(self, *names: str) -> float | None:
        """The highest value of the first of these gauges that is present."""
        found = next((self._by_name[name] for name in names if name in self._by_name), None)
        return None if found is None else max(sample.value for sample in found)

    def label(self, name: str, label: str) -> str | None:
        """A label of the first sample of that name, which is how engines publish their settings."""
        return next((sample.labels[label] for sample in self._by_name.get(name, ()) if label in sample.labels), None)

    def histogram(self, name: str) -> Histogram | None:
        """A histogram by its base name; None if it is missing or empty."""
        count, total = self.total(f"{name}_count"), self.total(f"{name}_sum")
        if not count or total is None:
            return None
        reached: dict[float, float] = {}
        for sample in self._by_name.get(f"{name}_bucket", ()):
            edge = _number(sample.labels.get("le", ""))
            if edge is not None:
                reached[edge] = reached.get(edge, 0.0) + sample.value
        return Histogram(edges=tuple(sorted(reached.items())), count=count, sum=total)


def read_metrics(path: Path) -> Metrics:
    """The scrape kept in a file. Lines that are not samples are skipped; InputError if none is left."""
    samples = tuple(_samples(read_small_text(path, hint=_HOW)))
    if not samples:
        raise InputError(f"{path} holds no Prometheus metrics", hint=_HOW, file=str(path))
    return Metrics(samples)


_HOW = "curl -s http://localhost:8000/metrics > metrics.txt writes one"


def _samples(text: str) -> Iterator[Sample]:
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        value = None if found is None else _number(found[3])
        if found is None or value is None:
            continue
        labels = {name: re.sub(r"\\(.)", r"\1", inner) for name, inner in _LABEL.findall(found[2] or "")}
        yield Sample(name=found[1], labels=labels, value=value)


def _number(text: str) -> float | None:
    """A value as the format writes it; None for NaN and for what is no number.

    >>> _number("1.5e3"), _number("+Inf"), _number("NaN"), _number("x")
    (1500.0, inf, None, None)
    """
    if text in ("+Inf", "Inf"):
        return inf
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == value else None  # noqa: PLR0124 - nan is not itself
