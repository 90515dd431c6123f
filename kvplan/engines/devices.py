"""A deployment's devices and window, with the defaults that every engine shares."""

from kvplan.engines.deployment import Deployment
from kvplan.errors import InputError
from kvplan.model import ModelSpec
from kvplan.units import format_bytes

DEFAULT_WINDOW = 2048
"""Tokens that vLLM assumes where neither the config nor the user gives a length (Mamba)."""

H100_BYTES = 85_041_610_752  # 79.2 GiB, what the driver reports for an H100-80
H100_CAPABILITY = (9, 0)
ROCM_CAPABILITY = (9, 4)
"""What an MI300 reports as its capability: no rule of a CUDA kernel asks for it."""


def device_bytes(deployment: Deployment) -> int:
    """Memory of the smallest device, as the driver reports it; an H100-80's where no GPU was named."""
    if deployment.gpu_memory_bytes:
        return min(deployment.gpu_memory_bytes)
    return deployment.gpu.memory_bytes if deployment.gpu is not None else H100_BYTES


def check_pool(deployment: Deployment) -> None:
    """Raises InputError where the KV pool given is larger than the device named."""
    pool, named = deployment.kv_memory_bytes, deployment.gpu is not None or bool(deployment.gpu_memory_bytes)
    if pool is not None and named and pool > device_bytes(deployment):
        raise InputError(
            f"a KV pool of {format_bytes(pool)} is more than the device has: {format_bytes(device_bytes(deployment))}",
            hint="leave the pool out: it is then what the budget leaves",
            key="kv_memory",
        )


def capability_of(deployment: Deployment) -> tuple[int, int]:
    """CUDA's compute capability of the device: an H100's where no GPU was named or an NVIDIA one has none, and
    ``ROCM_CAPABILITY`` on other vendors' GPUs."""
    gpu = deployment.gpu
    if gpu is not None and gpu.compute_capability is None and gpu.vendor.lower() != "nvidia":
        return ROCM_CAPABILITY
    return H100_CAPABILITY if gpu is None or gpu.compute_capability is None else gpu.compute_capability


def device_memories(deployment: Deployment) -> tuple[int, ...]:
    """Memory of every rank's device: given per rank, given once, or the profile's figure."""
    ranks = deployment.tensor_parallel * deployment.pipeline_parallel
    given = deployment.gpu_memory_bytes
    if given is None:
        if deployment.gpu is None:
            raise InputError(
                "a memory budget needs a GPU",
                hint="name one (--gpu h100), or give its memory (--gpu-memory 79.2GiB) or the pool (--kv-memory 40GiB)",
                key="gpu",
            )
        return (deployment.gpu.memory_bytes,) * ranks
    if len(given) == 1:
        return given * ranks
    if len(given) not in {ranks, ranks * deployment.data_parallel}:
        raise InputError(
            f"{len(given)} amounts of GPU memory, but the number of ranks is {ranks}",
            hint="give one for all, or one per rank",
            key="gpu_memory",
        )
    # every data-parallel replica holds the same, so the smallest device at each place decides
    return tuple(min(given[place::ranks]) for place in range(ranks))


def window_of(model: ModelSpec, deployment: Deployment) -> int:
    """The window asked for, else the model's own, else 2,048; InputError where it exceeds the model's.

    Source: vLLM 0.33, ``_get_and_verify_max_len``.
    """
    native, asked = model.max_context_tokens, deployment.max_model_len
    if asked is None:
        return DEFAULT_WINDOW if native is None else native
    if asked < 1:
        raise InputError(
            f"a window of {asked} tokens is not possible", hint="give 1 token or more", key="max_model_len"
        )
    if native is not None and asked > native and model.states_context:
        raise InputError(
            f"a window of {asked:,} tokens is longer than the {native:,} that {model.id} was made for",
            hint=f"--max-model-len {native}, or a config.json with larger max_position_embeddings (YaRN)",
            key="max_model_len",
        )
    return asked
