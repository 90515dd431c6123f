"""``kvplan list`` as JSON (``kvplan.list``): every field of every profile."""

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
            "rows": [asdict(row) for row in listing.rows],
        },
    )
