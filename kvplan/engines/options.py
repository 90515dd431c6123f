"""Options that an engine does not have are refused, and those that its plan leaves out are said: nothing asked for is
ignored."""

from collections.abc import Iterable, Iterator

from kvplan.engines.asked import rows
from kvplan.engines.base import Deployment, Unpriced
from kvplan.engines.statement import Engine
from kvplan.errors import InputError

ADAPTERS = Unpriced(
    option="lora_slots",
    word="max-loras",
    takes="adapter weights, by rank and number of adapters, as this engine books them",
)
OFFLOAD = Unpriced(option="kv_offload_bytes", word="kv-offload", takes="host memory, and staging buffers on the GPU")
EAGER = Unpriced(
    option="enforce_eager",
    word="enforce-eager",
    takes="another share of the step's memory, which no log was compared with",
)
EXPERTS = Unpriced(
    option="expert_parallel", word="expert-parallel", takes="a share of experts and buffers for sending tokens to them"
)
CHUNKS = Unpriced(
    option="chunked_prefill", word="chunked-prefill", takes="whole prompts in one step, and the memory of that step"
)


_UNASKED = Deployment()


def is_asked(deployment: Deployment, option: str) -> bool:
    """Whether ``option`` was given: is not what a deployment has unasked."""
    return bool(getattr(deployment, option) != getattr(_UNASKED, option))


def check_options(deployment: Deployment, engine: Engine, engines: Iterable[Engine]) -> None:
    """Raises InputError for an option that ``engine`` does not have: there it would change nothing. ``engines`` are
    those of which one may have it. Raises it also for a GPU that the engine does not run on."""
    vendor = "" if deployment.gpu is None else deployment.gpu.vendor.lower()
    if vendor in engine.not_on:
        raise InputError(
            f"{engine.name} does not run on a GPU of {vendor}: {deployment.gpu and deployment.gpu.name}",
            hint="--engine llama.cpp does",
            key="gpu",
        )
    for row in rows():
        if not row.option.rare or row.field in engine.has or not is_asked(deployment, row.field):
            continue
        owners = [each.name for each in engines if row.field in each.has]
        raise InputError(
            f"{row.key} is an option of {' and '.join(owners)}; {engine.name} has none like it",
            hint=f"leave it out, or plan for --engine {owners[0]}",
            key=row.key,
        )


def check_belongs(deployment: Deployment) -> None:
    """Raises InputError for an option whose own object is missing: there is nothing that it could say something of."""
    guesses = deployment.draft_model is not None or deployment.speculative_method is not None
    if guesses and not deployment.speculative_tokens:
        raise InputError(
            "a way to guess tokens ahead, but not how many", hint="--speculative-tokens 3", key="speculative_tokens"
        )


def unpriced_options(deployment: Deployment, engine: Engine) -> Iterator[Unpriced]:
    """What was asked for and the engine's plan is made without."""
    return (each for each in engine.unpriced if is_asked(deployment, each.option))
