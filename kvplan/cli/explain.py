"""``kvplan explain``: one page on a topic."""

from typing import Annotated

import typer

from kvplan.cli.options import Format, Offline, Profiles
from kvplan.cli.output import show, write_data

NEEDS_ARGUMENTS = False
EXAMPLE = "kvplan explain windows"


def run(
    topic: Annotated[str | None, typer.Argument(help="The topic; without one, all topics.")] = None,
    format: Format = "text",
    offline: Offline = False,
    profiles: Profiles = None,
) -> int:
    """One page on a topic. Without one: the topics."""
    from kvplan.explain import TOPICS, load_page

    page = None if topic is None else load_page(topic)
    if format == "json":
        from kvplan.report.explain_json import text as json_text

        write_data(json_text(page, TOPICS))
    else:
        from kvplan.report.explain_text import text

        show(text(page, TOPICS))
    return 0
