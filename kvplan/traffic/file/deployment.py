"""The ``deployment`` section: every option of an engine by its keys, and what the file alone says of it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, create_model, model_validator

from kvplan.calibration_file import load_calibration
from kvplan.engines.options import Row, read_options, rows
from kvplan.errors import InputError
from kvplan.profiles.loader import load_gpu
from kvplan.traffic.file.fields import (
    Bytes,
    BytesText,
    Count,
    CountOrZero,
    File,
    InvalidValueError,
    NotNegative,
    Positive,
    Section,
    Text,
    as_invalid_value,
)
from kvplan.traffic.spec import MAX_REPLICAS, KvPool, PlannedDeployment, StepCost


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
        if not any(seconds for _, seconds in self):
            raise ValueError("a step that takes no time cannot be simulated")
        return self


class MediaShape(Section):
    count: CountOrZero = 1
    tokens: Count | None = None


class OwnShape(Section):
    """What the file says of a deployment besides the options of an engine."""

    calibration: File | None = None
    replicas: Annotated[int, Field(ge=1, le=MAX_REPLICAS)] = 1
    router: Literal["round_robin", "least_reserved"] = "round_robin"
    watermark: Annotated[float, Field(ge=0, lt=1)] = 0.0
    long_prefill_token_threshold: CountOrZero = 0
    max_queued_requests: CountOrZero | None = None
    max_queued_tokens: CountOrZero | None = None
    kv_pool: PoolShape | None = None
    service: ServiceShape | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.kv_pool is not None and "kv_memory" in self.model_fields_set:
            raise ValueError("kv_memory is short for kv_pool: {memory: …}; give one of them")
        return self

    def deployment(self, profiles: str | Path | None) -> PlannedDeployment:
        """What is asked of each engine. Names of models and GPUs stay names; the GPU must be known.

        A calibration's engine and GPU hold where the file names none.
        """
        asked = self._options()
        if self.calibration is not None:
            asked = {**load_calibration(Path(self.calibration)).device, **asked}
        gpu_name, memory_bytes = asked.pop("gpu", None), asked.pop("kv_memory_bytes", None)
        if gpu_name is not None:
            with as_invalid_value(at=("deployment", "gpu")):
                load_gpu(gpu_name, extra_folder=profiles)
        pool = None if memory_bytes is None else KvPool(memory_bytes=memory_bytes)
        if self.kv_pool is not None:
            given = self.kv_pool
            pool = KvPool(blocks=given.blocks, block_tokens=given.block_tokens, memory_bytes=given.memory)
        return PlannedDeployment(
            gpu_name=gpu_name,
            draft_model_name=asked.pop("draft_model", None),
            kv_pool=pool,
            service=None if self.service is None else StepCost(**dict(self.service)),
            calibration=self.calibration,
            replicas=self.replicas,
            router=self.router,
            watermark_share=self.watermark,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            max_queued_requests=self.max_queued_requests,
            max_queued_tokens=self.max_queued_tokens,
            **asked,
        )

    def _options(self) -> dict[str, Any]:
        keys = {key for row in rows() for key in row.keys}
        written = self.model_dump(include=keys, exclude_unset=True, exclude_none=True)
        try:
            return read_options(written, {key: f"{key}:" for key in written})
        except InputError as error:
            key = (error.key or "").rstrip(":")
            message = error.message.removeprefix(f"{key}: ")
            raise InvalidValueError(message, hint=error.hint, at=("deployment", key)) from error


_Amount = Count | BytesText
_WRITTEN: dict[str, Any] = {
    "switch": bool,
    "count": Count,
    "tokens": Count | Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)?[kKmM]$", examples=["32K", "32k"])],
    "count_or_none": CountOrZero,
    "counts": Annotated[list[Count], Field(min_length=1)] | Annotated[str, Field(pattern=r"^\d+( *, *\d+)*$")],
    "word": Text,
    "amount": _Amount,
    "amounts": _Amount | list[_Amount],
    "ratio": Positive,
    "memory_share": Annotated[float, Field(gt=0, le=1)] | Annotated[str, Field(examples=["0.5free", "40GiB"])],
    "media": dict[str, CountOrZero | MediaShape],
    "engine": str,
    "gpu": str | Count,  # 4090 is a number to YAML
    "model": Text,
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
