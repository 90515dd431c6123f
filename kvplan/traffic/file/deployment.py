"""From the shape of the deployment to the values inside."""

from typing import Any

from kvplan.engines.options import read_options, rows
from kvplan.errors import InputError
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.shapes.deployment import OwnShape
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.traffic.kinds import KvPool, PlannedDeployment, StepCost
from kvplan.units import parse_bytes

_DEPLOYMENT: KeyPath = ("deployment",)


def deployment(shape: OwnShape, places: Places) -> PlannedDeployment:
    """The options are read by their forms; what is named there stays a name."""
    asked = _asked(shape, places)
    return PlannedDeployment(
        gpu_name=asked.pop("gpu", None),
        draft_model_name=asked.pop("draft_model", None),
        kv_pool=_pool(shape, asked.pop("kv_memory_bytes", None), places),
        service=None if shape.service is None else StepCost(**shape.service.model_dump()),
        calibration=None
        if shape.calibration is None
        else places.beside((*_DEPLOYMENT, "calibration"), shape.calibration, "calibration"),
        replicas=shape.replicas,
        router=shape.router,
        watermark_share=shape.watermark,
        long_prefill_token_threshold=shape.long_prefill_token_threshold,
        max_queued_requests=shape.max_queued_requests,
        max_queued_tokens=shape.max_queued_tokens,
        **asked,
    )


def _asked(shape: OwnShape, places: Places) -> dict[str, Any]:
    keys = {key for row in rows() for key in row.keys}
    written = shape.model_dump(include=keys, exclude_unset=True, exclude_none=True)
    try:
        return read_options(written, {key: f"{key}:" for key in written})
    except InputError as error:
        key = (error.key or "").rstrip(":")
        said = error.message.removeprefix(f"{key}: ")
        raise places.error((*_DEPLOYMENT, key), f"deployment.{key}: {said}", error.hint) from error


def _pool(shape: OwnShape, memory_bytes: int | None, places: Places) -> KvPool | None:
    pool = shape.kv_pool
    if pool is None:
        return None if memory_bytes is None else KvPool(memory_bytes=memory_bytes)
    if pool.memory is not None:
        memory_bytes = places.at((*_DEPLOYMENT, "kv_pool", "memory"), parse_bytes, pool.memory)
    return KvPool(blocks=pool.blocks, block_tokens=pool.block_tokens, memory_bytes=memory_bytes)
