"""Every request of a run as a line, a piece of the rows at a time: a line takes ten times the memory of its row."""

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.simulation.types import Integers, Outcome, RequestRows, Requests
from kvplan.traffic.on_disk import forget

_PIECE = 20_000


@dataclass(frozen=True, kw_only=True, eq=False)
class StrategyRows:
    """Every request of one strategy on one seed, as arrays."""

    strategy: str
    seed: int
    requests: Requests
    rows: RequestRows
    class_names: tuple[str, ...]
    class_index: Integers


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


def request_lines(rows: StrategyRows) -> Iterator[tuple[object, ...]]:
    """The lines of ``--requests``, by order of arrival, as ``REQUEST_COLUMNS``; None: it never happened."""
    asked, ended = rows.requests, rows.rows
    names = {outcome.value: outcome.name.lower() for outcome in Outcome}
    for start in range(0, len(asked.arrival_s), _PIECE):
        piece = slice(start, start + _PIECE)
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
        for index, (place, arrival_s, attempts, outcome, *rest) in enumerate(columns, start=start):
            name = rows.class_names[place]
            yield (rows.strategy, rows.seed, index, name, arrival_s, attempts, names[outcome], *rest)
        forget(asked, ended, rows)
