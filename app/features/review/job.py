"""Review a gallery as a job: search the whole gallery for each face of its subjects, some subjects at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from sqlalchemy.engine import Connection

from app.features.corrected import wrong_by_key
from app.features.own_jobs import UnderWay
from app.features.review.examine import Examiner, Nearest, nearest_of
from app.features.review.records import Draft, ReviewSummary
from app.features.review.rules import STRANGERS_FMR, Points
from app.features.review.separation import ErrorCounts, Separation
from app.features.review.store import Reviews
from app.gallery.records import Gallery
from app.gallery.service import Galleries, widened
from app.jobs.records import Job
from app.jobs.runner import Running
from app.jobs.store import JobStore, new_job_id
from app.package.thresholds import Thresholds
from app.recognition.decisions import LINKED_FMR, DefaultRates, identify_point, verify_point
from app.search.registry import Searchable
from app.search.types import FaceBlock, Match
from app.types import Sizes, Vector, Vectors, utc_now

KIND = "review"
SUBJECTS_AT_ONCE = 1_000
FACES_AT_ONCE = 2_000
"""Maximum faces between checkpoints, unless a single subject has more: a few seconds of work in a large gallery."""
PROBES_AT_ONCE = 256
"""Number of faces searched for in one pass."""
OTHERS = 3
"""Number of other subjects that each face is compared with: more than one, since a person may be enrolled more than
twice."""


class Reviewer:
    """Starts and runs reviews. Safe to share between threads."""

    def __init__(
        self,
        galleries: Galleries,
        reviews: Reviews,
        jobs: JobStore,
        thresholds: Callable[[Gallery], Thresholds],
        *,
        defaults: DefaultRates,
    ) -> None:
        """``thresholds`` returns a gallery's operating points; ``defaults`` names those at which the review decides."""
        self.reviews = reviews
        self._galleries, self._store = galleries, galleries.store
        self._jobs = jobs
        self._thresholds = thresholds
        self._defaults = defaults

    def begin(self, gallery_id: str, *, who: str | None = None) -> Job:
        """Start a review unless one is running; return the review's job.

        Raises NotFound ``gallery_not_found``, OperatingPointUnavailable.
        """
        gallery = self._store.gallery(gallery_id)
        self._points(self._thresholds(gallery), {})
        job_id = new_job_id()
        begin = partial(self.reviews.begin, gallery=gallery, job=job_id)
        try:
            return self._jobs.create(KIND, gallery, who=who, job_id=job_id, also=begin)
        except UnderWay as other:
            return self._jobs.job(other.job)

    def work(self, running: Running) -> None:
        """Run a job; see `app.jobs.runner.Work`."""
        gallery = self._store.gallery(running.job.gallery or "")
        searched = self._galleries.open_search(gallery)
        terms = running.saved.get("terms") or {"package": searched.package, "sizes": list(searched.sizes.items())}
        gallery = gallery.view(terms["package"])
        thresholds = self._thresholds(gallery)
        points = self._points(thresholds, _sizes(terms))
        examiner = Examiner(points, thresholds.fmr_of, partial(self._read, gallery))
        separation = Separation(running.saved.get("separation"))
        # The job's stored progress is written when its lease is renewed, so it may differ from the checkpoint's.
        running.progress(running.saved.get("faces", 0), self._store.counts(gallery).faces)
        after = running.saved.get("after", 0)
        while subjects := self.reviews.subjects(gallery, after, SUBJECTS_AT_ONCE, FACES_AT_ONCE):
            examined = self._examine(running, gallery, examiner, [key for key, faces in subjects if faces])
            if running.cancelled:
                return
            if examined:
                separation.add(np.stack([counts for _, counts in examined]), seed=after)
            after = subjects[-1][0]
            running.progress(running.done + sum(faces for _, faces in subjects))
            saved = {"terms": terms, "after": after, "faces": running.done, "separation": separation.save()}
            running.counts["subjects"] += len(examined)
            drafts = [draft for findings, _ in examined for draft in findings]
            self.reviews.add(gallery, running.job.id, drafts, partial(running.checkpoint, saved))
        self._publish(running, gallery, points, separation)

    def _publish(self, running: Running, gallery: Gallery, points: Points, separation: Separation) -> None:
        summary = ReviewSummary(
            package=gallery.embedder,
            subjects=running.counts["subjects"],
            faces=separation.faces,
            finished_at=utc_now(),
            verify=points.verify,
            identify=points.identify,
            fnmr=separation.fnmr,
            fpir=separation.fpir,
        )

        def note(connection: Connection, findings: int) -> None:
            running.counts["findings"] = findings
            running.checkpoint(running.saved, connection)

        self.reviews.publish(gallery, running.job.id, summary, note)

    def _points(self, thresholds: Thresholds, sizes: Sizes) -> Points:
        """Return the points at which the review decides, for a gallery with these sizes. Raises
        OperatingPointUnavailable."""
        return Points(
            verify_point(thresholds, None, self._defaults.fmr),
            identify_point(thresholds, None, None, self._defaults, sizes),
            lambda faces: verify_point(thresholds, None, STRANGERS_FMR, faces).threshold,
            verify_point(thresholds, None, LINKED_FMR).threshold,
        )

    def _examine(
        self, running: Running, gallery: Gallery, examiner: Examiner, subjects: Sequence[int]
    ) -> list[tuple[list[Draft], ErrorCounts]]:
        """Examine the subjects with these keys; return nothing if the job is cancelled."""
        blocks = list(self._read(gallery, subjects).values())
        if not blocks:
            return []
        vectors = np.concatenate([block.vectors for block in blocks])
        matches: list[list[Match]] = []
        for start in range(0, len(vectors), PROBES_AT_ONCE):
            if running.cancelled:
                return []
            index = self._galleries.indexes.ready(gallery.index_spec)
            matches += self._near(index, vectors[start : start + PROBES_AT_ONCE], examiner.least)
        keys = {int(block.subjects[0]) for block in blocks} | {match.subject for row in matches for match in row}
        wrong = wrong_by_key(self._store, gallery, gallery.embedder, keys)
        nearest = self._nearest(blocks, matches, wrong)
        return [examiner.examine(block, near, wrong) for block, near in zip(blocks, nearest, strict=True)]

    def _near(self, index: Searchable, probes: Vectors, least: float) -> list[list[Match]]:
        """Return each probe's best matches: all that score `least` or more, or so many that its own subject and OTHERS
        reviewed ones are among them. Unnamed subjects, which are not reviewed, may rank higher than these."""

        def search(places: Sequence[int], wanted: int) -> list[list[Match] | None]:
            rows = index.search(probes[places], wanted)
            there = self.reviews.reviewed({match.subject for row in rows for match in row})
            reviewed = [sum(match.subject in there for match in row) for row in rows]
            return [
                None if len(row) == wanted and row[-1].score >= least and count <= OTHERS else row
                for row, count in zip(rows, reviewed, strict=True)
            ]

        return widened(search, len(probes), OTHERS + 1)

    def _read(self, gallery: Gallery, subjects: Sequence[int]) -> dict[int, FaceBlock]:
        """Return the faces of each subject, by the subject's key; subjects without faces are left out."""
        block = self._store.change_reader.faces_of(gallery.index_spec, subjects)
        if block is None:
            return {}
        order = np.argsort(block.subjects, kind="stable")
        keys, starts = np.unique(block.subjects[order], return_index=True)
        rows = np.split(order, starts[1:])
        return {int(key): block.only(group) for key, group in zip(keys, rows, strict=True)}

    def _nearest(
        self, blocks: Sequence[FaceBlock], searched: Sequence[Sequence[Match]], wrong: Mapping[int, Vectors]
    ) -> Iterator[Nearest]:
        """Yield each block's matches with other reviewed subjects, without those that a correction rules out."""
        there = self.reviews.reviewed({match.subject for row in searched for match in row})
        rows = iter(searched)
        for block in blocks:
            others = there - {int(block.subjects[0])}
            matches = [
                [match for match in next(rows) if match.subject in others and not _is_ruled_out(match, vector, wrong)]
                for vector in block.vectors
            ]
            yield nearest_of(matches, OTHERS)


def _sizes(terms: Mapping[str, Any]) -> Sizes:
    """Return the sizes of the gallery's subjects as the job stored them. A job of an older version stored only their
    number."""
    return dict(terms["sizes"]) if "sizes" in terms else {1: terms["subjects"]}


def _is_ruled_out(match: Match, vector: Vector, wrong: Mapping[int, Vectors]) -> bool:
    probes = wrong.get(match.subject)
    return probes is not None and float((probes @ vector).max()) > match.score
