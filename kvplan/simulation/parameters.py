"""How many parameters a step reads and a token passes through."""

from kvplan.errors import InputError
from kvplan.model import ModelSpec

_BYTES_PER_PARAMETER = {"float32": 4, "bfloat16": 2, "float16": 2, "fp8": 1}


def parameter_bytes(model: ModelSpec) -> int:
    """Bytes of one parameter in the model's own type."""
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
    return expert_layers(model) * shape.experts * 3 * shape.hidden * shape.expert_intermediate


def expert_layers(model: ModelSpec) -> int:
    """Layers whose parts say that they hold experts, or all of them."""
    return len({part.layer for part in model.weights.parts if "expert" in part.name}) or len(model.layers)


def active_parameters(model: ModelSpec) -> int:
    """Parameters that one token passes through: all, less the experts it is not sent to."""
    total, experts, shape = total_parameters(model), expert_parameters(model), model.shape
    if not experts or not shape.experts or not shape.experts_per_token:
        return total
    idle = experts * (shape.experts - shape.experts_per_token) // shape.experts
    return max(total - idle, total // shape.experts)


def table_parameters(model: ModelSpec) -> tuple[int, int]:
    """Parameters of the input embedding and of a head of its own; 0 for a head that is the embedding."""
    tables = {part.name: part.parameters for part in model.weights.parts if part.split == "vocabulary"}
    return tables.get("embed_tokens", 0), tables.get("lm_head", 0)
