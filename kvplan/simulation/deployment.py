"""From the file's deployment to the engine's own question: what it names is looked up, what it calibrates applied."""

from dataclasses import fields
from pathlib import Path

from kvplan.calibration_file import apply_calibration, load_calibration
from kvplan.engines.base import Deployment
from kvplan.engines.options import deployment_of
from kvplan.model import ModelSpec
from kvplan.traffic.spec import PlannedDeployment


def plan_deployment(
    wanted: PlannedDeployment,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
    model_id: str | None = None,
) -> Deployment:
    """The engine's own question: the file's deployment, its GPU and draft model looked up, its calibration applied."""
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
    """The model that a key of the file names; None where it names none."""
    if reference is None:
        return None
    from kvplan.sources import read_model  # not before a model is named: it brings the readers of every family

    return read_model(reference, offline=offline, profiles_folder=profiles_folder)
