"""``kvplan calibrate --run`` as JSON (``kvplan.calibration_run``)."""

from dataclasses import asdict

from kvplan.report.json_text import document, picked
from kvplan.simulation.efficiency import Compared, EfficiencyFit, Part
from kvplan.simulation.service import BAND_SHARE, EFFICIENCY

_SETTINGS = "max_model_len max_num_seqs max_num_batched_tokens async_scheduling prefix_caching"


def text(found: EfficiencyFit, calibration_file: str) -> str:
    """The constant, both parts of the run measured and predicted, and the text of the file that keeps it."""
    plant = found.plant
    return document(
        "calibration_run",
        {
            "model": None if plant.model is None else plant.model.id,
            "gpu": plant.gpu,
            "engine": plant.engine,
            "pool": {"blocks": plant.blocks, "block_tokens": plant.layout.block_tokens, "replicas": plant.replicas},
            "settings": picked(plant.settings, _SETTINGS),
            "efficiency_share": found.efficiency,
            "service": vars(plant.service.step),
            "requests": found.requests,
            "skipped": found.skipped,
            "preemptions_predicted": found.preemptions,
            "running_peak": {"measured": found.running_peak_measured, "predicted": found.running_peak},
            "fitted": _part(found.fitted),
            "rest": _part(found.rest),
            "uncalibrated": {
                "efficiency_share": EFFICIENCY,
                "band_share": BAND_SHARE,
                "rest": _part(found.unfitted),
                "rest_slow": _part(found.unfitted_slow),
                "rest_fast": _part(found.unfitted_fast),
            },
            "calibration_file": calibration_file,
        },
    )


def _part(part: Part) -> dict[str, object]:
    return {"requests": part.requests, "ttft_s": _compared(part.ttft), "e2e_s": _compared(part.e2e)}


def _compared(times: Compared) -> dict[str, object]:
    return {
        "measured": _named(asdict(times.measured)),
        "predicted": _named(asdict(times.predicted)),
        "mean_error_share": times.error_share,
    }


def _named(times: dict[str, float]) -> dict[str, float]:
    return {name.removesuffix("_s"): value for name, value in times.items()}
