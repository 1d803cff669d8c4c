"""What the service counts, for Prometheus. Knows nothing of texts or keys, only of their number and names."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        own = self._registry
        self.requests = Counter("dragoman_requests", "Answered requests", ["route", "status"], registry=own)
        self.seconds = Histogram(
            "dragoman_request_seconds", "Until the answer", ["route"], buckets=SECONDS, registry=own
        )
        self.in_flight = Gauge("dragoman_requests_in_flight", "Requests under way", registry=own)
        self.characters = Counter("dragoman_characters", "Characters to translate", ["model"], registry=own)
        self.refused = Counter("dragoman_refused", "Requests refused before any work", ["reason"], registry=own)
        self.given_up = Counter("dragoman_given_up", "Requests whose client hung up", registry=own)
        self.ready = Gauge("dragoman_model_ready", "Whether its worker can be asked", ["model"], registry=own)
        self.restarts = Gauge("dragoman_worker_restarts", "Since the start", ["model"], registry=own)
        self.sentences = Gauge("dragoman_sentences", "Of a worker", ["model", "state"], registry=own)

    def render(self) -> bytes:
        return generate_latest(self._registry)
