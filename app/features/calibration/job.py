"""Measure a gallery's own calibration as a job, and repeat this when the gallery has changed."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from app.errors import LikenessError
from app.features.calibration.population import measure_population, sample_rows, sample_share
from app.features.calibration.store import Calibrations, Measured, Standing, SuspiciousPair
from app.features.own_jobs import UnderWay
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.records import Job
from app.jobs.runner import Running
from app.jobs.store import JobStore, new_job_id
from app.package.thresholds import Thresholds
from app.search.types import FaceBlock, joined
from app.types import count_faces, utc_now

KIND = "calibrate"
REST = 1.0
"""Seconds to rest for each second of comparing, so that a measurement takes at most half a core from recognition."""
AGAIN = timedelta(minutes=10)
"""Time after a failed or cancelled job before the server starts another one by itself."""
_log = logging.getLogger(__name__)
Recorded = Callable[[str], AbstractContextManager[None]]


class Cancelled(Exception):
    """The job was cancelled, or the server is stopping."""


@dataclass(frozen=True, slots=True)
class CalibrationState:
    gallery: Gallery
    package: Thresholds
    thresholds: Thresholds
    """The thresholds that decide now."""
    standing: Standing
    pairs: list[SuspiciousPair]


class Calibrator:
    """Measures galleries' own operating points. Safe to share between threads.

    ``recorded`` returns a context that writes the audit entry of a job that the server starts by itself.
    """

    def __init__(
        self,
        galleries: Galleries,
        embedders: Embedders,
        jobs: JobStore,
        calibrations: Calibrations,
        *,
        recorded: Recorded = lambda _gallery: nullcontext(),
    ) -> None:
        self._galleries, self._store = galleries, galleries.store
        self._calibrations = calibrations
        self._embedders = embedders
        self._jobs = jobs
        self._recorded = recorded

    def begin(self, gallery_id: str, *, who: str | None = None) -> CalibrationState:
        """Start a measurement unless one is running; return the calibration's state.

        Raises NotFound ``gallery_not_found``; Unusable ``package_unavailable``.
        """
        gallery = self._store.gallery(gallery_id)
        self._embedders.thresholds(gallery.embedder)
        job_id = new_job_id()
        assign = partial(self._calibrations.assign, gallery=gallery, job_id=job_id)
        with suppress(UnderWay):
            self._jobs.create(KIND, gallery, who=who, job_id=job_id, also=assign)
        return self.find(gallery_id)

    def keep(self, gallery: Gallery, who: str | None = None) -> None:
        """Start a measurement if the gallery decides by its own calibration, and this is missing or stale."""
        if gallery.calibration == "gallery" and self._calibrations.standing(gallery).is_due:
            self.begin(gallery.id, who=who)

    def find(self, gallery_id: str) -> CalibrationState:
        """Return the state of the gallery's calibration. Raises NotFound ``gallery_not_found``; Unusable
        ``package_unavailable``."""
        gallery = self._store.gallery(gallery_id)
        package = self._embedders.thresholds(gallery.embedder)
        return CalibrationState(
            gallery,
            package,
            self._calibrations.thresholds(gallery, package),
            self._calibrations.standing(gallery),
            self._calibrations.pairs(gallery),
        )

    def begin_due(self) -> None:
        """Start a measurement of each gallery that decides by its own calibration, if this is missing or stale."""
        for standing in self._calibrations.switched_on():
            try:
                if standing.is_due and not _rests(self._jobs.find(standing.job)):
                    with self._recorded(standing.gallery):
                        self.begin(standing.gallery)
            except LikenessError as error:
                _log.warning("A calibration could not be started: %s", error.code)

    def work(self, running: Running) -> None:
        """Run a job; see `app.jobs.runner.Work`. A resumed job starts over: it takes seconds."""
        gallery = self._store.gallery(running.job.gallery or "")
        package = self._embedders.thresholds(gallery.embedder)
        try:
            sizes = self._store.change_reader.sizes(gallery.index_spec)
            subjects, faces = sum(sizes.values()), count_faces(sizes)
            compared, last_change = self._sample(running, gallery)
            running.progress(0, len(compared.faces))
            pace = _Pace(running)
            on = f"{faces} enrolled faces of {subjects} subjects, {utc_now()[:10]}"
            population = measure_population(compared.vectors, compared.subjects, package, measured_on=on, progress=pace)
        except Cancelled:
            return
        calibration = population.calibration
        if calibration is not None:
            calibration = calibration.model_copy(update={"measured_with": package.recipe})
        figures = replace(population.figures, subjects=subjects, faces=faces)
        measured = Measured(gallery.embedder, utc_now(precision="seconds"), last_change, figures, calibration)
        keys: list[int] = compared.faces.tolist()
        pairs = [(keys[pair.first], keys[pair.second], pair.score) for pair in population.suspicions]
        self._calibrations.write(gallery, measured, pairs)
        running.counts["subjects"], running.counts["faces"] = figures.compared_subjects, figures.compared_faces
        running.counts["points"] = len(calibration.points) if calibration else 0
        running.counts["suspicious"] = figures.suspicious
        running.checkpoint({"measured": True})

    def _sample(self, running: Running, gallery: Gallery) -> tuple[FaceBlock, int]:
        """Return the faces to compare, all faces of named subjects or a sample, and the number of the gallery's last
        change. A sample is taken so that the memory needed is bounded for galleries of any size.

        Unnamed subjects are left out: two of them may be one person, so they are no evidence about different people.
        """
        source, spec = self._store.change_reader, gallery.index_spec
        share, taken = sample_share(source.sizes(spec, named=True)), Counter[int]()
        parts: list[FaceBlock] = []
        with source.read_all(spec, named=True) as (position, blocks):
            for block in blocks:
                if running.cancelled:
                    raise Cancelled
                parts.append(block.only(sample_rows(block.subjects, share, taken)))
        return joined(parts, spec.dimension), position.number


class _Pace:
    """Called after each step: reports progress, and pauses REST times as long as the step took. Raises Cancelled."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._begun = time.monotonic()

    def __call__(self, rows: int) -> None:
        if self._running.cancelled:
            raise Cancelled
        self._running.progress(self._running.done + rows)
        time.sleep(REST * (time.monotonic() - self._begun))
        self._begun = time.monotonic()


def _rests(job: Job | None) -> bool:
    """Return whether no new job may start yet, since the last one is running, or failed or was cancelled less than
    AGAIN ago."""
    if job is None or job.state == "done":
        return False
    return job.finished_at is None or job.finished_at > utc_now(-AGAIN)
