"""The options of a deployment on a command line, made from the one list of them in ``engines.options``."""

import inspect
from collections.abc import Callable, Collection, Iterator
from functools import wraps
from typing import Annotated, Any

from kvplan.cli.help import grouped
from kvplan.engines.option_types import SWITCH
from kvplan.engines.options import Row, rows
from kvplan.errors import InputError

Command = Callable[..., int]


def takes_deployment(*fields: str) -> Callable[[Command], Command]:
    """Decorates a command whose parameter ``asked`` is a dictionary of deployment options by key: gives it an option
    for each of these ``fields``, or for all of them."""

    def expand(run: Command) -> Command:
        chosen = [row for row in rows() if not fields or row.field in fields]
        keys = [key for row in chosen for key in row.keys]
        signature = inspect.signature(run)
        parameters = [
            parameter
            for each in signature.parameters.values()
            for parameter in ([made for row in chosen for made in _parameters(row)] if each.name == "asked" else [each])
        ]

        @wraps(run)
        def command(**given: Any) -> int:
            asked = {key: given.pop(key) for key in keys if key in given}
            said = {key: value for key, value in asked.items() if value is not None}
            try:
                return run(**given, asked=dict(said))
            except InputError as error:
                error.key = _as_said(error.key, said)
                raise

        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return expand


def flag_of(key: str) -> str:
    """The flag for ``key``."""
    return f"--{key.replace('_', '-')}"


def _as_said(key: str | None, said: Collection[str]) -> str | None:
    """``key``, or the alias of its option that the user wrote."""
    words = next((row.keys for row in rows() if row.key == key), ())
    return next((flag_of(word) for word in words[1:] if word in said), key)


def _parameters(row: Row) -> Iterator[inspect.Parameter]:
    """One parameter for each alias of an option, so that a mistake is reported under the word that was used."""
    option, metavar = row.option, {} if row.option.type is SWITCH else {"metavar": row.option.type.metavar}
    for key in row.keys:
        flag, is_first = flag_of(key), key == row.key
        turned_off = f"/--no-{flag[2:]}" if option.type is SWITCH and row.default is not False else ""
        note = grouped(
            option.group,
            f"{flag}{turned_off}",
            *(option.short if is_first else ()),
            help=option.help if is_first else f"Same as {flag_of(row.key)}.",
            **metavar,
        )
        yield inspect.Parameter(
            key,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=None,
            annotation=Annotated[option.type.cli_type | None, note],
        )
