"""Engines' start-up logs → figures: weights, pools, peaks, graphs, settings and refusals, each with its line."""

from kvplan.engine_logs.figures import EngineStart, Observation, Refusal
from kvplan.engine_logs.reader import read_log, read_starts

__all__ = ["EngineStart", "Observation", "Refusal", "read_log", "read_starts"]
