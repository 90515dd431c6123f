"""``mem_fraction_static``: by default what SGLang does not reserve for activations and CUDA graphs.

Source: ``handle_gpu_memory_settings`` and ``reserve_for_graph_mb`` of ``memory_hook.py`` 0.5.23, and their predecessors
in ``server_args.py`` since 0.5.6. Amounts are MiB, as there.
"""

from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment, is_since
from kvplan.engines.devices import device_bytes
from kvplan.engines.memory_share import utilization_of_free
from kvplan.engines.sglang.classes import (
    KDA_WITH_PREFILL_GRAPHS,
    SERVED_AS_TEXT,
    VISION_WITH_PREFILL_GRAPHS,
    Release,
)
from kvplan.layers import KdaState, LatentAttention
from kvplan.model import ModelSpec
from kvplan.units import GIB, MIB

FIRST_PREFILL_GRAPHS: Release = (0, 5, 12)
"""From then on memory is reserved for graphs of the prefill too."""
FIRST_WIDER_24_GIB: Release = (0, 5, 21)
"""Before it, GPUs of 20 to 35 GiB had ``_NARROWER_24_GIB`` as their tier."""
UNCHUNKED_TOKENS = 16_384
"""Default of ``max_prefill_tokens``."""
LATENT_PREFILL_GRAPHS_MIB = 1536
PREFILL_GRAPH_MIB = 8
"""For all prefill graphs with MLA, and for each of them without."""
VIT_L_LAYERS = 24
VIT_L_HIDDEN = 1024
"""The encoder that SGLang compares others with."""


@dataclass(frozen=True, kw_only=True)
class Tier:
    """Defaults of GPUs below a size: tokens of a prefill chunk, and the largest captured batch below and from TP 4."""

    below_bytes: int | None
    chunk_tokens: int
    graph_batch: int
    graph_batch_parallel: int


_TIERS = (
    Tier(below_bytes=20 * GIB, chunk_tokens=2048, graph_batch=8, graph_batch_parallel=8),
    Tier(below_bytes=35 * GIB, chunk_tokens=4096, graph_batch=48, graph_batch_parallel=160),
    Tier(below_bytes=60 * GIB, chunk_tokens=4096, graph_batch=32, graph_batch_parallel=160),
    Tier(below_bytes=160 * GIB, chunk_tokens=8192, graph_batch=256, graph_batch_parallel=512),
    Tier(below_bytes=None, chunk_tokens=16384, graph_batch=512, graph_batch_parallel=512),
)
_NARROWER_24_GIB = Tier(below_bytes=35 * GIB, chunk_tokens=2048, graph_batch=24, graph_batch_parallel=80)


def tier_of(total_bytes: int, release: Release | None = None) -> Tier:
    """The defaults of a device with ``total_bytes``."""
    tier = next(tier for tier in _TIERS if tier.below_bytes is None or total_bytes < tier.below_bytes)
    if tier.below_bytes == _NARROWER_24_GIB.below_bytes and not is_since(release, FIRST_WIDER_24_GIB):
        return _NARROWER_24_GIB
    return tier


def chunk_tokens(deployment: Deployment) -> int:
    """``chunked_prefill_size`` as given or by tier, before attention data parallelism divides it; without chunked
    prefill, ``max_prefill_tokens``."""
    if deployment.chunked_prefill is False:
        return UNCHUNKED_TOKENS
    return (
        deployment.max_num_batched_tokens or tier_of(device_bytes(deployment), deployment.engine.release).chunk_tokens
    )


def captured_sizes(largest: int) -> int:
    """The number of prefill sizes up to ``largest`` tokens that are captured.

    >>> captured_sizes(8192), captured_sizes(2048)
    (58, 42)
    """
    steps = ((4, 32, 4), (48, 256, 16), (288, 512, 32), (576, 1024, 64), (1280, 4096, 256), (4608, largest, 512))
    return sum(size <= largest for first, last, step in steps for size in range(first, last + 1, step))


def serves_vision(model: ModelSpec) -> bool:
    """Whether the model has a vision encoder and SGLang uses it."""
    return model.shape.has_vision and model.architecture not in SERVED_AS_TEXT


def graphs_mib(model: ModelSpec, deployment: Deployment) -> int:
    """CUDA graphs: 2 per sequence of the largest decode batch; 8 per captured prefill size, or 1.5 GiB with MLA.

    With attention data parallelism 3 more per sequence and replica, 4.5 in batches above 300. Prefill is not captured
    before 0.5.12, without chunked prefill, with pipeline stages, with KDA, and with the vision encoders of most
    classes.
    """
    release = deployment.engine.release
    tier = tier_of(device_bytes(deployment), release)
    replicas, ranks = deployment.data_parallel, deployment.tensor_parallel * deployment.data_parallel
    batch = tier.graph_batch if ranks < 4 else tier.graph_batch_parallel
    if deployment.max_num_seqs is not None:
        batch = min(batch, deployment.max_num_seqs * replicas)
    padding = 0 if replicas == 1 else batch * replicas * (3 if batch <= 300 else Fraction(9, 2))
    if deployment.enforce_eager:
        return int(padding)
    return int(2 * batch + padding) + _prefill_graphs_mib(model, deployment, release)


def _prefill_graphs_mib(model: ModelSpec, deployment: Deployment, release: Release | None) -> int:
    has_kda = model.keeps(KdaState)
    uncaptured = (
        not is_since(release, FIRST_PREFILL_GRAPHS)
        or deployment.pipeline_parallel > 1
        or (has_kda and model.architecture not in KDA_WITH_PREFILL_GRAPHS)
        or (serves_vision(model) and model.architecture not in VISION_WITH_PREFILL_GRAPHS)
    )
    if uncaptured:
        return 0
    if model.keeps(LatentAttention):
        return LATENT_PREFILL_GRAPHS_MIB
    if deployment.chunked_prefill is False:
        return 0
    return PREFILL_GRAPH_MIB * captured_sizes(chunk_tokens(deployment))


def default_fraction(total_bytes: int, chunk: int, ranks: int, graphs: int) -> Fraction:
    """(memory − reserve) / memory, to three digits.

    Reserve = 512 + 1.5 × max(chunk, 2,048) + ranks / 8 × 1,024 + graphs; above 60 GiB at least 10 GiB.

    >>> float(default_fraction(81559 * 2**20, 8192, 1, 2 * 256))
    0.835
    """
    reserve = 512 + Fraction(3, 2) * max(chunk, 2048) + Fraction(ranks, 8) * 1024 + graphs
    if total_bytes > 60 * GIB:
        reserve = max(reserve, Fraction(10 * 1024))
    return Fraction(round((1 - reserve * MIB / total_bytes) * 1000), 1000)


def vision_factor(layers: int | None, hidden: int | None) -> Fraction:
    """The factor on the default for a vision encoder: 0.95, and a tenth less for each ViT-L by which it is larger.

    0.95 × (1 − 0.1 × (layers × hidden² / (24 × 1024²) − 1)), the second factor between 0.8 and 1.05. Without these
    keys in the config they are ViT-L's. Source: ``adjust_mem_fraction_for_vlm``.

    >>> float(vision_factor(None, None)), float(vision_factor(27, 4096))
    (0.95, 0.76)
    """
    size = Fraction((layers or VIT_L_LAYERS) * (hidden or VIT_L_HIDDEN) ** 2, VIT_L_LAYERS * VIT_L_HIDDEN**2)
    return Fraction(95, 100) * max(Fraction(8, 10), min(Fraction(105, 100), 1 - (size - 1) / 10))


def static_fraction(model: ModelSpec, deployment: Deployment, total_bytes: int) -> Fraction:
    """``mem_fraction_static`` as given, or the default of a device of ``total_bytes``."""
    asked = utilization_of_free(deployment, "SGLang")
    if asked is not None:
        return asked
    ranks, graphs = deployment.gpus, graphs_mib(model, deployment)
    share = default_fraction(total_bytes, chunk_tokens(deployment), ranks, graphs)
    if not serves_vision(model):
        return share
    return share * vision_factor(model.shape.vision_layers, model.shape.vision_hidden)
