"""From the shape of the deployment to the values inside."""

from dataclasses import fields

from kvplan.engines.base import MediaLimit
from kvplan.traffic.file.places import Places
from kvplan.traffic.file.shapes.deployment import DeploymentShape, MediaShape
from kvplan.traffic.file.yaml_text import KeyPath
from kvplan.traffic.kinds import KvPool, PlannedDeployment, StepCost
from kvplan.units import parse_bytes

_DEPLOYMENT: KeyPath = ("deployment",)


def deployment(shape: DeploymentShape, places: Places) -> PlannedDeployment:
    """Most keys carry their name and value over; those with a unit, a place or a form of their own are read here."""
    known = {field.name for field in fields(PlannedDeployment)}
    plain = {name: getattr(shape, name) for name in DeploymentShape.model_fields if name in known}
    stages = None if shape.pp_layers is None else tuple(shape.pp_layers)
    if stages is not None and shape.pipeline_parallel == 1:
        plain["pipeline_parallel"] = len(stages)
    plain |= {
        "gpu": None if shape.gpu is None else str(shape.gpu),
        "pp_layers": stages,
        "limit_mm_per_prompt": _media_limits(shape),
        "weight_bytes": _memory(shape.weight_bytes, places, "weight_bytes"),
        "kv_pool": _pool(shape, places),
        "service": None if shape.service is None else StepCost(**shape.service.model_dump()),
        "calibration": None
        if shape.calibration is None
        else places.beside((*_DEPLOYMENT, "calibration"), shape.calibration, "calibration"),
    }
    memory = shape.gpu_memory
    ranks = [] if memory is None else memory.split(",") if isinstance(memory, str) else memory
    return PlannedDeployment(
        **plain,
        gpu_memory_bytes=tuple(places.at((*_DEPLOYMENT, "gpu_memory"), parse_bytes, text.strip()) for text in ranks)
        or None,
        kv_offload_bytes=_memory(shape.kv_offload, places, "kv_offload"),
        watermark_share=shape.watermark,
    )


def _memory(value: int | str | None, places: Places, *key: str) -> int | None:
    return places.at((*_DEPLOYMENT, *key), parse_bytes, value) if isinstance(value, str) else value


def _pool(shape: DeploymentShape, places: Places) -> KvPool | None:
    if shape.kv_memory is not None:
        return KvPool(memory_bytes=_memory(shape.kv_memory, places, "kv_memory"))
    pool = shape.kv_pool
    if pool is None:
        return None
    memory_bytes = _memory(pool.memory, places, "kv_pool", "memory")
    return KvPool(blocks=pool.blocks, block_tokens=pool.block_tokens, memory_bytes=memory_bytes)


def _media_limits(shape: DeploymentShape) -> tuple[MediaLimit, ...] | None:
    if shape.limit_mm_per_prompt is None:
        return None
    said = {
        sort: limit if isinstance(limit, MediaShape) else MediaShape(count=limit)
        for sort, limit in shape.limit_mm_per_prompt.items()
    }
    return tuple(MediaLimit(sort=sort, items=limit.count, item_tokens=limit.tokens) for sort, limit in said.items())
