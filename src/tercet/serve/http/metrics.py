"""Prometheus metrics: requests, tokens, durations and queue lengths.

Each application has its own registry, so two applications in one program have separate counts. Labels are registered
routes and loaded models, never text of a client, so the number of time series is limited.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

from tercet.serve.registry import ModelRegistry

TOKEN_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2)
REQUEST_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)


class ServerMetrics:
    """The metrics of one application.

    Args:
        models: Models whose workers are observed.
    """

    def __init__(self, models: ModelRegistry) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self._requests = Counter("tercet_requests", "Completed requests", ("route", "status"), registry=registry)
        self._seconds = Histogram(
            "tercet_request_seconds", "Seconds from the header of a request to the end of its response", ("route",),
            buckets=REQUEST_BUCKETS, registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "tercet_tokens",
            "Tokens of prompts and inputs (read), and generated tokens (written)",
            ("model", "kind"),
            registry=registry,
        )
        self._first = Histogram(
            "tercet_time_to_first_token_seconds", "Seconds from a request to its first token", ("model",),
            buckets=REQUEST_BUCKETS, registry=registry,
        )  # fmt: skip
        self._next = Histogram(
            "tercet_time_per_token_seconds", "Seconds between successive tokens of a text", ("model",),
            buckets=TOKEN_BUCKETS, registry=registry,
        )  # fmt: skip
        running = Gauge(
            "tercet_running", "Rows and items that are being processed", ("model", "task"), registry=registry
        )
        waiting = Gauge("tercet_waiting", "Requests in the queue", ("model", "task"), registry=registry)
        for model in models.models.values():
            for task, worker in model.workers.items():
                running.labels(model.name, task).set_function(lambda worker=worker: worker.running)
                waiting.labels(model.name, task).set_function(lambda worker=worker: worker.waiting)

    def observe_request(self, route: str, status: int, seconds: float) -> None:
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def count_prompt_tokens(self, model: str, tokens: int) -> None:
        self._tokens.labels(model, "read").inc(tokens)

    def count_new_tokens(self, model: str, tokens: int) -> None:
        self._tokens.labels(model, "written").inc(tokens)

    def observe_first_token(self, model: str, seconds: float) -> None:
        self._first.labels(model).observe(seconds)

    def observe_next_token(self, model: str, seconds: float) -> None:
        self._next.labels(model).observe(seconds)

    def render(self) -> bytes:
        """Return all metrics in the exposition format of Prometheus."""
        return generate_latest(self._registry)
