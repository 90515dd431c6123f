"""A measured run as a calibration: the plant that it is played on, and the file that keeps what it taught."""

from dataclasses import replace
from pathlib import Path

from kvplan.calibration_file import FLAGS, PARALLELISM, SETTINGS, WORDS, is_said
from kvplan.errors import InputError
from kvplan.simulation.efficiency import EfficiencyFit, fit_efficiency
from kvplan.simulation.measured import MeasuredRun
from kvplan.simulation.plant import build_plant
from kvplan.traffic.spec import Traffic

_HEADER = (
    "# kvplan calibration: what a measured run taught.\n"
    "# kvplan simulate|recommend … --calibration FILE (or deployment.calibration in a traffic file) takes a step's\n"
    "# time from it: the roofline of the plan's model and GPU, divided by this efficiency.\n"
)


def calibrate_run(
    run: MeasuredRun,
    traffic: Traffic,
    *,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
) -> EfficiencyFit:
    """Fit the efficiency of ``traffic``'s deployment on a run that it served; of the traffic only that is used.

    A ``service`` in the file is left aside: it is what the fit replaces. Raises InputError where the file names no
    model or no GPU.
    """
    for key, value in (("model", traffic.model), ("gpu", traffic.deployment.gpu_name)):
        if value is None and (key == "model" or traffic.deployment.calibration is None):
            raise InputError(
                f"a measured run is compared with a roofline, which needs the {'GPU' if key == 'gpu' else key}",
                hint=f"name it: --{key} {'h100' if key == 'gpu' else 'org/name'}, or --traffic with the deployment",
                key=key,
            )
    plain = replace(traffic, deployment=replace(traffic.deployment, service=None))
    return fit_efficiency(run, build_plant(plain, offline=offline, profiles_folder=profiles_folder))


def run_calibration_text(found: EfficiencyFit, traffic: Traffic, source: str) -> str:
    """The file's text. ``source`` names the run. A start-up log's calibration that the plan used is kept in it."""
    import yaml

    wanted, step = traffic.deployment, found.plant.service.step
    kept: dict[str, object] = {}
    if wanted.calibration is not None:
        kept = yaml.safe_load(Path(wanted.calibration).read_text(encoding="utf-8"))
    settings: dict[str, object] = {
        name: getattr(wanted, name)
        for name in (*SETTINGS, *FLAGS, *WORDS)
        if is_said(name, getattr(wanted, name, None))
    }
    before = kept.get("settings")
    said = f"{source}, {found.requests} requests"
    document: dict[str, object] = {
        "engine": str(wanted.engine),
        "model": found.plant.model.id if found.plant.model is not None else traffic.model,
        **{name: getattr(wanted, name) for name in PARALLELISM},
        "gpu": found.plant.gpu,
        **kept,
        "source": f"{kept['source']}; {said}" if "source" in kept else said,
        "settings": {**(before if isinstance(before, dict) else {}), **settings},
        "efficiency": found.efficiency,
    }
    constants = "".join(f"#   {name}: {value:.4g}\n" for name, value in vars(step).items())
    return (
        _HEADER
        + yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
        + f"# One step of this run, as deployment.service in a traffic file would say it:\n{constants}"
    )
