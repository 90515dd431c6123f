"""``kvplan trace``: describes a recorded trace, and writes a traffic file drawn like it."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.cli import options
from kvplan.cli.files import check_free, readable
from kvplan.cli.output import show_above, show_report, talk, write_file
from kvplan.errors import InputError

NEEDS_ARGUMENTS = True
EXAMPLE = "kvplan trace azure_conv.csv.gz --output traffic.yaml"


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV or JSONL, .gz or not.")],
    kind: Annotated[
        Literal["auto", "plain", "azure", "burstgpt", "mooncake", "bailian"],
        typer.Option("--kind", show_default=False, help="The trace's format; detected by default."),
    ] = "auto",
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", show_default=False, help="Name of the class that is written.")
    ] = "recorded",
    output: options.Output = None,
    force: options.Force = False,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Describe a recorded trace and write a traffic file drawn like it.

    Without --output the file is printed, with the description as its opening comment.
    """
    from kvplan.traffic.traces.describe import describe_trace
    from kvplan.traffic.traces.writer import traffic_text

    if not name or not name.isprintable():
        raise InputError(f"--name {name!r} is not printable text", hint="--name chat", key="--name")
    if output is not None:
        check_free(output, force=force)
    description = describe_trace(readable(file), format=kind)
    text = traffic_text(description, name=name) if description.rate_per_s > 0 or output is not None else None
    if output is not None and text is not None:
        write_file(output, text, force=force)
        talk(f"next: kvplan simulate {output}")
    if format == "json":
        show_report("trace", "json", description, text)
    elif output is None and text is not None:
        from kvplan.report.trace import text as parts

        show_above(parts(description), text)
    else:
        show_report("trace", "text", description)
    return 0
