"""``kvplan list`` as JSON (``kvplan.list``): every field of every profile."""

import math
from collections.abc import Mapping
from dataclasses import asdict

from kvplan.catalogue import Listing
from kvplan.report.json_text import document


def text(listing: Listing) -> str:
    """The document."""
    return document(
        "list",
        {
            "catalogue": listing.sort,
            "search": listing.search or None,
            "known": listing.known,
            "rows": [_sayable(asdict(row)) for row in listing.rows],
        },
    )


def _sayable(value: object) -> object:
    """``value`` with the infinities of a published config (a limit that is none) in words: JSON has none."""
    match value:
        case float() if not math.isfinite(value):
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case Mapping():
            return {key: _sayable(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_sayable(inner) for inner in value]
    return value
