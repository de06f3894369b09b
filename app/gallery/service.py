"""Galleries: SQL and the index, kept in step. Everything above speaks to this module only.

A change is written to SQL, with an entry in the gallery's change log; the caller hears of it when SQL has committed and
this process's index has followed the log so far. Other processes over the same database follow it a moment later
(`follow_s`). An index that can't follow is made anew from SQL: the two never disagree in silence.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.engine import Connection

from app.concurrency.batcher import Batcher
from app.concurrency.group_commit import MOST, GroupCommit
from app.concurrency.scheduler import Scheduler
from app.db.pagination import Page
from app.errors import Conflict, InvalidInput, LikenessError, NotFound, PackageMismatch
from app.gallery.bulk import BulkFace, BulkSubject, Everything, Written
from app.gallery.enrollment import Enrolling
from app.gallery.face_rows import encode_crop
from app.gallery.faces import Faces, KeptAnswer
from app.gallery.records import (
    NO_TERMS,
    UNSET,
    Candidate,
    CheckReport,
    Counts,
    CropPolicy,
    Enrolled,
    Erased,
    FaceRow,
    Gallery,
    Metadata,
    Move,
    NewFace,
    Person,
    PlacedFace,
    Subject,
    Terms,
    Totals,
    Unset,
    fit_face,
)
from app.gallery.store import Store
from app.gallery.subject_list import SubjectList
from app.search.follower import LocalBackend
from app.search.gallery_index import IndexBackend, Searchable
from app.search.registry import IndexRegistry
from app.search.types import Followed, Indexed, IndexKind, IndexSpec, Match, Snapshotted
from app.types import Template, Vectors

UNIT_TOLERANCE = 1e-3
"""How far a template's length may be from 1."""
CHECK_EXAMPLES = 20
SEARCH_BATCH = 64
"""Searches that share a pass; more would make the first of them wait longer than the pass saves."""
SEARCH_QUEUE = 1_024
SEARCH_WORKERS = 2
"""One for the largest gallery, and one for the others not to wait behind it."""
FOLLOW_S = 0.2
"""Between looks at the change logs' ends: one small query, and what takes longest until another process's change is
answered here."""
SNAPSHOT_S = 300.0
LOG_KEPT = timedelta(days=1)
"""A process that followed nothing for longer makes its indexes anew."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Search:
    index: Searchable
    probes: Vectors
    limit: int


class Galleries:
    """All galleries of one database; safe to share between threads, and the database between processes.

    Every call may raise Unusable ``database_unavailable`` and Overloaded ``database_busy`` besides what it says,
    and every call that names a gallery InvalidInput ``invalid_id`` and NotFound ``gallery_not_found``.
    """

    def __init__(
        self,
        store: Store,
        backend: IndexBackend | None = None,
        *,
        search_batch: int = SEARCH_BATCH,
        search_queue: int = SEARCH_QUEUE,
        search_workers: int = SEARCH_WORKERS,
        log_kept: timedelta = LOG_KEPT,
    ) -> None:
        """`backend` keeps the indexes, by default in this process's memory, without snapshots. `search_workers` passes
        run at a time, of different galleries. The change log is kept for `log_kept`."""
        self._store = store
        self._faces = Faces(store.database)
        self._subject_list = SubjectList(store.database)
        self._indexes = IndexRegistry(store.change_reader, backend or LocalBackend(store.change_reader))
        self._log_kept = log_kept
        # On PostgreSQL, where others may hold some of the subjects, each enrollment is a transaction of its own.
        self._enrollments = GroupCommit[Enrolling, Enrolled](MOST if store.database.is_sqlite else 1)
        self._searches = Batcher(
            _search_together,
            max_batch=search_batch,
            max_wait_s=0,
            queue_limit=search_queue,
            workers=search_workers,
            name="search",
        )

    def start(self, scheduler: Scheduler, *, follow_s: float = FOLLOW_S, snapshot_s: float = SNAPSHOT_S) -> None:
        """Look for other processes' changes every `follow_s` seconds, and write snapshots every `snapshot_s`.

        The scheduler must be closed before the galleries.
        """
        scheduler.every(follow_s, "following", self.follow)
        scheduler.every(follow_s, "preparing", self._indexes.prepare)
        scheduler.every(snapshot_s, "snapshots", self.keep)

    def close(self) -> None:
        """With a last snapshot of what changed."""
        self._searches.close()
        try:
            self.keep()
        except (LikenessError, OSError) as error:
            _log.warning("No last snapshot could be written: %s", error)
        self._indexes.close()
        self._store.close()

    @property
    def waiting(self) -> int:
        """How many searches wait now."""
        return self._searches.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        """How many passes served how many searches at once."""
        return self._searches.batch_sizes

    @property
    def available(self) -> bool:
        """Whether galleries could be searched when that was last looked at, a moment ago."""
        return self._indexes.available

    def totals(self) -> Totals:
        return self._store.totals()

    def indexed(self) -> Indexed:
        """Asks no database."""
        return self._indexes.indexed()

    def followed(self) -> Followed:
        """Asks no database."""
        return self._indexes.followed()

    def snapshotted(self) -> Snapshotted | None:
        """None where none are written. Raises OSError."""
        return self._indexes.snapshotted()

    def load(self) -> None:
        """Makes every gallery's index ready, so that no first caller waits for it; from now on, new galleries' too."""
        self._indexes.load()

    def follow(self) -> None:
        """Applies what other processes have changed; called all the time anyway."""
        self._indexes.follow()

    def keep(self) -> None:
        """Shortens the change log, and has the indexes do what is due (see `Indexes.keep`)."""
        self._store.prune_changes(self._log_kept)
        self._indexes.keep()

    # Galleries

    def create_gallery(
        self,
        gallery_id: str,
        embedder: str,
        dimension: int,
        *,
        store: CropPolicy = "crop",
        metadata: Metadata | None = None,
        search: IndexKind = "fp32",
    ) -> Gallery:
        """`embedder` is the id of the package whose templates, of `dimension` numbers, the gallery takes.

        Raises InvalidInput ``invalid_metadata``; Conflict ``gallery_exists``, ``search_unavailable``.
        """
        self._check_kind(search)
        return self._store.create_gallery(gallery_id, embedder, dimension, store, metadata, search=search)

    def update_gallery(self, gallery_id: str, *, search: IndexKind | Unset = UNSET) -> Gallery:
        """Other processes follow within a moment. Raises Conflict ``search_unavailable``."""
        gallery = self._store.gallery(gallery_id)
        if search is UNSET:
            return gallery
        self._check_kind(search)
        self._store.update_gallery(gallery, search)
        self._indexes.set_kind(gallery.key, search)
        return self._store.gallery(gallery_id)

    def gallery(self, gallery_id: str) -> Gallery:
        return self._store.gallery(gallery_id)

    def galleries(
        self, cursor: str | None = None, limit: int = 100, only: Collection[str] | None = None
    ) -> Page[Gallery]:
        """`only` those of these ids. Raises InvalidInput ``invalid_cursor``."""
        return self._store.galleries(cursor, limit, only)

    def counts(self, gallery_id: str) -> Counts:
        return self._store.counts(self._store.gallery(gallery_id))

    def subjects_with_faces(self, gallery_id: str) -> int:
        """Return how many subjects a search chooses among, without counting rows as `counts` does."""
        return self._indexes.ready(self._answering(self._store.gallery(gallery_id))).subjects

    def packages(self) -> frozenset[str]:
        """Ids of the packages whose templates any gallery holds."""
        return self._store.packages()

    def probed_by(self, gallery_id: str) -> str:
        """Id of the package whose templates probes of this gallery should be of."""
        return self._answering(self._store.gallery(gallery_id)).key.package

    def prepare(self, gallery_id: str, package: str) -> None:
        """Makes the index ready that this package would be searched by. Raises Conflict ``package_mismatch``."""
        self._indexes.ready(self._store.gallery(gallery_id).view(package).index_spec)

    def enrolled_by(self, gallery_id: str) -> tuple[str, ...]:
        """Ids of the packages of which each new face of this gallery needs a template."""
        return self._store.gallery(gallery_id).templates.packages

    def delete_gallery(self, gallery_id: str) -> Counts:
        """With all its subjects, faces, crops and vectors; says how many there were."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.ending(gallery.index_specs):
            return self._store.delete_gallery(gallery)

    # Subjects

    def create_subject(
        self,
        gallery_id: str,
        subject_id: str | None = None,
        name: str | None = None,
        metadata: Metadata | None = None,
        *,
        terms: Terms = NO_TERMS,
        answer: KeptAnswer | None = None,
    ) -> Subject:
        """A subject without faces; its id is made where none is given. `answer` is kept in the same transaction.

        Raises InvalidInput ``invalid_name``, ``invalid_metadata``; Conflict ``subject_exists``; AlreadyAnswered.
        """
        gallery = self._store.gallery(gallery_id)
        note = self._faces.noting(gallery, answer)
        return self._store.create_subject(gallery, subject_id, name, metadata, terms=terms, note=note)

    def subject(self, gallery_id: str, subject_id: str) -> Subject:
        """Raises NotFound ``subject_not_found``."""
        return self._store.subject(self._store.gallery(gallery_id), subject_id)

    def subjects(
        self,
        gallery_id: str,
        cursor: str | None = None,
        limit: int = 100,
        search: str | None = None,
        *,
        expires_before: str | None = None,
    ) -> Page[Subject]:
        """`search` keeps those whose id or name contains it, whatever the case.

        Raises InvalidInput ``invalid_cursor``, ``invalid_search``.
        """
        gallery = self._store.gallery(gallery_id)
        return self._store.subjects(gallery, cursor, limit, search, expires_before=expires_before)

    def update_subject(
        self,
        gallery_id: str,
        subject_id: str,
        *,
        name: str | Unset | None = UNSET,
        metadata: Metadata | Unset = UNSET,
        terms: Terms = NO_TERMS,
    ) -> Subject:
        """Replaces what is given, metadata as a whole; a `name` of None removes it.

        Raises InvalidInput ``invalid_name``, ``invalid_metadata``; NotFound ``subject_not_found``.
        """
        return self._store.update_subject(self._store.gallery(gallery_id), subject_id, name, metadata, terms=terms)

    def delete_subject(self, gallery_id: str, subject_id: str) -> Subject:
        """With its faces, crops and vectors; the subject as it was. Raises NotFound ``subject_not_found``."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            return self._store.delete_subject(gallery, subject_id)

    def subject_ids(self, gallery_id: str) -> list[str]:
        """Everybody's, in the order they were made."""
        return self._subject_list.subject_ids(self._store.gallery(gallery_id))

    def rename_subject(self, gallery_id: str, subject_id: str, new_id: str) -> Subject:
        """Gives the subject another id, all at once; where that is another subject's, its faces go to that one.

        Raises NotFound ``subject_not_found``.
        """
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            kept = self._subject_list.rename(gallery, subject_id, new_id)
        return self._store.subject(gallery, kept)

    def delete_subjects(self, gallery_id: str) -> Counts:
        """Everybody with their faces, crops and vectors, all at once; says how many there were."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            return self._subject_list.clear(gallery)

    def erase_subject(
        self,
        gallery_id: str,
        subject_id: str,
        note: Callable[[Connection, Erased], None],
        *,
        expired_by: str | None = None,
    ) -> Erased:
        """As `delete_subject`; `note` writes to SQL in the same transaction. See `app.gallery.erasure`."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            return self._store.erase_subject(gallery, subject_id, note, expired_by=expired_by)

    def expired(self, limit: int) -> list[tuple[str, str]]:
        """Galleries' and subjects' ids of those whose time is over."""
        return self._store.expired(limit)

    def scrub_index(self, gallery_id: str) -> bool:
        """Removes the copies of a gallery's index that may still hold what was erased; False where another server keeps
        them, which then does it within a second or two."""
        try:
            with self._indexes.inspecting(self._store.gallery(gallery_id).index_specs) as index:
                return index.scrub()
        except NotFound:
            return True

    # Faces

    def enroll(
        self,
        gallery_id: str,
        subject_id: str,
        faces: Sequence[NewFace],
        *,
        name: str | None = None,
        metadata: Metadata | None = None,
        terms: Terms = NO_TERMS,
    ) -> Enrolled:
        """Adds one or more faces to the subject, all or none; the subject is made where it is missing.

        `name` and `metadata` replace the subject's where given.
        Raises InvalidInput ``invalid_name``, ``invalid_metadata``, ``invalid_template`` (not a unit vector of the
        gallery's dimension); Conflict ``package_mismatch``.
        """
        if not faces:
            raise ValueError("an enrollment needs a face")
        gallery = self._store.gallery(gallery_id)
        faces = [fit_face(face, gallery.templates) for face in faces]
        for package in gallery.templates.packages:
            check_templates(gallery.view(package), [one for face in faces if (one := face.template_of(package))])
        crops = [crop_to_keep(gallery, face) for face in faces]
        wanted = Enrolling(subject_id, faces, crops, name, metadata, terms)
        return self._enrollments.run(gallery.key, wanted, partial(self._enroll_all, gallery))

    def check_subject(self, subject: BulkSubject) -> None:
        """Raises what `write_many` would: InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``."""
        self._store.check_subject(subject)

    def write_many(
        self,
        gallery_id: str,
        subjects: Sequence[BulkSubject],
        faces: Sequence[BulkFace],
        vectors: Vectors,
        package: str,
        *,
        also: Callable[[Connection, Written], None] = lambda *_: None,
    ) -> Written:
        """Many faces at once, `vectors` (N, D) being what their templates are; all or none of them, with `also` in the
        same transaction.

        Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_template``; Conflict
        ``package_mismatch``, and ``two_packages`` where the gallery has two and a face no template of the other one.
        """
        gallery = self._store.gallery(gallery_id)
        if package != gallery.embedder:
            message = f"Gallery {gallery.id!r} takes templates of {gallery.embedder}, not of {package}."
            raise PackageMismatch(message, expected=gallery.embedder, given=package)
        if vectors.shape != (len(faces), gallery.dimension) or not is_unit(vectors).all():
            message = f"Templates are vectors of {gallery.dimension} numbers and of length 1."
            raise InvalidInput(message, code="invalid_template")
        with self._indexes.changing(gallery.index_specs):
            return self._store.write_many(gallery, subjects, faces, also=also)

    def everything(self, gallery_id: str, *, crops: bool) -> AbstractContextManager[Everything]:
        """See `Store.everything`."""
        return self._store.everything(self._store.gallery(gallery_id), crops=crops)

    def faces(self, gallery_id: str, subject_id: str, cursor: str | None = None, limit: int = 100) -> Page[FaceRow]:
        """Without their crops. Raises InvalidInput ``invalid_cursor``; NotFound ``subject_not_found``."""
        return self._store.faces(self._store.gallery(gallery_id), subject_id, cursor, limit)

    def face(self, gallery_id: str, subject_id: str, face_id: str) -> FaceRow:
        """With its crop, where the gallery keeps them. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        return self._store.face(self._store.gallery(gallery_id), subject_id, face_id)

    def find_face(self, gallery_id: str, face_id: str) -> FaceRow:
        """A face of any subject, with its crop. Raises NotFound ``face_not_found``."""
        return self._store.find_face(self._store.gallery(gallery_id), face_id)

    def face_ids(
        self, gallery_id: str, subject_id: str | None = None, *, offset: int = 0, limit: int = 100
    ) -> tuple[list[tuple[str, str]], int]:
        """The ids of some faces and of their subjects, and how many faces there are: the gallery's, or one subject's,
        who need not be there."""
        return self._subject_list.face_ids(self._store.gallery(gallery_id), subject_id, offset, limit)

    def delete_face(self, gallery_id: str, subject_id: str, face_id: str) -> None:
        """With its crop and vector. Raises NotFound ``subject_not_found``, ``face_not_found``."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            self._store.delete_face(gallery, subject_id, face_id)

    # Faces, whoever's they are

    def placed_faces(
        self,
        gallery_id: str,
        cursor: str | None = None,
        limit: int = 100,
        *,
        subject: str | None = None,
        only: Collection[str] | None = None,
    ) -> Page[PlacedFace]:
        """All of them in the order they were enrolled, or those of one `subject`, or `only` those of these ids.

        Raises InvalidInput ``invalid_cursor``.
        """
        return self._faces.faces(self._store.gallery(gallery_id), cursor, limit, subject=subject, only=only)

    def find_faces(self, gallery_id: str, face_ids: Sequence[str]) -> dict[str, PlacedFace]:
        """Those of them that there are, by id."""
        return self._faces.find(self._store.gallery(gallery_id), face_ids)

    def faces_of_image(self, gallery_id: str, image_id: str) -> list[PlacedFace]:
        return self._faces.of_image(self._store.gallery(gallery_id), image_id)

    def people(self, gallery_id: str, cursor: str | None = None, limit: int = 100) -> Page[Person]:
        """The subjects that somebody named. Raises InvalidInput ``invalid_cursor``."""
        return self._faces.people(self._store.gallery(gallery_id), cursor, limit)

    def count_people(self, gallery_id: str) -> int:
        return self._faces.count_people(self._store.gallery(gallery_id))

    def move_faces(self, gallery_id: str, moves: Sequence[Move], answer: KeptAnswer | None = None) -> None:
        """Faces go from one subject to another, all or none; an unnamed target is made where it is missing, and an
        unnamed source goes with its last face. `answer` is kept in the same transaction.

        Raises NotFound ``face_not_found`` (not its source's), ``subject_not_found`` (a target); AlreadyAnswered.
        """
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            self._faces.move(gallery, moves, answer)

    def dissolve_subject(self, gallery_id: str, subject_id: str, answer: KeptAnswer | None = None) -> None:
        """Deletes the subject but not its faces: each becomes an unnamed one's. `answer` is kept in that transaction.

        Raises NotFound ``subject_not_found``; AlreadyAnswered.
        """
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            self._faces.dissolve(gallery, subject_id, answer)

    def delete_faces(self, gallery_id: str, face_ids: Sequence[str]) -> list[str]:
        """Whoever's they are, and unnamed subjects with them; the ids of those that were there."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.changing(gallery.index_specs):
            return self._faces.delete(gallery, face_ids)

    def recall_answer(self, gallery_id: str, operation: str, token: str) -> tuple[bytes, str] | None:
        """Of a request of less than a day ago: the digest of what was asked, and the answer."""
        return self._faces.recall_answer(self._store.gallery(gallery_id), operation, token)

    # Asking

    def search(self, gallery_id: str, probes: Sequence[Template], limit: int) -> list[list[Candidate]]:
        """For each probe the `limit` subjects with the highest scores, exactly, best first.

        A subject deleted while the search ran is left out. Raises InvalidInput ``invalid_template``;
        Conflict ``package_mismatch``; Overloaded where too many searches wait.
        """
        view, vectors = self._compared(gallery_id, probes)
        index = self._indexes.ready(view.index_spec)
        if index.quick:
            return self._name(index.search(vectors, limit))
        return self._name(self._searches.run([_Search(index, vectors, limit)])[0])

    def verify(self, gallery_id: str, subject_id: str, probe: Template) -> Candidate:
        """The probe against one subject.

        Raises InvalidInput ``invalid_template``; NotFound ``subject_not_found``; Conflict ``package_mismatch``,
        ``subject_without_faces``.
        """
        gallery, vectors = self._compared(gallery_id, [probe])
        subject = self._store.current_subject(gallery, subject_id)
        found = [match for match in self._indexes.ready(gallery.index_spec).verify(vectors, subject.key) if match]
        named = self._name([found])[0]
        if not named:
            message = f"Subject {subject.id!r} has no faces to compare with."
            raise Conflict(message, code="subject_without_faces", gallery=gallery.id, subject=subject.id)
        return named[0]

    def check(self, gallery_id: str) -> CheckReport:
        """Compares every face in SQL with the index; this process's changes to the gallery wait meanwhile, searches
        don't."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.inspecting(gallery.index_specs) as index:
            difference, indexed = index.compare()
        counts = self._store.counts(gallery)
        examples = self._store.labels([*difference.missing, *difference.different][:CHECK_EXAMPLES])
        return CheckReport(
            gallery=gallery.id,
            subjects=counts.subjects,
            faces=counts.faces,
            indexed=indexed,
            missing=len(difference.missing),
            different=len(difference.different),
            extra=difference.extra,
            examples=tuple(face_id for face_id, _, _ in examples.values()),
        )

    def rebuild(self, gallery_id: str) -> None:
        """Makes the gallery's index anew from SQL."""
        gallery = self._store.gallery(gallery_id)
        with self._indexes.inspecting(gallery.index_specs) as index:
            index.rebuild()

    # Inside

    def _enroll_all(self, gallery: Gallery, wanted: Sequence[Enrolling]) -> list[Enrolled]:
        with self._indexes.changing(gallery.index_specs):
            return self._store.enroll(gallery, wanted)

    def _answering(self, gallery: Gallery) -> IndexSpec:
        return self._indexes.answering(gallery.index_specs)

    def _check_kind(self, search: IndexKind) -> None:
        if search not in self._indexes.kinds:
            message = (
                f"Vectors are searched in Milvus here, which has no kind {search!r}: its own kinds are its setting."
            )
            raise Conflict(message, code="search_unavailable", known=sorted(self._indexes.kinds))

    def _name(self, found: Sequence[Sequence[Match]]) -> list[list[Candidate]]:
        """The matches with their ids; those deleted since, and those that have expired, are left out."""
        labels = self._store.labels([match.face for row in found for match in row], current=True)
        return [
            [
                Candidate(
                    subject=subject, name=name, face_id=face_id, score=match.score, template_score=match.mean_score
                )
                for match in row
                if match.face in labels
                for face_id, subject, name in [labels[match.face]]
            ]
            for row in found
        ]

    def _compared(self, gallery_id: str, probes: Sequence[Template]) -> tuple[Gallery, Vectors]:
        """The gallery as seen by the probes' package, and their vectors. Raises as `check_templates` does."""
        gallery = self._store.gallery(gallery_id)
        package = self._answering(gallery).key.package
        if probes and probes[0].package in {spec.key.package for spec in gallery.index_specs}:
            package = probes[0].package  # each of them holds all faces
        view = gallery.view(package)
        return view, check_templates(view, probes)


def check_templates(gallery: Gallery, templates: Sequence[Template]) -> Vectors:
    """The templates' vectors, (N, D) float32, all of the gallery's package and of length 1.

    Raises Conflict ``package_mismatch``; InvalidInput ``invalid_template``.
    """
    for template in templates:
        if template.package != gallery.embedder:
            message = f"Gallery {gallery.id!r} takes templates of {gallery.embedder}, not of {template.package}."
            raise PackageMismatch(message, expected=gallery.embedder, given=template.package)
        if template.vector.shape != (gallery.dimension,):
            message = f"A template of {gallery.embedder} has {gallery.dimension} numbers."
            raise InvalidInput(message, code="invalid_template")
        if not abs(float(np.linalg.norm(template.vector)) - 1) <= UNIT_TOLERANCE:  # NaN is refused too
            raise InvalidInput("A template must be a vector of length 1.", code="invalid_template")
    if not templates:
        return np.empty((0, gallery.dimension), np.float32)
    return np.stack([template.vector for template in templates]).astype(np.float32)


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """(N,): which rows have length 1. NaN has none."""
    found: NDArray[np.bool_] = np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE
    return found


def _search_together(searches: list[_Search]) -> list[list[list[Match]]]:
    """Searches of the same index share one pass over its vectors."""
    results: list[list[list[Match]]] = [[] for _ in searches]
    groups: dict[int, list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault(id(search.index), []).append(place)
    for places in groups.values():
        group = [searches[place] for place in places]
        probes = np.concatenate([search.probes for search in group])
        found = iter(group[0].index.search(probes, max(search.limit for search in group)))
        for place, search in zip(places, group, strict=True):
            results[place] = [next(found)[: search.limit] for _ in search.probes]
    return results


def crop_to_keep(gallery: Gallery, face: NewFace) -> bytes | None:
    """As JPEG."""
    return encode_crop(face.crop) if gallery.store == "crop" and face.crop is not None else None
