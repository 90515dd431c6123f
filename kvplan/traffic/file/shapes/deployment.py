"""How a file writes the engine: every option of a deployment by its keys, and what the file alone says of it."""

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from kvplan.traffic.file.shapes.base import Bytes, Count, CountOrNone, NotNegative, Positive, Section
from pydantic import Field, create_model, model_validator

from kvplan.engines.options import Row, rows
from kvplan.traffic.kinds import MOST_REPLICAS


class PoolShape(Section):
    blocks: Annotated[int, Field(ge=2, le=2**40)] | None = None
    block_tokens: Count | None = None
    memory: Bytes | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.blocks is None) == (self.memory is None):
            raise ValueError("give either blocks or memory")
        if self.memory is not None and self.block_tokens is not None:
            raise ValueError("block_tokens goes with blocks; with memory the model's own groups are used")
        return self


class ServiceShape(Section):
    base_s: NotNegative
    prefill_token_s: NotNegative
    decode_sequence_s: NotNegative
    kv_token_s: NotNegative

    @model_validator(mode="after")
    def _takes_time(self) -> Self:
        if self.base_s + self.prefill_token_s + self.decode_sequence_s + self.kv_token_s <= 0:
            raise ValueError("a step that takes no time cannot be simulated")
        return self


class MediaShape(Section):
    count: CountOrNone = 1
    tokens: Count | None = None


class OwnShape(Section):
    """What the file says of a deployment beside the options of an engine."""

    calibration: str | None = None
    replicas: Annotated[int, Field(ge=1, le=MOST_REPLICAS)] = 1
    router: Literal["round_robin", "least_reserved"] = "round_robin"
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    long_prefill_token_threshold: CountOrNone = 0
    max_queued_requests: CountOrNone | None = None
    max_queued_tokens: CountOrNone | None = None
    kv_pool: PoolShape | None = None
    service: ServiceShape | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.kv_pool is not None and "kv_memory" in self.model_fields_set:
            raise ValueError("kv_memory is kv_pool: {memory: …} in short; give one of them")
        return self


_Amount = Count | Bytes
_WRITTEN: dict[str, Any] = {
    "switch": bool,
    "count": Count,
    "tokens": Count | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?[kKmM]$", examples=["32K", "32k"])],
    "count_or_none": CountOrNone,
    "counts": Annotated[list[Count], Field(min_length=1)] | Annotated[str, Field(pattern=r"^\d+( *, *\d+)*$")],
    "word": Annotated[str, Field(min_length=1)],
    "amount": _Amount,
    "amounts": _Amount | list[_Amount],
    "ratio": Positive,
    "memory_share": Annotated[float, Field(gt=0, le=1)] | Annotated[str, Field(examples=["0.5free", "40GiB"])],
    "media": dict[str, CountOrNone | MediaShape],
    "engine": str,
    "gpu": str | Count,  # 4090 is a number to YAML
    "model": Annotated[str, Field(min_length=1)],
}
"""Form of an option → what may stand for it in a file."""


def _key(row: Row) -> Any:
    return Annotated[_WRITTEN[row.option.type.name] | None, Field(description=row.option.help)], None


if TYPE_CHECKING:
    DeploymentShape = OwnShape
else:
    DeploymentShape = create_model(
        "DeploymentShape", __base__=OwnShape, **{key: _key(row) for row in rows() for key in row.keys}
    )
