"""``kvplan list``: the catalogues, searchable."""

from typing import Annotated, Literal

import typer

from kvplan.cli.options import Format, Offline, Profiles, profiles_folder
from kvplan.cli.output import show, write_data

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan list gpus h100"


def run(
    catalogue: Annotated[
        Literal["gpus", "engines", "models", "clients", "traffic"], typer.Argument(help="Which catalogue.")
    ],
    search: Annotated[
        list[str] | None, typer.Argument(help="Only names (and aliases) that contain these words.")
    ] = None,
    format: Format = "text",
    offline: Offline = False,
    profiles: Profiles = None,
) -> int:
    """List what kvplan knows by name. Add your own with --profiles DIR or KVPLAN_PROFILES."""
    import kvplan.catalogue as catalogues

    listing = catalogues.listing(catalogue, " ".join(search or ()), folder=profiles_folder(profiles))
    if format == "json":
        from kvplan.report.listing_json import text as json_text

        write_data(json_text(listing))
    else:
        from kvplan.report.listing_text import text

        show(text(listing))
    return 0
