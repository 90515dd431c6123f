"""Values of the flags that several engines share, read from a plan."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from kvplan.engines.deployment import Deployment
from kvplan.engines.engine_plan import Settings
from kvplan.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Served:
    """What flags are written from: the plan's settings, and how long its requests may become.

    ``window_tokens`` is the window asked for, or the longest that fits; ``largest_cap_tokens`` is the largest output
    cap of any request; ``pool_tokens`` is None where the pool's memory was not given.
    """

    model: ModelSpec
    deployment: Deployment
    settings: Settings
    window_tokens: int
    largest_cap_tokens: int | None = None
    pool_tokens: int | None = None


FlagValue = Callable[[Served], object]
"""The value of a flag: None omits the flag, True is a flag without a value."""


def decimal(share: Fraction | None) -> str | None:
    """A share in decimal notation; None where there is none.

    >>> decimal(Fraction(9, 10)), decimal(None)
    ('0.9', None)
    """
    return None if share is None else f"{float(share):g}"


def asked(option: str) -> FlagValue:
    """The option as the user gave it."""
    return lambda served: getattr(served.deployment, option)


def unless(default: object, value: FlagValue) -> FlagValue:
    """``value``, or None where it equals ``default``, which the engine uses by itself."""

    def read(served: Served) -> object:
        found = value(served)
        return None if found == default else found

    return read


def when(condition: Callable[[Deployment], bool]) -> FlagValue:
    """A flag without a value, set where ``condition`` holds."""
    return lambda served: condition(served.deployment) or None


def kv_word(words: Mapping[str, str | None]) -> FlagValue:
    """The KV type asked for, in the engine's spelling where ``words`` has one; None there means it has no word."""

    def read(served: Served) -> object:
        word = served.deployment.kv_dtype
        return None if word == "auto" else words.get(word, word)

    return read


def attention_ranks(served: Served) -> int:
    """GPUs that attention runs on: tensor parallelism × its data-parallel replicas."""
    return served.deployment.tensor_parallel * served.deployment.data_parallel


def window(served: Served) -> int:
    """The window to serve, in tokens."""
    return served.window_tokens


def sequences(served: Served) -> int:
    """The largest number of concurrent sequences."""
    return served.settings.max_num_seqs


def step_tokens(served: Served) -> int:
    """The largest number of tokens in a step."""
    return served.settings.max_num_batched_tokens


def pool_tokens(served: Served) -> int | None:
    """Tokens of the pool, where its memory was given."""
    return served.pool_tokens


def memory_share(served: Served) -> str | None:
    """The share of memory; None where the pool's memory was given."""
    return None if served.deployment.kv_memory_bytes else decimal(served.settings.memory_utilization)


def media_items(served: Served) -> str | None:
    """The largest number of items of each modality, as JSON."""
    limits = served.deployment.media_limits
    return None if limits is None else json.dumps({limit.modality: limit.items for limit in limits})


def lora_rank(served: Served) -> int | None:
    """The largest adapter rank, where adapters are loaded at all."""
    return served.deployment.lora_rank if served.deployment.lora_slots else None


def partition_variable(served: Served, name: str) -> str:
    """The environment variable ``name`` with the layers of each pipeline stage, to precede a command; "" if even."""
    stages = served.deployment.pipeline_layers
    return f"{name}={','.join(map(str, stages))} " if stages else ""


EXPERT_RANKS: FlagValue = lambda served: attention_ranks(served) if served.deployment.expert_parallel else None  # noqa: E731
TENSOR: FlagValue = unless(1, asked("tensor_parallel"))
STAGES: FlagValue = unless(1, asked("pipeline_parallel"))
REPLICAS: FlagValue = unless(1, asked("data_parallel"))
NO_GRAPHS: FlagValue = when(lambda deployment: deployment.enforce_eager)
LORA: FlagValue = when(lambda deployment: deployment.lora_slots > 0)
LORA_SLOTS: FlagValue = unless(0, asked("lora_slots"))
NO_PREFIX_CACHE: FlagValue = when(lambda deployment: deployment.prefix_caching is False)
ONE_POOL: FlagValue = when(lambda deployment: not deployment.hybrid_kv_cache_manager)
