"""kvplan from Python: the same functions that the commands call, typed, with plain arguments.

``import kvplan`` alone loads nothing of this; each name is fetched when it is first used.
"""

from fractions import Fraction
from pathlib import Path

from kvplan.admission import Ledger
from kvplan.capacity import Fit, RequestShape, Reservation, fit
from kvplan.check import check
from kvplan.compare import compare
from kvplan.engines import parse_engine
from kvplan.engines.base import Deployment, EngineVersion, Finding
from kvplan.engines.devices import check_pool
from kvplan.errors import InputError, KvplanError, ModelUnavailableError, UnsupportedModelError
from kvplan.flags import engine_flags
from kvplan.model import ModelSpec
from kvplan.pricing import ModelPrice, price
from kvplan.profiles.loader import load_client, load_gpu
from kvplan.recommend import recommend, with_recommendation
from kvplan.simulation.results import Simulation
from kvplan.simulation.run import simulate
from kvplan.sources import read_model
from kvplan.traffic.kinds import Traffic
from kvplan.traffic.load import load_traffic, parse_traffic
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
    gpu: str | None = None,
    *,
    engine: str = "vllm",
    kv_memory: str | None = None,
    gpu_memory: str | None = None,
    gpu_memory_utilization: float | None = None,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    data_parallel: int = 1,
    context_parallel: int = 1,
    kv_dtype: str = "auto",
    max_model_len: int | None = None,
    max_num_seqs: int | None = None,
    max_num_batched_tokens: int | None = None,
    prefix_caching: bool | None = None,
    async_scheduling: bool | None = None,
    block_size: int | None = None,
    enforce_eager: bool = False,
    expert_parallel: bool = False,
    speculative_tokens: int = 0,
    speculative_method: str | None = None,
    draft_model: ModelSpec | None = None,
    lora_slots: int = 0,
    lora_rank: int = 16,
    profiles_folder: str | Path | None = None,
) -> Deployment:
    """A deployment from the words that the command line takes; ``Deployment`` itself has every option.

    Raises InputError for a GPU or an engine that is not known, and for a pool larger than the GPU.

    >>> model = read_model("meta-llama/Llama-3.1-8B-Instruct", offline=True)
    >>> chat = RequestShape(name="chat", prompt_tokens=4000)
    >>> planned = fit(model, deploy(kv_memory="40GiB", max_model_len=32768), [chat])
    >>> planned.plan.blocks, planned.verdict, planned.reservations[0].sequences
    (20480, 'fits', 9)
    """
    deployment = Deployment(
        engine=parse_engine(engine),
        gpu=None if gpu is None else load_gpu(gpu, extra_folder=profiles_folder),
        gpu_memory_bytes=None if gpu_memory is None else (parse_bytes(gpu_memory),),
        memory_utilization=None if gpu_memory_utilization is None else Fraction(str(gpu_memory_utilization)),
        kv_memory_bytes=None if kv_memory is None else parse_bytes(kv_memory),
        tensor_parallel=tensor_parallel,
        pipeline_parallel=pipeline_parallel,
        data_parallel=data_parallel,
        context_parallel=context_parallel,
        kv_dtype=kv_dtype,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        prefix_caching=prefix_caching,
        async_scheduling=async_scheduling,
        block_size=block_size,
        enforce_eager=enforce_eager,
        expert_parallel=expert_parallel,
        speculative_tokens=speculative_tokens,
        speculative_method=speculative_method,
        draft_model=draft_model,
        lora_slots=lora_slots,
        lora_rank=lora_rank,
    )
    check_pool(deployment)
    return deployment
