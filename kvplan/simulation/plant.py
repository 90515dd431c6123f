"""What the traffic meets: the pool, the engine's settings and its clock, made from the file's deployment."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvplan.admission import promised_blocks
from kvplan.calibration_file import load_calibration
from kvplan.capacity import CANNOT_TELL, Fit, fit, longest_window, usable_blocks
from kvplan.engines.base import OVER_STATE_BLOCKS, CacheGroup, CacheLayout, Deployment, Settings
from kvplan.errors import InputError, UnsupportedModelError
from kvplan.layers import FullAttention
from kvplan.model import ModelSpec, Shape, Source, Weights
from kvplan.simulation.deployment import plan_deployment, read_named_model
from kvplan.simulation.roofline import roofline
from kvplan.simulation.service import BAND_SHARE, CALIBRATED_BAND_SHARE, Service
from kvplan.traffic.spec import KvPool, PlannedDeployment, Traffic

_DEFAULT_BLOCK_TOKENS = 16
_UNKNOWN_KV_BYTES = 2**44  # enough for any layout; only the layout is read from that plan


class DoesNotStartError(InputError):
    """One request of the whole window does not fit the pool: an error to a simulation, an answer to a check."""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """One replica's pool and clock, and how many replicas there are.

    ``blocks`` includes the reserved one. ``kv_bytes`` and its band are of one rank, None where the pool was given in
    blocks of an unknown model. ``notes`` are assumptions made here.
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
        """Blocks of one replica that requests may hold."""
        return usable_blocks(self.layout, self.blocks)

    def promised_blocks(self, safety_fraction: float) -> int:
        """Blocks of one replica that the front door's ledger may promise."""
        return promised_blocks(self.blocks, safety_fraction, self.layout.reserved_blocks)

    @property
    def band_share(self) -> float:
        """How far the pool may fall short of the plan: (kv_bytes − kv_bytes_low) / kv_bytes; 0 when it was measured."""
        if not self.kv_bytes or self.kv_bytes_low is None:
            return 0.0
        return max(0.0, (self.kv_bytes - self.kv_bytes_low) / self.kv_bytes)


def build_plant(
    traffic: Traffic,
    *,
    model: ModelSpec | None = None,
    offline: bool = False,
    profiles_folder: str | Path | None = None,
) -> Plant:
    """The plant that the file describes.

    ``model`` stands for the one the file names. Raises InputError where the file says too little, DoesNotStartError
    where the engine would refuse to start, UnsupportedModelError where an option was asked for that no plan prices.
    """
    wanted = traffic.deployment
    model = model or read_named_model(traffic.model, offline=offline, profiles_folder=profiles_folder)
    deployment = plan_deployment(
        wanted, offline=offline, profiles_folder=profiles_folder, model_id=None if model is None else model.id
    )
    pool, notes = wanted.kv_pool or KvPool(), tuple[str, ...]()
    if model is None or pool.block_tokens is not None:
        planned = _plain_pool(traffic, deployment, model)
    else:
        planned, notes = _model_pool(traffic, deployment, model)
    _check_told(planned, traffic)
    plan = planned.plan
    layout, settings, blocks = plan.layout, plan.settings, pool.blocks or plan.blocks
    longest = longest_window(layout, blocks, max(settings.max_model_len, _context(model, settings)))
    _check_starts(traffic, planned, blocks, longest)
    if pool.blocks is None and any(finding.code == OVER_STATE_BLOCKS for finding in planned.findings):
        settings = replace(settings, max_num_seqs=blocks)  # what the plan's own flags say: the default would not start
        notes = (*notes, f"max_num_seqs {blocks:,}: as many as there are blocks for recurrent states")
    if pool.blocks is None:
        kv_bytes: int | None = plan.kv_bytes
    else:
        kv_bytes = None if pool.block_tokens is not None or model is None else blocks * layout.bytes_per_block
    # Without a band: a pool that is not what the budget leaves (llama.cpp takes what the window asks for, no more).
    band = plan.budget if plan.budget is not None and plan.budget.kv_bytes == plan.kv_bytes else None
    return Plant(
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
        service=_service(traffic, model, deployment, planned),
        replicas=wanted.replicas * deployment.data_parallel,
        watermark_blocks=int(wanted.watermark_share * blocks),
        long_prefill_tokens=wanted.long_prefill_token_threshold,
        notes=(*notes, *_not_played(wanted, deployment)),
    )


def _not_played(wanted: PlannedDeployment, deployment: Deployment) -> Iterator[str]:
    """What the plan prices and the engine clock leaves out."""
    engine, stages = deployment.engine.name, wanted.pipeline_parallel
    if engine != "vllm":
        yield f"requests are scheduled as vLLM does: of {engine} only pool and pages are known"
    if stages > 1:
        yield (
            f"the {stages} pipeline stages are played as one: vLLM keeps a smaller batch in each, and a sequence "
            f"writes in one of {stages}"
        )
    if wanted.speculative_tokens:
        yield "tokens guessed ahead are priced, not played: a step writes one token of each sequence"
    if wanted.kv_offload_bytes is not None:
        yield "KV kept in the host's memory is priced, not played: a prefix that left the pool is computed again"


def _check_told(planned: Fit, traffic: Traffic) -> None:
    """Raises UnsupportedModelError where the plan is made without something that the file asks for."""
    if planned.verdict == CANNOT_TELL:
        first, *_ = planned.plan.unpriced
        raise UnsupportedModelError(
            first.finding.message,
            hint=f"{first.finding.hint}; or take {first.word} out of the file",
            file=traffic.file,
            key=f"deployment.{first.word.replace('-', '_')}",
        )


def _context(model: ModelSpec | None, settings: Settings) -> int:
    return (model.max_context_tokens if model is not None else None) or settings.max_model_len


def _check_starts(traffic: Traffic, planned: Fit, blocks: int, longest: int) -> None:
    """Raises DoesNotStartError where the window does not fit, or a pool that was planned not as the engine needs it."""
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


def _model_pool(traffic: Traffic, deployment: Deployment, model: ModelSpec) -> tuple[Fit, tuple[str, ...]]:
    """The model's own groups, paged as the engine pages them: with prefix caching, states hold more blocks (vLLM keeps
    the last ones), and a ledger that charged fewer would promise what the engine does not have."""
    pool = traffic.deployment.kv_pool
    if pool is None and deployment.gpu is None and deployment.gpu_memory_bytes is None:
        raise InputError(
            "the file names neither a GPU nor a KV pool",
            hint="add deployment.gpu (kvplan list gpus), or deployment.kv_pool",
            file=traffic.file,
            key="deployment",
        )
    if pool is not None and pool.blocks is not None:
        deployment = replace(deployment, kv_memory_bytes=_UNKNOWN_KV_BYTES)
    planned = fit(model, deployment)
    groups = len(planned.plan.layout.groups)
    if groups == 1 or not planned.plan.settings.prefix_caching:
        return planned, ()
    return planned, (
        f"prefix hits are left out: the model's layers form {groups} groups, whose prompts are computed whole",
    )


def _plain_pool(traffic: Traffic, deployment: Deployment, model: ModelSpec | None) -> Fit:
    """One full-attention group of the given block size, the engine's defaults for everything else."""
    pool = traffic.deployment.kv_pool
    if pool is None or pool.blocks is None:
        raise InputError(
            "the file names no model, and no kv_pool in blocks to stand for one",
            hint="add model: org/name, or deployment.kv_pool: {blocks: 2588, block_tokens: 16}",
            file=traffic.file,
            key="model",
        )
    window = deployment.max_model_len or (model.max_context_tokens if model is not None else None)
    if window is None:
        raise InputError(
            "the window is not known: the file names no model and no max_model_len",
            hint="add deployment.max_model_len",
            file=traffic.file,
            key="deployment.max_model_len",
        )
    block_tokens = pool.block_tokens or deployment.block_size or _DEFAULT_BLOCK_TOKENS
    planned = fit(_one_layer_model(window), replace(deployment, **_OF_ONE_LAYER))
    page_bytes = planned.plan.layout.groups[0].page_bytes
    group = CacheGroup(kind="full attention", layers=1, rule="full", block_tokens=block_tokens, page_bytes=page_bytes)
    layout = CacheLayout(
        block_tokens=block_tokens,
        bytes_per_block=page_bytes,
        groups=(group,),
        in_flight_tokens=planned.plan.layout.in_flight_tokens,
        reserved_blocks=planned.plan.layout.reserved_blocks,
    )
    return replace(planned, plan=replace(planned.plan, layout=layout, blocks=pool.blocks))


_OF_ONE_LAYER: dict[str, Any] = {
    "block_size": None,
    "kv_memory_bytes": _UNKNOWN_KV_BYTES,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "pipeline_layers": None,
    "speculative_tokens": 0,
    "speculative_method": None,
    "draft_model": None,
}
"""What a deployment asks of the layers, which a stand-in has not."""


def _one_layer_model(window: int) -> ModelSpec:
    """A stand-in of which only the paging is used: one full-attention layer."""
    return ModelSpec(
        id="(a pool that was measured)",
        architecture="none",
        source=Source(name="kv_pool"),
        layers=((FullAttention(kv_heads=1, head_dim=64, value_head_dim=64),),),
        max_context_tokens=window,
        query_heads=(),
        dtype="bfloat16",
        shape=Shape(hidden=64),
        weights=Weights(),
    )


def _service(traffic: Traffic, model: ModelSpec | None, deployment: Deployment, planned: Fit) -> Service:
    if traffic.deployment.service is not None:
        return Service(step=traffic.deployment.service, source="the traffic file's service", band_share=0.0)
    if model is None or deployment.gpu is None:
        raise InputError(
            "the time of an engine step is not known: the file names no "
            + ("model" if model is None else "GPU")
            + " and no service",
            hint="add deployment.service {base_s, prefill_token_s, decode_sequence_s, kv_token_s}, or name both",
            file=traffic.file,
            key="deployment.service",
        )
    path = traffic.deployment.calibration
    found = None if path is None else load_calibration(Path(path))
    if found is None or found.efficiency_share is None:
        return roofline(model, deployment, deployment.gpu, planned.plan)
    same = found.gpu == deployment.gpu.name
    service = roofline(
        model,
        deployment,
        deployment.gpu,
        planned.plan,
        efficiency=found.efficiency_share,
        band_share=CALIBRATED_BAND_SHARE if same else BAND_SHARE,
    )
    where = "" if same else f" on {found.gpu or 'another GPU'}"
    return replace(service, source=f"{service.source} as measured{where}")
