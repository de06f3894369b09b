"""Make galleries of made-up people, and review them in this process."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import numpy as np

from app.choices import FindingKind
from app.concurrency.scheduler import Scheduler
from app.features.corrected import add_correction
from app.features.milvus.indexes import MilvusBackend
from app.features.review.job import KIND, Reviewer
from app.features.review.records import ReviewSummary
from app.features.review.schemas import Finding
from app.features.review.store import Reviews
from app.gallery.records import Gallery, StoredFace
from app.gallery.service import Enrolled, Galleries, SubjectFaces, enroll
from app.gallery.store import Store
from app.jobs.records import Job
from app.jobs.runner import Runner, Running
from app.jobs.store import JobStore
from app.package.thresholds import Thresholds
from app.recognition.decisions import DefaultRates
from app.search.follower import LocalBackend
from app.types import Box, Quality, Template, Vector, utc_now
from tests.support.changing import changed
from tests.support.milvus import lite
from tests.support.packages import calibration, manifest
from tests.support.waiting import until

DIMENSION = 128
"""Two random people score 0 ± 0.09."""
MEASURED = {1e-2: 0.3, 1e-3: 0.4, 1e-4: 0.5, 1e-6: 0.6}
PACKAGE = "tiny@1"
WAIT_S = 120.0
FMR, FPIR = 1e-4, 0.01
GOOD, BAD = 90.0, 10.0


def vector(person: int, photo: int, alike: float = 0.8) -> Vector:
    """Return a template of a person's photo; two of the same person score about the square of `alike`."""
    middle, offset = (np.random.default_rng(seed).standard_normal(DIMENSION) for seed in ([person], [person, photo, 1]))
    middle /= np.linalg.norm(middle)
    offset -= (offset @ middle) * middle
    found = alike * middle + np.sqrt(1 - alike**2) * offset / np.linalg.norm(offset)
    return np.asarray(found / np.linalg.norm(found), np.float32)


def between(person: int, other: int, photo: int) -> Vector:
    """Return a template that resembles both people equally, like two photos in one."""
    found = vector(person, photo) + vector(other, photo)
    return np.asarray(found / np.linalg.norm(found), np.float32)


def face(template: Vector, quality: float = GOOD) -> StoredFace:
    return StoredFace("", Template(template, PACKAGE), Quality(quality, ()), Box(0, 0, 1, 1))


class Reviewing:
    """A gallery `staff`, and a server without HTTP that reviews it. It runs jobs by itself only with `runs`."""

    def __init__(self, url: str, *, milvus: Path | None = None, runs: bool = True) -> None:
        self.store = Store(url)
        reader = self.store.change_reader
        backend = MilvusBackend(reader, self.store.database, lite(milvus)) if milvus else LocalBackend(reader)
        self.galleries = Galleries(self.store, backend)
        self.jobs = JobStore(self.store.database)
        self.reviews = Reviews(self.store.database)
        self.runner = Runner(self.jobs, look_s=0.02, renew_s=0.05)
        described = manifest(dimension=DIMENSION, calibrations=(calibration(MEASURED),))
        self.thresholds = Thresholds(described)
        self.reviewer = Reviewer(
            self.galleries,
            self.reviews,
            self.jobs,
            lambda _: self.thresholds,
            defaults=DefaultRates(FMR, FPIR),
        )
        self.scheduler = Scheduler()
        self.galleries.create_gallery("staff", PACKAGE, DIMENSION, store="none")
        if runs:
            self.runner.start({KIND: self.work}, self.scheduler)

    def work(self, running: Running) -> None:
        self.reviewer.work(running)

    def close(self) -> None:
        self.runner.close()
        self.scheduler.close()
        self.galleries.close()

    @property
    def gallery(self) -> Gallery:
        return self.store.gallery("staff")

    def enroll(self, subject: str, vectors: Sequence[Vector], quality: float = GOOD) -> Enrolled:
        return self.galleries.enroll(
            self.galleries.store.gallery("staff"), subject, [face(template, quality) for template in vectors]
        )

    def correct(self, subject: str, *probes: Vector, first: Vector | None = None) -> None:
        """Record that these probes do not show the subject; enroll the subject first if a face is given."""
        if first is not None:
            self.enroll(subject, [first])
        for probe in probes:
            add_correction(self.store, self.gallery, subject, face(probe), utc_now(timedelta(days=365)))

    def people(self, numbers: range, photos: int = 3) -> None:
        """Enroll these people in one change."""
        faces = {f"p{number}": [face(vector(number, photo)) for photo in range(photos)] for number in numbers}
        wanted = [SubjectFaces(subject, enrolled) for subject, enrolled in faces.items()]
        changed(self.galleries, "staff", enroll, wanted)

    def review(self) -> Job:
        """Review the gallery, and return the ended job."""
        begun = self.reviewer.begin("staff").id
        until(lambda: self.jobs.job(begun).finished, WAIT_S)
        job = self.jobs.job(begun)
        assert job.state == "done", job
        return job

    def review_summary(self) -> ReviewSummary:
        self.review()
        summary = self.reviews.find(self.gallery).summary
        assert summary is not None
        return summary

    def findings(self, kind: FindingKind | None = None, *, dismissed: bool = False) -> list[Finding]:
        return list(self.reviews.findings(self.gallery, None, 1000, kind=kind, dismissed=dismissed).items)

    def found(self) -> set[tuple[str, str, str | None]]:
        """Return the kind, subject and other subject of each finding, pairs in alphabetical order."""
        rows: set[tuple[str, str, str | None]] = set()
        for finding in self.findings():
            subjects = finding.face.subject, None if finding.other is None else finding.other.subject
            if finding.kind == "same_person":
                subjects = min(map(str, subjects)), max(map(str, subjects))
            rows.add((finding.kind, *subjects))
        return rows
