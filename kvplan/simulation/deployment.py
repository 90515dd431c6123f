"""From the file's deployment to the engine's own question: what it names is looked up, what it calibrates applied."""

from dataclasses import fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvplan.calibration_file import apply_calibration, load_calibration
from kvplan.engines import parse_engine
from kvplan.engines.base import Deployment
from kvplan.engines.devices import check_pool
from kvplan.model import ModelSpec
from kvplan.profiles.loader import load_gpu
from kvplan.traffic.kinds import PlannedDeployment

_SAME_NAMES = {field.name for field in fields(Deployment)} & {field.name for field in fields(PlannedDeployment)}


def plan_deployment(
    wanted: PlannedDeployment,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    model_id: str | None = None,
) -> Deployment:
    """The engine's own question: the file's deployment, its GPU and draft model looked up, its calibration applied."""
    share, windows, states = wanted.gpu_memory_utilization, wanted.swa_full_tokens_ratio, wanted.mamba_full_memory_ratio
    asked: dict[str, Any] = {name: getattr(wanted, name) for name in _SAME_NAMES}
    asked |= {
        "engine": parse_engine(wanted.engine),
        "gpu": None if wanted.gpu is None else load_gpu(wanted.gpu, extra_folder=profiles_folder),
        "draft_model": None
        if wanted.draft_model is None
        else read_named_model(wanted.draft_model, offline=offline, profiles_folder=profiles_folder),
    }
    deployment = Deployment(
        **asked,
        pipeline_layers=wanted.pp_layers,
        memory_utilization=None if share is None else Fraction(str(share)),
        lora_slots=wanted.max_loras,
        lora_rank=wanted.max_lora_rank,
        media_limits=wanted.limit_mm_per_prompt,
        kv_memory_bytes=None if wanted.kv_pool is None else wanted.kv_pool.memory_bytes,
        window_pool_ratio=None if windows is None else Fraction(str(windows)),
        state_pool_ratio=None if states is None else Fraction(str(states)),
    )
    check_pool(deployment)
    if wanted.calibration is None:
        return deployment
    found = load_calibration(Path(wanted.calibration))
    if deployment.gpu is None and found.gpu is not None:
        deployment = replace(deployment, gpu=load_gpu(found.gpu, extra_folder=profiles_folder))
    return apply_calibration(deployment, found, model_id)


def read_named_model(
    reference: str | None, *, offline: bool = False, profiles_folder: str | Path | None = None
) -> ModelSpec | None:
    """The model that a key of the file names; None where it names none."""
    if reference is None:
        return None
    from kvplan.sources import read_model  # not before a model is named: it brings the readers of every family

    return read_model(reference, offline=offline, profiles_folder=profiles_folder)
