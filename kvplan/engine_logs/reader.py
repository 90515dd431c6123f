"""Clean lines → engine starts: which engine wrote a line, where a start begins, and one figure for all ranks."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from kvplan.engine_logs import llama_cpp, sglang, tensorrt_llm, tgi, vllm
from kvplan.engine_logs.figures import EngineStart, Observation, Refusal
from kvplan.engine_logs.lines import LogLine, Wanted, read_lines
from kvplan.engine_logs.wording import Wording, observe
from kvplan.errors import InputError

WORDINGS: tuple[Wording, ...] = (
    vllm.WORDING,
    sglang.WORDING,
    tensorrt_llm.WORDING,
    llama_cpp.WORDING,
    tgi.WORDING,
)

TRIGGERS = frozenset(word.encode() for wording in WORDINGS for word in wording.words)
"""A line without any of them is not looked at."""

# Of what several ranks print, pools and free memory are those of the smallest rank; usage is that of the fullest.
_SMALLEST = {
    "kv_bytes",
    "kv_tokens",
    "blocks",
    "window_pool_tokens",
    "free_before_bytes",
    "free_after_load_bytes",
    "total_bytes",
    "concurrency",
}
_MEMORY = {
    "weight_bytes",
    "kv_bytes",
    "kv_part_bytes",
    "key_bytes",
    "key_part_bytes",
    "ssm_bytes",
    "kv_tokens",
    "blocks",
    "consumed_bytes",
}
_FIELDS = {item.name for item in fields(EngineStart)}
_LONGEST_ARGUMENTS = 400
_PROGRESS = "%|"
"""A progress bar of another stream, which may stand between the lines of a list."""


@dataclass
class _Building:
    """A start while its lines are read."""

    wording: Wording
    first_line: int
    last_line: int
    seen: list[Observation] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    names: set[str] = field(default_factory=set)

    def has_memory(self) -> bool:
        return bool(self.names & _MEMORY)

    def is_joined_by(self, rank: str | None) -> bool:
        """Whether ``rank`` is one more data-parallel engine of this start, whose first line comes late."""
        ranks = {item.rank for item in self.seen}
        return rank is not None and "DP" in rank and rank not in ranks and any("DP" in (each or "") for each in ranks)

    def add(self, found: Iterable[Observation]) -> None:
        for item in found:
            self.seen.append(item)
            self.names.add(item.name)
            self.last_line = item.line


def read_log(path: Path) -> list[EngineStart]:
    """Every engine start in a log file, in the order of its lines.

    Raises InputError where the file cannot be read, or no engine that kvplan knows wrote it.
    """
    reading = _Reading()
    starts = reading.starts(read_lines(path, Wanted(words=TRIGGERS, all_now=reading.is_within_arguments)))
    if not starts:
        known = ", ".join(wording.engine for wording in WORDINGS)
        raise InputError(
            f"{path} has no start-up lines of an engine that kvplan knows",
            hint=f"give the log from the engine's first line on; known engines: {known}",
            file=str(path),
        )
    return starts


def read_starts(lines: Iterable[LogLine]) -> list[EngineStart]:
    """As ``read_log``, from clean lines."""
    return _Reading().starts(lines)


class _Reading:
    """The starts read so far, the current one, and a list of arguments that continues over several lines."""

    def __init__(self) -> None:
        self._finished: list[EngineStart] = []
        self._current: _Building | None = None
        self._arguments: tuple[Wording, list[str], LogLine] | None = None
        self._early: list[Observation] = []

    def is_within_arguments(self) -> bool:
        """Whether the next line continues a list of arguments, whatever it contains."""
        return self._arguments is not None

    def starts(self, lines: Iterable[LogLine]) -> list[EngineStart]:
        """Every start in ``lines`` that has a figure; each line is read by the first engine's wording that fits."""
        for line in lines:
            if self._ends_arguments(line):
                continue
            for wording in WORDINGS:
                if wording.trigger.search(line.text) and self._takes(wording, line):
                    break
        if self._current is not None:
            self._take_early(self._current)
            self._finished.append(_finish(self._current))
        return [start for start in self._finished if start.observations or start.refusals]

    def _ends_arguments(self, line: LogLine) -> bool:
        if self._arguments is None:
            return False
        wording, parts, first = self._arguments
        if _PROGRESS in line.text:
            return False
        parts.append(line.text)
        if not line.text.startswith("}") and len(parts) <= _LONGEST_ARGUMENTS:
            return False
        self._arguments = None
        found = tuple(observe(wording.arguments, LogLine(number=first.number, text=" ".join(parts))))
        if self._may_be_early(wording, found):
            self._early += found
        elif self._current is not None and self._current.wording is wording:
            self._current.add(found)
        return True

    def _takes(self, wording: Wording, line: LogLine) -> bool:
        """Whether ``wording`` understands the line, and there is a start that it belongs to."""
        found = tuple(observe(wording.patterns, line))
        is_marker = wording.marker.search(line.text) is not None
        refusal = _refusal(wording, line)
        if wording.argument_line is not None and wording.argument_line.search(line.text):
            if line.text.rstrip().endswith("{"):
                self._arguments = (wording, [line.text], line)
            else:
                found += tuple(observe(wording.arguments, line))
        if not (found or is_marker or refusal):
            return False
        if not is_marker and refusal is None and self._may_be_early(wording, found):
            self._early += found
            return True
        start = self._start_of(wording, line, is_marker=is_marker, is_own=_is_own(found, refusal))
        if start is None:
            return False
        self._take_early(start)
        start.add(found)
        if refusal is not None:
            start.refusals.append(refusal)
            start.last_line = line.number
        return True

    def _may_be_early(self, wording: Wording, found: tuple[Observation, ...]) -> bool:
        """Whether a line gives only settings and follows a complete start, or none: they may belong to the next one,
        because vLLM's offline API prints them before the line that begins a start."""
        current = self._current
        is_between = current is None or (current.wording is wording and current.has_memory())
        return is_between and {item.name for item in found} <= wording.early_settings

    def _take_early(self, start: _Building) -> None:
        """Gives ``start`` the settings printed before its marker, or after its memory where no other marker follows."""
        if self._early and start.wording.early_settings:
            start.first_line = min(start.first_line, self._early[0].line)
            start.add(self._early)
        self._early = []

    def _start_of(self, wording: Wording, line: LogLine, *, is_marker: bool, is_own: bool) -> _Building | None:
        """The start that the line belongs to, perhaps a new one; None where it may be any engine's, and inside another
        engine's start, where only a marker begins a new one."""
        current = self._current
        if current is not None and current.wording is wording:
            begins = is_marker and current.has_memory() and not current.is_joined_by(line.rank)
        else:
            begins = is_marker or (is_own and (current is None or not current.has_memory()))
            if not begins:
                return None
        if begins:
            if current is not None:
                self._finished.append(_finish(current))
            self._current = _Building(wording=wording, first_line=line.number, last_line=line.number)
        return self._current


def _is_own(found: tuple[Observation, ...], refusal: Refusal | None) -> bool:
    """Whether a line can only be this engine's: any engine prints out-of-memory messages and a model's name."""
    return any(item.name in _MEMORY | {"version", "file", "free_before_bytes", "total_bytes"} for item in found) or (
        refusal is not None and refusal.reason != "out_of_memory"
    )


def _refusal(wording: Wording, line: LogLine) -> Refusal | None:
    for reason, known in wording.refusals:
        if known.regex.search(line.text) is None:
            continue
        numbers: dict[str, Any] = {item.name: item.value for item in observe((known,), line)}
        return Refusal(reason=reason, line=line.number, text=line.text[:500], **numbers)
    return None


def _finish(building: _Building) -> EngineStart:
    """One value for each figure: the last that each rank printed, then the smallest or the largest of the ranks."""
    seen = building.wording.combine(tuple(building.seen))
    by_rank: dict[str, dict[str | None, Observation]] = {}
    for item in seen:
        by_rank.setdefault(item.name, {})[item.rank] = item
    values: dict[str, object] = {}
    for name, ranks in by_rank.items():
        last = [item.value for item in ranks.values()]
        numbers = [value for value in last if isinstance(value, (int, float)) and not isinstance(value, bool)]
        values[name] = (min(numbers) if name in _SMALLEST else max(numbers)) if len(numbers) == len(last) else last[-1]
    total, requested = values.get("total_bytes"), values.get("requested_bytes")
    if "memory_utilization" not in values and isinstance(total, int) and isinstance(requested, int) and total:
        values["memory_utilization"] = requested / total
    known: dict[str, Any] = {name: value for name, value in values.items() if name in _FIELDS}
    return EngineStart(
        engine=building.wording.engine,
        first_line=building.first_line,
        last_line=building.last_line,
        refusals=tuple(building.refusals),
        observations=seen,
        **known,
    )
