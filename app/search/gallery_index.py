"""One gallery's index and where such indexes are kept: what `app.search.registry` needs of either.

`app.search.follower` keeps indexes in this process with FAISS, other backends are features.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeAlias, TypeVar

from app.choices import IndexKind
from app.db.engine import Database
from app.errors import Conflict, InvalidInput, NotFound, Overloaded
from app.search.types import Answer, Difference, FaceSource, Indexed, IndexSpec, LogPosition, Match, Snapshotted
from app.types import Sizes, Vectors


class Searchable(Protocol):
    """Answers searches of one gallery; safe to share between threads."""

    @property
    def sizes(self) -> Sizes:
        """How many subjects have so many faces."""
        ...

    @property
    def quick(self) -> bool:
        """Whether a search costs less than handing it to another thread."""
        ...

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Return for each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first."""
        ...

    def begin(self, vectors: Vectors, limit: int) -> list[Answer]:
        """Begin such a search; what is returned for each probe ends it, on the thread that calls it."""
        ...

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Compare each probe, (Q, D) unit float32, with one subject; None if it has no face."""
        ...


S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class GalleryIndex(ABC, Generic[S_co]):
    """One gallery's vectors, kept in step with its change log; safe to share between threads.

    A lock orders this process's changes to the gallery; searches don't take it. Whatever may have left the index behind
    the database marks it stale, and the next search applies the log first.
    """

    def __init__(self, spec: IndexSpec, source: FaceSource) -> None:
        self._spec = spec
        self._source = source
        self._lock = threading.Lock()
        self._latest_mark = object()  # replaced each time that the index may have fallen behind
        self._applied_mark: object = None  # the mark that stood before the log was last applied

    def ready(self) -> S_co:
        """Return an index with everything that this process acknowledged; build it first if necessary.

        Raises GalleryNotFound.
        """
        if (current := self._current()) is not None:
            return current
        with self._lock:
            return self._catch_up()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wrap a change to the database, one at a time; the index holds it at the end."""
        with self._lock:
            self._before_change()
            try:
                yield
            except (InvalidInput, NotFound, Conflict, Overloaded):
                raise  # refused before anything was written
            except BaseException:
                self.mark_stale()  # a commit whose answer was lost may have happened
                raise
            try:
                self._catch_up()
            except BaseException:
                self.mark_stale()
                raise

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Wrap the gallery's deletion."""
        with self._lock:
            try:
                yield
            except BaseException:
                self.mark_stale()
                raise
            self._forget()

    def mark_stale(self) -> None:
        """Note that the database may hold changes that the index lacks. Costs nothing."""
        self._latest_mark = object()

    def rebuild(self) -> None:
        """Build the index again from the database."""
        with self._lock:
            self._build()

    def set_kind(self, kind: IndexKind) -> bool:  # noqa: ARG002 - most kinds of indexes have one kind of search
        """Search by this kind from now on; False if the gallery is just being changed."""
        return True

    def tend(self) -> None:
        """Do what is due in the background; called often."""

    @abstractmethod
    def held(self) -> Indexed:
        """Return how much it holds as far as is known, without reading anything."""

    @abstractmethod
    def behind(self, head: LogPosition) -> int:
        """Return how many changes it lacks of a log that ends at `head`; 0 if it was never built."""

    @abstractmethod
    def follow(self, head: LogPosition) -> bool:
        """Apply what other processes wrote to the log, which ends at `head`; False if that is to be asked again."""

    @abstractmethod
    def compare(self) -> tuple[Difference, int]:
        """Compare with the database, and count the faces held. This process's changes wait meanwhile."""

    @abstractmethod
    def save(self) -> None:
        """Write or clean up what is due; called from time to time. Raises OSError."""

    @abstractmethod
    def scrub(self) -> bool:
        """Remove copies on disk that may hold erased faces; False if another server has to, which will."""

    @contextmanager
    def _unless_changing(self) -> Iterator[bool]:
        """Hold the lock if it is free, and yield whether it was."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    # The rest is called with the lock held, but for `_current`.

    def _catch_up(self) -> S_co:
        mark = self._latest_mark  # what is marked later may be newer than what is read here
        searchable = self._apply_log()
        self._applied_mark = mark
        return searchable

    @property
    def _is_stale(self) -> bool:
        return self._applied_mark is not self._latest_mark

    def _before_change(self) -> None:
        """Raise if the index couldn't take a change now."""

    @abstractmethod
    def _current(self) -> S_co | None:
        """Return the index if it is built and not stale."""

    @abstractmethod
    def _apply_log(self) -> S_co:
        """Apply all of the log; build the index if it is missing or can't follow."""

    @abstractmethod
    def _build(self) -> S_co:
        """Build the index from the database."""

    @abstractmethod
    def _forget(self) -> None:
        """Drop the index: its gallery is gone."""


class IndexBackend(Protocol):
    """Keeps the indexes of all galleries."""

    @property
    def available(self) -> bool:
        """Whether it could be used at the last `check_health`."""
        ...

    @property
    def kinds(self) -> Collection[IndexKind]:
        """The kinds of search it offers."""
        ...

    def check_health(self) -> None:
        """Update `available`; called often."""
        ...

    def open(self, spec: IndexSpec) -> GalleryIndex[Searchable]:
        """Return the index, which is built when it is first used."""
        ...

    def keep(self, indexes: Sequence[GalleryIndex[Searchable]], galleries: Collection[int]) -> None:
        """Save these indexes, and remove what deleted galleries left; `galleries` are the keys of those that exist."""
        ...

    def snapshotted(self) -> Snapshotted | None:
        """Return what lies on disk; None if no snapshots are written. Raises OSError."""
        ...

    def discard(self, gallery: int) -> None:
        """Remove what is left of a deleted gallery as far as possible now; `keep` does the rest."""
        ...

    def close(self) -> None: ...


OpenIndex: TypeAlias = Callable[[str, str | None, FaceSource, Database], IndexBackend]
"""Opens what keeps the indexes, by its address and token.

Raises ValueError for an address that can't be read, Unusable (``index_driver_missing``, ``index_unavailable``).
"""
