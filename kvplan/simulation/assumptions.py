"""Everything that a run depends on, and every assumption in it as a phrase."""

from collections.abc import Iterator, Sequence

from kvplan.simulation.backend import Backend
from kvplan.simulation.bounds import unset_share
from kvplan.simulation.front_door import ENGINE_QUEUE_FACTOR, judged_strategy
from kvplan.simulation.results import Inputs
from kvplan.traffic.arrivals import Arrivals
from kvplan.traffic.on_disk import is_long
from kvplan.traffic.spec import Traffic


def describe_inputs(
    traffic: Traffic,
    backend: Backend,
    arrivals: Arrivals,
    *,
    names: tuple[str, ...],
    seed: int,
    seeds: int,
    scale: float,
    warmup_s: float,
    default_cap: int,
    default_cap_source: str,
) -> Inputs:
    """The inputs of a run and its assumptions."""
    answer, step = traffic.admission.retry_after, backend.service.step
    jitter = f", spread by up to {answer.jitter_share:.0%}" if answer.jitter_share else ""
    told = "the ledger's expected drain" if answer.seconds is None else f"{answer.seconds:g} s"
    return Inputs(
        traffic_file=traffic.file,
        seed=seed,
        seeds=seeds,
        scale=scale,
        duration_s=traffic.duration_s,
        warmup_s=warmup_s,
        strategies=names,
        policy=traffic.admission.policy,
        judged=judged_strategy(traffic).name,
        safety_fraction=traffic.admission.safety_fraction,
        default_max_tokens=default_cap,
        default_max_tokens_source=default_cap_source,
        concurrency=traffic.admission.concurrency or backend.settings.max_num_seqs,
        retry_after=f"{told}{jitter}",
        service_source=backend.service.source,
        service_band_share=backend.service.band_share,
        service=vars(step).copy(),
        reservation_quantile=traffic.reservation_quantile,
        clients=tuple(client for client in arrivals.clients if client),
        unset_share=unset_share([arrivals]),
        skipped_rows=dict(arrivals.skipped),
        odd_rows=arrivals.odd_rows,
        assumptions=tuple(_assumptions(traffic, backend, arrivals, names, warmup_s)),
    )


def _assumptions(
    traffic: Traffic, backend: Backend, arrivals: Arrivals, names: Sequence[str], warmup_s: float
) -> Iterator[str]:
    unset = unset_share([arrivals])
    if unset:
        yield f"{unset:.0%} of requests send no max_tokens (no public trace records it)"
    if backend.service.band_share:
        yield f"step times from {backend.service.source}, ± {backend.service.band_share:.0%}"
    yield from backend.notes
    if warmup_s:
        yield f"the first {warmup_s:.0f} s are warm-up and not counted, and runs drain after the last arrival"
    if any(entry.cancel_share for entry in traffic.classes):
        yield "users who cancel do so within the time an idle engine would take to answer"
    for entry in traffic.classes:
        if (most := entry.answers.quantile(1.0)) > 1:
            yield (
                f"{entry.name} asks for up to {most} answers per request, each with a length of its own: one "
                "reservation covers them all and is released with the last"
            )
    if any(entry.client is None for entry in traffic.classes):
        yield "requests without a client are tried once"
    if "engine_queue" in names and not (traffic.deployment.max_queued_requests or traffic.deployment.max_queued_tokens):
        yield f"engine_queue admits {ENGINE_QUEUE_FACTOR} × max_num_seqs requests (the file sets no cap)"
    if is_long(len(arrivals)):
        yield "with this many requests quantiles are read from a histogram, right to 0.05%"
    if arrivals.prefixes is not None and len(backend.layout.groups) > 1:
        yield "shared prompt prefixes of the trace are ignored"
