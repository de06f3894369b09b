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

from app.errors import Conflict, LikenessError, NotFound
from app.gallery.records import Followed, Gallery, Indexed, IndexKind, Seen, Snapshotted, Standing
from app.gallery.store import Store
from app.search.protocol import GalleryIndex, Indexes, Searchable


class CurrentIndexes:
    """Safe to share between threads. What names a gallery may raise NotFound ``gallery_not_found``."""

    def __init__(self, store: Store, indexes: Indexes) -> None:
        self._store = store
        self._indexes = indexes
        self._live: dict[Seen, GalleryIndex] = {}
        self._made: set[Seen] = set()
        self._lock = threading.Lock()
        self._eager = False
        self._unmade = False
        self._standings: Mapping[int, Standing] = {}  # as they were when they were last looked at
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
        standings, age_s = self._standings, time.monotonic() - self._looked_at
        behind = sum(one.behind(standings[which.key].position) for which, one in live.items() if which.key in standings)
        return Followed(behind, age_s)

    def snapshotted(self) -> Snapshotted | None:
        """None where none are written. Raises OSError."""
        return self._indexes.snapshotted()

    def view(self, gallery: Gallery) -> Gallery:
        """The gallery as seen by the package that it is searched by here."""
        return next((view for view in gallery.searchable if view.seen in self._made), gallery)

    def ready(self, view: Gallery) -> Searchable:
        """The index of a gallery as seen by one package, with everything that was acknowledged in this process."""
        with self._gone(view):
            found = self.of(view).ready()
        self._made.add(view.seen)
        return found

    def of(self, view: Gallery) -> GalleryIndex:
        with self._lock:
            if view.seen not in self._live:
                self._live[view.seen] = self._indexes.open(view)
            return self._live[view.seen]

    @contextmanager
    def changing(self, gallery: Gallery) -> Iterator[None]:
        """Around a change to SQL; at the end every index of the gallery that is made here holds it."""
        with self._gone(gallery):
            view = self.view(gallery)
            answering = self.of(view)
            try:
                with answering.changing():
                    yield
                self._made.add(view.seen)
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
        standings = self._store.feed.standings()
        self._standings, self._looked_at = standings, time.monotonic()
        for which, live in known.items():
            if which.key not in standings:
                self.forget(which.key)
            elif which not in standings[which.key].searchable:
                self._drop(which)
            else:
                with suppress(NotFound):  # deleted meanwhile
                    live.follow(standings[which.key].position)
                    live.search_by(standings[which.key].search)
        self._unmade = any(
            which not in self._made
            for standing in standings.values()
            if len(standing.searchable) > 1
            for which in standing.searchable
        )
        if self._eager and standings.keys() - {which.key for which in known}:
            self.load()

    def prepare(self) -> None:
        """Build the second indexes that galleries need by now, and drop stale GPU copies. Runs in the background."""
        with self._lock:
            known = list(self._live.values())
        for live in known:
            live.drop_stale_copies()
        if not self._unmade:
            return
        for gallery in self._store.feed.moving():
            for view in gallery.searchable:
                if view.seen not in self._made and self._all(gallery.key):
                    with suppress(NotFound, Conflict):  # deleted or finished meanwhile
                        self.ready(view)

    def keep(self) -> None:
        """What is due from time to time, for the indexes of the galleries' own packages."""
        standings = self._store.feed.standings()
        with self._lock:
            known = dict(self._live)
        own = [
            live
            for which, live in known.items()
            if which.key not in standings or standings[which.key].searchable[0] == which
        ]
        self._indexes.keep(own)

    def forget(self, gallery_key: int) -> None:
        """Of a gallery that is gone."""
        with self._lock:
            for which in [which for which in self._live if which.key == gallery_key]:
                del self._live[which]
                self._made.discard(which)
        self._indexes.discard(gallery_key)

    # Inside

    def _all(self, gallery_key: int) -> Sequence[tuple[Seen, GalleryIndex]]:
        with self._lock:
            return [(which, live) for which, live in self._live.items() if which.key == gallery_key]

    def _drop(self, which: Seen) -> None:
        """Of a package that its gallery has left; whoever still searches it may end that."""
        with self._lock:
            self._live.pop(which, None)
            self._made.discard(which)

    @contextmanager
    def _gone(self, gallery: Gallery) -> Iterator[None]:
        """Forgets the gallery's indexes where the gallery turns out to be deleted."""
        try:
            yield
        except NotFound as error:
            if error.code == "gallery_not_found":
                self.forget(gallery.key)
            raise
