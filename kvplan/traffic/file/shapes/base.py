"""A block of the file, and the values that stand in many of them."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Bytes = Annotated[str, Field(examples=["10GiB", "80GB"], description="An amount of memory with its unit")]
Duration = Annotated[str, Field(examples=["30m", "600s", "250ms"], description="A time with its unit")]
Rate = Annotated[str, Field(examples=["6/s", "90/m"], description="Events per unit of time")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**40)]
CountOrNone = Annotated[int, Field(ge=0, le=2**40)]
Positive = Annotated[float, Field(gt=0, le=1e15)]
NotNegative = Annotated[float, Field(ge=0, le=1e15)]


class Section(BaseModel):
    """A block of the file: unknown keys are refused, numbers are not converted from text."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class OneOf(Section):
    """A block of which exactly one key must be given."""

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one of: {known}" + (f" (found {', '.join(given)})" if given else ""))
        return self
