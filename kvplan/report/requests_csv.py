"""``--requests``: every simulated request as a CSV row, floats in full precision, empty where something never
happened."""

from collections.abc import Iterable, Iterator

from kvplan.simulation.results import StrategyRows
from kvplan.simulation.types import Outcome
from kvplan.traffic.on_disk import forget

_PIECE_ROWS = 20_000
"""Rows that are made into text at a time: as text a row takes ten times its memory."""
REQUEST_COLUMNS = (
    "strategy",
    "seed",
    "id",
    "class",
    "arrival_s",
    "attempts",
    "outcome",
    "admitted_s",
    "scheduled_s",
    "first_token_s",
    "finish_s",
    "prompt_tokens",
    "max_output_tokens",
    "output_tokens",
    "preemptions",
)


def lines(runs: Iterable[StrategyRows]) -> Iterator[str]:
    """The header, then a line per request, strategy by strategy and seed by seed."""
    yield ",".join(REQUEST_COLUMNS) + "\n"
    for run in runs:
        for row in request_lines(run):
            yield ",".join(_cell(value) for value in row) + "\n"


def _cell(value: object) -> str:
    """``repr`` of a float is the shortest text that reads back as the same float."""
    if value is None:
        return ""
    text = repr(value) if isinstance(value, float) else str(value)
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & set(',"\n') else text


def request_lines(rows: StrategyRows) -> Iterator[tuple[object, ...]]:
    """The values of ``REQUEST_COLUMNS`` for each request, in order of arrival; None where it never happened."""
    asked, ended = rows.requests, rows.rows
    names = {outcome.value: outcome.name.lower() for outcome in Outcome}
    for start in range(0, len(asked.arrival_s), _PIECE_ROWS):
        piece = slice(start, start + _PIECE_ROWS)
        times = [
            [None if value != value else value for value in column[piece].tolist()]  # noqa: PLR0124 - nan is not itself
            for column in (ended.admitted_s, ended.scheduled_s, ended.first_token_s, ended.finish_s)
        ]
        columns = zip(
            rows.class_index[piece].tolist(),
            asked.arrival_s[piece].tolist(),
            ended.attempts[piece].tolist(),
            ended.outcome[piece].tolist(),
            *times,
            asked.prompt_tokens[piece].tolist(),
            asked.cap_tokens[piece].tolist(),
            ended.output_tokens[piece].tolist(),
            ended.preemptions[piece].tolist(),
            strict=True,
        )
        for index, (class_number, arrival_s, attempts, outcome, *rest) in enumerate(columns, start=start):
            name = rows.class_names[class_number]
            yield (rows.strategy, rows.seed, index, name, arrival_s, attempts, names[outcome], *rest)
        forget(asked, ended, rows)
