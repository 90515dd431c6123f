"""What else to set: two engine flags, Retry-After, and the thresholds at which to add or remove replicas."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvplan.engines import parse_engine
from kvplan.recommend.player import Setting
from kvplan.recommend.results import EngineAdvice, Played, Price, RetryAdvice, ScalingRule
from kvplan.simulation.bounds import quantile_of
from kvplan.simulation.doors import charged_blocks, requests_for
from kvplan.simulation.plant import Plant
from kvplan.simulation.results import StrategyResult
from kvplan.simulation.types import ClientRule, Integers
from kvplan.traffic.kinds import Arrivals

LONGEST_STEP_S = 0.25
"""A prefill step that takes longer is felt: every answer in progress waits for it."""
_TOKEN_CHOICES = (512, 1024, 2048, 4096, 8192, 16384)
_SEQS_HEADROOM = 2
_LEDGER_FULL_SHARE = 0.80


@dataclass(frozen=True, kw_only=True)
class EngineMetrics:
    """The names under which an engine shows what scaling looks at; None where it shows no such gauge."""

    kv_usage: str | None
    waiting: str


_RENAMED = (0, 10)
"""vLLM's V1 engine calls its gauge kv_cache_usage_perc; rules on the old name, gpu_cache_usage_perc, never fire there
(github.com/kubernetes-sigs/gateway-api-inference-extension/pull/1905)."""
METRICS: dict[str, EngineMetrics] = {
    "vllm": EngineMetrics(kv_usage="vllm:kv_cache_usage_perc", waiting="vllm:num_requests_waiting"),
    "sglang": EngineMetrics(kv_usage="sglang:token_usage", waiting="sglang:num_queue_reqs"),
    "llama.cpp": EngineMetrics(kv_usage=None, waiting="llamacpp:requests_deferred"),
    "tgi": EngineMetrics(kv_usage=None, waiting="tgi_queue_size"),
    "tensorrt-llm": EngineMetrics(
        kv_usage='nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
        waiting='nv_trt_llm_request_metrics{request_type="waiting"}',
    ),
}


def engine_metrics(engine: str) -> EngineMetrics:
    """The names of ``engine``, written ``name`` or ``name@version``."""
    version = parse_engine(engine)
    if version.name == "vllm" and version.release is not None and version.release < _RENAMED:
        return EngineMetrics(kv_usage="vllm:gpu_cache_usage_perc", waiting="vllm:num_requests_waiting")
    return METRICS[version.name]


def engine_advice(setting: Setting, charged: Integers, result: StrategyResult) -> EngineAdvice:
    """max_num_seqs: 5 / 4 of the requests of mean charge that a full ledger holds, at least twice the most seen inside
    one replica on one seed's samples, in eights; so nothing that was admitted waits. max_num_batched_tokens: the
    largest power of two whose full prefill step, base + tokens × prefill, takes at most a quarter of a second."""
    plant, samples = setting.plant, result.samples
    inside = 0 if samples is None or not len(samples.running) else int((samples.running + samples.waiting).max())
    each = -(-inside // plant.replicas)
    step, now = plant.service.step, plant.settings.max_num_batched_tokens

    def full_step_s(tokens: int) -> float:
        return step.base_s + tokens * step.prefill_token_s

    fitting = [tokens for tokens in _TOKEN_CHOICES if full_step_s(tokens) <= LONGEST_STEP_S]
    tokens = max(fitting, default=_TOKEN_CHOICES[0])
    full = 1.25 * setting.opened().capacity / max(float(charged.mean()) if len(charged) else 1.0, 1.0)
    return EngineAdvice(
        max_num_seqs=max(8, -(-max(math.ceil(full), each * _SEQS_HEADROOM) // 8) * 8),
        max_num_seqs_now=plant.settings.max_num_seqs,
        running_peak=each,
        max_num_batched_tokens=tokens,
        max_num_batched_tokens_now=now,
        full_step_s=full_step_s(tokens),
        full_step_now_s=full_step_s(now),
    )


def charges(setting: Setting, arrivals: Arrivals) -> Integers:
    """What the ledger charges each request that can be served."""
    asked = requests_for(
        arrivals,
        setting.opened(),
        setting.plant,
        seed=setting.first_seed,
        client_timeouts_s=[math.inf] * len(arrivals.clients),
        expected_output_tokens=[1] * len(arrivals.classes),
    )
    kept: Integers = asked.charge[~asked.refused_for_good]
    return kept


def retry_advice(
    setting: Setting, charged: Integers, answer: Played, clients: Sequence[ClientRule], jitter_share: float
) -> RetryAdvice:
    """How long a refused request waits while the ledger is full: its charge over the rate at which blocks come back.

    By Little's law the mean hold, weighted by blocks, is h = mean reserved blocks / (requests/s × mean charge); a full
    ledger of C gives back C / h blocks a second. Typical: the mean charge; long: the p95.
    """
    capacity = setting.opened().capacity * setting.plant.replicas
    mean = float(charged.mean()) if len(charged) else 0.0
    reserved = (answer.kv_reserved_mean_share or 0.0) * setting.plant.usable * setting.plant.replicas
    arriving = answer.offered_per_s * mean
    hold_s = reserved / arriving if arriving > 0 else 0.0
    per_s = capacity / hold_s if hold_s > 0 else math.inf
    honoured = [rule.longest_honoured_s for rule in clients if rule.honours_retry_after]
    least = min((value for value in honoured if math.isfinite(value)), default=None)
    typical = max(1.0, mean / per_s)
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
    """Worst-case N: the ledger over the largest of usual charges (their p95). Expected N: the usable pool over what a
    running request holds, its prompt and half its answer, weighted by the tokens it stays. Idle when full: what the
    ledger keeps back, and what reservations do not use: 1 − used / reserved × fraction."""
    plant, window = setting.plant, setting.plant.settings.max_model_len
    capacity = setting.opened().capacity
    largest = quantile_of(charged, setting.traffic.reservation_quantile)
    held: list[float] = []
    stays: list[float] = []
    for one in drawings:
        served = one.prompt_tokens < window
        prompt = one.prompt_tokens[served]
        cap = np.where(one.max_tokens[served] > 0, one.max_tokens[served], setting.cap)
        output = np.minimum(one.output_tokens[served], np.minimum(cap, window - prompt))
        middle = np.maximum(prompt + output // 2, 1)
        held.append(float((charged_blocks(plant.layout, middle) * output).sum()))
        stays.append(float(output.sum()))
    mean_blocks = sum(held) / sum(stays) if sum(stays) else 0.0
    reserved = answer.kv_reserved_mean_share
    used_of_reserved = answer.kv_used_mean_share / reserved if reserved else None
    return Price(
        worst_case_sequences=capacity // max(largest, 1) * plant.replicas,
        expected_sequences=plant.usable * plant.replicas / mean_blocks if mean_blocks else 0.0,
        pool_idle_share=1.0 - answer.kv_used_mean_share,
        pool_idle_when_full_share=None if used_of_reserved is None else 1.0 - used_of_reserved * setting.fraction,
        answer=answer,
        none=none,
        worst_case=worst_case,
    )


def scaling_rules(plant: Plant, fraction: float, answer: Played) -> tuple[ScalingRule, ...]:
    """Thresholds for replicas behind a worst-case front door.

    Its ledger fills before the engine does, so it is the first signal: out at 80 % reserved; in where n − 1 of n
    replicas would still be below that. The engine's
    KV gauge then reads used / reserved × fraction × 0.80; a rule that waits for 0.9 there never fires. A request that
    waits in the engine was admitted and should not wait at all.
    """
    names = engine_metrics(plant.engine)
    fleet = max(plant.replicas, 2)
    ledger = "kvplan_ledger_reserved / kvplan_ledger_capacity"
    rules = [
        ScalingRule(
            metric=ledger,
            direction="out",
            threshold=_LEDGER_FULL_SHARE,
            for_s=60,
            meaning="the promises are nearly all given; refusals follow",
        ),
        ScalingRule(
            metric=ledger,
            direction="in",
            threshold=round(_LEDGER_FULL_SHARE * (fleet - 1) / fleet, 2),
            for_s=600,
            meaning=f"{fleet - 1} of {fleet} replicas would still hold what is promised",
        ),
    ]
    reserved = answer.kv_reserved_mean_share
    if names.kv_usage is not None and reserved:
        gauge = answer.kv_used_mean_share / reserved * fraction * _LEDGER_FULL_SHARE
        rules.append(
            ScalingRule(
                metric=names.kv_usage,
                direction="out",
                threshold=round(gauge, 2),
                for_s=60,
                meaning="what the engine's gauge reads when the ledger is 80% full",
            )
        )
    rules.append(
        ScalingRule(
            metric=names.waiting,
            direction="out",
            threshold=1.0,
            for_s=30,
            meaning="admitted requests wait: max_num_seqs or the step time binds, not the ledger",
        )
    )
    return tuple(rules)
