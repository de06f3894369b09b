"""Which index answers for a gallery in this process, and that it is current.

A gallery has one index a package. Usually that is one; while the gallery moves from one package to another, and until
the move is finished, there are two, both of all its faces, and either answers. After the switch this process goes on
with the index of the package before until the new one's is made here: nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from app.errors import Conflict, GalleryNotFound, LikenessError, NotFound
from app.gallery.records import Followed, Gallery, GalleryState, Indexed, IndexKey, IndexKind, Snapshotted
from app.gallery.store import Store
from app.search.protocol import GalleryIndex, Indexes, Searchable


class CurrentIndexes:
    """Safe to share between threads. What names a gallery may raise NotFound ``gallery_not_found``."""

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._live: dict[IndexKey, GalleryIndex] = {}
        self._made: set[IndexKey] = set()
        self._lock = threading.Lock()
        self._eager = False
        self._unmade = False
        self._states: Mapping[int, GalleryState] = {}  # as they were when they were last looked at
        self._looked_at = time.monotonic()

    def close(self) -> None:
        self._indexes.close()

    def held(self) -> Sequence[Indexed]:
        """Asks no database."""
        with self._lock:
            return [live.held() for live in self._live.values()]

    @property
    def available(self) -> bool:
        """Whether galleries could be searched when that was last looked at, a moment ago."""
        return self._indexes.available

    def followed(self) -> Followed:
        """Asks no database."""
        with self._lock:
            live = dict(self._live)
        states, age_s = self._states, time.monotonic() - self._looked_at
        behind = sum(
            one.behind(states[which.gallery_key].position) for which, one in live.items() if which.gallery_key in states
        )
        return Followed(behind, age_s)

    def snapshotted(self) -> Snapshotted | None:
        """None where none are written. Raises OSError."""
        return self._indexes.snapshotted()

    def view(self, gallery: Gallery) -> Gallery:
        """The gallery as seen by the package that it is searched by here."""
        return next((view for view in gallery.views if view.index_key in self._made), gallery)

    def ready(self, view: Gallery) -> Searchable:
        """The index of a gallery as seen by one package, with everything that was acknowledged in this process."""
        with self._gone(view):
            found = self.of(view).ready()
        self._made.add(view.index_key)
        return found

    def of(self, view: Gallery) -> GalleryIndex:
        with self._lock:
            if view.index_key not in self._live:
                self._live[view.index_key] = self._indexes.open(view)
            return self._live[view.index_key]

    @contextmanager
    def changing(self, gallery: Gallery) -> Iterator[None]:
        """Around a change to SQL; at the end every index of the gallery that is made here holds it."""
        with self._gone(gallery):
            view = self.view(gallery)
            answering = self.of(view)
            try:
                with answering.changing():
                    yield
                self._made.add(view.index_key)
            finally:
                others = [which for which in self._all(gallery.key) if which[1] is not answering]
                for _, other in others:
                    other.touch()
            for which, other in others:
                if which in self._made:
                    with suppress(LikenessError):  # it was touched: who searches it hears of its trouble
                        other.ready()

    @contextmanager
    def ending(self, gallery: Gallery) -> Iterator[None]:
        """Around the gallery's deletion."""
        with self.of(self.view(gallery)).ending():
            yield
        self.forget(gallery.key)

    @contextmanager
    def index(self, gallery: Gallery) -> Iterator[GalleryIndex]:
        """The index that answers here, to look at."""
        with self._gone(gallery):
            yield self.of(self.view(gallery))

    @property
    def kinds(self) -> Collection[IndexKind]:
        """By which a gallery can be searched here."""
        return self._indexes.kinds

    def search_by(self, gallery: Gallery) -> None:
        """Has the gallery's indexes follow what it says of its search."""
        for _, live in self._all(gallery.key):
            live.search_by(gallery.search)

    def load(self) -> None:
        """Makes every gallery's index ready; from now on, new galleries' too."""
        self._eager = True
        cursor = None
        while True:
            page = self._store.galleries(cursor)
            for gallery in page.items:
                with suppress(NotFound):  # deleted meanwhile
                    self.ready(self.view(gallery))
            if (cursor := page.next_cursor) is None:
                return

    def follow(self) -> None:
        """Applies what other processes have changed."""
        self._indexes.look()
        with self._lock:
            known = dict(self._live)
        states = self._store.feed.states()
        self._states, self._looked_at = states, time.monotonic()
        for which, live in known.items():
            if which.gallery_key not in states:
                self.forget(which.gallery_key)
            elif which not in states[which.gallery_key].index_keys(which.gallery_key):
                self._drop(which)
            else:
                with suppress(NotFound):  # deleted meanwhile
                    live.follow(states[which.gallery_key].position)
                    live.search_by(states[which.gallery_key].search)
        self._unmade = any(
            which not in self._made
            for key, state in states.items()
            if len(state.templates.answering) > 1
            for which in state.index_keys(key)
        )
        if self._eager and states.keys() - {which.gallery_key for which in known}:
            self.load()

    def prepare(self) -> None:
        """Build the second indexes that galleries need by now, and drop stale GPU copies. Runs in the background."""
        with self._lock:
            known = list(self._live.values())
        for live in known:
            live.drop_stale_copies()
        if not self._unmade:
            return
        for gallery in self._store.feed.reembedded():
            for view in gallery.views:
                if view.index_key not in self._made and self._all(gallery.key):
                    with suppress(NotFound, Conflict):  # deleted or finished meanwhile
                        self.ready(view)

    def keep(self) -> None:
        """What is due from time to time, for the indexes of the galleries' own packages."""
        states = self._store.feed.states()
        with self._lock:
            known = dict(self._live)
        own = [
            live
            for which, live in known.items()
            if which.gallery_key not in states or states[which.gallery_key].index_keys(which.gallery_key)[0] == which
        ]
        self._indexes.keep(own)

    def forget(self, gallery_key: int) -> None:
        """Of a gallery that is gone."""
        with self._lock:
            for which in [which for which in self._live if which.gallery_key == gallery_key]:
                del self._live[which]
                self._made.discard(which)
        self._indexes.discard(gallery_key)

    # Inside

    def _all(self, gallery_key: int) -> Sequence[tuple[IndexKey, GalleryIndex]]:
        with self._lock:
            return [(which, live) for which, live in self._live.items() if which.gallery_key == gallery_key]

    def _drop(self, which: IndexKey) -> None:
        """Of a package that its gallery has left; whoever still searches it may end that."""
        with self._lock:
            self._live.pop(which, None)
            self._made.discard(which)

    @contextmanager
    def _gone(self, gallery: Gallery) -> Iterator[None]:
        """Forgets the gallery's indexes where the gallery turns out to be deleted."""
        try:
            yield
        except GalleryNotFound:
            self.forget(gallery.key)
            raise
