"""``kvplan list``: the catalogues, searchable."""

from typing import Annotated, Literal

import typer

from kvplan.cli.options import Format, Offline, Profiles, profiles_folder
from kvplan.cli.output import show_report

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan list gpus h100"


def run(
    catalogue: Annotated[
        Literal["gpus", "engines", "models", "clients", "traffic"],
        typer.Argument(metavar="CATALOGUE", help="gpus, engines, models, clients or traffic."),
    ],
    search: Annotated[
        list[str] | None, typer.Argument(metavar="WORD", help="names (and aliases) must contain each of these.")
    ] = None,
    format: Format = "text",
    offline: Offline = False,
    profiles: Profiles = None,
) -> int:
    """List what kvplan knows by name. Add your own with --profiles DIR or KVPLAN_PROFILES."""
    from kvplan.catalogue import listing

    show_report("listing", format, listing(catalogue, " ".join(search or ()), folder=profiles_folder(profiles)))
    return 0
