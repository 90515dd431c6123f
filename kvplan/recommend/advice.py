"""What else to set and what it costs: two engine flags, Retry-After, rules for autoscaling, the KV that stays idle."""

import math
from collections.abc import Sequence

import numpy as np

from kvplan.engines import engine_of, parse_engine
from kvplan.engines.engine import EngineMetrics
from kvplan.recommend.player import Setting
from kvplan.recommend.results import EngineAdvice, Played, Price, RetryAdvice, ScalingRule
from kvplan.simulation.backend import Backend
from kvplan.simulation.bounds import quantile_of
from kvplan.simulation.front_door import charged_blocks, requests_for
from kvplan.simulation.results import StrategyResult
from kvplan.simulation.types import ClientRule, Integers
from kvplan.traffic.arrivals import Arrivals

LONGEST_STEP_S = 0.25
"""A prefill step that takes longer is felt: every answer in progress waits for it."""
_TOKEN_CHOICES = (512, 1024, 2048, 4096, 8192, 16384)
_LEDGER_HEADROOM = 1.25
"""Over a full ledger of average requests: a run of small ones is more."""
_SEQS_HEADROOM = 2
"""Over the most that one seed had inside: another seed, or another day, has more."""
_LEDGER_FULL_SHARE = 0.80
"""Full enough to act: the last fifth is what can still be promised while another replica starts."""
_LEDGER_SHARE = "kvplan_ledger_reserved / kvplan_ledger_capacity"


def engine_advice(setting: Setting, charged: Integers, result: StrategyResult) -> EngineAdvice:
    """Flags with which no admitted request waits and no prefill step stalls the answers in progress.

    max_num_seqs = max(1.25 × ledger / mean charge, 2 × the most requests seen inside one replica), rounded up to a
    multiple of 8: a full ledger of average requests, with headroom for a run of small ones. max_num_batched_tokens: the
    largest of the usual powers of two whose full step (base + tokens × prefill) takes at most ``LONGEST_STEP_S``.
    ``charged`` are the blocks of each request; ``result`` brings the samples of one seed.
    """
    backend, samples = setting.backend, result.samples
    inside = 0 if samples is None or not len(samples.running) else int((samples.running + samples.waiting).max())
    each = -(-inside // backend.replicas)
    step, now = backend.service.step, backend.settings.max_num_batched_tokens

    def full_step_s(tokens: int) -> float:
        return step.base_s + tokens * step.prefill_token_s

    fitting = [tokens for tokens in _TOKEN_CHOICES if full_step_s(tokens) <= LONGEST_STEP_S]
    tokens = max(fitting, default=_TOKEN_CHOICES[0])
    full = _LEDGER_HEADROOM * setting.applied().capacity / max(mean_charge(charged), 1.0)
    return EngineAdvice(
        max_num_seqs=max(8, -(-max(math.ceil(full), each * _SEQS_HEADROOM) // 8) * 8),
        max_num_seqs_now=backend.settings.max_num_seqs,
        running_peak=each,
        max_num_batched_tokens=tokens,
        max_num_batched_tokens_now=now,
        full_step_s=full_step_s(tokens),
        full_step_now_s=full_step_s(now),
    )


def charges(setting: Setting, arrivals: Arrivals) -> Integers:
    """The blocks that the ledger charges each request that can be served."""
    asked = requests_for(
        arrivals,
        setting.applied(),
        setting.backend,
        seed=setting.first_seed,
        client_timeouts_s=[math.inf] * len(arrivals.clients),
        expected_output_tokens=[1] * len(arrivals.classes),
    )
    kept: Integers = asked.charge[~asked.refused_for_good]
    return kept


def mean_charge(charged: Integers) -> float:
    """The mean charge, 0 where there are none."""
    return float(charged.mean()) if len(charged) else 0.0


def retry_advice(
    setting: Setting, charged: Integers, answer: Played, clients: Sequence[ClientRule], jitter_share: float
) -> RetryAdvice:
    """How long a refused request should wait while the ledger is full: its charge over the rate at which blocks return.

    By Little's law the mean hold, weighted by blocks, is h = mean reserved blocks / (requests/s × mean charge); a full
    ledger of C blocks gives back C / h blocks a second. Typical: the mean charge; long: the p95.
    """
    capacity = setting.applied().capacity * setting.backend.replicas
    usual = mean_charge(charged)
    reserved = (answer.kv_reserved_mean_share or 0.0) * setting.backend.usable * setting.backend.replicas
    arriving = answer.offered_per_s * usual
    hold_s = reserved / arriving if arriving > 0 else 0.0
    per_s = capacity / hold_s if hold_s > 0 else math.inf
    honoured = [rule.longest_honoured_s for rule in clients if rule.honours_retry_after]
    least = min((value for value in honoured if math.isfinite(value)), default=None)
    typical = max(1.0, usual / per_s)
    long = max(1.0, quantile_of(charged, 0.95) / per_s)
    fixed = math.ceil(typical)
    return RetryAdvice(
        typical_s=typical,
        long_s=long,
        fixed_s=fixed if least is None else min(fixed, int(least)),
        jitter_share=jitter_share,
        least_honoured_s=least,
    )


def price(
    setting: Setting,
    drawings: Sequence[Arrivals],
    charged: Integers,
    *,
    answer: Played,
    none: Played,
    worst_case: Played,
) -> Price:
    """What worst-case reservations cost.

    Worst cases: the ledger over the p95 charge. Expected: the usable pool over what a running request holds (its prompt
    and half its answer, weighted by how long it stays). Idle when full: what the ledger keeps back and what
    reservations do not use, 1 − used / reserved × fraction.
    """
    backend, window = setting.backend, setting.backend.settings.max_model_len
    capacity = setting.applied().capacity
    largest = quantile_of(charged, setting.traffic.reservation_quantile)
    held: list[float] = []
    stays: list[float] = []
    for one in drawings:
        served = one.prompt_tokens < window
        prompt = one.prompt_tokens[served]
        cap = np.where(one.max_tokens[served] > 0, one.max_tokens[served], setting.cap)
        output = np.minimum(one.output_tokens[served], np.minimum(cap, window - prompt))
        middle = np.maximum(prompt + output // 2, 1)
        held.append(float((charged_blocks(backend.layout, middle) * output).sum()))
        stays.append(float(output.sum()))
    mean_blocks = sum(held) / sum(stays) if sum(stays) else 0.0
    reserved = answer.kv_reserved_mean_share
    used_of_reserved = answer.kv_used_mean_share / reserved if reserved else None
    return Price(
        worst_case_sequences=capacity // max(largest, 1) * backend.replicas,
        expected_sequences=backend.usable * backend.replicas / mean_blocks if mean_blocks else 0.0,
        pool_idle_share=1.0 - answer.kv_used_mean_share,
        pool_idle_when_full_share=None if used_of_reserved is None else 1.0 - used_of_reserved * setting.fraction,
        answer=answer,
        none=none,
        worst_case=worst_case,
    )


def engine_metrics(engine: str) -> EngineMetrics:
    """The metric names of ``engine``, written ``name`` or ``name@version``."""
    version = parse_engine(engine)
    return engine_of(version.name).metrics(version.release)


def scaling_rules(backend: Backend, fraction: float, answer: Played) -> tuple[ScalingRule, ...]:
    """Thresholds for scaling replicas behind a worst-case front door.

    Its ledger fills before the engine does, so it is the first signal: out at 80% reserved; in where n − 1 of n
    replicas would still be below that. The engine's KV gauge then reads used / reserved × fraction × 0.80, so a rule
    that waits for 0.9 never fires. A request that waits inside the engine has been admitted and should not wait at all.
    """
    names, fleet = engine_metrics(backend.engine), max(backend.replicas, 2)
    reserved = answer.kv_reserved_mean_share
    gauge = answer.kv_used_mean_share / reserved * fraction * _LEDGER_FULL_SHARE if reserved else None
    fewer = _LEDGER_FULL_SHARE * (fleet - 1) / fleet
    rules: tuple[tuple[str | None, str, float | None, int, str], ...] = (
        (_LEDGER_SHARE, "out", _LEDGER_FULL_SHARE, 60, "nearly all is promised, refusals follow"),
        (_LEDGER_SHARE, "in", fewer, 600, f"of {fleet} replicas {fleet - 1} would still hold what is promised"),
        (names.kv_usage, "out", gauge, 60, "what the engine's gauge reads when the ledger is 80% full"),
        (names.waiting, "out", 1.0, 30, "admitted requests wait for max_num_seqs or the step time, not for the ledger"),
    )
    return tuple(
        ScalingRule(metric=metric, direction=direction, threshold=round(threshold, 2), for_s=for_s, meaning=meaning)
        for metric, direction, threshold, for_s, meaning in rules
        if metric is not None and threshold is not None
    )
