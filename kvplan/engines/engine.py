"""What an engine declares about itself: its options, how it stores and plans, its flags, command line and metrics."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import EnginePlan, Unpriced
from kvplan.engines.flag_values import FlagValue, Served
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec

# Options that several engines have and that their plans do not price.
ADAPTERS = Unpriced(
    option="lora_slots",
    word="max-loras",
    takes="memory for adapter weights, by rank and number of adapters, as this engine allocates them",
)
OFFLOAD = Unpriced(option="kv_offload_bytes", word="kv-offload", takes="host memory, and staging buffers on the GPU")
EAGER = Unpriced(
    option="enforce_eager",
    word="enforce-eager",
    takes="a different share of the step's memory, which was not compared with any log",
)
EXPERTS = Unpriced(
    option="expert_parallel",
    word="expert-parallel",
    takes="a share of the experts, and buffers to exchange tokens between ranks",
)
CHUNKS = Unpriced(
    option="chunked_prefill", word="chunked-prefill", takes="whole prompts in one step, and the memory of that step"
)


@dataclass(frozen=True, kw_only=True)
class EngineMetrics:
    """Names of the gauges that autoscaling rules read; None where the engine has no such gauge."""

    kv_usage: str | None
    waiting: str | None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine.

    ``has``: its options among those that not every engine has (``Option.rare``). ``unpriced``: options that its plan
    does not price. ``default_release``: whose rules are used where none is named, if that makes a difference.
    ``kv_types`` and ``plan`` raise InputError for an impossible deployment and UnsupportedModelError
    for what kvplan does not know. ``command`` starts the command line; ``flags`` follow in their order. ``metrics``
    takes the release, None for the newest. ``not_on``: GPU vendors that it does not support.
    """

    name: str
    has: frozenset[str]
    unpriced: tuple[Unpriced, ...] = ()
    kv_types: Callable[[ModelSpec, Deployment], KvTypes]
    plan: Callable[[ModelSpec, Deployment], EnginePlan]
    flags: Mapping[str, FlagValue]
    command: Callable[[Served], str]
    metrics: Callable[[tuple[int, ...] | None], EngineMetrics]
    default_release: tuple[int, ...] | None = None
    not_on: frozenset[str] = frozenset({"apple"})
