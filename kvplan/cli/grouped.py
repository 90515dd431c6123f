"""Rarer options in groups: ``--help`` names them, a line a group; ``--help-all`` describes every one.

A command that declares an option with ``grouped`` gets both, so that its everyday help fits a screen.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, get_args

import typer

ALL = "--help-all"
_WIDEST = 80
"""Typer sets no help wider, whatever the terminal."""
_MARGIN = 2
"""How far Typer indents what ends a help text."""


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """An option that ``--help`` only names: Typer's own ``Option``, not made before it is known what to show."""

    group: str
    names: tuple[str, ...]
    settings: dict[str, Any]
    help: str

    def option(self, *, hidden: bool) -> Any:
        """What Typer is told; the group opens the help."""
        option: Callable[..., Any] = typer.Option
        shown = f"{self.group}: {self.help}"
        return option(*self.names, help=shown, hidden=hidden, **{"show_default": False, **self.settings})


def grouped(group: str, *names: str, help: str, **settings: Any) -> Grouped:
    """``typer.Option(*names, help=help, **settings)`` in a group of rarer options."""
    return Grouped(group=group, names=names, settings=settings, help=help)


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[
        bool, typer.Option(ALL, is_eager=True, callback=_show_help, help="Show every option and exit.")
    ],
)


def with_groups(run: Callable[..., int], arguments: Sequence[str] | None) -> tuple[Callable[..., int], str]:
    """``run`` as Typer understands it, and the paragraph that names its groups (empty where they are shown).

    With None for the arguments (shell completion) and with ``--help-all`` every option is shown.
    """
    everything = arguments is None or ALL in arguments
    groups: dict[str, list[str]] = {}

    def typed(parameter: inspect.Parameter) -> inspect.Parameter:
        note = next((each for each in get_args(parameter.annotation) if isinstance(each, Grouped)), None)
        if note is None:
            return parameter
        groups.setdefault(note.group, []).append(note.names[0].partition("/")[0])
        kind = get_args(parameter.annotation)[0]
        return parameter.replace(annotation=Annotated[kind, note.option(hidden=not everything)])

    signature = inspect.signature(run)
    parameters = [typed(each) for each in signature.parameters.values()]

    @wraps(run)
    def command(**given: Any) -> int:
        given.pop(_HELP_ALL.name, None)
        return run(**given)

    if groups:
        parameters.append(_HELP_ALL)
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    if everything or not groups:
        return command, ""
    return command, _paragraph(groups, epilog_width())


def epilog_width() -> int:
    """Columns for what ends a help text."""
    return min(get_terminal_size().columns, _WIDEST) - _MARGIN


def _paragraph(groups: dict[str, list[str]], width: int) -> str:
    """A line a group, its names aligned.

    >>> print(_paragraph({"llama.cpp": ["--swa-full"], "tgi": ["--a", "--b"]}, 40))
    More (--help-all describes them):
      llama.cpp  --swa-full
      tgi        --a --b
    """
    indent = max(map(len, groups)) + 4
    lines = []
    for group, names in groups.items():
        # Names are broken between, not inside: they are to be copied.
        first, *rest = wrap(" ".join(names), max(1, width - indent), break_on_hyphens=False, break_long_words=False)
        lines += [f"  {group.ljust(indent - 2)}{first}", *(f"{' ' * indent}{each}" for each in rest)]
    return "\n".join([f"More ({ALL} describes them):", *lines])
