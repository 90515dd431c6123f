"""From a traffic file to what the gateway may promise: the same pool, charge and policy as in the simulation."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvplan.admission import STRATEGIES
from kvplan.gateway.admit import Promise
from kvplan.simulation.plant import Plant
from kvplan.traffic.spec import Traffic

_USUAL_QUANTILE = 0.95
_NO_LIMIT = 2**62


@dataclass(frozen=True, kw_only=True)
class GatewayPlan:
    """The promise, and one engine's pool it was made for: ``blocks`` of ``block_tokens``, the reserved one included."""

    promise: Promise
    blocks: int
    block_tokens: int


def gateway_plan(traffic: Traffic, plant: Plant, *, media_tokens: Mapping[str, int] | None = None) -> GatewayPlan:
    """What ``traffic.admission`` lets one gateway in front of one engine promise.

    The usual answer that ``quantile`` charges is the largest p95 of the file's classes, for a request does not say
    which class it belongs to.
    """
    admission = traffic.admission
    strategy = STRATEGIES[admission.policy]
    capacity = _NO_LIMIT
    if strategy.counts == "blocks":
        capacity = plant.promised_blocks(admission.safety_fraction)
    elif strategy.counts == "requests":
        capacity = admission.concurrency or plant.settings.max_num_seqs
    answers = [group.output_tokens for group in traffic.classes if group.output_tokens is not None]
    return GatewayPlan(
        promise=Promise(
            window_tokens=plant.settings.max_model_len,
            capacity=capacity,
            request_blocks=plant.layout.request_blocks,
            strategy=strategy,
            default_max_tokens=admission.default_max_tokens,
            expected_output_tokens=max((lengths.quantile(_USUAL_QUANTILE) for lengths in answers), default=0),
            retry_after_constant_s=admission.retry_after.seconds,
            retry_after_jitter_share=admission.retry_after.jitter_share,
            media_tokens=dict(media_tokens or {}),
        ),
        blocks=plant.blocks,
        block_tokens=plant.layout.block_tokens,
    )
