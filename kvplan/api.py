"""kvplan from Python: the same functions that the commands call, typed, with plain arguments.

``import kvplan`` alone loads nothing of this; each name is fetched when it is first used.
"""

from pathlib import Path
from typing import Any

from kvplan.admission import Ledger
from kvplan.capacity import Fit, RequestShape, Reservation, fit
from kvplan.check import check
from kvplan.compare import compare
from kvplan.compare.results import ShapeLoad
from kvplan.engines.deployment import Deployment, EngineVersion
from kvplan.engines.engine_plan import Finding
from kvplan.engines.options import deployment_of, read_options
from kvplan.errors import InputError, KvplanError, ModelUnavailableError, UnsupportedModelError
from kvplan.flags import engine_flags
from kvplan.model import ModelSpec
from kvplan.pricing import ModelPrice, price
from kvplan.profiles.loader import load_client, load_gpu
from kvplan.recommend import recommend, with_recommendation
from kvplan.simulation.results import Simulation
from kvplan.simulation.simulate import simulate
from kvplan.sources import read_model
from kvplan.traffic.load import load_traffic, parse_traffic
from kvplan.traffic.spec import Traffic
from kvplan.units import format_bytes, parse_bytes

__all__ = [
    "Deployment",
    "EngineVersion",
    "Finding",
    "Fit",
    "InputError",
    "KvplanError",
    "Ledger",
    "ModelPrice",
    "ModelSpec",
    "ModelUnavailableError",
    "RequestShape",
    "Reservation",
    "ShapeLoad",
    "Simulation",
    "Traffic",
    "UnsupportedModelError",
    "check",
    "compare",
    "deploy",
    "engine_flags",
    "fit",
    "format_bytes",
    "load_client",
    "load_gpu",
    "load_traffic",
    "parse_bytes",
    "parse_traffic",
    "price",
    "read_model",
    "recommend",
    "simulate",
    "with_recommendation",
]


def deploy(
    gpu: str | None = None, *, offline: bool = False, profiles_folder: str | Path | None = None, **asked: Any
) -> Deployment:
    """A deployment from the keys of a traffic file's ``deployment``, and values as they are written there: every option
    of ``kvplan fit``. A draft model may also be a ``ModelSpec``.

    Raises InputError for a key or a value that is not known, and for a pool larger than the GPU.

    >>> model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    >>> chat = RequestShape(name="chat", prompt_tokens=4000)
    >>> planned = fit(model, deploy(kv_memory="40GiB", max_model_len=32768), [chat])
    >>> planned.plan.blocks, planned.verdict, planned.reservations[0].sequences
    (20480, 'fits', 9)
    """
    if gpu is not None:
        asked["gpu"] = gpu
    return deployment_of(read_options(asked), offline=offline, profiles_folder=profiles_folder)
