"""The types for building search indexes, for following changes, and for answers. They hold keys and vectors; names and
photos belong to `app.gallery`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from app.choices import IndexKind
from app.types import Sizes, Vectors

Keys: TypeAlias = NDArray[np.int64]
"""(N,) int64: keys of faces or subjects, which are never used again."""


class IndexKey(NamedTuple):
    """Names an index: a gallery has one for each generation of a package's templates."""

    gallery: int
    package: str
    generation: int


@dataclass(frozen=True, slots=True)
class IndexSpec:
    """The contents of one index: the templates of one package in one gallery, each `dimension` numbers long."""

    key: IndexKey
    gallery_id: str
    dimension: int
    kind: IndexKind = "fp32"


@dataclass(frozen=True, slots=True)
class FaceBlock:
    """Some faces of a gallery, one row per face in each array."""

    faces: Keys
    subjects: Keys
    qualities: NDArray[np.float32]
    """(N,) 0-100."""
    vectors: Vectors

    def only(self, rows: NDArray[np.int64] | NDArray[np.bool_]) -> FaceBlock:
        """Return these rows, by number or by a mask."""
        return FaceBlock(self.faces[rows], self.subjects[rows], self.qualities[rows], self.vectors[rows])


def joined(blocks: Sequence[FaceBlock], dimension: int) -> FaceBlock:
    """Return the blocks as one, which is empty if there are none."""
    keys = np.empty(0, np.int64)
    none = FaceBlock(keys, keys, np.empty(0, np.float32), np.empty((0, dimension), np.float32))
    names = ("faces", "subjects", "qualities", "vectors")
    return FaceBlock(*(np.concatenate([getattr(block, name) for block in (none, *blocks)]) for name in names))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place in a gallery's change log: the number of the last change before it, and that change's stamp.

    Stamps are random, so equal positions mean the same history, even after a database was restored from an older copy.
    """

    number: int
    stamp: int


@dataclass(frozen=True, slots=True)
class Removed:
    """A removed face, or all faces of a subject if ``face`` is None."""

    subject: int
    face: int | None
    erased: bool = False
    """Whether no copy on disk may keep it."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Faces that were given to other subjects, and these subjects, (N,) each. The index may lack some of the faces."""

    faces: Keys
    subjects: Keys


FaceChange: TypeAlias = FaceBlock | Moved | Removed


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of a gallery's faces after a position, in order; ``position`` is the place after it."""

    steps: tuple[FaceChange, ...]
    position: LogPosition
    more: bool
    """Whether the log had further entries when it was read."""


@dataclass(frozen=True, slots=True)
class GalleryState:
    """The end of a gallery's change log, and the indexes that can answer for it, first that of its own package."""

    head: LogPosition
    specs: tuple[IndexSpec, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """A subject's best face for a probe; among equal scores the face enrolled first.

    ``score`` is that face's cosine, ``mean_score`` that of the subject's mean template, ``length`` the mean's before
    scaling; ``faces`` is the number of the subject's faces.
    """

    subject: int
    face: int
    score: float
    mean_score: float
    faces: int = 1
    length: float = 1.0


FinishSearch: TypeAlias = Callable[[int], list[Match]]
"""Ends the search for one probe, on the calling thread. Takes the maximum number of subjects to return, which is not
above that with which the search began; returns them best first."""


@dataclass(frozen=True, slots=True)
class Difference:
    """How an index differs from the database: keys of faces, and the number of faces that only the index has."""

    missing: tuple[int, ...]
    different: tuple[int, ...]
    extra: int


@dataclass(frozen=True, slots=True)
class Indexed:
    """Number of faces that indexes hold, and their bytes of memory."""

    faces: int
    size: int


@dataclass(frozen=True, slots=True)
class Followed:
    """How many changes the indexes lack, by the logs as they were when last read, ``age_s`` seconds ago."""

    behind: int
    age_s: float


@dataclass(frozen=True, slots=True)
class Snapshotted:
    """The snapshots on disk: their number, their bytes, and the age of the oldest, or None."""

    count: int
    size: int
    oldest_s: float | None


class FaceSource(Protocol):
    """Reads faces and change logs for the indexes; safe to share between threads.

    Every call may raise Unusable ``database_unavailable``, ``template_damaged`` and Overloaded ``database_busy``.
    """

    def version(self) -> object:
        """Return a value that every commit changes, at next to no cost; None if there is none."""
        ...

    def states(self) -> dict[int, GalleryState]:
        """Return the state of every gallery, by gallery key."""
        ...

    def head(self, spec: IndexSpec) -> LogPosition | None:
        """Return the end of the change log; None if the gallery is gone."""
        ...

    def changes(
        self, spec: IndexSpec, since: LogPosition, limit: int, until: LogPosition | None = None
    ) -> Changes | None:
        """Return up to `limit` changes after `since`, none after `until`; None if the log doesn't continue `since`."""
        ...

    def read_all(
        self, spec: IndexSpec, *, named: bool = False
    ) -> AbstractContextManager[tuple[LogPosition, Iterator[FaceBlock]]]:
        """Yield the log's end and all faces in order of their keys, both as of one moment; with `named`, only those of
        subjects that have a name. Raises GalleryNotFound; PackageMismatch if the gallery has left the package."""
        ...

    def faces_of(self, spec: IndexSpec, subjects: Sequence[int]) -> FaceBlock | None:
        """Return all faces of these subjects in order of their keys; None if they have none."""
        ...

    def faces_at(self, spec: IndexSpec, faces: Sequence[int]) -> FaceBlock | None:
        """Return these faces, as far as they still exist, in order of their keys; None if there are none."""
        ...

    def sizes(self, spec: IndexSpec, *, named: bool = False) -> Sizes:
        """Count the subjects by number of faces; with `named`, only those that have a name. Reads a row per subject."""
        ...
