"""A start-up log against the plan: which term differs, which lines mislead, and a file that reproduces the start."""

from kvplan.calibration.compare import Calibration, TermDifference, calibrate, calibration_text
from kvplan.calibration.deployment import logged_deployment, model_id_in, release_in
from kvplan.calibration.misleading import Misleading, misleading_lines

__all__ = [
    "Calibration",
    "Misleading",
    "TermDifference",
    "calibrate",
    "calibration_text",
    "logged_deployment",
    "misleading_lines",
    "model_id_in",
    "release_in",
]
