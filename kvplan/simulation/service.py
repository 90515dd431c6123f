"""How long an engine step takes: measured constants, or a roofline of the GPU times one efficiency."""

from dataclasses import dataclass

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.simulation.types import StepCost
from kvplan.traffic.kinds import ServiceTime

EFFICIENCY = 0.77
"""Share of the roofline that vLLM reaches: the geometric mean over three measured runs of vLLM 0.19, 0.93 for
Llama-3.1-8B on an RTX 4090, 0.77 for it on an RTX PRO 6000, 0.64 for Qwen3-30B-A3B on two of those that share the
experts (github.com/casys-kaist/LLMServingSim @ 5daddb21). A measured run refits it."""
BAND_SHARE = 0.25
"""How far a step may be off when only the roofline is known: steps of those three runs took 17 % less to 21 % more."""
_SLOT_BYTES_PER_S = {(9, 0): 32e9, (8, 0): 16e9}
"""What GPUs exchange through their slots, one way, from this compute capability on: PCIe 5.0 x16 carries 63 GB/s, 4.0
half of that, and every byte crosses the host's memory, in and out. PCIe 3.0 before."""
_OLDEST_SLOT_BYTES_PER_S = 8e9
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


def expert_parameters(model: ModelSpec) -> int:
    """Parameters of the routed experts: layers that have them × experts × 3 × hidden × expert width; 0 without."""
    shape = model.shape
    if not shape.experts or not shape.experts_per_token or not shape.expert_intermediate:
        return 0
    return _expert_layers(model) * shape.experts * 3 * shape.hidden * shape.expert_intermediate


def _expert_layers(model: ModelSpec) -> int:
    """Layers whose parts say that they hold experts, or all of them."""
    return len({part.layer for part in model.weights.parts if "expert" in part.name}) or len(model.layers)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through: all, less the experts it is not sent to."""
    total, experts, shape = total_parameters(model), expert_parameters(model), model.shape
    if not experts or not shape.experts or not shape.experts_per_token:
        return total
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
    """A step's cost from what must be moved, computed and exchanged, all divided by one efficiency e.

    With t tensor-parallel ranks and d data-parallel ones that share the experts (1 where there are none to share):

    - base = (dense weights / t + routed experts / (t × d)) / bandwidth. Of the embedding a step reads single rows, so
      it is left out unless it is the head as well. All experts count: a step of a few dozen sequences reaches them.
    - prefill token = 2 × (dense × d + active experts) / t / peak FLOP/s + d × exchange. Ranks that share experts step
      together, so a prompt read on one holds up all d; its experts' work is shared out, the dense part is not.
    - decoding sequence = 2 × (dense + active experts + head) / t / peak FLOP/s + exchange.
    - context token = its KV bytes on a rank / bandwidth.
    - exchange = bytes that a token sends between GPUs / link (``_exchanged_bytes``).

    Pipeline stages work one after the other, so a step passes through all of them. Attention's own arithmetic, launches
    and sampling lie in e. The sum, not the larger of memory and compute time, is what the measured runs follow.
    """
    tensor = deployment.tensor_parallel
    ranks = tensor * deployment.pipeline_parallel
    weights = deployment.weight_bytes if deployment.weight_bytes is not None else weight_bytes(model)
    flops = _peak_flops(gpu, model)
    kv = plan.kv_types
    layers = [kept for layer in model.rank_layers(tensor) for kept in layer]
    held = sum(kept.bytes_for(_TYPICAL_CONTEXT_TOKENS, kv) - kept.fixed_bytes(kv) for kept in layers)
    embedding, head = _table_parameters(model)
    experts = expert_parameters(model)
    sharing = deployment.data_parallel if experts else 1
    active = active_parameters(model) - embedding
    active_experts = experts * (model.shape.experts_per_token or 0) // (model.shape.experts or 1)
    dense = active - active_experts - head
    read = weights - embedding * _BYTES_PER_PARAMETER.get(model.dtype, 2) if head else weights
    expert_bytes = min(read, weights * experts // total_parameters(model))
    exchange_s = _exchanged_bytes(model, tensor, sharing) / link_bytes_per_s(gpu)
    computed = active if head else active + embedding
    step = StepCost(
        base_s=(read - expert_bytes + expert_bytes / sharing) / tensor / gpu.bandwidth_bytes_per_s / efficiency,
        prefill_token_s=(2.0 * (dense * sharing + active_experts) / tensor / flops + sharing * exchange_s) / efficiency,
        decode_sequence_s=(2.0 * computed / tensor / flops + exchange_s) / efficiency,
        kv_token_s=held
        / _TYPICAL_CONTEXT_TOKENS
        / deployment.context_parallel
        / gpu.bandwidth_bytes_per_s
        / efficiency,
    )
    parts = f" on {ranks * sharing} ranks" if ranks * sharing > 1 else ""
    return Service(
        step=step,
        source=f"a roofline of {gpu.name}{parts}, efficiency {efficiency:g}",
        band_share=band_share,
        efficiency=efficiency,
    )


def at_efficiency(service: Service, efficiency: float, band_share: float = 0.0) -> Service:
    """A roofline's service with another efficiency: every term of its step is as much longer as that is smaller."""
    assert service.efficiency is not None, "these constants were measured, not made from a roofline"
    factor = service.efficiency / efficiency
    step = StepCost(**{name: value * factor for name, value in vars(service.step).items()})
    source = service.source.replace(f"efficiency {service.efficiency:g}", f"efficiency {efficiency:g}")
    return Service(step=step, source=source, band_share=band_share, efficiency=efficiency)


def link_bytes_per_s(gpu: GpuProfile) -> float:
    """What a GPU sends to its peers, one way: its profile's link, or its PCIe slot."""
    if gpu.link_bytes_per_s is not None:
        return float(gpu.link_bytes_per_s)
    if gpu.compute_capability is None:
        return max(_SLOT_BYTES_PER_S.values())
    rates = (rate for since, rate in _SLOT_BYTES_PER_S.items() if gpu.compute_capability >= since)
    return max(rates, default=_OLDEST_SLOT_BYTES_PER_S)


def _exchanged_bytes(model: ModelSpec, tensor: int, sharing: int) -> float:
    """Bytes that a rank sends for one token, in 16-bit hidden states.

    Tensor parallel: two all-reduces a layer, each 2 × (t − 1) / t of the state (a ring). Shared experts: an all-gather
    before and a reduce-scatter behind every layer of experts, each the states of the d − 1 other ranks' tokens (vLLM's
    ``allgather_reducescatter`` backend, the default).
    """
    state_bytes = 2 * model.shape.hidden
    reduced = len(model.layers) * 2 * 2 * (tensor - 1) / tensor
    gathered = _expert_layers(model) * 2 * (sharing - 1) if sharing > 1 else 0
    return state_bytes * (reduced + gathered)


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
