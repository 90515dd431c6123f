"""Media in prompts: whether the encoder is loaded at all, and what the start-up run sees of the worst prompt.

Source: vLLM 0.33, ``MultiModalBudget``: the start-up run encodes as many items as the tokens of one step hold, whatever
the limits; an encoder all of whose media are limited to none is not loaded.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction

from kvplan.engines.base import Deployment, Finding, MediaLimit, Settings
from kvplan.engines.weights import part_bytes
from kvplan.model import ModelSpec

_ENCODED = ("image", "video")
_PARTS = "vision."


def worst_case_tokens(limits: Iterable[MediaLimit]) -> int:
    """Σ items × tokens of an item, of the media whose tokens are known.

    >>> worst_case_tokens([MediaLimit(sort="image", items=10, item_tokens=16384)])
    163840
    """
    return sum(limit.items * limit.item_tokens for limit in limits if limit.item_tokens is not None)


def loads_encoder(deployment: Deployment) -> bool:
    """False where images and videos are both limited to none."""
    items = {limit.sort: limit.items for limit in deployment.media_limits or ()}
    return any(items.get(sort, 1) for sort in _ENCODED)


def without_encoder(model: ModelSpec) -> ModelSpec:
    """``model`` without its vision tower; file sizes shrink by the tower's share."""
    weights = model.weights
    kept = tuple(part for part in weights.parts if not part.name.startswith(_PARTS))
    stored = weights.stored_bytes
    if stored is not None and weights.parts:
        whole, rest = (
            sum((part_bytes(part, Fraction(part.parameters), model.dtype) for part in parts), Fraction(0))
            for parts in (weights.parts, kept)
        )
        stored = int(stored * rest / whole)
    return replace(
        model,
        weights=replace(weights, parts=kept, stored_bytes=stored),
        shape=replace(model.shape, has_vision=False),
    )


def media_findings(model: ModelSpec, deployment: Deployment, settings: Settings) -> Iterator[Finding]:
    """What limits on media do to the plan, and prompts whose media the start-up run never sees at once."""
    limits = deployment.media_limits
    if limits is None:
        return
    if not model.shape.has_vision:
        message = f"{model.id} has no vision encoder in this plan; what encodes other media is as loaded by default"
    elif loads_encoder(deployment):
        message = (
            "the start-up run encodes as many items as one step's tokens hold, whatever the limit: memory is the same; "
            "only limits of 0 for images and videos leave the encoder out"
        )
    else:
        message = "images and videos are limited to none: the vision encoder is not loaded"
    yield Finding(code="media-limits", severity="info", message=message)
    largest = None if model.shape.encoder is None else model.shape.encoder.item_tokens or None
    limits = tuple(replace(limit, item_tokens=limit.item_tokens or largest) for limit in limits)
    worst, profiled = worst_case_tokens(limits), settings.max_num_batched_tokens
    if any(limit.items > 1 and limit.item_tokens is None for limit in limits):
        yield Finding(
            code="media-tokens-not-said",
            severity="info",
            message="the tokens of the largest item are not known: how long a prompt's media can be is not priced",
            hint='say them: {"image": {"count": 10, "tokens": 1024}}',
        )
    if worst > profiled:
        yield Finding(
            code="media-beyond-profile",
            severity="warning",
            message=f"a prompt's media can be {worst:,} tokens, the start-up run sees {profiled:,}: encoder inputs "
            "exceed the profiled length; lower the limits or image size",
            hint="or raise --max-num-batched-tokens, and see whether the pool still suffices",
        )
