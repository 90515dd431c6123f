"""How long an engine step takes: constants from the traffic file, or a roofline of the GPU times one efficiency."""

from dataclasses import dataclass, replace
from pathlib import Path

from kvplan.calibration_file import load_calibration
from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import EnginePlan
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.profiles.kinds import GpuProfile
from kvplan.traffic.spec import StepCost, Traffic

EFFICIENCY = 0.79
"""Share of the roofline that vLLM reaches: the geometric mean over three measured runs of vLLM 0.19, 0.95 for
Llama-3.1-8B on an RTX 4090, 0.79 for it on an RTX PRO 6000, 0.66 for Qwen3-30B-A3B on two of those that share the
experts (github.com/casys-kaist/LLMServingSim @ 5daddb21). A measured run refits it."""
BAND_SHARE = 0.25
"""How far a step may be off where only the roofline is known: in those three runs steps took 17% less to 20% more."""
CALIBRATED_BAND_SHARE = 0.05
"""What remains after the efficiency was fitted on a measured run: the errors on the rest of those runs."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """The cost of a step and where it comes from. ``band_share`` is 0 for measured constants."""

    step: StepCost
    source: str
    band_share: float
    efficiency: float | None = None


def at_efficiency(service: Service, efficiency: float, band_share: float = 0.0) -> Service:
    """The service of a roofline with another efficiency: every term of its step is divided by the new one."""
    assert service.efficiency is not None, "measured constants have no efficiency"
    source = service.source.replace(f"efficiency {service.efficiency:g}", f"efficiency {efficiency:g}")
    step = service.step.times(service.efficiency / efficiency)
    return Service(step=step, source=source, band_share=band_share, efficiency=efficiency)


def step_time(traffic: Traffic, model: ModelSpec | None, deployment: Deployment, plan: EnginePlan) -> Service:
    """The file's own constants, else a roofline with the calibrated efficiency, where there is one."""
    if traffic.deployment.service is not None:
        return Service(step=traffic.deployment.service, source="the traffic file's service", band_share=0.0)
    if model is None or deployment.gpu is None:
        raise InputError(
            "the time of an engine step is unknown: the file names neither a "
            + ("model" if model is None else "GPU")
            + " nor service constants",
            hint="add deployment.service {base_s, prefill_token_s, decode_sequence_s, kv_token_s}, or name both",
            file=traffic.file,
            key="deployment.service",
        )
    path = traffic.deployment.calibration
    found = None if path is None else load_calibration(Path(path))
    if found is None or found.efficiency_share is None:
        return roofline(model, deployment, deployment.gpu, plan)
    same = found.gpu == deployment.gpu.name
    service = roofline(
        model,
        deployment,
        deployment.gpu,
        plan,
        efficiency=found.efficiency_share,
        band_share=CALIBRATED_BAND_SHARE if same else BAND_SHARE,
    )
    where = "" if same else f" on {found.gpu or 'another GPU'}"
    return replace(service, source=f"{service.source} as measured{where}")


_SLOT_BYTES_PER_S = {(9, 0): 32e9, (8, 0): 16e9}
"""What GPUs without a link of their own exchange over PCIe, one way, from this compute capability on: 5.0 x16 carries
63 GB/s, 4.0 half of that, and every byte goes into the host's memory and out again. Older GPUs have PCIe 3.0."""
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
    """The cost of a step from what must be moved, computed and exchanged, all divided by one efficiency e.

    With t tensor-parallel ranks and d data-parallel ones that share the experts (1 where there are none to share):

    - base = (dense weights / t + routed experts / (t × d)) / bandwidth. A step reads only single rows of the embedding,
      so it is left out unless it is also the head. All experts count: a few dozen sequences reach all of them.
    - prefill token = 2 × (dense × d + active experts) / t / peak FLOP/s + d × exchange + passing. Ranks that share
      experts step together, so a prompt on one holds up all d; they share the work of its experts, not the dense part.
    - decoding sequence = 2 × (dense + active experts + head) / t / peak FLOP/s + exchange + passing.
    - context token = its KV bytes on a rank / bandwidth.
    - exchange = bytes that a token sends between GPUs / link (``_exchanged_bytes``).
    - passing = bytes of a token's states between matrix products / bandwidth (``_passed_bytes``).

    Pipeline stages work one after the other, so a step passes through all of them. Attention's own arithmetic, launches
    and sampling are part of e. Measured runs follow the sum of memory and compute time, not the larger of the two.
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
    computed = active if head else active + embedding  # the head works only for tokens that are generated
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
    """KV bytes that a rank reads for a token of the context: an average over a typical sequence, since windows end."""
    kv = plan.kv_types
    layers = [kept for layer in model.rank_layers(tensor) for kept in layer]
    held = sum(kept.bytes_for(_TYPICAL_CONTEXT_TOKENS, kv) - kept.fixed_bytes(kv) for kept in layers)
    return held / _TYPICAL_CONTEXT_TOKENS


def link_bytes_per_s(gpu: GpuProfile) -> float:
    """What a GPU sends to its peers, one way: over the link in its profile, or over PCIe."""
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
    """Bytes that a token's 16-bit states move to and from memory in the kernels between matrix products.

    The two norms of a layer read and write state and residual: 8 × hidden, in full on every rank. Rotary embedding and
    attention's input and output are 4 × hidden and the activation function 3 × width, of which a rank has its share;
    together that is 2 × hidden plus the layer's active parameters over hidden (2 × hidden + 3 × width, and little for K
    and V). The outputs of k experts are written and read again for their sum: 2 × k × hidden.
    """
    hidden, layers, experts = model.shape.hidden, len(model.layers), model.shape.experts_per_token or 0
    routed = 2 * experts * hidden * expert_layers(model) if experts else 0
    return 2.0 * (8 * hidden * layers + routed + (2 * hidden * layers + layer_parameters / hidden) / tensor)


def _peak_flops(gpu: GpuProfile, model: ModelSpec) -> float:
    """Dense peak of the type that is computed in; 16-bit where the profile has no entry for it."""
    quantization = (model.weights.quantization or "").lower()
    wanted = ["fp8", "float8"] if "fp8" in quantization else []
    for name in (*wanted, "bfloat16", "float16"):
        if name in gpu.flops_per_s:
            return float(gpu.flops_per_s[name])
    raise InputError(
        f"the profile of {gpu.name} has no 16-bit peak, so the time of a step is unknown",
        hint="give deployment.service with measured constants",
        key="deployment.service",
    )


_BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


def parameter_bytes(model: ModelSpec) -> int:
    """Bytes of a parameter in the model's own type."""
    return _BYTES_PER_PARAMETER.get(model.dtype, 2)


def weight_bytes(model: ModelSpec) -> int:
    """Bytes of all weights: published, or parameters in the model's type. InputError where neither is known."""
    if model.weights.stored_bytes is not None:
        return model.weights.stored_bytes
    return total_parameters(model) * parameter_bytes(model)


def total_parameters(model: ModelSpec) -> int:
    """Parameters as published, or summed over the parts that the config implies."""
    parameters = model.weights.parameters or sum(part.parameters for part in model.weights.parts)
    if not parameters:
        raise InputError(
            f"{model.id}: the number of parameters is unknown, and so is the time of a step",
            hint="give deployment.service with measured constants",
            key="deployment.service",
        )
    return parameters


def expert_parameters(model: ModelSpec) -> int:
    """Parameters of the routed experts: layers that have them × experts × 3 × hidden × expert width."""
    shape = model.shape
    if not shape.experts or not shape.experts_per_token or not shape.expert_intermediate:
        return 0
    return expert_layers(model) * shape.experts * 3 * shape.hidden * shape.expert_intermediate


def expert_layers(model: ModelSpec) -> int:
    """Layers whose parts include experts, or all layers where no part says so."""
    return len({part.layer for part in model.weights.parts if "expert" in part.name}) or len(model.layers)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that a token passes through: all but the experts it is not routed to."""
    total, experts, shape = total_parameters(model), expert_parameters(model), model.shape
    if not experts or not shape.experts or not shape.experts_per_token:
        return total
    idle = experts * (shape.experts - shape.experts_per_token) // shape.experts
    return max(total - idle, total // shape.experts)


def table_parameters(model: ModelSpec) -> tuple[int, int]:
    """Parameters of the input embedding and of the head; 0 for a head that is the embedding."""
    tables = {part.name: part.parameters for part in model.weights.parts if part.split == "vocabulary"}
    return tables.get("embed_tokens", 0), tables.get("lm_head", 0)
