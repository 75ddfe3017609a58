"""The metrics of a server, in the format of Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
_TOKENS = tuple(2**n for n in range(3, 18))


class ServerMetrics:
    """Counters, histograms, and gauges of one server, in a registry of their own.

    Attributes:
        registry: The registry.
        requests: The number of requests, by route.
        successes: The number of requests that were answered, by route.
        failures: The number of requests that were refused or failed, by route and the code of the error.
        request_seconds: The seconds from a request's first byte to its answer, by route.
        queue_seconds: The seconds that a tokenized request waited.
        tokenization_seconds: The seconds until a request was tokenized.
        inference_seconds: The seconds of a batch, from the tokens to the answers.
        waiting_requests: The number of requests that wait or are computed.
        waiting_tokens: Their tokens.
        batch_tokens: The number of tokens of a batch.
        input_tokens: The number of tokens that an input costs.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()

        def histogram(
            name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
        ) -> Histogram:
            return Histogram(f"bertsmith_{name}", text, labels, buckets=buckets, registry=registry)

        self.requests = Counter("bertsmith_requests", "Requests", ["route"], registry=registry)
        self.successes = Counter(
            "bertsmith_requests_success", "Answered requests", ["route"], registry=registry
        )
        self.failures = Counter(
            "bertsmith_requests_failed", "Refused or failed requests", ["route", "code"], registry=registry
        )
        self.request_seconds = histogram("request_seconds", "Total time of a request", _SECONDS, ("route",))
        self.queue_seconds = histogram("queue_seconds", "Time in the queue", _SECONDS)
        self.tokenization_seconds = histogram("tokenization_seconds", "Time of tokenization", _SECONDS)
        self.inference_seconds = histogram("inference_seconds", "Time of a batch", _SECONDS)
        self.waiting_requests = Gauge("bertsmith_waiting_requests", "Waiting requests", registry=registry)
        self.waiting_tokens = Gauge(
            "bertsmith_waiting_tokens", "Tokens of waiting requests", registry=registry
        )
        self.batch_tokens = histogram("batch_tokens", "Tokens of a batch", _TOKENS)
        self.input_tokens = histogram("input_tokens", "Tokens of an input", _TOKENS)

    def text(self) -> bytes:
        """Return all metrics in Prometheus's text format."""
        return generate_latest(self.registry)
