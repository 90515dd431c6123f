"""What an engine states of itself: which options it has, how it stores, plans, is started and watched. One value an
engine, in the engine's own module."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kvplan.engines.base import Deployment, EnginePlan, Settings, Unpriced
from kvplan.layers import KvTypes
from kvplan.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Served:
    """What an engine's flags are written of: a plan's settings, and how far its requests may run.

    ``window_tokens`` is the window asked for, or the longest that fits where that one does not; ``largest_cap_tokens``
    the output cap that every request may be given.
    """

    model: ModelSpec
    deployment: Deployment
    settings: Settings
    window_tokens: int
    largest_cap_tokens: int | None = None
    pool_tokens: int | None = None


FlagValue = Callable[[Served], object]
"""What a flag is set to: None leaves it out, True is a flag without a value."""


@dataclass(frozen=True, kw_only=True)
class EngineMetrics:
    """The names under which an engine shows what scaling looks at; None where it shows no such gauge."""

    kv_usage: str | None
    waiting: str | None


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine.

    ``has`` are the options it has of those that not every engine has, ``unpriced`` those that its plan is made without.
    ``kv_types`` and ``plan`` raise InputError for a deployment that cannot be, UnsupportedModelError for what is not
    known to kvplan. ``command`` begins the command line that ``flags`` end, in their order. ``metrics`` follow the
    release, None for the newest. It does not run on GPUs of the vendors ``not_on``. Functions import what they need
    when they are called: stating an engine costs nothing.
    """

    name: str
    has: frozenset[str]
    unpriced: tuple[Unpriced, ...] = ()
    kv_types: Callable[[ModelSpec, Deployment], KvTypes]
    plan: Callable[[ModelSpec, Deployment], EnginePlan]
    flags: Callable[[], Mapping[str, FlagValue]]
    command: Callable[[Served], str]
    metrics: Callable[[tuple[int, ...] | None], EngineMetrics]
    not_on: frozenset[str] = frozenset({"apple"})
