"""What a running engine or gateway reports: reserved against used, the real pool, and the fraction that follows."""

from collections.abc import Iterator
from math import isfinite, sqrt
from pathlib import Path

from kvplan.capacity import usable_blocks
from kvplan.errors import InputError
from kvplan.recommend.prometheus import Histogram, Metrics, read_metrics
from kvplan.recommend.results import Constraints, ObservedUse, SafetyAnswer
from kvplan.recommend.safety import BAND, COUNT, LOOK_AHEAD, binding_term, safety_fraction
from kvplan.simulation.backend import Backend

_DEVIATIONS = 3.0
"""One moment in 740 is above, were the requests independent and many."""


def observe(
    path: Path, *, backend: Backend, safety: SafetyAnswer, limits: Constraints, worst_case_sequences: int
) -> ObservedUse:
    """The figures of a scrape and the updated fraction.

    The engine's own number of blocks takes the place of the budget's band (blocks it lacks are taken off the planned
    pool); the other terms stay. Overbooking: with u the used over the reserved tokens and σ the spread of that share
    between requests, N live requests fill the pool, three deviations up, at f / (u + 3 σ / √N).
    """
    metrics = read_metrics(path)
    source = _source(metrics, path)
    prompt = metrics.histogram("vllm:request_prompt_tokens") or _of_sglang(metrics, "prompt_tokens")
    output = metrics.histogram("vllm:request_generation_tokens") or _of_sglang(metrics, "generation_tokens")
    reserved, used, reserved_source = _reserved_and_used(metrics, prompt, output)
    shares, blocks, taken = metrics.histogram("kvplan_used_share"), _blocks(metrics, backend), safety.terms
    # Of the planned pool; where the engine has more, nothing is missing.
    band = None if blocks is None else max(0.0, 1.0 - usable_blocks(backend.layout, blocks) / backend.usable)
    fraction, terms, binds = safety_fraction(
        backend,
        count_error_share=taken[COUNT],
        look_ahead_share=taken[LOOK_AHEAD],
        risk_free=safety.risk_free_fraction,
        band_share=taken[BAND] if band is None else band,
    )
    if band is not None and binding_term(terms, safety.risk_free_fraction) == BAND:
        binds = f"the engine's pool is {terms[BAND]:.1%} smaller than planned"
    used_share = used / reserved if reserved and used is not None else None
    over = None if shares is None else shares.above(1.0)
    preempted = metrics.total("vllm:num_preemptions", "sglang:num_retracted_requests")
    cap = None if output is None else output.least_edge(limits.max_truncated_share)
    return ObservedUse(
        source=source,
        requests=int(_requests(metrics, prompt, output)),
        reserved_tokens=reserved,
        used_tokens=used,
        used_share=used_share,
        reserved_source=reserved_source,
        over_reserved_share=over,
        pool_blocks=blocks,
        kv_usage_share=metrics.highest("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
        preemptions=None if preempted is None else int(preempted),
        prompt_mean_tokens=None if prompt is None else prompt.mean,
        output_mean_tokens=None if output is None else output.mean,
        output_cap_tokens=None if cap is None else int(cap),
        safety_fraction=fraction,
        overbooking_fraction=_overbooking(fraction, used_share, shares, worst_case_sequences),
        binds=binds,
        notes=tuple(_notes(metrics, over, band, preempted, used_share)),
    )


def _source(metrics: Metrics, path: Path) -> str:
    known = {"vllm:": "vLLM", "sglang:": "SGLang", "kvplan_": "kvplan gateway"}
    found = [name for prefix, name in known.items() if metrics.has(prefix)]
    if not found:
        raise InputError(
            f"{path} holds no metrics of vLLM, SGLang or kvplan gateway",
            hint="save them: curl -s http://localhost:8000/metrics > metrics.txt, from the engine or the gateway",
            file=str(path),
        )
    return " and ".join(found)


def _of_sglang(metrics: Metrics, name: str) -> Histogram | None:
    """Lengths as SGLang reports them: a histogram where it was asked for one, else their sum over its requests (source:
    SGLang 0.5.23, ``srt/observability/metrics_collector.py``)."""
    total, requests = metrics.total(f"sglang:{name}"), metrics.total("sglang:num_requests")
    summed = Histogram(edges=(), count=requests, sum=total) if total is not None and requests else None
    return metrics.histogram(f"sglang:{name}_histogram") or summed


def _reserved_and_used(
    metrics: Metrics, prompt: Histogram | None, output: Histogram | None
) -> tuple[float | None, float | None, str]:
    """Tokens reserved and used by the same requests: the gateway's own count, or the engine's prompts and caps."""
    reserved = metrics.total("kvplan_observed_reserved_tokens")
    used = metrics.total("kvplan_observed_used_tokens")
    if reserved and used is not None:
        return reserved, used, "kvplan gateway's reservations"
    caps = metrics.histogram("vllm:request_params_max_tokens")
    used = None if prompt is None or output is None else prompt.sum + output.sum
    if prompt is None or caps is None or used is None:
        return None, used, "not in these metrics"
    # Each histogram counts requests on its own; means, so that a scrape in between does not tilt them.
    return prompt.sum + caps.sum / caps.count * prompt.count, used, "the engine's prompts and max_tokens"


def _requests(metrics: Metrics, prompt: Histogram | None, output: Histogram | None) -> float:
    known = output or prompt or metrics.histogram("kvplan_used_share")
    return known.count if known is not None else metrics.total("kvplan_admitted") or 0.0


def _blocks(metrics: Metrics, backend: Backend) -> int | None:
    """The engine's number of blocks: vLLM's setting, or SGLang's tokens over the block size."""
    text = metrics.label("vllm:cache_config_info", "num_gpu_blocks")
    if text is not None and text.isdecimal():
        return int(text)
    tokens = metrics.highest("sglang:max_total_num_tokens")
    return int(tokens) // backend.layout.block_tokens if tokens and isfinite(tokens) else None


def _overbooking(fraction: float, used_share: float | None, shares: Histogram | None, sequences: int) -> float | None:
    if used_share is None or used_share <= 0:
        return None
    spread = sqrt(max(0.0, used_share * (1.0 - used_share)))  # no share between 0 and 1 spreads wider
    if shares is not None and shares.edges:
        spread = min(spread, _spread(shares))
    return fraction / min(1.0, used_share + _DEVIATIONS * spread / sqrt(max(sequences, 1)))


def _spread(shares: Histogram) -> float:
    """Standard deviation of a histogram of shares, each bucket at its upper edge."""
    mean = square = below = last = 0.0
    for edge, reached in shares.edges:
        value = edge if isfinite(edge) else last
        mean += value * (reached - below) / shares.count
        square += value * value * (reached - below) / shares.count
        below, last = reached, value
    return sqrt(max(0.0, square - mean * mean))


def _notes(
    metrics: Metrics, over: float | None, band: float | None, preempted: float | None, used_share: float | None
) -> Iterator[str]:
    if over:
        yield (
            f"{over:.1%} of requests used more than was reserved for them: tokens are undercounted; give --count-error"
        )
    if band is None:
        yield "the engine's number of blocks is not among these metrics, so the budget's band stays"
    if preempted:
        yield (
            f"{preempted:.0f} preemptions so far: the pool was overrun, as it is without a front door or by one that "
            "promises too much"
        )
    if used_share is not None and used_share > 1.0:
        yield "more was used than reserved in total: the two figures are not of the same requests"
    if metrics.has("vllm:") and used_share is not None:
        yield "vLLM counts a max_tokens for every request: where the client sent none, the rest of the window"
