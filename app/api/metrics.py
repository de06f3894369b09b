"""What the server counts, for Prometheus: `/metrics`.

Labels come from sets that are known beforehand (route templates, methods, statuses, stages): never an id, never what a
client made up. Each application has a registry of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, TypeAlias

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.api.logs import LOGGER
from app.gallery.records import Totals

if TYPE_CHECKING:
    from app.api.dependencies import Service

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""A method that is none, and a path that no route has (or that nobody looked at, without a key)."""
STAGES = ("decode", "detect", "align", "quality", "embed", "search", "store")
REQUEST_BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
STAGE_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNTS_S = 15.0
"""How old the counts of rows may be: they are the one thing that costs the database something."""
COUNTING_S = 2.0
"""How long counting them may keep somebody waiting."""

Sizes: TypeAlias = Mapping[int, int]
"""How many batches of each size there were."""
_log = logging.getLogger(LOGGER)


class Metrics:
    """Counters and histograms, fed while serving; the rest is looked up when it is asked for."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._requests = Counter(
            "likeness_requests", "Requests answered.", ["method", "route", "status"], registry=self._registry
        )
        self._seconds = Histogram(
            "likeness_request_seconds",
            "From a request's head to the end of its answer.",
            ["method", "route"],
            buckets=REQUEST_BUCKETS_S,
            registry=self._registry,
        )
        stages = Histogram(
            "likeness_stage_seconds",
            "What each stage of a photo's way took, waiting for its batch included.",
            ["stage"],
            buckets=STAGE_BUCKETS_S,
            registry=self._registry,
        )
        self._stages = {stage: stages.labels(stage) for stage in STAGES}

    def request(self, method: str, route: str | None, status: int, seconds: float) -> None:
        """One request that was answered: ``method`` is one of METHODS or OTHER, ``route`` its template or None."""
        route = route or OTHER
        self._requests.labels(method, route, str(status)).inc()
        self._seconds.labels(method, route).observe(seconds)

    def stages(self, stages: Mapping[str, float]) -> None:
        """Milliseconds by stage, of one photo or one operation."""
        for stage, milliseconds in stages.items():
            self._stages[stage].observe(milliseconds / 1000)

    def watch(self, service: Service) -> None:
        """Has ``service`` looked at from now on whenever the metrics are asked for."""
        self._registry.register(_ServiceCollector(service))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _ServiceCollector(Collector):
    def __init__(self, service: Service) -> None:
        self._service = service
        self._totals = _Kept(service.galleries.store.totals)

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        service = self._service
        yield _gauge("likeness_ready", "1 when requests are taken, 0 while draining.", service.status == "ok")
        yield from self._house()
        yield from self._batches()
        yield from self._galleries()
        yield from self._jobs()
        model = GaugeMetricFamily(
            "likeness_model_info", "The models that run.", labels=["model", "task", "device", "sha256"]
        )
        for one in service.models():
            if one.loaded:
                model.add_metric([one.id, one.task, one.device or "", one.sha256], 1)
        yield model

    def _house(self) -> Iterator[Metric]:
        workers = self._service.workers
        yield _gauge("likeness_requests_admitted", "Requests in the house, waiting ones included.", workers.admitted)
        yield _gauge("likeness_requests_limit", "How many may be.", workers.limit)
        yield _gauge("likeness_requests_waiting", "Pieces of work that wait for a thread.", workers.waiting)
        yield _gauge("likeness_bodies_bytes", "Bytes of request bodies held.", workers.held)
        yield _gauge("likeness_bodies_limit_bytes", "How many may be.", workers.bytes_limit)

    def _batches(self) -> Iterator[Metric]:
        embedders, galleries = self._service.embedders, self._service.galleries
        waiting = GaugeMetricFamily("likeness_batcher_waiting", "Items that wait for a batch.", labels=["batcher"])
        waiting.add_metric(["embed"], embedders.waiting)
        waiting.add_metric(["search"], galleries.searches.waiting)
        yield waiting
        sizes = HistogramMetricFamily("likeness_batch_size", "Items worked on together.", labels=["batcher"])
        for name, found in (("embed", embedders.batch_sizes), ("search", galleries.searches.batch_sizes)):
            sizes.add_metric([name], _buckets(found), sum(size * count for size, count in found.items()))
        yield sizes

    def _jobs(self) -> Iterator[Metric]:
        runner = self._service.runner
        yield _gauge("likeness_jobs_running", "Jobs that this process runs.", runner.running)
        ended = CounterMetricFamily("likeness_jobs_ended", "Jobs that ended in this process.", labels=["kind", "state"])
        for (kind, state), count in runner.ended.items():
            ended.add_metric([kind, state], count)
        yield ended

    def _galleries(self) -> Iterator[Metric]:
        held = self._service.galleries.indexes.indexed()
        yield _gauge("likeness_index_faces", "Faces in the search indexes.", held.faces)
        yield _gauge("likeness_index_bytes", "Memory of the search indexes.", held.size)
        followed = self._service.galleries.indexes.followed()
        yield _gauge("likeness_index_changes_behind", "Changes in the log that the indexes lack.", followed.behind)
        yield _gauge(
            "likeness_log_read_age_seconds", "Since the change logs were last looked at.", max(0.0, followed.age_s)
        )
        yield from self._snapshots()
        totals = self._totals()
        yield _gauge(
            "likeness_database_up", "Whether the database answered when rows were counted.", totals is not None
        )
        if totals is None:
            return
        yield _gauge("likeness_galleries", "Galleries.", totals.galleries)
        yield _gauge("likeness_subjects", "Subjects, of all galleries.", totals.subjects)
        yield _gauge("likeness_faces", "Enrolled faces, of all galleries.", totals.faces)

    def _snapshots(self) -> Iterator[Metric]:
        try:
            kept = self._service.galleries.indexes.snapshotted()
        except OSError:  # the disk is another alarm's business, and must not silence the rest
            return
        if kept is None:
            return
        yield _gauge("likeness_snapshots", "Snapshots of search indexes on disk.", kept.count)
        yield _gauge("likeness_snapshots_bytes", "Their size.", kept.size)
        if kept.oldest_s is not None:
            yield _gauge(
                "likeness_snapshot_age_seconds",
                "Since the oldest was written; a gallery that doesn't change needs no new one.",
                kept.oldest_s,
            )


class _Kept:
    """Counts that are made anew only when they are old, in a thread of their own: a database that does not answer
    must not keep anyone from reading the rest."""

    def __init__(self, count: Callable[[], Totals]) -> None:
        self._count = count
        self._lock = Lock()
        self._working: Event | None = None
        self._found: Totals | None = None
        self._at = -COUNTS_S

    def __call__(self) -> Totals | None:
        """None where the database does not answer."""
        with self._lock:
            if self._working is None and time.monotonic() - self._at >= COUNTS_S:
                self._working = Event()
                Thread(target=self._refresh, args=[self._working], name="counts", daemon=True).start()
            working = self._working
        if working is not None and not working.wait(COUNTING_S):
            return None
        return self._found

    def _refresh(self, done: Event) -> None:
        try:
            found = self._count()
        except Exception as error:  # noqa: BLE001 - a worker's edge; the metrics say that there was no answer
            _log.warning("rows could not be counted", extra={"fields": {"error": type(error).__name__}})
            found = None
        with self._lock:
            self._found, self._at, self._working = found, time.monotonic(), None
        done.set()


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


def _buckets(sizes: Sizes) -> list[tuple[str, float]]:
    """Cumulative, as Prometheus wants them, the whole number last."""
    ends = [(str(float(end)), float(sum(n for size, n in sizes.items() if size <= end))) for end in BATCH_BUCKETS]
    return [*ends, ("+Inf", float(sum(sizes.values())))]
