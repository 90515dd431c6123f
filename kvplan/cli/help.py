"""What a command's help shows: ``--help`` the everyday options, on one screen; ``--help-all`` all of them, by group."""

import inspect
from collections.abc import Callable, Collection, Sequence
from copy import copy
from dataclasses import dataclass
from functools import wraps
from shutil import get_terminal_size
from textwrap import wrap
from typing import Annotated, Any, get_args

import typer

ALL = "--help-all"
_WIDEST = 80
"""Typer sets no help wider, whatever the terminal."""
_NARROWEST = 12
_MARGIN = 2
"""How far Typer indents what stands above and below the options."""


@dataclass(frozen=True, kw_only=True)
class Grouped:
    """One of the rarer options. Typer's own ``Option`` is made only when it is known whether it is shown."""

    group: str
    names: tuple[str, ...]
    settings: dict[str, Any]
    help: str

    def option(self, *, everyday: bool) -> Any:
        """The Typer option; the help of a rarer one opens with its group."""
        option: Callable[..., Any] = typer.Option
        shown = self.help if everyday else f"{self.group}: {self.help}"
        return option(*self.names, help=shown, **{"show_default": False, **self.settings})


def grouped(group: str, *names: str, help: str, **settings: Any) -> Grouped:
    """``typer.Option(*names, help=help, **settings)`` in a group of rarer options."""
    return Grouped(group=group, names=names, settings=settings, help=help)


def _show_help(context: typer.Context, wanted: bool) -> None:
    if wanted:
        print(context.get_help())
        raise typer.Exit


def with_help(
    run: Callable[..., int], arguments: Sequence[str] | None, everyday: Collection[str]
) -> tuple[Callable[..., int], str]:
    """``run`` as Typer understands it, and the opening of its help.

    Only the parameters in ``everyday`` are shown; all of them if it is empty, with ``--help-all``, or if the arguments
    are None (shell completion). What an argument stands for is explained under the first sentence, without the Python
    type that Typer would show beside it.
    """
    everything = arguments is None or ALL in arguments or not everyday
    placed: list[str] = []
    shown = 0

    def typed(parameter: inspect.Parameter) -> inspect.Parameter:
        nonlocal shown
        if not get_args(parameter.annotation):  # Typer's context
            return parameter
        kind, note = get_args(parameter.annotation)
        note = (
            note.option(everyday=not everyday or parameter.name in everyday)
            if isinstance(note, Grouped)
            else copy(note)
        )
        if isinstance(note, typer.models.ArgumentInfo):
            placed.append(f"{note.metavar}: {note.help}")
            note.hidden = True
        else:
            shown += 1
            note.hidden = not everything and parameter.name not in everyday
        return parameter.replace(annotation=Annotated[kind, note])

    signature = inspect.signature(run)
    parameters = [typed(each) for each in signature.parameters.values()]
    told = typer.Option(
        ALL, is_eager=True, callback=_show_help, hidden=not everyday, help=f"Show all {shown} options and exit."
    )
    parameters.append(
        inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, told])
    )

    @wraps(run)
    def command(**given: Any) -> int:
        del given["help_all"]
        return run(**given)

    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command, _opening(inspect.getdoc(run) or "", placed)


def help_width() -> int:
    """Columns for the text above and below the options."""
    return max(_NARROWEST, min(get_terminal_size().columns, _WIDEST) - _MARGIN)


def _opening(text: str, placed: Sequence[str]) -> str:
    """The paragraphs of ``text``, with the arguments under the first; the backspace makes Typer keep the lines."""
    first, *others = text.split("\n\n")
    lines = [
        line
        for part in (first, *placed)
        for line in wrap(part, help_width(), subsequent_indent="  " * (part in placed))
    ]
    return "\n\n".join(["\b\n" + "\n".join(lines), *others])
