"""``kvplan init``: a commented traffic file that runs as it stands."""

from typing import Annotated, Any

import typer

from kvplan.cli import options
from kvplan.cli.deployment_options import takes_deployment
from kvplan.cli.output import talk, write_data, write_file

NEEDS_ARGUMENTS = False
EXAMPLE = "kvplan init --model Qwen/Qwen3-32B --gpu l40s --output traffic.yaml"


@takes_deployment("gpu", "engine", "tensor_parallel", "max_model_len")
def run(
    asked: dict[str, Any],
    model: Annotated[
        str | None, typer.Option("--model", metavar="MODEL", help="Hub id[@revision], folder, config.json or .gguf.")
    ] = None,
    output: options.Output = None,
    force: options.Force = False,
    format: options.Format = "text",
    offline: options.Offline = False,
    profiles: options.Profiles = None,
) -> int:
    """Write a commented traffic file that runs as it stands."""
    from kvplan.traffic.file.template import template_for

    asked = {"gpu": None, "engine": None, **asked}
    text = template_for(model, **asked, offline=offline, profiles_folder=options.profiles_folder(profiles))
    if output is not None:
        write_file(output, text, force=force)
        talk(f"next: kvplan simulate {output}")
    if format == "json":
        from kvplan.report.json_text import document

        write_data(document("init", {"output": None if output is None else str(output), "text": text}))
    elif output is None:
        write_data(text)
    return 0
