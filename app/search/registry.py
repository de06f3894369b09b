"""The indexes of all galleries in this process: the one place where a gallery and its index change together.

A gallery has one index a package. Usually that is one; while the gallery is re-embedded with another package there are
two, both of all its faces, and either answers. After the switch this process keeps using the old one until the new one
is built, so no search waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from app.choices import IndexKind
from app.errors import Conflict, GalleryNotFound, LikenessError, NotFound
from app.search.gallery_index import GalleryIndex, IndexBackend, Searchable
from app.search.types import FaceSource, Followed, GalleryState, Indexed, IndexKey, IndexSpec


class IndexRegistry:
    """Keeps the index of every gallery. Safe to share between threads. `specs` are always one gallery's, that of its
    own package first; calls that take them may raise GalleryNotFound."""

    def __init__(self, source: FaceSource, backend: IndexBackend) -> None:
        self._source = source
        self.backend = backend
        """Keeps the indexes; says whether galleries can be searched, and by which kinds of search."""
        self._indexes: dict[IndexKey, GalleryIndex[Searchable]] = {}
        self._built: set[IndexKey] = set()
        self._lock = threading.Lock()
        self._load_new = False
        self._states: Mapping[int, GalleryState] = {}  # as of the last `follow`
        self._version: object = None  # of the database, when the states were read
        self._up_to_date: set[IndexKey] = set()  # indexes that have all of these states
        self._followed_at = time.monotonic()

    def indexed(self) -> Indexed:
        """Return what this process's indexes hold together, without reading anything."""
        held = [index.held() for index in self._known().values()]
        return Indexed(sum(each.faces for each in held), sum(each.size for each in held))

    def followed(self) -> Followed:
        """Return how far the indexes are behind, without reading anything."""
        states, age_s = self._states, time.monotonic() - self._followed_at
        behind = sum(
            index.behind(states[key.gallery].head) for key, index in self._known().items() if key.gallery in states
        )
        return Followed(behind, age_s)

    # One gallery

    def answering(self, specs: Sequence[IndexSpec]) -> IndexSpec:
        """Return which of the gallery's indexes answers in this process."""
        return next((spec for spec in specs if spec.key in self._built), specs[0])

    def ready(self, spec: IndexSpec) -> Searchable:
        """Return an index with everything that this process acknowledged."""
        with self._forgetting(spec.key.gallery):
            searchable = self.index(spec).ready()
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
        with self._forgetting(specs[0].key.gallery):
            yield self.index(self.answering(specs))

    @contextmanager
    def changing(self, specs: Sequence[IndexSpec]) -> Iterator[None]:
        """Wrap a change to the database; every index of the gallery that is built here holds it at the end."""
        gallery = specs[0].key.gallery
        with self._forgetting(gallery):
            spec = self.answering(specs)
            answering = self.index(spec)
            try:
                with answering.changing():
                    yield
                self._built.add(spec.key)
            finally:
                others = {key: other for key, other in self._known(gallery).items() if other is not answering}
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
        """Build every gallery's index; from now on, `follow` builds those of new galleries too."""
        self._load_new = True
        self._load(self._source.states().values())

    def follow(self) -> None:
        """Apply what other processes changed; called often."""
        self.backend.check_health()
        version = self._source.version()  # read first: what is committed in between is found by the next look
        if version is None or version != self._version:
            self._states, self._version, self._up_to_date = self._source.states(), version, set()
        known, states, self._followed_at = self._known(), self._states, time.monotonic()
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
                with suppress(NotFound):  # deleted meanwhile
                    if index.follow(state.head) and index.set_kind(spec.kind):
                        self._up_to_date.add(key)
        if self._load_new:
            seen = {key.gallery for key in known}
            self._load(state for gallery, state in states.items() if gallery not in seen)

    def prepare(self) -> None:
        """Tend the indexes, and build the second ones that galleries need by now. Takes its time."""
        for index in self._known().values():
            index.tend()
        for gallery, state in self._states.items():
            for spec in state.specs if len(state.specs) > 1 else ():
                if spec.key not in self._built and self._known(gallery):
                    with suppress(NotFound, Conflict):  # deleted or finished meanwhile
                        self.ready(spec)

    def keep(self) -> None:
        """Save the indexes of the galleries' own packages, and remove what deleted galleries left."""
        known, states = self._known(), self._source.states()  # in this order: a gallery missing in `states` is gone
        own = [
            index for key, index in known.items() if key.gallery in states and states[key.gallery].specs[0].key == key
        ]
        self.backend.keep(own, states.keys())

    def _load(self, states: Iterable[GalleryState]) -> None:
        for state in states:
            with suppress(NotFound):  # deleted meanwhile
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

    @contextmanager
    def _forgetting(self, gallery: int) -> Iterator[None]:
        """Forget the gallery's indexes if it turns out to be deleted."""
        try:
            yield
        except GalleryNotFound:
            self._forget(gallery)
            raise
