"""Blocks of a traffic file and the values that stand in many of them, as pydantic validates them.

A validator raises ``InvalidValueError`` for what is wrong; ``complaints`` adds the key and its line.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, model_validator
from pydantic_core import PydanticKnownError

from kvplan.errors import InputError
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.units import parse_bytes, parse_per_second, parse_seconds


class InvalidValueError(ValueError):
    """A value that a traffic file must not have. ``at`` is the path of its key, from the block that is validated."""

    def __init__(self, message: str, *, hint: str | None = None, at: KeyPath = ()) -> None:
        super().__init__(message)
        self.hint = hint
        self.at = at


@dataclass(frozen=True, kw_only=True)
class LookupFolders:
    """Where the names in a file are looked up: its ``folder``, and a further folder of ``profiles``."""

    folder: Path
    profiles: str | Path | None


class Section(BaseModel):
    """A block of the file: unknown keys are refused, and numbers are not converted from text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class OneOf(Section):
    """A block in which exactly one key must be given."""

    @property
    def given(self) -> Any:
        """The value of the key that is given."""
        return next(value for _, value in self if value is not None)

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        found = [name for name, value in self if value is not None]
        if len(found) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one of: {known}" + (f" (found {', '.join(found)})" if found else ""))
        return self


@contextmanager
def as_invalid_value(*, at: KeyPath = ()) -> Iterator[None]:
    """Turns an InputError, of a parser or a catalogue, into an invalid value of the file."""
    try:
        yield
    except InputError as error:
        raise InvalidValueError(error.message, hint=error.hint, at=at) from error


def _with_unit(parse: Callable[[str], float], unit: str, description: str, *examples: str) -> BeforeValidator:
    """Validates text with a unit and converts it with ``parse``; ``unit`` is the usual one."""

    def convert(value: object) -> float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise InvalidValueError(f"{value} has no unit", hint=f"write it with its unit: {value}{unit}")
        if not isinstance(value, str):
            raise PydanticKnownError("string_type")
        with as_invalid_value():
            return parse(value)

    written = Annotated[str, Field(examples=list(examples), description=description)]
    return BeforeValidator(convert, json_schema_input_type=written)


def _lasting(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds <= 0:
        raise InputError(f"must be longer than 0 s, not {text}", hint="write a time such as 30s or 10m")
    return seconds


def _rate(text: str) -> float:
    per_second = parse_per_second(text)
    if per_second <= 0:
        raise InputError("the rate is zero", hint="leave the class out instead")
    return per_second


def _beside(name: str, info: "ValidationInfo[LookupFolders]") -> str:
    """The path of a file that the traffic file names, relative to its folder."""
    found = info.context.folder / Path(name).expanduser()
    if not found.exists():
        raise InvalidValueError(
            f"there is no {info.field_name} {found}", hint="a relative path starts at the traffic file's folder"
        )
    if found.is_dir():
        raise InvalidValueError(f"{found} is a folder, not a {info.field_name}")
    return str(found)


_TIME = "A time with its unit"
Seconds = Annotated[float, _with_unit(_lasting, "s", _TIME, "30m", "600s", "250ms")]
SecondsOrZero = Annotated[float, _with_unit(parse_seconds, "s", _TIME, "30m", "600s", "250ms")]
PerSecond = Annotated[float, _with_unit(_rate, "/s", "Events per unit of time", "6/s", "90/min")]
Bytes = Annotated[int, _with_unit(parse_bytes, "GiB", "An amount of memory with its unit", "10GiB", "80GB")]
BytesText = Annotated[str, Field(examples=["10GiB", "80GB"], description="An amount of memory with its unit")]
Text = Annotated[str, Field(min_length=1)]
File = Annotated[Text, AfterValidator(_beside)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**40)]
CountOrZero = Annotated[int, Field(ge=0, le=2**40)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]
