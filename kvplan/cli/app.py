"""The Typer app: every command has its line of help here and its module in a file of its own.

A command that was not asked for is a name with a line of help; its module stays unimported.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from kvplan.cli.grouped import epilog_width, with_groups

COMMANDS: dict[str, str] = {
    "model": "What one token and one sequence of a model cost.",
    "fit": "Where a GPU's memory goes and how many worst-case requests fit.",
    "simulate": "What happens when this traffic meets that pool.",
    "recommend": "Which settings keep the promises, and what they cost.",
    "check": "Do the limits of a traffic file hold? For CI.",
    "compare": "Which GPU and parallelism is the smallest that carries it.",
    "calibrate": "What an engine's start-up log teaches the plan.",
    "trace": "Describe a recorded trace and write a traffic file from it.",
    "init": "Write a commented traffic file that runs as it stands.",
    "gateway": "Enforce the plan in front of a running engine.",
    "list": "Search the catalogues: GPUs, engines, models, clients, traffic.",
    "explain": "One page on a topic.",
}
_MODULES = {"list": "list_profiles"}

HELP = "How much work can this model take on these GPUs, and what happens when more arrives?"
EXAMPLE = "kvplan fit meta-llama/Llama-3.1-8B-Instruct --gpu h100"


def build_app(arguments: Sequence[str] | None) -> typer.Typer:
    """The app, with the commands named in ``arguments`` loaded; with None, all of them (shell completion)."""
    app = typer.Typer(
        name="kvplan",
        help=HELP,
        epilog=_epilog(EXAMPLE),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        if arguments is None or name in arguments:
            module = import_module(f"kvplan.cli.{_MODULES.get(name, name)}")
            command, more = with_groups(module.run, arguments)
            app.command(
                name,
                short_help=summary,
                epilog=_epilog(module.EXAMPLE, more),
                no_args_is_help=module.NEEDS_ARGUMENTS,
            )(command)
        else:
            app.command(name, help=summary)(_unloaded(name))
    return app


def _epilog(example: str, more: str = "") -> str:
    """What ends a help text: the names of the rarer options, and an example; the sign before each keeps its lines."""
    return "\n\n".join(f"\b\n{part}" for part in (more, _shown(example)) if part)


def _shown(example: str) -> str:
    """The commands of ``example``, a line each; one too long for the terminal over several, for a shell to join."""
    width, lines = epilog_width() - 2, example.split("\n")
    if any(len(line) > width for line in lines):
        from kvplan.report.page import wrap_command

        lines = [part for line in lines for part in wrap_command(line, width)]
    return "\n  ".join(["Example:", *lines])


def _unloaded(name: str) -> Callable[[], None]:
    """What stands for a command that the arguments do not name."""

    def run() -> None:
        raise AssertionError(f"{name} was not loaded")

    return run


def _show_version(value: bool) -> None:
    if value:
        from kvplan import __version__

        print(f"kvplan {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """The options before the command."""
