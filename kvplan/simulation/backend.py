"""The backend, what stands behind the front door: KV pool, scheduler settings and step time of each replica."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan.admission import promised_blocks
from kvplan.capacity import CANNOT_TELL, Fit, longest_window, usable_blocks
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import OVER_STATE_BLOCKS, CacheLayout, Settings
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.model import ModelSpec
from kvplan.simulation.deployment import (
    placed_in,
    plan_deployment,
    plan_model_pool,
    plan_plain_pool,
    read_named_model,
)
from kvplan.simulation.step_time import Service, step_time
from kvplan.simulation.types import EngineSetup
from kvplan.traffic.spec import KvPool, PlannedDeployment, Traffic


class DoesNotStartError(InputError):
    """The engine would not start: an error to a simulation, a result to a check."""


@dataclass(frozen=True, kw_only=True)
class Backend:
    """One replica of the engine, and the number of replicas.

    ``blocks`` includes the reserved one. ``kv_bytes`` and its band are of one rank; None where the pool was given in
    blocks of an unknown model. ``notes`` are the assumptions made here.
    """

    model: ModelSpec | None
    gpu: str | None
    engine: str
    layout: CacheLayout
    settings: Settings
    blocks: int
    kv_bytes: int | None
    kv_bytes_low: int | None
    kv_bytes_high: int | None
    longest_window_tokens: int
    service: Service
    replicas: int
    watermark_blocks: int
    long_prefill_tokens: int
    notes: tuple[str, ...]

    @property
    def usable(self) -> int:
        """Blocks of one replica that requests can hold."""
        return usable_blocks(self.layout, self.blocks)

    def promised_blocks(self, safety_fraction: float) -> int:
        """Blocks of one replica that the ledger may promise."""
        return promised_blocks(self.blocks, safety_fraction, self.layout.reserved_blocks)

    @property
    def band_share(self) -> float:
        """How far the pool may fall short of the plan: (kv_bytes − kv_bytes_low) / kv_bytes; 0 where measured."""
        if not self.kv_bytes or self.kv_bytes_low is None:
            return 0.0
        return max(0.0, (self.kv_bytes - self.kv_bytes_low) / self.kv_bytes)


def build_backend(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
) -> Backend:
    """The backend that the file describes; ``model`` replaces the one it names.

    Raises InputError where the file says too little, DoesNotStartError where the engine would refuse to start, and
    UnsupportedModelError where the file sets an option that the plan cannot price.
    """
    wanted = traffic.deployment
    model = model or read_named_model(traffic.model, offline=offline, profiles_folder=profiles_folder)
    pool, notes = wanted.kv_pool or KvPool(), tuple[str, ...]()
    with placed_in(traffic):
        deployment = plan_deployment(
            wanted, offline=offline, profiles_folder=profiles_folder, model_id=None if model is None else model.id
        )
        if model is None or pool.block_tokens is not None:
            planned = plan_plain_pool(traffic, deployment, model)
        else:
            planned, notes = plan_model_pool(traffic, deployment, model)
    _check_priced(planned, traffic)
    plan = planned.plan
    layout, settings, blocks = plan.layout, plan.settings, pool.blocks or plan.blocks
    longest = longest_window(layout, blocks, max(settings.max_model_len, _context(model, settings)))
    _check_starts(traffic, planned, blocks, longest)
    if pool.blocks is None and any(finding.code == OVER_STATE_BLOCKS for finding in planned.findings):
        settings = replace(settings, max_num_seqs=blocks)  # as the plan's own flags: the default would not start
        notes = (*notes, f"max_num_seqs is {blocks:,}, the number of blocks for recurrent states")
    if pool.blocks is None:
        kv_bytes: int | None = plan.kv_bytes
    else:
        kv_bytes = None if pool.block_tokens is not None or model is None else blocks * layout.bytes_per_block
    # A pool that is not what the budget leaves has no band: llama.cpp takes what the window needs and no more.
    band = plan.budget if plan.budget is not None and plan.budget.kv_bytes == plan.kv_bytes else None
    return Backend(
        model=model,
        gpu=None if deployment.gpu is None else deployment.gpu.name,
        engine=str(wanted.engine),
        layout=layout,
        settings=settings,
        blocks=blocks,
        kv_bytes=kv_bytes,
        kv_bytes_low=kv_bytes if band is None else band.kv_bytes_low,
        kv_bytes_high=kv_bytes if band is None else band.kv_bytes_high,
        longest_window_tokens=longest,
        service=step_time(traffic, model, deployment, plan),
        replicas=wanted.replicas * deployment.data_parallel,
        watermark_blocks=int(wanted.watermark_share * blocks),
        long_prefill_tokens=wanted.long_prefill_token_threshold,
        notes=(*notes, *_not_simulated(wanted, deployment)),
    )


def engine_setup(backend: Backend) -> EngineSetup:
    """One replica of the backend, as the kernel plays it."""
    settings = backend.settings
    return EngineSetup(
        blocks=backend.blocks,
        layout=backend.layout,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        step=backend.service.step,
        async_scheduling=settings.async_scheduling,
        prefix_caching=settings.prefix_caching and len(backend.layout.groups) == 1,
        watermark_blocks=backend.watermark_blocks,
        long_prefill_tokens=backend.long_prefill_tokens,
        chunked_prefill=settings.chunked_prefill,
    )


def _not_simulated(wanted: PlannedDeployment, deployment: Deployment) -> Iterator[str]:
    """What is priced in the plan but not simulated."""
    engine, stages = deployment.engine.name, wanted.pipeline_parallel
    if engine != "vllm":
        yield f"requests are scheduled as by vLLM: only the pool and its pages are {engine}'s own"
    if stages > 1:
        yield (
            f"the {stages} pipeline stages are simulated as one: vLLM keeps a smaller batch in each, and a sequence "
            f"decodes in one of {stages}"
        )
    if wanted.speculative_tokens:
        yield "speculative decoding is priced but not simulated: a step generates one token of each sequence"
    if wanted.kv_offload_bytes is not None:
        yield "KV offloading is priced but not simulated: a prefix that left the pool is computed again"


def _check_priced(planned: Fit, traffic: Traffic) -> None:
    """Raises UnsupportedModelError where the plan leaves out something that the file sets."""
    if planned.verdict == CANNOT_TELL:
        first, *_ = planned.plan.unpriced
        raise UnsupportedModelError(
            first.finding.message,
            hint=f"{first.finding.hint}; or remove {first.word} from the file",
            file=traffic.file,
            key=f"deployment.{first.word.replace('-', '_')}",
        )


def _context(model: ModelSpec | None, settings: Settings) -> int:
    return (model.max_context_tokens if model is not None else None) or settings.max_model_len


def _check_starts(traffic: Traffic, planned: Fit, blocks: int, longest: int) -> None:
    """Raises DoesNotStartError where one request of the whole window does not fit, or the plan says so."""
    layout, settings, pool = planned.plan.layout, planned.plan.settings, traffic.deployment.kv_pool
    charge, usable = layout.request_blocks(settings.max_model_len), usable_blocks(layout, blocks)
    shorter = f"set max_model_len to {longest:,} at most, or " if longest else ""
    message, key = None, "deployment.max_model_len"
    hint: str | None = f"{shorter}give the pool more memory (kvplan fit shows where it goes)"
    if charge > usable:
        message = (
            f"max_model_len is larger than the pool: one request of {settings.max_model_len:,} tokens takes "
            f"{charge:,} blocks, {usable:,} are usable"
        )
    elif not planned.plan.starts and (pool is None or pool.blocks is None):
        refusal = next(finding for finding in planned.plan.findings if finding.severity == "error")
        message, hint, key = refusal.message, refusal.hint, "deployment"
    if message is not None:
        raise DoesNotStartError(f"the engine would not start: {message}", hint=hint, file=traffic.file, key=key)
