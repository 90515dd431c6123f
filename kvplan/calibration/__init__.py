"""A start-up log against the plan: which term differs, which lines mislead, a file to reproduce it."""

from kvplan.calibration.compare import Calibration, TermDifference, calibrate
from kvplan.calibration.deployment import deployment_of, release_in
from kvplan.calibration.file import CalibrationFile, apply_calibration, calibration_text, load_calibration
from kvplan.calibration.misleading import Misleading, effective_tokens, misleading_lines

__all__ = [
    "Calibration",
    "CalibrationFile",
    "Misleading",
    "TermDifference",
    "apply_calibration",
    "calibrate",
    "calibration_text",
    "deployment_of",
    "effective_tokens",
    "load_calibration",
    "misleading_lines",
    "release_in",
]
