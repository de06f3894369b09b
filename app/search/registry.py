"""The indexes of all galleries in this process: the one place where a gallery and its index change together.

`GalleryIndex` is one gallery's index and `IndexBackend` where such indexes are kept: `app.search.follower` keeps them
in this process with FAISS, other backends are features.

A gallery has one index per package. Usually there is one; while the gallery is re-embedded with another package there
are two, both of all its faces, and either can answer. After the switch this process uses the old one until the new one
is built, so no search waits. Searches of concurrent requests share passes over an index (`SharedSearches`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from app.choices import IndexKind
from app.concurrency.batcher import Batcher
from app.db.engine import Database
from app.errors import Conflict, GalleryNotFound, InvalidInput, LikenessError, NotFound, Overloaded, PackageMismatch
from app.machine import cores
from app.search.types import (
    Difference,
    FaceSource,
    FinishSearch,
    Followed,
    GalleryState,
    Indexed,
    IndexKey,
    IndexSpec,
    LogPosition,
    Match,
    Snapshotted,
)
from app.types import Sizes, Vectors


class Searchable(Protocol):
    """Answers searches of one gallery; safe to share between threads."""

    @property
    def sizes(self) -> Sizes:
        """Return the number of subjects by number of faces."""
        ...

    @property
    def quick(self) -> bool:
        """Return whether a search costs less than handing it to another thread."""
        ...

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Return for each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first."""
        ...

    def begin(self, vectors: Vectors, limit: int) -> list[FinishSearch]:
        """Begin such a search; return a function for each probe that ends it, on the calling thread."""
        ...

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Compare each probe, (Q, D) unit float32, with one subject; None if it has no face."""
        ...


S_co = TypeVar("S_co", bound=Searchable, covariant=True)


class GalleryIndex(ABC, Generic[S_co]):
    """One gallery's vectors, kept in step with its change log; safe to share between threads.

    A lock orders this process's changes to the gallery; searches don't take it. If the index may be behind the
    database, it is marked stale, and the next search applies the log first.
    """

    def __init__(self, spec: IndexSpec, source: FaceSource) -> None:
        self._spec = spec
        self._source = source
        self._lock = threading.Lock()
        self._latest_mark = object()  # replaced each time that the index may have fallen behind
        self._applied_mark: object = None  # the mark before the log was last applied
        self._searchable: S_co | None = None  # the index that answers; None until it is built

    def ready(self) -> S_co:
        """Return an index with all changes that this process acknowledged; build it first if necessary.

        Raises GalleryNotFound; PackageMismatch if the gallery has left the package.
        """
        searchable = self._searchable  # read first: it may be replaced before the marks are compared
        if searchable is not None and self._applied_mark is self._latest_mark:
            return searchable
        with self._lock:
            return self._catch_up()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Wrap a change to the database, one at a time; the index holds it at the end."""
        with self._lock:
            try:
                yield
            except (InvalidInput, NotFound, Conflict, Overloaded):
                raise  # rejected before anything was written
            except BaseException:
                self.mark_stale()  # the commit may have succeeded though its answer was lost
                raise
            try:
                self._catch_up()
            except PackageMismatch:  # the gallery has left this package, so that no search uses this index
                self.mark_stale()
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
        """Note that the database may have changes that the index lacks. It costs nothing."""
        self._latest_mark = object()

    def set_kind(self, kind: IndexKind) -> bool:  # noqa: ARG002 - most kinds of indexes have one kind of search
        """Search by this kind from now on; False if the gallery is just being changed."""
        return True

    def maintain(self) -> None:
        """Do background work. Call it often."""

    @abstractmethod
    def measure(self) -> Indexed:
        """Return how much it holds, as far as known without reading anything."""

    @abstractmethod
    def behind(self, head: LogPosition) -> int:
        """Return the number of changes that it lacks of the log, which ends at `head`; 0 if it was never built."""

    @abstractmethod
    def follow(self, head: LogPosition) -> bool:
        """Apply other processes' changes from the log, which ends at `head`; return False if it must be tried again."""

    @abstractmethod
    def compare(self) -> tuple[Difference, int]:
        """Compare with the database, and count the faces held. This process's changes wait meanwhile."""

    @abstractmethod
    def save(self) -> None:
        """Save the index, or clean up after it, if that is due. Call it from time to time. Raises OSError."""

    @abstractmethod
    def scrub(self) -> bool:
        """Remove copies on disk that may hold erased faces; return False if another server will do it."""

    @contextmanager
    def _unless_changing(self) -> Iterator[bool]:
        """Hold the lock if it is free, and yield whether it was."""
        free = self._lock.acquire(blocking=False)
        try:
            yield free
        finally:
            if free:
                self._lock.release()

    @property
    def _is_stale(self) -> bool:
        return self._applied_mark is not self._latest_mark

    # The rest is called with the lock held.

    def _catch_up(self) -> S_co:
        mark = self._latest_mark  # a later mark may mean changes newer than those read here
        searchable = self._apply_log()
        self._applied_mark = mark
        return searchable

    @abstractmethod
    def _apply_log(self) -> S_co:
        """Apply the whole log; build the index if it is missing or can't follow."""

    @abstractmethod
    def _build(self) -> S_co:
        """Build the index from the database."""

    def _forget(self) -> None:
        """Drop the index: its gallery is gone."""
        self._searchable = None


class IndexBackend(Protocol):
    """Keeps the indexes of all galleries."""

    @property
    def available(self) -> bool:
        """Return whether it could be used at the last `check_health`."""
        ...

    @property
    def kinds(self) -> Collection[IndexKind]:
        """The kinds of search it offers."""
        ...

    def check_health(self) -> None:
        """Update `available`. Call it often."""
        ...

    def open(self, spec: IndexSpec) -> GalleryIndex[Searchable]:
        """Return the index, which is built when it is first used."""
        ...

    def save(self, indexes: Sequence[GalleryIndex[Searchable]], galleries: Collection[int]) -> None:
        """Save these indexes, and remove deleted galleries' data; `galleries` are the keys of the existing ones."""
        ...

    def snapshotted(self) -> Snapshotted | None:
        """Measure the snapshots on disk; None if none are written. Raises OSError."""
        ...

    def discard(self, gallery: int) -> None:
        """Remove a deleted gallery's data as far as possible now; `save` does the rest."""
        ...

    def close(self) -> None: ...


OpenIndex: TypeAlias = Callable[[str, str | None, FaceSource, Database], IndexBackend]
"""Opens the backend that keeps the indexes, by its address and token.

Raises ValueError for an address that can't be read, Unusable (``index_driver_missing``, ``index_unavailable``).
"""


class IndexRegistry:
    """Keeps the index of every gallery. Safe to share between threads. `specs` are always one gallery's, first that of
    its own package; calls that take them may raise GalleryNotFound."""

    def __init__(self, source: FaceSource, backend: IndexBackend) -> None:
        self._source = source
        self.backend = backend
        """Keeps the indexes; knows whether galleries can be searched, and by which kinds of search."""
        self._indexes: dict[IndexKey, GalleryIndex[Searchable]] = {}
        self._built: set[IndexKey] = set()
        self._lock = threading.Lock()
        self._load_new = False
        self._states: Mapping[int, GalleryState] = {}  # as of the last `follow`
        self._version: object = None  # of the database, when the states were read
        self._up_to_date: set[IndexKey] = set()  # indexes that have all of these states
        self._followed_at = time.monotonic()

    def indexed(self) -> Indexed:
        """Return the totals of this process's indexes, without reading anything."""
        totals = [index.measure() for index in self._known().values()]
        return Indexed(sum(total.faces for total in totals), sum(total.size for total in totals))

    def followed(self) -> Followed:
        """Return how far behind the indexes are, without reading anything."""
        states, age_s = self._states, time.monotonic() - self._followed_at
        behind = sum(
            index.behind(states[key.gallery].head) for key, index in self._known().items() if key.gallery in states
        )
        return Followed(behind, age_s)

    # One gallery

    def answering(self, specs: Sequence[IndexSpec]) -> IndexSpec:
        """Return the specification of the gallery's index that answers in this process."""
        return next((spec for spec in specs if spec.key in self._built), specs[0])

    def ready(self, spec: IndexSpec) -> Searchable:
        """Return an index with everything that this process acknowledged."""
        index = self._indexes.get(spec.key) or self.index(spec)
        try:
            searchable = index.ready()
        except GalleryNotFound:
            self._forget(spec.key.gallery)
            raise
        self._built.add(spec.key)
        return searchable

    def index(self, spec: IndexSpec) -> GalleryIndex[Searchable]:
        with self._lock:
            if spec.key not in self._indexes:
                self._indexes[spec.key] = self.backend.open(spec)
            return self._indexes[spec.key]

    @contextmanager
    def inspecting(self, specs: Sequence[IndexSpec]) -> Iterator[GalleryIndex[Searchable]]:
        """Yield the index that answers, to be compared, rebuilt or scrubbed."""
        try:
            yield self.index(self.answering(specs))
        except GalleryNotFound:
            self._forget(specs[0].key.gallery)
            raise

    @contextmanager
    def changing(self, specs: Sequence[IndexSpec]) -> Iterator[None]:
        """Wrap a change to the database; at the end, every index of the gallery that is built here has it."""
        gallery, spec = specs[0].key.gallery, self.answering(specs)
        answering = self._indexes.get(spec.key) or self.index(spec)
        try:
            with answering.changing():
                yield
            self._built.add(spec.key)
        except GalleryNotFound:  # it was deleted meanwhile
            self._forget(gallery)
            raise
        finally:
            with self._lock:
                mine = [(key, index) for key, index in self._indexes.items() if key.gallery == gallery]
            others = {key: other for key, other in mine if other is not answering}
            for other in others.values():
                other.mark_stale()
        for key, other in others.items():
            if key in self._built:
                with suppress(LikenessError):  # it stays stale, so the next search raises
                    other.ready()

    @contextmanager
    def ending(self, specs: Sequence[IndexSpec]) -> Iterator[None]:
        """Wrap the gallery's deletion."""
        with self.index(self.answering(specs)).ending():
            yield
        self._forget(specs[0].key.gallery)

    def set_kind(self, gallery: int, kind: IndexKind) -> None:
        """Search the gallery, given by its key, by this kind from now on."""
        for index in self._known(gallery).values():
            index.set_kind(kind)

    # All galleries

    def load(self) -> None:
        """Build every gallery's index; from now on, `follow` also builds those of new galleries."""
        self._load_new = True
        self._load(self._source.states().values())

    def follow(self) -> None:
        """Apply other processes' changes. Call it often."""
        self.backend.check_health()
        known = self._known()  # read before the states, which would lack an index that is built meanwhile
        version = self._source.version()  # also before them, so that the next look finds commits in between
        if version is None or version != self._version:
            self._states, self._version, self._up_to_date = self._source.states(), version, set()
        states, self._followed_at = self._states, time.monotonic()
        for key, index in known.items():
            if key in self._up_to_date:
                continue
            state = states.get(key.gallery)
            spec = None if state is None else next((spec for spec in state.specs if spec.key == key), None)
            if state is None:
                self._forget(key.gallery)
            elif spec is None:
                self._drop(key)
            else:
                with suppress(NotFound, PackageMismatch):  # deleted or re-embedded meanwhile
                    if index.follow(state.head) and index.set_kind(spec.kind):
                        self._up_to_date.add(key)
        if self._load_new:
            seen = {key.gallery for key in known}
            self._load(state for gallery, state in states.items() if gallery not in seen)

    def prepare(self) -> None:
        """Tend the indexes, and build the second ones that galleries need now. It may take long."""
        for index in self._known().values():
            index.maintain()
        for gallery, state in self._states.items():
            for spec in state.specs if len(state.specs) > 1 else ():
                if spec.key not in self._built and self._known(gallery):
                    with suppress(NotFound, Conflict):  # deleted or finished meanwhile
                        self.ready(spec)

    def save(self) -> None:
        """Save the indexes of the galleries' own packages, and remove what deleted galleries left."""
        known, states = self._known(), self._source.states()  # in this order: a gallery missing in `states` is gone
        to_save = [
            index for key, index in known.items() if key.gallery in states and states[key.gallery].specs[0].key == key
        ]
        self.backend.save(to_save, states.keys())

    def _load(self, states: Iterable[GalleryState]) -> None:
        for state in states:
            with suppress(NotFound, PackageMismatch):  # deleted or re-embedded meanwhile
                self.ready(self.answering(state.specs))

    def _known(self, gallery: int | None = None) -> dict[IndexKey, GalleryIndex[Searchable]]:
        with self._lock:
            return {key: index for key, index in self._indexes.items() if gallery in (None, key.gallery)}

    def _drop(self, key: IndexKey) -> None:
        """Drop the index of a package that its gallery has left; searches that have begun may finish."""
        with self._lock:
            self._indexes.pop(key, None)
            self._built.discard(key)

    def _forget(self, gallery: int) -> None:
        for key in self._known(gallery):
            self._drop(key)
        self.backend.discard(gallery)


MAX_SHARING = 64
"""Maximum searches that share a pass; more would delay the first of them by more than the pass saves."""
MAX_SEARCHES = 1_024
"""Maximum searches that wait in each queue; further ones are rejected."""
SEARCH_WORKERS = 2
"""Number of workers: one for the largest gallery, and one so that others needn't wait for it."""
ENROLLMENT_WAIT_S = 0.25
"""Maximum seconds that an enrollment's search waits for others: two cores enroll about sixteen photos in this time."""


@dataclass(frozen=True, slots=True)
class _Search:
    index: Searchable
    probes: Vectors
    limit: int


class SharedSearches:
    """Runs searches; safe to share between threads.

    A search is taken at once, and shares its pass with those that arrive while others run. An enrollment's search also
    waits for those of requests that are still `enrolling`, while these keep all cores busy: per probe, a pass for
    sixteen takes a third of the time of a pass for one. Sixteen clients on two cores then enroll at 0.97 of their speed
    without the search among 100,000 × 128; without the wait, at 0.81.
    """

    def __init__(self) -> None:
        self._searches = Batcher(
            _begin_together,
            max_batch=MAX_SHARING,
            max_wait_s=0,
            queue_limit=MAX_SEARCHES,
            workers=SEARCH_WORKERS,
            name="search",
        )
        self._cores = cores()
        self._enrolling = 0
        self._guard = threading.Lock()
        self._for_enrollments = Batcher(
            _begin_together,
            max_batch=MAX_SHARING,
            max_wait_s=ENROLLMENT_WAIT_S,
            queue_limit=MAX_SEARCHES,
            pays=lambda waiting: self._enrolling - waiting >= self._cores,
            name="enrollment-search",
        )

    def run(self, index: Searchable, probes: Vectors, limit: int, *, enrolling: bool = False) -> list[list[Match]]:
        """Search as `Searchable.search`; `enrolling`: for an enrollment. Raises Overloaded if too many wait."""
        if index.quick:
            begun = index.begin(probes, limit)
        else:
            begun = (self._for_enrollments if enrolling else self._searches).run([_Search(index, probes, limit)])[0]
        return [finish(limit) for finish in begun]  # exact scores on this thread, not in the batch

    @contextmanager
    def enrolling(self) -> Iterator[None]:
        """Count an enrollment until it has searched."""
        with self._guard:
            self._enrolling += 1
        try:
            yield
        finally:
            with self._guard:
                self._enrolling -= 1
            self._for_enrollments.reconsider()

    @property
    def waiting(self) -> int:
        return self._searches.waiting + self._for_enrollments.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Return how many batches of each size there were."""
        return dict(Counter(self._searches.batch_sizes) + Counter(self._for_enrollments.batch_sizes))

    def close(self) -> None:
        self._searches.close()
        self._for_enrollments.close()


def _begin_together(searches: list[_Search]) -> Sequence[list[FinishSearch]]:
    """Begin searches of the same index in one pass."""
    results: list[list[FinishSearch]] = [[] for _ in searches]
    groups: dict[int, list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault(id(search.index), []).append(place)
    for places in groups.values():
        group = [searches[place] for place in places]
        probes = np.concatenate([search.probes for search in group])
        begun = iter(group[0].index.begin(probes, max(search.limit for search in group)))
        for place, search in zip(places, group, strict=True):
            results[place] = [next(begun) for _ in search.probes]
    return results
