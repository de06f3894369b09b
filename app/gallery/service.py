"""Change galleries, and search in them: changes go to the database first, then to the index that answers.

A change is written to SQL together with an entry in the gallery's change log, and acknowledged when SQL has committed
and this process's index has applied the log. Other processes over the same database follow a moment later (`follow_s`).
An index that can't follow is built again from the database.

`Store` reads. Functions over `Galleries.change` make changes: see `app.gallery.store`; `enroll` is one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TypeVar, Unpack

import numpy as np
from sqlalchemy.engine import Connection

from app.choices import IndexKind
from app.concurrency.batcher import GroupCommit
from app.concurrency.scheduler import Scheduler
from app.errors import Conflict, InvalidInput, LikenessError, PackageMismatch
from app.gallery.records import (
    NO_TERMS,
    Candidate,
    Counts,
    Gallery,
    GalleryChanges,
    GallerySettings,
    StoredFace,
    Terms,
    package_mismatch,
)
from app.gallery.store import Change, Store
from app.gallery.subjects import terms_columns, touch_subjects, write_faces, write_subjects
from app.gallery.text import check_visible, clean_id, is_unnamed
from app.search.follower import LocalBackend
from app.search.index import WIDEN
from app.search.registry import IndexBackend, IndexRegistry, Searchable, SharedSearches
from app.search.types import IndexSpec
from app.types import UNIT_TOLERANCE, Sizes, Template, Vectors

FOLLOW_S = 0.2
"""Seconds between reads of the change logs' ends, a small query that shows other processes' changes."""
SNAPSHOT_S = 300.0
"""Seconds between writes of snapshots."""
_log = logging.getLogger(__name__)
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class SubjectFaces:
    """Faces for a subject, which is created if it is missing. `terms` replace its own; `also` writes in the
    transaction."""

    subject: str
    faces: Sequence[StoredFace]
    terms: Terms = NO_TERMS
    also: Callable[[Connection], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment: the subject's id, and the new faces with theirs."""

    subject: str
    faces: tuple[StoredFace, ...]
    created: bool


class Galleries:
    """The galleries of one database and their indexes; safe to share between threads, the database between processes.

    Every call may raise Unusable ``database_unavailable`` and Overloaded ``database_busy``, and every call that names a
    gallery InvalidInput ``invalid_id`` and NotFound ``gallery_not_found``.
    """

    def __init__(self, store: Store, backend: IndexBackend | None = None) -> None:
        """`backend` keeps the indexes, by default in this process's memory without snapshots."""
        self.store = store
        self.indexes = IndexRegistry(store.change_reader, backend or LocalBackend(store.change_reader))
        self.searches = SharedSearches()
        self._enrollments = GroupCommit[SubjectFaces, Enrolled]()

    def start(self, scheduler: Scheduler, *, follow_s: float = FOLLOW_S, snapshot_s: float = SNAPSHOT_S) -> None:
        """Look for other processes' changes every `follow_s` seconds, and write snapshots every `snapshot_s`.

        The scheduler must be closed before the galleries.
        """
        scheduler.every(follow_s, "following", self.indexes.follow)
        scheduler.every(follow_s, "preparing", self.indexes.prepare)
        scheduler.every(snapshot_s, "snapshots", self.indexes.save)

    def close(self) -> None:
        """Write the due snapshots, and close everything, including the store."""
        self.searches.close()
        try:
            self.indexes.save()
        except (LikenessError, OSError) as error:
            _log.warning("The last snapshots could not be written: %s", error)
        self.indexes.backend.close()
        self.store.close()

    # Galleries

    def create_gallery(
        self, gallery_id: str, embedder: str, dimension: int, **settings: Unpack[GallerySettings]
    ) -> Gallery:
        """Create a gallery for templates of the package `embedder`, `dimension` numbers long.

        Raises InvalidInput ``invalid_metadata``; Conflict ``gallery_exists``, ``search_unavailable``.
        """
        self._check_kind(settings.get("search", "fp32"))
        return self.store.create_gallery(gallery_id, embedder, dimension, **settings)

    def update_gallery(self, gallery: Gallery, **changes: Unpack[GalleryChanges]) -> Gallery:
        """Change the given settings; other processes follow within a moment. Raises Conflict ``search_unavailable``."""
        if not changes:
            return gallery
        if "search" in changes:
            self._check_kind(changes["search"])
        updated = self.store.update_gallery(gallery, changes)
        if "search" in changes:
            self.indexes.set_kind(gallery.key, changes["search"])
        return updated

    def delete_gallery(self, gallery: Gallery) -> Counts:
        """Delete the gallery with its subjects, faces, crops and vectors; return their numbers."""
        with self.indexes.ending(gallery.index_specs):
            return self.store.delete_gallery(gallery)

    def probed_by(self, gallery: Gallery) -> str:
        """Return the id of the package that probes of this gallery should be embedded with."""
        return self.indexes.answering(gallery.index_specs).key.package

    # Subjects and faces

    @contextmanager
    def change(self, gallery: Gallery) -> Iterator[Change]:
        """Open a change of the gallery; at the end it is committed and applied to this process's indexes."""
        with self.indexes.changing(gallery.index_specs), self.store.change(gallery) as change:
            yield change

    def enroll(
        self,
        gallery: Gallery,
        subject_id: str,
        faces: Sequence[StoredFace],
        *,
        terms: Terms = NO_TERMS,
        also: Callable[[Connection], None] = lambda _: None,
    ) -> Enrolled:
        """Add one or more faces to the subject, all or none; create a missing subject. Simultaneous requests share a
        transaction, in which `also` writes. Raises what `enroll` below raises."""
        wanted = SubjectFaces(subject_id, faces, terms, also)

        def work(enrollments: Sequence[SubjectFaces]) -> list[Enrolled]:
            with self.change(gallery) as change:
                return enroll(change, enrollments)

        return self._enrollments.run(gallery.key, wanted, work)

    # Search

    def open_search(self, gallery: Gallery, package: str | None = None) -> GallerySearch:
        """Open the index for probes of this package, by default of the one that answers here; build it if necessary."""
        mine = (spec for spec in gallery.index_specs if spec.key.package == package)  # each of them holds all faces
        spec = next(mine, None) or self.indexes.answering(gallery.index_specs)
        index = self.indexes.ready(spec)
        return GallerySearch(gallery, spec, spec.key.package, index.sizes, index, self.searches, self.store)

    def _check_kind(self, search: IndexKind) -> None:
        if search not in self.indexes.backend.kinds:
            message = f"Vectors are searched in Milvus here, which has no kind {search!r}. Leave `search` out."
            raise Conflict(message, code="search_unavailable", known=sorted(self.indexes.backend.kinds))


@dataclass(frozen=True, slots=True)
class GallerySearch:
    """Searches a gallery by its templates of one package, in the index that was ready when this was opened.

    Every call may raise what `Galleries` raises; those that take probes, InvalidInput ``invalid_template`` and Conflict
    ``package_mismatch``.
    """

    gallery: Gallery
    spec: IndexSpec
    package: str
    """The id of the package that probes must be embedded with."""
    sizes: Sizes
    """The number of subjects by number of faces, from the index, which is cheaper than `Store.counts`."""
    _index: Searchable
    _shared: SharedSearches
    _store: Store

    def search(
        self, probes: Sequence[Template], limit: int, least: float = -1.0, *, enrolling: bool = False
    ) -> list[list[Candidate]]:
        """Return for each probe the `limit` subjects with the highest scores, best first, of those that score `least`.

        With `enrolling`, the probes are new faces: return `limit` named subjects, and any number of unnamed ones.
        Subjects deleted meanwhile are left out, and so are expired ones, which are in the index until they are erased
        but don't take others' places. Raises Overloaded if too many searches wait.
        """
        vectors = unit_vectors(self.spec, probes)

        def nearest(places: Sequence[int], wanted: int) -> list[list[Candidate] | None]:
            rankings = self._shared.run(self._index, vectors[places], wanted, enrolling=enrolling)
            near = [[match for match in ranking if match.score >= least] for ranking in rankings]
            found: list[list[Candidate] | None] = []
            for matches, candidates in zip(near, self._store.candidates(near), strict=True):
                counted = sum(not (enrolling and is_unnamed(candidate.subject)) for candidate in candidates)
                kept = candidates if enrolling else candidates[:limit]
                found.append(None if counted < limit and len(matches) == wanted else kept)  # None: it may have more
            return found

        return widened(nearest, len(probes), limit)

    def verify(self, subject_id: str, probe: Template) -> Candidate:
        """Compare the probe with one subject. Raises SubjectNotFound; Conflict ``subject_without_faces``."""
        (candidate,) = self.compare(subject_id, [probe])
        if candidate is None:
            message = f"Subject {subject_id!r} has no faces to compare with."
            raise Conflict(message, code="subject_without_faces", gallery=self.gallery.id, subject=subject_id)
        return candidate

    def compare(self, subject_id: str, probes: Sequence[Template]) -> list[Candidate | None]:
        """Compare each probe with one subject; None if that has no faces. Raises SubjectNotFound."""
        vectors, subject = unit_vectors(self.spec, probes), self._store.subject(self.gallery, subject_id)
        matches = self._index.verify(vectors, subject.key)
        named = self._store.candidates([[match] if match else [] for match in matches])
        return [row[0] if row else None for row in named]


def widened(search: Callable[[Sequence[int], int], Sequence[R | None]], count: int, wanted: int) -> list[R]:
    """Search for `count` probes. Repeat it for those with too short a result, each time for WIDEN times as many rows.

    `search` takes the probes' indexes and the number of rows, and returns for each its result, or None if more rows
    may lead to a better one.
    """
    found: dict[int, R] = {}
    while short := [place for place in range(count) if place not in found]:
        results = zip(short, search(short, wanted), strict=True)
        found |= {place: result for place, result in results if result is not None}
        wanted *= WIDEN
    return [found[place] for place in range(count)]


def enroll(change: Change, wanted: Sequence[SubjectFaces]) -> list[Enrolled]:
    """Carry out several enrollments.

    Raises InvalidInput ``invalid_id``, ``invalid_expiry``, ``invalid_consent``, ``invalid_template`` (not a unit vector
    of the gallery's dimension); Conflict ``subject_expired``, ``package_mismatch`` if a face lacks a template that the
    gallery takes.
    """
    subjects: list[tuple[str, dict[str, object]]] = []
    faces: list[tuple[StoredFace, ...]] = []
    for enrollment in wanted:
        name = clean_id(enrollment.subject, "subject")
        subjects.append((name, terms_columns(enrollment.terms)))
        fitted = (fit_face(face, change.gallery.written) for face in enrollment.faces)
        faces.append(tuple(replace(face, subject=name) for face in fitted))
    keys, made = write_subjects(change, subjects, unexpired=True)
    for name in made:
        check_visible(name, "subject id")
    touch_subjects(change, [key for name, key in keys.items() if name not in made])
    write_faces(change, change.gallery.embedder, keys, list(chain(*faces)))
    enrolled = []
    for (name, _), new_faces in zip(subjects, faces, strict=True):
        enrolled.append(Enrolled(name, new_faces, created=name in made))
        made.discard(name)  # only the first enrollment of a subject creates it
    for enrollment in wanted:
        enrollment.also(change.connection)
    return enrolled


def fit_face(face: StoredFace, written: Sequence[IndexSpec]) -> StoredFace:
    """Return the face with a template for each of these sets, in their order. Raises Conflict ``package_mismatch`` if
    it lacks one, and what `unit_vectors` raises."""
    made = {template.package: template for template in (face.template, face.second) if template}
    packages = [spec.key.package for spec in written]
    if not made.keys() >= set(packages):
        message = f"The gallery takes templates of {' and of '.join(packages)} now."
        raise PackageMismatch(message, expected=packages, given=face.template.package)
    for spec in written:
        unit_vectors(spec, [made[spec.key.package]])
    first, *others = (made[package] for package in packages)
    return replace(face, template=first, second=others[0] if others else None)


def unit_vectors(wanted: IndexSpec, templates: Sequence[Template]) -> Vectors:
    """Return the vectors, (N, D), of templates that must be of the wanted package and of length 1.

    Raises Conflict ``package_mismatch``; InvalidInput ``invalid_template``.
    """
    for template in templates:
        if template.package != wanted.key.package:
            raise package_mismatch(wanted, template.package)
        if template.vector.shape != (wanted.dimension,):
            message = f"A template of {wanted.key.package} has {wanted.dimension} numbers."
            raise InvalidInput(message, code="invalid_template")
        if not abs(float(np.linalg.norm(template.vector)) - 1) <= UNIT_TOLERANCE:  # NaN is rejected too
            raise InvalidInput("A template must be a vector of length 1.", code="invalid_template")
    return np.array([template.vector for template in templates], np.float32).reshape(len(templates), wanted.dimension)
