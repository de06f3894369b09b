"""Galleries' vectors in Milvus, for several servers together.

SQL is the truth here too. No server leads: whoever changes a gallery writes the change to Milvus before it is
acknowledged. What a server that died in between left undone, another one mends: each looks, a moment after a change,
whether Milvus holds it, and then marks in the collection how far in the change log that is true (`_settle`). That needs
no order between servers, since a face that has gone from SQL never comes back, and its key is never used again: adding
twice or removing twice changes nothing, and whoever added looks afterwards whether the face is still there (`_apply`).

A collection is replaced by making another beside it and switching, in SQL; which one is meant is looked up at each
search and after each change.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import numpy as np
from numpy.typing import NDArray

from app.errors import DatabaseBusy, LikenessError, Unusable
from app.gallery.change_reader import Feed
from app.gallery.records import (
    Changes,
    FaceBlock,
    Gallery,
    Indexed,
    IndexKind,
    Position,
    Snapshotted,
    gallery_not_found,
)
from app.gallery.store import Store
from app.search.index import Difference
from app.search.milvus.check import Comparison
from app.search.milvus.client import CollectionLost, Milvus
from app.search.milvus.collections import Catalogue
from app.search.milvus.search import Count, Searcher
from app.search.protocol import GalleryIndex, in_step

CHANGES_AT_ONCE = 5_000
SETTLE_S = 2.0
"""How long a change is left to the server that made it, before others look whether Milvus holds it."""
PING_S = 2.0
PING_TIMEOUT_S = 2.0
REPLACED_KEPT = timedelta(minutes=1)
"""Searches that began before a collection was replaced are over by then."""
ABANDONED = timedelta(hours=1)
"""A collection of whose making nothing was heard for so long: the server that made it is dead. One that lives says so
after each block of faces."""
SWITCHES = 5
MADE_ANEW = "Milvus doesn't hold what it should of gallery key %d: its vectors are made anew."
_log = logging.getLogger(__name__)


class RemoteIndexes:
    """All galleries' collections in one Milvus, which any number of servers over the same database share."""

    def __init__(self, store: Store, milvus: Milvus) -> None:
        self._feed = store.feed
        self._milvus = milvus
        self._catalogue = Catalogue(store.database, milvus.name)
        self._next_ping = 0.0

    @property
    def available(self) -> bool:
        return self._milvus.available

    @property
    def kinds(self) -> Collection[IndexKind]:
        """Milvus has its own kinds, which an operator chooses."""
        only: tuple[IndexKind, ...] = ("fp32",)
        return only

    def look(self) -> None:
        if time.monotonic() >= self._next_ping:
            self._milvus.ping(PING_TIMEOUT_S)
            self._next_ping = time.monotonic() + PING_S

    def open(self, gallery: Gallery) -> RemoteIndex:
        return RemoteIndex(gallery, self._feed, self._catalogue, self._milvus)

    def keep(self, known: Sequence[GalleryIndex]) -> None:
        for index in known:
            index.save()
        self._drop(self._catalogue.unwanted(replaced=REPLACED_KEPT, abandoned=ABANDONED))

    def snapshotted(self) -> Snapshotted | None:
        return None

    def discard(self, gallery_key: int) -> None:
        try:
            self._drop(self._catalogue.orphans(gallery_key))
        except LikenessError as error:
            _log.warning("The vectors of gallery key %d are dropped later: %s", gallery_key, error)

    def close(self) -> None:
        self._milvus.close()

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self._milvus.drop(name)
            self._catalogue.forget(name)


class RemoteIndex:
    """One gallery's vectors in Milvus. Its lock orders this process's changes to it; searches don't take it."""

    def __init__(self, gallery: Gallery, feed: Feed, catalogue: Catalogue, milvus: Milvus) -> None:
        self._gallery = gallery
        self._feed = feed
        self._catalogue = catalogue
        self._milvus = milvus
        self._lock = threading.Lock()
        self._searcher: Searcher | None = None
        self._position = Position(-1, 0)  # how far this process has seen to it that the collection holds the log
        self._asked: object = None  # a new one each time that the collection may not hold everything any more
        self._caught_up: object = None  # the one that was there before this process last caught up
        self._due: tuple[float, Position] | None = None  # from when on the log is to be settled, and how far
        self._settled: Position | None = None
        self._swept: Position | None = None  # how far removals have been made sure of
        self._sweep_until: Position | None = None
        self._count = Count(feed, gallery)

    def held(self) -> Indexed:
        """As last counted; of this process's memory it takes nothing."""
        return Indexed(self._count.known.faces, 0)

    def ready(self) -> Searcher:
        searcher = self._searcher
        if (
            searcher is not None
            and self._caught_up is self._asked
            and self._catalogue.current(self._gallery) == searcher.name
        ):
            return searcher
        with self._lock:
            return self._catch_up()

    def renew(self, lost: Searcher) -> Searcher:
        """In place of one whose collection is not there any more."""
        with self._lock:
            if self._searcher is lost:
                self._searcher = None
            return self._catch_up()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change to SQL, of which one at a time is made; at the end Milvus holds it."""
        with self._lock:
            if self._caught_up is not self._asked or self._searcher is None:
                self._catch_up()  # where that can't be had, nothing is written to SQL either
            with in_step(self.touch, self._catch_up):
                yield

    def touch(self) -> None:
        self._asked = object()

    @contextmanager
    def ending(self) -> Iterator[None]:
        with self._lock:
            yield
            self._searcher = None

    def follow(self, head: Position) -> None:
        """A while after the log has come to `head`, sees to it that Milvus holds all of it, whoever wrote it."""
        if self._settled == head or self._searcher is None:
            return
        if self._due is None:
            self._due = (time.monotonic() + SETTLE_S, head)
        when, until = self._due
        if time.monotonic() >= when and self._settle(until):
            self._due = None

    def behind(self, head: Position) -> int:
        """How many changes this process hasn't looked after yet; whoever made them has, most likely."""
        known = self._settled if self._settled and self._settled.number > self._position.number else self._position
        return max(0, head.number - known.number) if self._searcher else 0

    def search_by(self, kind: IndexKind) -> None:
        """Nothing to do: what a gallery was given elsewhere doesn't count here."""

    def drop_stale_copies(self) -> None:
        """Do nothing: there are none."""

    def rebuild(self) -> None:
        """Makes another collection from SQL and then searches that; the old one is dropped a little later."""
        with self._lock:
            self._build()

    def compare(self) -> tuple[Difference, int]:
        """What other servers change meanwhile is not taken for a difference."""
        with self._lock:
            try:
                return self._compare(self._catch_up())
            except CollectionLost:
                self._searcher = None
                return self._compare(self._catch_up())

    def scrub(self) -> bool:
        """Asks Milvus to clear its files of what was removed, which it does some time later."""
        name = self._catalogue.current(self._gallery)
        if name is not None:
            with suppress(Unusable):  # the next `save` asks again
                self._milvus.purge(name)
        return name is None

    def save(self) -> None:
        """Removes once more what was removed before the last time, and has Milvus clear it from its files.

        A server may have been about to add a face while another one removed it, and have died before it could look.
        """
        searcher, until = self._searcher, self._sweep_until
        self._sweep_until = self._feed.heads().get(self._gallery.key)
        if searcher is None or searcher.name is None or until is None or until == self._swept:
            return
        try:
            if self._remove_again(searcher.name, until):
                self._milvus.purge(searcher.name)
        except CollectionLost:
            return  # whoever searches next makes it anew
        self._swept = until

    # Changes don't wait for this: whatever is done twice, or by several, is none the worse for it.

    def _settle(self, until: Position) -> bool:
        """See `follow`; False where that has to be tried again."""
        searcher = self._searcher
        if searcher is None or searcher.name is None:
            return True
        lost, reached = self._catalogue.current(self._gallery) != searcher.name, None
        try:
            if not lost:
                reached = self._settle_in(searcher.name, until)
        except CollectionLost:
            lost = True
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._searcher is not searcher:
                return True
            if lost:
                self._searcher = None
                self._catch_up()
            elif reached is None:
                _log.warning(MADE_ANEW, self._gallery.key)
                self._build()
            else:
                self._settled = until
                if self._position.number < reached.number:
                    self._position = reached
                    self._count.changed(reached)
            return True
        finally:
            self._lock.release()

    def _settle_in(self, name: str, until: Position) -> Position | None:
        """How far the collection is then; None where that can't be said."""
        since = self._milvus.position(name)
        if since is None:
            return None
        if since.number >= until.number:  # another server was here
            return self._replay(name, since, since)
        reached = self._replay(name, since, until)
        if reached is not None:
            self._milvus.mark(name, reached, self._gallery.dimension)
        return reached

    # All below is called with the lock held.

    def _compare(self, searcher: Searcher) -> tuple[Difference, int]:
        if searcher.name is None:
            return Difference((), (), 0), 0
        comparison = Comparison(self._milvus, searcher.name, self._gallery.dimension)
        with self._feed.moment(self._gallery) as (_, blocks):
            for block in blocks:
                comparison.look(block)
            comparison.look_beyond()
        there = self._feed.existing([*comparison.missing, *comparison.different, *comparison.extra])
        missing, different = (
            tuple(key for key in keys if key in there) for keys in (comparison.missing, comparison.different)
        )
        extra = sum(key not in there for key in comparison.extra)
        return Difference(missing, different, extra), comparison.held

    def _catch_up(self) -> Searcher:
        """With all of the log."""
        asked = self._asked  # what comes later may be more than is read here
        for _ in range(SWITCHES):
            try:
                searcher = self._follow_log()
            except CollectionLost:
                _log.warning("Milvus has lost the collection of gallery key %d.", self._gallery.key)
                self._searcher = None
                continue
            if self._catalogue.current(self._gallery) == searcher.name:
                self._caught_up = asked
                self._count.changed(self._position)
                return searcher
            self._searcher = None  # another server has replaced it meanwhile
        raise DatabaseBusy("The gallery's vectors are being moved by others.")

    def _follow_log(self) -> Searcher:
        searcher = self._searcher or self._open()
        if searcher.name is None:
            return searcher
        while (changes := self._feed.changes(self._gallery, self._position, CHANGES_AT_ONCE)) is not None:
            self._apply(searcher.name, changes)
            self._position = changes.position
            if not changes.more:
                return searcher
        _log.warning("The change log of gallery key %d leads on no more: its vectors are made anew.", self._gallery.key)
        return self._build()

    def _open(self) -> Searcher:
        """The collection there is, where the log leads on from it; else a new one. None for a gallery that never had a
        face: there may be thousands of those."""
        name = self._catalogue.current(self._gallery)
        if name is None:
            return self._search_in(None) if self._head().number == 0 else self._build()
        if self._milvus.open(name, self._gallery.dimension):
            since = self._milvus.position(name)
            reached = None if since is None else self._replay(name, since)
            if reached is not None:
                return self._use(name, reached)
        _log.warning(MADE_ANEW, self._gallery.key)
        return self._build()

    def _build(self) -> Searcher:
        """From SQL, beside the collection that is searched, if there is one; then that is the one."""
        self._head()
        name = self._catalogue.begin(self._gallery)
        self._milvus.make(name, self._gallery.dimension)
        with self._feed.moment(self._gallery) as (position, blocks):
            for block in blocks:
                self._milvus.add(name, block)
                self._catalogue.touch(name)
        reached = self._must_replay(name, position)
        self._milvus.mark(name, reached, self._gallery.dimension)
        self._catalogue.switch(self._gallery, name)
        # What others wrote to the old one before the switch is in the log by now.
        return self._use(name, self._must_replay(name, reached))

    def _head(self) -> Position:
        """Where the log ends. Raises NotFound ``gallery_not_found``."""
        head = self._feed.heads().get(self._gallery.key)
        if head is None:
            raise gallery_not_found(self._gallery.id)
        return head

    def _search_in(self, name: str | None) -> Searcher:
        return Searcher(self._gallery, self._feed, self._milvus, name, count=self._count, renew=self.renew)

    def _use(self, name: str, position: Position) -> Searcher:
        self._position, self._settled = position, None
        self._searcher = self._search_in(name)
        return self._searcher

    def _must_replay(self, name: str, since: Position) -> Position:
        reached = self._replay(name, since)
        if reached is None:
            raise DatabaseBusy("The change log was cut short while vectors were written.")
        return reached

    def _replay(self, name: str, since: Position, until: Position | None = None) -> Position | None:
        """Sees to it that the collection holds what the log says after `since`, and says how far that is; None where
        the log doesn't lead on from there."""
        while True:
            number = None if until is None else until.number
            changes = self._feed.changes(self._gallery, since, CHANGES_AT_ONCE, number)
            if changes is None:
                self._head()
                return None
            self._apply(name, changes, only_missing=True)
            since = changes.position
            if not changes.more:
                return since

    def _apply(self, name: str, changes: Changes, *, only_missing: bool = False) -> None:
        """The order doesn't matter: what was added, as the log is read, hasn't gone yet."""
        blocks = [step for step in changes.steps if isinstance(step, FaceBlock)]
        added: list[int] = []
        for block in blocks:
            keys: list[int] = block.faces.tolist()
            there = self._milvus.which(name, keys) if only_missing else set()
            missing = _some(block, np.array([key not in there for key in keys]))
            self._milvus.add(name, missing)
            added += missing.faces.tolist()
        self._remove(name, changes)
        self._milvus.remove(name, sorted(set(added) - self._feed.existing(added)))

    def _remove(self, name: str, changes: Changes) -> bool:
        """Whether there was anything to remove."""
        removed = [step for step in changes.steps if not isinstance(step, FaceBlock)]
        self._milvus.remove(name, [step.face for step in removed if step.face is not None])
        self._milvus.remove_subjects(name, [step.subject for step in removed if step.face is None])
        return bool(removed)

    def _remove_again(self, name: str, until: Position) -> bool:
        removed = False
        since = self._swept or self._feed.log_start(self._gallery)
        while since is not None and since.number < until.number:
            changes = self._feed.changes(self._gallery, since, CHANGES_AT_ONCE, until.number)
            if changes is None:  # pruned
                since = self._feed.log_start(self._gallery)
                continue
            removed |= self._remove(name, changes)
            since = changes.position
        return removed


def _some(block: FaceBlock, which: NDArray[np.bool_]) -> FaceBlock:
    return FaceBlock(block.faces[which], block.subjects[which], block.qualities[which], block.vectors[which])
