"""Runs a review as the server does, over faces in a database and an index of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.concurrency.scheduler import Scheduler
from app.errors import Unusable
from app.gallery.bulk import BulkFace, BulkSubject, write_many
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.inference.manifest import Manifest
from app.inference.thresholds import Thresholds
from app.jobs.records import Job, JobState
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.recognition.corrections import Corrections
from app.review.job import KIND, Reviewer
from app.review.records import Finding, Summary
from app.review.store import Reviews
from app.search.follower import LocalBackend
from app.search.types import IndexKind
from app.types import Quality, Vectors
from tests.support.changing import changed

GALLERY = "reviewed"
WRITTEN_AT_ONCE = 20_000
FMR, FPIR = 1e-4, 0.01
"""The service's defaults."""
LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class Done:
    """A finished review; seconds from its start."""

    summary: Summary
    findings: Sequence[Finding]
    seconds: float


class Gallery:
    """One gallery, and what reviews it."""

    def __init__(self, folder: Path, manifest: Manifest, dimension: int, search: IndexKind, threads: int) -> None:
        self._package = manifest.id
        store = Store(f"sqlite:///{folder / 'review.db'}")
        self.galleries = Galleries(store, LocalBackend(store.change_reader, None, threads))
        self._jobs = JobStore(store.database)
        self._runner = Runner(self._jobs, look_s=LOOK_S)
        self._reviews = Reviews(store.database)
        self.reviewer = Reviewer(
            self.galleries,
            self._reviews,
            Corrections(store, days=365),
            self._jobs,
            lambda _: Thresholds(manifest),
            fmr=FMR,
            fpir=FPIR,
        )
        self._scheduler = Scheduler()
        self.galleries.create_gallery(GALLERY, manifest.id, dimension, store="none", search=search)
        self._runner.start({KIND: self.reviewer.work}, self._scheduler)

    def close(self) -> None:
        self._runner.close()
        self._scheduler.close()
        self.galleries.close()

    def fill(self, subjects: Sequence[str], vectors: Vectors, qualities: NDArray[np.float32], first: int = 0) -> None:
        """Enroll faces; the id of each is its row's number, counted from `first`."""
        for start in range(0, len(subjects), WRITTEN_AT_ONCE):
            some = slice(start, start + WRITTEN_AT_ONCE)
            faces = [
                BulkFace(
                    subject,
                    vector.astype("<f4").tobytes(),
                    Quality(float(quality), ()),
                    face_id=f"{first + start + row:032x}",
                )
                for row, (subject, vector, quality) in enumerate(
                    zip(subjects[some], vectors[some], qualities[some], strict=True)
                )
            ]
            people = [BulkSubject(subject) for subject in sorted(set(subjects[some]))]
            changed(self.galleries, GALLERY, write_many, self._package, people, faces)

    def review(self) -> Done:
        """Review the gallery from beginning to end. Raises Unusable if that fails."""
        start = time.perf_counter()
        job = self._ended(self.reviewer.begin(GALLERY))
        if job.state is not JobState.DONE:
            raise Unusable(f"The review {job.state}: {job.error_message}")
        seconds = time.perf_counter() - start
        gallery = self.galleries.store.gallery(GALLERY)
        summary = self._reviews.find(gallery).summary
        if summary is None:
            raise Unusable("The review left no summary.")
        findings: list[Finding] = []
        cursor: str | None = None
        while True:
            page = self._reviews.findings(gallery, cursor, 1000)
            findings += page.items
            cursor = page.next_cursor
            if cursor is None:
                return Done(summary, findings, seconds)

    def _ended(self, job: Job) -> Job:
        while not job.finished:
            threading.Event().wait(LOOK_S)
            job = self._jobs.job(job.id)
        return job


@contextmanager
def opened(
    folder: Path, manifest: Manifest, dimension: int, *, search: IndexKind = "fp32", threads: int = 2
) -> Iterator[Gallery]:
    folder.mkdir(parents=True, exist_ok=True)
    gallery = Gallery(folder, manifest, dimension, search, threads)
    try:
        yield gallery
    finally:
        gallery.close()
