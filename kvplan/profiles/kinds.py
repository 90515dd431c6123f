"""The entries of the catalogues: one frozen dataclass for GPUs, one for clients, one for models."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class GpuProfile:
    """One device as the driver reports it.

    ``memory_bytes`` is what the driver or the engine's log says, never the number on the box. ``compute_capability``
    is CUDA's (major, minor), None for other vendors. ``flops_per_s`` maps a type (bfloat16, fp8, …) to the dense peak.
    ``unified_memory``: the CPU shares it. ``price_per_hour`` is null unless the user adds one. ``link_bytes_per_s`` is
    what it sends to the other GPUs of its node, one way, over NVLink or Infinity Fabric; null: the PCIe slot only.
    """

    name: str
    vendor: str
    family: str
    memory_bytes: int
    bandwidth_bytes_per_s: int
    flops_per_s: Mapping[str, int]
    sources: tuple[str, ...]
    checked: str
    aliases: tuple[str, ...] = ()
    compute_capability: tuple[int, int] | None = None
    unified_memory: bool = False
    price_per_hour: float | None = None
    link_bytes_per_s: int | None = None
    notes: str | None = None


@dataclass(frozen=True, kw_only=True)
class ClientProfile:
    """What a client library does when it is refused (429, 503).

    ``tries`` includes the first one; null means no limit. ``honours_retry_after`` is ``exact``, ``whole_seconds`` or
    ``no``; above ``longest_honoured_s`` the client does ``when_longer`` (``own_backoff`` or ``give_up``). Without the
    header it waits ``backoff_base_s × 2^n``, at most ``backoff_max_s``. The wait is multiplied by (1 − U(0,
    ``jitter_share``)), or U(0, ``jitter_add_s``) is added; with ``jitter_on_header`` the header's value as well.
    """

    name: str
    sources: tuple[str, ...]
    checked: str
    tries: int | None
    honours_retry_after: Literal["exact", "whole_seconds", "no"]
    longest_honoured_s: float | None = None
    when_longer: Literal["own_backoff", "give_up"] = "own_backoff"
    backoff_base_s: float = 0.0
    backoff_max_s: float = 0.0
    jitter_share: float = 0.0
    jitter_add_s: float = 0.0
    jitter_on_header: bool = False
    timeout_s: float | None = None
    notes: str | None = None


@dataclass(frozen=True, kw_only=True)
class BundledModel:
    """A published model: the keys of its config.json that size KV, state and weights, nested as they are there.

    ``quantization`` is what the repository's ``hf_quant_config.json`` says. ``parameters`` and ``weight_bytes`` are
    published totals, null where none is known (then they are computed from the config).
    """

    id: str
    sources: tuple[str, ...]
    checked: str
    config: Mapping[str, object]
    quantization: Mapping[str, object] | None = None
    parameters: int | None = None
    weight_bytes: int | None = None
    notes: str | None = None
