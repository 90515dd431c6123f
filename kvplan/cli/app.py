"""The Typer app: a line of help for every command here, its module in a file of its own.

A command that was not asked for is only a name with a line of help; its module is not imported.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated

import typer

from kvplan.cli.help import help_width, with_help

COMMANDS: dict[str, str] = {
    "model": "Price one token and one sequence of a model.",
    "fit": "Show where memory goes and how many worst-case requests fit.",
    "simulate": "Play traffic against the KV pool under admission strategies.",
    "recommend": "Search for settings that keep the promises, with their price.",
    "check": "Check the limits of a traffic file, for CI.",
    "compare": "Find the smallest GPU and parallelism that carries a load.",
    "calibrate": "Compare a start-up log with the plan, and correct the plan.",
    "trace": "Describe a recorded trace and write a traffic file from it.",
    "init": "Write a commented traffic file that runs as it stands.",
    "gateway": "Enforce the plan in front of a running engine.",
    "list": "Search the catalogues: GPUs, engines, models, clients, traffic.",
    "explain": "Show one page on a topic.",
}
_MODULES = {"list": "list_profiles"}
EVERYDAY: dict[str, str] = {
    "model": "engine tensor_parallel kv_dtype max_model_len tokens format offline",
    "fit": "gpu engine tensor_parallel max_model_len max_num_seqs kv_dtype prompt max_tokens kv_memory calibration "
    "flags format offline",
    "simulate": "strategy seeds scale safety_fraction default_max_tokens set_keys requests plot report format offline",
    "recommend": "max_truncated max_refused max_e2e_p99 observed write output seeds set_keys format",
    "check": "against baseline strict seeds policy set_keys output format offline",
    "compare": "gpu traffic prompt max_tokens concurrency tensor_parallel kv_dtype engine price output format",
    "calibrate": "measured_run traffic model gpu output format offline",
    "gateway": "upstream traffic host port ledger trust_plan safety_fraction default_max_tokens set_keys demo",
}
"""The options that ``--help`` shows, so that it fits a screen; ``--help-all`` shows all. Without a line here: all."""

HELP = "How much work fits on these GPUs, and what happens when more arrives?"
_COMPLETION = frozenset({"--install-completion", "--show-completion"})
"""Typer's options of the shell's completion: understood, but not among the few that the help shows."""
EXAMPLE = "kvplan fit meta-llama/Llama-3.1-8B-Instruct --gpu h100"


def build_app(arguments: Sequence[str] | None) -> typer.Typer:
    """The app, with the commands named in ``arguments`` loaded; with None, all of them (shell completion)."""
    app = typer.Typer(
        name="kvplan",
        help=HELP,
        epilog=_shown(EXAMPLE),
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        add_completion=arguments is None or not _COMPLETION.isdisjoint(arguments),
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, summary in COMMANDS.items():
        if arguments is None or name in arguments:
            module = import_module(f"kvplan.cli.{_MODULES.get(name, name)}")
            command, opening = with_help(module.run, arguments, EVERYDAY.get(name, "").split())
            app.command(
                name,
                help=opening,
                short_help=summary,
                epilog=_shown(module.EXAMPLE),
                no_args_is_help=module.NEEDS_ARGUMENTS,
            )(command)
        else:
            app.command(name, help=summary)(_unloaded(name))
    return app


def _shown(example: str) -> str:
    """The commands of ``example``, one per line; one that is too long for the terminal is split for a shell to join.

    The backspace before them makes Typer keep the lines.
    """
    width, lines = help_width() - 2, example.split("\n")
    if any(len(line) > width for line in lines):
        from kvplan.report.page import wrap_command

        lines = [part for line in lines for part in wrap_command(line, width)]
    return "\n  ".join(["\b\nExample:", *lines])


def _unloaded(name: str) -> Callable[[], None]:
    """A placeholder for a command that the arguments do not name."""

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
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""
