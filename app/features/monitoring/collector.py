"""Collect the state of the service when metrics are requested: load, queues, indexes, rows, jobs, disk and models."""

from __future__ import annotations

import logging
import operator
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event, Lock
from typing import TypeAlias

import sqlalchemy as sa
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from app.api.components import Components
from app.concurrency.threads import Worker
from app.db.engine import Database
from app.db.schema import FACES, GALLERIES, SUBJECTS
from app.files import LAST_BACKUP
from app.gallery.store import expired_counts
from app.logs import LOGGER
from app.types import utc_now

BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
COUNTS_S = 15.0
"""Seconds for which row counts are reused, since counting is work for the database."""
COUNTING_S = 2.0
"""Maximum seconds that a request for metrics waits for a new count."""

BatchSizes: TypeAlias = Mapping[int, int]
"""The number of batches, by their size."""
_log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class Totals:
    """The numbers of galleries, and of subjects and faces in all of them."""

    galleries: int
    subjects: int
    faces: int


class ComponentsCollector(Collector):
    def __init__(self, components: Components, data_dir: Path) -> None:
        self._components = components
        self._data_dir = data_dir
        self._totals = _CachedCounts(partial(count_totals, components.store.database))

    def close(self) -> None:
        self._totals.close()

    def describe(self) -> Iterable[Metric]:
        """Return nothing, since registering a collector calls this, and it must not read the database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        ready = self._components.metrics.is_ready()
        yield _gauge("likeness_ready", "1 if requests are accepted, 0 while draining.", ready)
        yield from self._load()
        yield from self._photo_workers()
        yield from self._batches()
        yield from self._galleries()
        yield from self._jobs()
        yield from self._data_folder()
        if sink := self._components.audit.sink:
            yield CounterMetricFamily(
                "likeness_audit_sink_lost", "Audit entries that the sink did not get.", value=sink.lost
            )
        model = GaugeMetricFamily(
            "likeness_model_info", "The running models.", labels=["model", "task", "device", "sha256"]
        )
        for package in self._components.models():
            if package.loaded:
                model.add_metric([package.id, package.task, package.device or "", package.sha256], 1)
        yield model

    def _load(self) -> Iterator[Metric]:
        admission, workers = self._components.admission, self._components.workers
        yield _gauge("likeness_requests_admitted", "Requests in progress, including waiting ones.", admission.admitted)
        yield _gauge("likeness_requests_limit", "The most requests in progress.", admission.limit)
        yield _gauge("likeness_requests_waiting", "Tasks that wait for a thread.", workers.waiting)
        yield _gauge("likeness_bodies_bytes", "Bytes of request bodies and crops held.", admission.bytes)
        yield _gauge("likeness_bodies_limit_bytes", "The most bytes of bodies and crops.", admission.byte_limit)

    def _photo_workers(self) -> Iterator[Metric]:
        reader = self._components.reader
        yield _gauge("likeness_photos_waiting", "Photos that wait to be read.", reader.waiting)
        ended = CounterMetricFamily(
            "likeness_photo_workers_ended", "Photos that a photo worker gave up, by how it ended.", labels=["reason"]
        )
        for reason, count in dict(reader.ended).items():
            ended.add_metric([reason], count)
        yield ended

    def _batches(self) -> Iterator[Metric]:
        embedders, galleries = self._components.embedders, self._components.galleries
        gates = self._components.gates
        waiting = GaugeMetricFamily("likeness_batcher_waiting", "Items that wait for a batch.", labels=["batcher"])
        waiting.add_metric(["embed"], embedders.waiting)
        waiting.add_metric(["liveness"], sum(batcher.waiting for batcher in gates.batchers))
        waiting.add_metric(["search"], galleries.searches.waiting)
        yield waiting
        sizes = HistogramMetricFamily("likeness_batch_size", "Items in a batch.", labels=["batcher"])
        for name, counts in (
            ("embed", embedders.batch_sizes),
            ("liveness", gates.batch_sizes),
            ("search", galleries.searches.batch_sizes),
        ):
            sizes.add_metric([name], _buckets(counts), sum(size * count for size, count in counts.items()))
        yield sizes

    def _jobs(self) -> Iterator[Metric]:
        runner = self._components.runner
        yield _gauge("likeness_jobs_running", "Jobs that this process is running.", runner.running)
        ended = CounterMetricFamily("likeness_jobs_ended", "Jobs that ended in this process.", labels=["kind", "state"])
        for (kind, state), count in runner.ended.items():
            ended.add_metric([kind, state], count)
        yield ended

    def _data_folder(self) -> Iterator[Metric]:
        with suppress(OSError):  # an unreadable disk must not hide the other metrics
            free = shutil.disk_usage(self._data_dir).free
            yield _gauge("likeness_disk_free_bytes", "Free bytes on the disk of the data folder.", free)
        with suppress(OSError):  # no backup was made yet
            made = (self._data_dir / LAST_BACKUP).stat().st_mtime
            age = max(0.0, time.time() - made)
            yield _gauge("likeness_backup_age_seconds", "Seconds since the last backup was made.", age)

    def _galleries(self) -> Iterator[Metric]:
        held = self._components.galleries.indexes.indexed()
        yield _gauge("likeness_index_faces", "Faces in the search indexes.", held.faces)
        yield _gauge("likeness_index_bytes", "Memory of the search indexes.", held.size)
        followed = self._components.galleries.indexes.followed()
        yield _gauge("likeness_index_changes_behind", "Changes in the log that the indexes lack.", followed.behind)
        yield _gauge(
            "likeness_log_read_age_seconds", "Seconds since the change logs were last read.", max(0.0, followed.age_s)
        )
        yield from self._snapshots()
        totals = self._totals()
        yield _gauge(
            "likeness_database_up", "Whether the database answered when rows were counted.", totals is not None
        )
        if totals is None:
            return
        yield _gauge("likeness_galleries", "Galleries.", totals.galleries)
        yield _gauge("likeness_subjects", "Subjects in all galleries.", totals.subjects)
        yield _gauge("likeness_faces", "Enrolled faces in all galleries.", totals.faces)

    def _snapshots(self) -> Iterator[Metric]:
        try:
            kept = self._components.galleries.indexes.backend.snapshotted()
        except OSError:  # an unreadable disk must not hide the other metrics
            return
        if kept is None:
            return
        yield _gauge("likeness_snapshots", "Snapshots of search indexes on disk.", kept.count)
        yield _gauge("likeness_snapshots_bytes", "Size of the snapshots on disk.", kept.size)
        if kept.oldest_s is not None:
            yield _gauge(
                "likeness_snapshot_age_seconds",
                "Seconds since the oldest held all faces of its gallery.",
                kept.oldest_s,
            )


class _CachedCounts:
    """Caches row counts. They are counted in a separate thread, so that a database that doesn't answer delays the other
    metrics by COUNTING_S at most."""

    def __init__(self, count: Callable[[], Totals]) -> None:
        self._count = count
        self._lock = Lock()
        self._worker = Worker("counts", self._refresh)
        self._working: Event | None = None
        self._found: Totals | None = None
        self._at = -COUNTS_S

    def __call__(self) -> Totals | None:
        """Return the counts, at most COUNTS_S old; None if the database does not answer in time."""
        with self._lock:
            if self._working is None and time.monotonic() - self._at >= COUNTS_S:
                self._working = Event()
                self._worker.wake()
            working = self._working
        if working is not None and not working.wait(COUNTING_S):
            return None
        return self._found

    def close(self) -> None:
        self._worker.close(0)

    def _refresh(self) -> None:
        try:
            counts = self._count()
        except Exception as error:  # noqa: BLE001 - a worker's edge; the metrics show that the database didn't answer
            _log.warning("Rows could not be counted", extra={"fields": {"error": type(error).__name__}})
            counts = None
        with self._lock:
            done, self._found, self._at, self._working = self._working, counts, time.monotonic(), None
        if done:
            done.set()


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, value=value)


def _buckets(sizes: BatchSizes) -> list[tuple[str, float]]:
    """Return Prometheus's cumulative buckets: upper end and number of batches, the last with the end `+Inf`."""
    ends = [(str(float(end)), float(sum(n for size, n in sizes.items() if size <= end))) for end in BATCH_BUCKETS]
    return [*ends, ("+Inf", float(sum(sizes.values())))]


def count_totals(database: Database) -> Totals:
    """Count galleries, subjects and faces that have not expired. This takes about 50 ms for a million faces."""
    with database.read() as connection:
        counts = [sa.select(sa.func.count()).select_from(table) for table in (GALLERIES, SUBJECTS, FACES)]
        galleries, *stored = (connection.execute(count).scalar_one() for count in counts)
        gone = (connection.execute(count).scalar_one() for count in expired_counts(utc_now()))
        return Totals(galleries, *map(operator.sub, stored, gone))
