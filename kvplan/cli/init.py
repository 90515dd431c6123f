"""``kvplan init``: a commented traffic file that runs as it stands."""

from kvplan.cli import options
from kvplan.cli.output import talk, write_data, write_file

NEEDS_ARGUMENTS = False
EXAMPLE = "kvplan init --output traffic.yaml"


def run(
    output: options.Output = None,
    force: options.Force = False,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Write a commented traffic file that runs as it stands."""
    from kvplan.traffic.file.template import TEMPLATE

    if output is not None:
        write_file(output, TEMPLATE, force=force)
        talk(f"next: kvplan simulate {output}")
    if format == "json":
        from kvplan.report.json_text import document

        write_data(document("init", {"output": None if output is None else str(output), "text": TEMPLATE}))
    elif output is None:
        write_data(TEMPLATE)
    return 0
