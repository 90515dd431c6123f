"""From the traffic file's deployment to the memory plan of its pool: one replica, as the engine would lay it out."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kvplan.calibration_file import apply_calibration, load_calibration
from kvplan.capacity import Fit, fit
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import CacheGroup, CacheLayout
from kvplan.engines.options import deployment_of, rows
from kvplan.errors import InputError, KvplanError
from kvplan.layers import FullAttention
from kvplan.model import ModelSpec, Shape, Source, Weights
from kvplan.traffic.spec import PlannedDeployment, Traffic

_DEFAULT_BLOCK_TOKENS = 16
_UNKNOWN_KV_BYTES = 2**44  # enough for any layout; only the layout of that plan is used


@contextmanager
def placed_in(traffic: Traffic) -> Iterator[None]:
    """What is wrong with an option of the plan is reported at its key in the traffic file, if it stands there."""
    try:
        yield
    except KvplanError as error:
        keys = next((row.keys for row in rows() if error.key in row.keys), ())
        key = next((key for key in keys if key in traffic.deployment_lines), None)
        if error.file is None and key is not None:
            error.file, error.line, error.key = traffic.file, traffic.deployment_lines[key], f"deployment.{key}"
        raise


def plan_deployment(
    wanted: PlannedDeployment,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    model_id: str | None = None,
) -> Deployment:
    """The deployment that the engine plans: GPU and draft model are looked up, the calibration is applied."""
    asked = {field.name: getattr(wanted, field.name) for field in fields(Deployment)}
    asked |= {
        "gpu": wanted.gpu_name,
        "draft_model": wanted.draft_model_name,
        "kv_memory_bytes": None if wanted.kv_pool is None else wanted.kv_pool.memory_bytes,
    }
    deployment = deployment_of(asked, offline=offline, profiles_folder=profiles_folder)
    if wanted.calibration is None:
        return deployment
    return apply_calibration(deployment, load_calibration(Path(wanted.calibration)), model_id)


def read_named_model(
    reference: str | None, *, offline: bool = False, profiles_folder: str | Path | None = None
) -> ModelSpec | None:
    """The model that the file names; None where it names none."""
    if reference is None:
        return None
    from kvplan.sources import read_model  # only here: it imports the readers of every family

    return read_model(reference, offline=offline, profiles_folder=profiles_folder)


def plan_model_pool(traffic: Traffic, deployment: Deployment, model: ModelSpec) -> tuple[Fit, tuple[str, ...]]:
    """The plan with the model's own groups, and notes on what the simulation leaves out of it.

    The groups are paged as the engine pages them: with prefix caching recurrent states hold more blocks (vLLM keeps the
    last ones), and a ledger that charged fewer would promise blocks that the engine does not have.
    """
    pool = traffic.deployment.kv_pool
    if pool is None and deployment.gpu is None and deployment.gpu_memory_bytes is None:
        raise InputError(
            "the file names neither a GPU nor a KV pool",
            hint="add deployment.gpu (kvplan list gpus), or deployment.kv_pool",
            file=traffic.file,
            key="deployment",
        )
    if pool is not None and pool.blocks is not None:
        deployment = replace(deployment, kv_memory_bytes=_UNKNOWN_KV_BYTES)
    planned = fit(model, deployment)
    groups = len(planned.plan.layout.groups)
    if groups == 1 or not planned.plan.settings.prefix_caching:
        return planned, ()
    return planned, (
        f"prefix hits are not simulated: the model's layers form {groups} groups, so every prompt is computed in full",
    )


def plan_plain_pool(traffic: Traffic, deployment: Deployment, model: ModelSpec | None) -> Fit:
    """The plan of a pool given in blocks: one full-attention group, and the engine's defaults for everything else."""
    pool = traffic.deployment.kv_pool
    if pool is None or pool.blocks is None:
        raise InputError(
            "the file names neither a model nor a kv_pool in blocks",
            hint="add model: org/name, or deployment.kv_pool: {blocks: 2588, block_tokens: 16}",
            file=traffic.file,
            key="model",
        )
    window = deployment.max_model_len or (model.max_context_tokens if model is not None else None)
    if window is None:
        raise InputError(
            "the context window is unknown: the file names neither a model nor max_model_len",
            hint="add deployment.max_model_len",
            file=traffic.file,
            key="deployment.max_model_len",
        )
    block_tokens = pool.block_tokens or deployment.block_size or _DEFAULT_BLOCK_TOKENS
    planned = fit(_one_layer_model(window), replace(deployment, **_OF_ONE_LAYER))
    page_bytes = planned.plan.layout.groups[0].page_bytes
    group = CacheGroup(kind="full attention", layers=1, rule="full", block_tokens=block_tokens, page_bytes=page_bytes)
    layout = CacheLayout(
        block_tokens=block_tokens,
        bytes_per_block=page_bytes,
        groups=(group,),
        in_flight_tokens=planned.plan.layout.in_flight_tokens,
        reserved_blocks=planned.plan.layout.reserved_blocks,
    )
    return replace(planned, plan=replace(planned.plan, layout=layout, blocks=pool.blocks))


_OF_ONE_LAYER: dict[str, Any] = {
    "block_size": None,
    "kv_memory_bytes": _UNKNOWN_KV_BYTES,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "pipeline_layers": None,
    "speculative_tokens": 0,
    "speculative_method": None,
    "draft_model": None,
}
"""Settings of a deployment that depend on the model's layers."""


def _one_layer_model(window: int) -> ModelSpec:
    """A placeholder with one full-attention layer, of which only the paging is used."""
    return ModelSpec(
        id="(a pool that was measured)",
        architecture="none",
        source=Source(name="kv_pool"),
        layers=((FullAttention(kv_heads=1, head_dim=64, value_head_dim=64),),),
        max_context_tokens=window,
        query_heads=(),
        dtype="bfloat16",
        shape=Shape(hidden=64),
        weights=Weights(),
    )
