"""What the gateway counts, in Prometheus text. Each gateway has a registry of its own."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from kvplan.gateway.admit import WeightedLedger


class GatewayMetrics:
    """Counters and gauges of one gateway; ``text()`` is what ``/metrics`` answers."""

    def __init__(self, ledger: WeightedLedger) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self.admitted = Counter("kvplan_admitted", "Requests admitted.", registry=registry)
        self.refused = Counter("kvplan_refused", "Requests refused, by reason.", ["reason"], registry=registry)
        self.reserved_tokens = Counter(
            "kvplan_reserved_tokens", "Tokens reserved at admission, over all requests.", registry=registry
        )
        self.output_tokens = Counter(
            "kvplan_observed_tokens", "Prompt and output tokens that upstreams reported as used.", registry=registry
        )
        self.upstream_failures = Counter(
            "kvplan_upstream_failures", "Upstream failures, by kind.", ["kind"], registry=registry
        )
        buckets = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
        self.held_s = Histogram(
            "kvplan_held_seconds", "How long reservations are held.", buckets=buckets, registry=registry
        )
        self.upstream_first_byte_s = Histogram(
            "kvplan_upstream_first_byte_seconds",
            "From forwarding to the first byte.",
            buckets=buckets,
            registry=registry,
        )
        for name, text, read in (
            ("kvplan_ledger_capacity", "Units that may be reserved together.", lambda: ledger.capacity),
            ("kvplan_ledger_reserved", "Units reserved now.", lambda: ledger.reserved),
        ):
            Gauge(name, text, registry=registry).set_function(read)

    def text(self) -> bytes:
        """All figures in the Prometheus text format."""
        return generate_latest(self._registry)
