"""``--requests``: every simulated request as a CSV row, floats in full precision, empty where something never
happened."""

from collections.abc import Iterable, Iterator

from kvplan.simulation.request_lines import REQUEST_COLUMNS, StrategyRows, request_lines


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
