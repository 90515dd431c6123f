"""The gateway's figures in Prometheus text. Each gateway has its own registry."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvplan.gateway.admission import WeightedLedger

_QUEUE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5, 60)
_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


class GatewayMetrics:
    """Counters, histograms and gauges of one gateway; ``text()`` is what ``/metrics`` answers."""

    def __init__(self, ledger: WeightedLedger) -> None:
        self._registry = CollectorRegistry()
        count, observe = partial(Counter, registry=self._registry), partial(Histogram, registry=self._registry)
        self._admitted = count("kvplan_admitted", "Requests admitted.")
        self._refused = count("kvplan_refused", "Requests refused, by reason.", ["reason"])
        self._ended_early = count(
            "kvplan_ended_early", "Requests ended before their response was complete, by cause.", ["cause"]
        )
        self._reserved_tokens = count("kvplan_reserved_tokens", "Tokens reserved at admission.")
        self._observed_reserved_tokens = count(
            "kvplan_observed_reserved_tokens", "Tokens reserved by requests whose usage the engine reported."
        )
        self._observed_used_tokens = count("kvplan_observed_used_tokens", "Prompt and output tokens of those requests.")
        self._used_share = observe("kvplan_used_share", "Used tokens over reserved tokens.", buckets=_SHARES)
        self.upstream_failures = count("kvplan_upstream_failures", "Upstream failures, by kind.", ["kind"])
        self._queue_s = observe(
            "kvplan_queue_seconds",
            "From an admitted request's head to its admission: body, token count, a shared ledger's answer.",
            buckets=_QUEUE_SECONDS,
        )
        self._held_s = observe("kvplan_held_seconds", "How long reservations are held.", buckets=_SECONDS)
        self.upstream_first_byte_s = observe(
            "kvplan_upstream_first_byte_seconds",
            "From forwarding a request to the head of its response: the engine's queue and prefill.",
            buckets=_SECONDS,
        )
        self.upstream_s = observe(
            "kvplan_upstream_seconds",
            "From forwarding a request to the end of its response, complete or not.",
            buckets=_SECONDS,
        )
        self._gauge("kvplan_ledger_capacity", "Units that may be reserved together.", lambda: ledger.capacity)
        self._gauge("kvplan_ledger_reserved", "Units reserved now.", lambda: ledger.reserved)
        self._by_reason: dict[str, Counter] = {}

    def _gauge(self, name: str, text: str, read: Callable[[], int]) -> None:
        Gauge(name, text, registry=self._registry).set_function(read)

    def show_used(self, used: Callable[[], tuple[int, int]]) -> None:
        """Call ``used`` for blocks and tokens whenever the figures are read."""
        text = (
            "KV cache that requests in flight fill by now, as far as the gateway sees: prompts as priced or counted, "
            "and a token for each streamed event."
        )
        self._gauge("kvplan_used_blocks", text, lambda: used()[0])
        self._gauge("kvplan_used_tokens", text, lambda: used()[1])

    def note_refusal(self, reason: str) -> None:
        """One request was refused. The labelled counters are kept, because looking one up costs more than counting."""
        counter = self._by_reason.get(reason)
        if counter is None:
            counter = self._by_reason[reason] = self._refused.labels(reason)
        counter.inc()

    def note_admission(self, tokens: int, queue_s: float) -> None:
        """One request was admitted with ``tokens`` reserved, ``queue_s`` after its head arrived."""
        self._admitted.inc()
        self._reserved_tokens.inc(tokens)
        self._queue_s.observe(queue_s)

    def note_release(self, held_s: float, reserved_tokens: int, used_tokens: int | None, ended_by: str | None) -> None:
        """One reservation was released; ``used_tokens`` if the engine reported them."""
        self._held_s.observe(held_s)
        if ended_by is not None:
            self._ended_early.labels(ended_by).inc()
        if used_tokens is not None and reserved_tokens:
            self._observed_reserved_tokens.inc(reserved_tokens)
            self._observed_used_tokens.inc(used_tokens)
            self._used_share.observe(used_tokens / reserved_tokens)

    def text(self) -> bytes:
        """All figures in the Prometheus text format."""
        return generate_latest(self._registry)
