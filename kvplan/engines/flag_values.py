"""Values that flags of several engines share, read from a plan's settings."""

from collections.abc import Callable, Mapping
from fractions import Fraction

from kvplan.engines.base import Deployment
from kvplan.engines.statement import FlagValue, Served


def decimal(share: Fraction | None) -> str | None:
    """A share as a command line takes it; None where there is none.

    >>> decimal(Fraction(9, 10)), decimal(None)
    ('0.9', None)
    """
    return None if share is None else f"{float(share):g}"


def asked(option: str) -> FlagValue:
    """The option as asked for."""
    return lambda served: getattr(served.deployment, option)


def unless(default: object, value: FlagValue) -> FlagValue:
    """``value``, or None where it is ``default``: the engine does that by itself."""

    def read(served: Served) -> object:
        found = value(served)
        return None if found == default else found

    return read


def if_so(condition: Callable[[Deployment], bool]) -> FlagValue:
    """A flag without a value, where ``condition`` holds."""
    return lambda served: condition(served.deployment) or None


def kv_word(words: Mapping[str, str | None]) -> FlagValue:
    """The KV type asked for, in the engine's spelling where ``words`` has one; None there: it has no word for it."""

    def read(served: Served) -> object:
        word = served.deployment.kv_dtype
        return None if word == "auto" else words.get(word, word)

    return read


def attention_ranks(served: Served) -> int:
    """GPUs over which attention's replicas and their tensor parallelism spread."""
    return served.deployment.tensor_parallel * served.deployment.data_parallel


def window(served: Served) -> int:
    """The window to serve."""
    return served.window_tokens


def sequences(served: Served) -> int:
    """Sequences at once."""
    return served.settings.max_num_seqs


def step_tokens(served: Served) -> int:
    """Tokens of a step."""
    return served.settings.max_num_batched_tokens


def pool_tokens(served: Served) -> int | None:
    """Tokens of the pool; None where its memory was not given."""
    return served.pool_tokens


def memory_share(served: Served) -> str | None:
    """The share of memory; None where the pool was given."""
    return None if served.deployment.kv_memory_bytes else decimal(served.settings.memory_utilization)


EXPERT_RANKS: FlagValue = lambda served: attention_ranks(served) if served.deployment.expert_parallel else None  # noqa: E731
TENSOR: FlagValue = unless(1, asked("tensor_parallel"))
STAGES: FlagValue = unless(1, asked("pipeline_parallel"))
REPLICAS: FlagValue = unless(1, asked("data_parallel"))
EAGER: FlagValue = if_so(lambda deployment: deployment.enforce_eager)
NO_PREFIX_CACHE: FlagValue = if_so(lambda deployment: deployment.prefix_caching is False)
ONE_POOL: FlagValue = if_so(lambda deployment: not deployment.hybrid_kv_cache_manager)
