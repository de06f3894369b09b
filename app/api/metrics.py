"""Count requests and stages for Prometheus; `app.features.monitoring` shows these counts with everything else.

Labels have a fixed set of values (route templates, methods, statuses, stages), never an id or text of a client. Each
application has its own registry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector

from app.choices import Stage

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label of unknown methods, of paths without a route, and of requests without a key."""
REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STAGE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Metrics:
    """Counters and histograms of requests, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.is_ready: Callable[[], bool] = lambda: False
        """Whether requests are accepted."""
        ProcessCollector(registry=self.registry)
        self.requests = Counter(
            "likeness_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.seconds = Histogram(
            "likeness_request_seconds",
            "From a request's head to the end of its answer.",
            ["method", "route"],
            buckets=REQUEST_BUCKETS_S,
            registry=self.registry,
        )
        stages = Histogram(
            "likeness_stage_seconds",
            "Duration of each stage of a photo, including waiting for its batch.",
            ["stage"],
            buckets=STAGE_BUCKETS_S,
            registry=self.registry,
        )
        self.stages = {stage: stages.labels(stage).observe for stage in get_args(Stage)}
        """Functions that count the seconds of a stage, by the stage's name."""
