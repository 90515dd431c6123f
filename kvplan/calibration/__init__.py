"""A start-up log against the plan: which term differs, which lines mislead, and a file that reproduces the start."""

from kvplan.calibration.compare import Calibration, TermDifference, calibrate, calibration_text
from kvplan.calibration.deployment import deployment_of, model_id_in, release_in
from kvplan.calibration.misleading import Misleading, effective_tokens, misleading_lines

__all__ = [
    "Calibration",
    "Misleading",
    "TermDifference",
    "calibrate",
    "calibration_text",
    "deployment_of",
    "effective_tokens",
    "misleading_lines",
    "model_id_in",
    "release_in",
]
