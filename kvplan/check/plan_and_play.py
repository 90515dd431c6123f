"""A traffic file planned and played: what ``check`` judges and ``compare`` compares. An engine that does not start is
an answer too."""

from collections.abc import Mapping

from kvplan.capacity import DOES_NOT_FIT, Fit, fit
from kvplan.check.results import Measured
from kvplan.engines.deployment import Deployment
from kvplan.model import ModelSpec
from kvplan.simulation.backend import DoesNotStartError
from kvplan.simulation.deployment import placed_in, plan_deployment
from kvplan.simulation.front_door import judged_strategy
from kvplan.simulation.simulate import run_simulation
from kvplan.simulation.tasks import RunOptions
from kvplan.traffic.spec import Traffic
from kvplan.units import format_bytes


def measure(
    traffic: Traffic,
    options: RunOptions,
    *,
    model: ModelSpec | None = None,
    prices_per_hour: Mapping[str, float] | None = None,
) -> Measured:
    """The file's plan, and its traffic played under the policy that the file names.

    ``model`` replaces the one that the file names. ``prices_per_hour`` are of one GPU, by the profile's name, and win
    over the profile's own.
    """
    offline, profiles_folder = options.offline, options.profiles_folder
    if model is None and traffic.model is not None:
        from kvplan.sources import read_model

        model = read_model(traffic.model, offline=offline, profiles_folder=profiles_folder)
    model_id = None if model is None else model.id
    with placed_in(traffic):
        deployment = plan_deployment(
            traffic.deployment, offline=offline, profiles_folder=profiles_folder, model_id=model_id
        )
        planned = _planned(traffic, model, deployment)
    simulation, trouble = None, _trouble(planned)
    if trouble is None:
        try:
            simulation = run_simulation(traffic, options, model=model, strategies=(judged_strategy(traffic).name,))
        except DoesNotStartError as error:
            trouble = error.message
    return Measured(
        traffic=traffic,
        fit=planned,
        simulation=simulation,
        gpus=deployment.gpus * traffic.deployment.replicas,
        gpu_price_per_hour=_price(deployment, prices_per_hour or {}),
        trouble=trouble,
    )


def _planned(traffic: Traffic, model: ModelSpec | None, deployment: Deployment) -> Fit | None:
    """The memory plan, unless the file gives the pool in blocks."""
    pool = traffic.deployment.kv_pool
    if model is None or (pool is not None and pool.blocks is not None):
        return None
    if pool is None and deployment.gpu is None and deployment.gpu_memory_bytes is None:
        return None  # the simulation names what is missing
    return fit(model, deployment)


def _trouble(planned: Fit | None) -> str | None:
    if planned is None or planned.verdict != DOES_NOT_FIT:
        return None
    said = [finding.message for finding in planned.findings if finding.severity == "error"]
    if planned.plan.kv_bytes < 0:
        return f"does not fit: {format_bytes(-planned.plan.kv_bytes)} too little on one GPU, before any KV"
    return f"does not fit: {said[0]}" if said else "does not fit"


def _price(deployment: Deployment, prices_per_hour: Mapping[str, float]) -> float | None:
    if deployment.gpu is None:
        return None
    return prices_per_hour.get(deployment.gpu.name, deployment.gpu.price_per_hour)
