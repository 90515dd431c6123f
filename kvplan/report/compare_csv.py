"""``kvplan compare`` as CSV: a row per candidate, in the order of the answer."""

import csv
import io

from kvplan.compare.results import Comparison
from kvplan.report.compare_json import candidate_object

_PLAYED = ("sustainable_per_s", "refused_share", "gave_up_share", "truncated_share", "ttft_p99_s", "e2e_p99_s")


def text(comparison: Comparison) -> str:
    """The file, with a header; what is not known is empty."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    for place, one in enumerate(comparison.candidates, start=1):
        row = candidate_object(one, comparison)
        del row["broken_limits"], row["figures"]
        why = row.pop("reason")
        if place == 1:
            writer.writerow(["place", *row, *_PLAYED, "reason"])
        played = [one.figures.get(name) for name in _PLAYED]
        writer.writerow([place, *map(_plain, row.values()), *map(_plain, played), _plain(why)])
    return written.getvalue()


def _plain(value: object) -> object:
    return "" if value is None else str(value).lower() if isinstance(value, bool) else value
