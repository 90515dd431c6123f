"""How long an engine step takes: measured constants, or a roofline of the GPU times one efficiency."""

from dataclasses import dataclass

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.simulation.types import StepCost
from kvplan.traffic.kinds import ServiceTime

EFFICIENCY = 0.85
"""Share of the roofline that vLLM reaches. Fitted on two measured runs of vLLM 0.19 with Llama-3.1-8B: 0.94 on an RTX
4090, 0.77 on an RTX PRO 6000 (github.com/casys-kaist/LLMServingSim @ 5daddb21). A measured run refits it."""
BAND_SHARE = 0.25
"""How far a step may be off when only the roofline is known."""
CALIBRATED_BAND_SHARE = 0.05
"""What is left of that after the efficiency was fitted on a measured run: the errors on the rest of those runs."""
_TYPICAL_CONTEXT_TOKENS = 2048
_BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


@dataclass(frozen=True, kw_only=True)
class Service:
    """A step's cost and where it comes from. ``band_share`` is 0 for constants that were measured."""

    step: StepCost
    source: str
    band_share: float
    efficiency: float | None = None


def file_service(constants: ServiceTime) -> Service:
    """The constants that the traffic file gives."""
    step = StepCost(
        base_s=constants.base_s,
        prefill_token_s=constants.prefill_token_s,
        decode_sequence_s=constants.decode_sequence_s,
        kv_token_s=constants.kv_token_s,
    )
    return Service(step=step, source="the traffic file's service", band_share=0.0)


def weight_bytes(model: ModelSpec) -> int:
    """Bytes of all weights: published, or parameters in the model's type. InputError where neither is known."""
    if model.weights.stored_bytes is not None:
        return model.weights.stored_bytes
    parameters = total_parameters(model)
    return parameters * _BYTES_PER_PARAMETER.get(model.dtype, 2)


def total_parameters(model: ModelSpec) -> int:
    """Parameters as published, or summed over the parts that the config implies."""
    parameters = model.weights.parameters or sum(part.parameters for part in model.weights.parts)
    if not parameters:
        raise InputError(
            f"{model.id}: the number of parameters is not known, so the time of a step is not either",
            hint="give deployment.service with measured constants",
            key="deployment.service",
        )
    return parameters


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through: all, less the experts it is not sent to.

    experts of a layer: E × 3 × hidden × expert width, of which k / E are used; the layers that have them are those
    whose parts say so, or all of them.
    """
    total, shape = total_parameters(model), model.shape
    if not shape.experts or not shape.experts_per_token or not shape.expert_intermediate:
        return total
    expert_layers = len({part.layer for part in model.weights.parts if "expert" in part.name}) or len(model.layers)
    experts = expert_layers * shape.experts * 3 * shape.hidden * shape.expert_intermediate
    idle = experts * (shape.experts - shape.experts_per_token) // shape.experts
    return max(total - idle, total // shape.experts)


def roofline(
    model: ModelSpec,
    deployment: Deployment,
    gpu: GpuProfile,
    plan: EnginePlan,
    *,
    efficiency: float = EFFICIENCY,
    band_share: float = BAND_SHARE,
) -> Service:
    """A step's cost from what must be moved and computed, divided by one efficiency e.

    base = weights that a step reads / tp / (bandwidth × e); prefill token and decoding sequence = 2 × the parameters
    that they pass / tp / (peak FLOP/s × e); context token = its KV bytes on a rank / (bandwidth × e). Of the embedding
    a step reads single rows, so it is left out unless it is the head as well; only a decoding sequence passes the head.
    Pipeline stages work one after the other, so a step passes through all of them. Traffic between GPUs is not priced
    apart: it lies in e and its band.
    """
    ranks = deployment.tensor_parallel * deployment.pipeline_parallel
    weights = deployment.weight_bytes if deployment.weight_bytes is not None else weight_bytes(model)
    bandwidth = gpu.bandwidth_bytes_per_s * efficiency
    flops = _peak_flops(gpu, model) * efficiency
    kv = plan.kv_types
    layers = [kept for layer in model.rank_layers(deployment.tensor_parallel) for kept in layer]
    held = sum(kept.bytes_for(_TYPICAL_CONTEXT_TOKENS, kv) - kept.fixed_bytes(kv) for kept in layers)
    embedding, head = _table_parameters(model)
    active = active_parameters(model) - embedding
    read = weights - embedding * _BYTES_PER_PARAMETER.get(model.dtype, 2) if head else weights
    step = StepCost(
        base_s=read / deployment.tensor_parallel / bandwidth,
        prefill_token_s=2.0 * (active - head) / deployment.tensor_parallel / flops,
        decode_sequence_s=2.0 * (active if head else active + embedding) / deployment.tensor_parallel / flops,
        kv_token_s=held / _TYPICAL_CONTEXT_TOKENS / deployment.context_parallel / bandwidth,
    )
    parts = f" on {ranks} ranks" if ranks > 1 else ""
    return Service(
        step=step,
        source=f"a roofline of {gpu.name}{parts}, efficiency {efficiency:g}",
        band_share=band_share,
        efficiency=efficiency,
    )


def _table_parameters(model: ModelSpec) -> tuple[int, int]:
    """Parameters of the input embedding and of a head of its own; 0 for a head that is the embedding."""
    tables = {part.name: part.parameters for part in model.weights.parts if part.split == "vocabulary"}
    return tables.get("embed_tokens", 0), tables.get("lm_head", 0)


def _peak_flops(gpu: GpuProfile, model: ModelSpec) -> float:
    """Dense peak of the type that the weights are computed in; 16-bit where the GPU's profile has no such entry."""
    quantization = (model.weights.quantization or "").lower()
    wanted = ["fp8", "float8"] if "fp8" in quantization else []
    for name in (*wanted, "bfloat16", "float16"):
        if name in gpu.flops_per_s:
            return float(gpu.flops_per_s[name])
    raise InputError(
        f"the profile of {gpu.name} has no 16-bit peak, so the time of a step is not known",
        hint="give deployment.service with measured constants",
        key="deployment.service",
    )
