"""``kvplan explain``: one page on a topic."""

from typing import Annotated

import typer

from kvplan.cli.options import Format, Offline, Profiles
from kvplan.cli.output import show_report

NEEDS_ARGUMENTS = False
EXAMPLE = "kvplan explain windows"


def run(
    topic: Annotated[str | None, typer.Argument(metavar="TOPIC", help="`kvplan explain` lists them.")] = None,
    format: Format = "text",
    offline: Offline = False,
    profiles: Profiles = None,
) -> int:
    """Show one page on a topic."""
    from kvplan.explain import TOPICS, load_page

    show_report("explain", format, None if topic is None else load_page(topic), TOPICS)
    return 0
