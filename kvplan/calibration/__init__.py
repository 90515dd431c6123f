"""A start-up log against the plan: which term differs, which lines mislead, and a file that reproduces the start."""

from kvplan.calibration.compare import Calibration, TermDifference, calibrate, calibration_text
from kvplan.calibration.deployment import model_id_in

__all__ = ["Calibration", "TermDifference", "calibrate", "calibration_text", "model_id_in"]
