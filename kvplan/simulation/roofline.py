"""A step's time from what must be moved, computed and exchanged: a roofline of the GPU times one efficiency."""

from kvplan.engines.base import Deployment, EnginePlan
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.simulation.parameters import (
    active_parameters,
    expert_layers,
    expert_parameters,
    parameter_bytes,
    table_parameters,
    total_parameters,
    weight_bytes,
)
from kvplan.simulation.service import BAND_SHARE, EFFICIENCY, Service
from kvplan.traffic.spec import StepCost

_SLOT_BYTES_PER_S = {(9, 0): 32e9, (8, 0): 16e9}
"""What GPUs exchange through their slots, one way, from this compute capability on: PCIe 5.0 x16 carries 63 GB/s, 4.0
half of that, and every byte crosses the host's memory, in and out. PCIe 3.0 before."""
_OLDEST_SLOT_BYTES_PER_S = 8e9
_TYPICAL_CONTEXT_TOKENS = 2048


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
    - prefill token = 2 × (dense × d + active experts) / t / peak FLOP/s + d × exchange + passing. Ranks that share
      experts step together, so a prompt read on one holds up all d; its experts' work is shared out, the dense part is
      not.
    - decoding sequence = 2 × (dense + active experts + head) / t / peak FLOP/s + exchange + passing.
    - context token = its KV bytes on a rank / bandwidth.
    - exchange = bytes that a token sends between GPUs / link (``_exchanged_bytes``).
    - passing = bytes of a token's states between matrix products / bandwidth (``_passed_bytes``).

    Pipeline stages work one after the other, so a step passes through all of them. Attention's own arithmetic, launches
    and sampling lie in e. The sum, not the larger of memory and compute time, is what the measured runs follow.
    """
    tensor = deployment.tensor_parallel
    embedding, head = table_parameters(model)
    experts = expert_parameters(model)
    sharing = deployment.data_parallel if experts else 1
    weights = deployment.weight_bytes if deployment.weight_bytes is not None else weight_bytes(model)
    read = weights - embedding * parameter_bytes(model) if head else weights
    expert_bytes = min(read, weights * experts // total_parameters(model))
    active = active_parameters(model) - embedding
    active_experts = experts * (model.shape.experts_per_token or 0) // (model.shape.experts or 1)
    dense = active - active_experts - head
    computed = active if head else active + embedding  # the head works only for a token that is written
    flops = _peak_flops(gpu, model)
    exchange_s = _exchanged_bytes(model, tensor, sharing) / link_bytes_per_s(gpu)
    context_bytes = _context_token_bytes(model, tensor, plan) / deployment.context_parallel
    passing_s = _passed_bytes(model, tensor, dense + active_experts) / gpu.bandwidth_bytes_per_s
    step = StepCost(
        base_s=(read - expert_bytes + expert_bytes / sharing) / tensor / gpu.bandwidth_bytes_per_s / efficiency,
        prefill_token_s=(2.0 * (dense * sharing + active_experts) / tensor / flops + sharing * exchange_s + passing_s)
        / efficiency,
        decode_sequence_s=(2.0 * computed / tensor / flops + exchange_s + passing_s) / efficiency,
        kv_token_s=context_bytes / gpu.bandwidth_bytes_per_s / efficiency,
    )
    ranks = tensor * deployment.pipeline_parallel * sharing
    where = f"{gpu.name} on {ranks} ranks" if ranks > 1 else gpu.name
    source = f"a roofline of {where}, efficiency {efficiency:g}"
    return Service(step=step, source=source, band_share=band_share, efficiency=efficiency)


def _context_token_bytes(model: ModelSpec, tensor: int, plan: EnginePlan) -> float:
    """KV bytes that a rank reads for a token of the context: the average of a typical sequence, for windows end."""
    kv = plan.kv_types
    layers = [kept for layer in model.rank_layers(tensor) for kept in layer]
    held = sum(kept.bytes_for(_TYPICAL_CONTEXT_TOKENS, kv) - kept.fixed_bytes(kv) for kept in layers)
    return held / _TYPICAL_CONTEXT_TOKENS


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
    gathered = expert_layers(model) * 2 * (sharing - 1) if sharing > 1 else 0
    return state_bytes * (reduced + gathered)


def _passed_bytes(model: ModelSpec, tensor: int, layer_parameters: float) -> float:
    """Bytes that a token's 16-bit states take to and from memory in the kernels between matrix products.

    A layer's two norms read and write state and residual, 8 × hidden, whole on every rank. Rotary embedding and
    attention's in- and output are 4 × hidden and the activation function 3 × width, of which a rank has its share; both
    together are 2 × hidden and what the layer's parameters on a token's way are over hidden (2 × hidden + 3 × width,
    and little for K and V). What k experts give is written and read again for their sum: 2 × k × hidden.
    """
    hidden, layers, experts = model.shape.hidden, len(model.layers), model.shape.experts_per_token or 0
    routed = 2 * experts * hidden * expert_layers(model) if experts else 0
    return 2.0 * (8 * hidden * layers + routed + (2 * hidden * layers + layer_parameters / hidden) / tensor)


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
