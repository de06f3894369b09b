"""Keep galleries' vectors in Milvus, shared by several servers of one database.

The database is authoritative, and no server leads. The server that changes a gallery writes the change to Milvus before
acknowledging it. It may die in between, so a moment after each change every server checks that Milvus contains it, adds
what is missing, and then marks in the collection the position of the change log up to which it is complete (`_settle`).
Servers may do this in any order. A face removed from the database never comes back and its key is never used again, so
adding or removing it twice changes nothing; and a server that has written a face checks afterwards that it still exists
and which subject has it (`_write`).

To replace a collection, a server builds a new one and then makes it the current one in the database. Which collection
is the current one is looked up at each search and after each change.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta

import numpy as np

from app.api.feature import Feature
from app.choices import IndexKind
from app.db.engine import Database
from app.errors import DatabaseBusy, GalleryNotFound, LikenessError, Unusable
from app.features.milvus.client import CollectionLost, Milvus, parse_address
from app.features.milvus.collections import Collections
from app.features.milvus.search import Comparison, Count, Searcher
from app.search.follower import CHANGES_AT_ONCE
from app.search.registry import GalleryIndex, Searchable
from app.search.types import (
    Changes,
    Difference,
    FaceBlock,
    FaceSource,
    Indexed,
    IndexSpec,
    LogPosition,
    Moved,
    Removed,
    Snapshotted,
    joined,
)
from app.types import count_faces

SETTLE_S = 2.0
"""Seconds after a change before servers check that Milvus contains it."""
PING_S = 2.0
PING_TIMEOUT_S = 2.0
REPLACED_KEPT = timedelta(minutes=1)
"""Time for which a replaced collection is kept, for searches that began before."""
ABANDONED = timedelta(hours=1)
"""Time after which the server that builds a collection counts as dead, if it has added no block of faces since."""
SWITCHES = 5
REBUILT = "Gallery key %d: its collection in Milvus is incomplete or unknown; its vectors are written again."
_log = logging.getLogger(__name__)


class MilvusBackend:
    """All galleries' collections in one Milvus, which any number of servers over the same database share."""

    kinds: tuple[IndexKind, ...] = ("fp32",)
    """The only kind: the operator chooses between Milvus's own types of index in the address."""

    def __init__(self, source: FaceSource, database: Database, milvus: Milvus) -> None:
        self._source = source
        self._milvus = milvus
        self._collections = Collections(database, milvus.name)
        self._next_ping = 0.0

    @property
    def available(self) -> bool:
        return self._milvus.available

    def check_health(self) -> None:
        if time.monotonic() >= self._next_ping:
            self._milvus.ping(PING_TIMEOUT_S)
            self._next_ping = time.monotonic() + PING_S

    def open(self, spec: IndexSpec) -> MilvusIndex:
        return MilvusIndex(spec, self._source, self._collections, self._milvus)

    def save(self, indexes: Sequence[GalleryIndex[Searchable]], galleries: Collection[int]) -> None:  # noqa: ARG002 - the protocol's
        for index in indexes:
            index.save()
        self._drop(self._collections.unwanted(replaced=REPLACED_KEPT, abandoned=ABANDONED))

    def snapshotted(self) -> Snapshotted | None:
        return None

    def discard(self, gallery: int) -> None:
        try:
            self._drop(self._collections.orphans(gallery))
        except LikenessError as error:
            _log.warning("Gallery key %d: its vectors are dropped later: %s", gallery, error)

    def close(self) -> None:
        self._milvus.close()

    def _drop(self, names: Sequence[str]) -> None:
        for name in names:
            self._milvus.drop(name)
            self._collections.forget(name)


class MilvusIndex(GalleryIndex[Searcher]):
    def __init__(self, spec: IndexSpec, source: FaceSource, collections: Collections, milvus: Milvus) -> None:
        super().__init__(spec, source)
        self._collections = collections
        self._milvus = milvus
        self._position = LogPosition(-1, 0)  # the collection is complete up to here, as this process has checked
        self._due: tuple[float, LogPosition] | None = None  # when `_settle` is due, and up to which position
        self._settled: LogPosition | None = None
        self._swept: LogPosition | None = None  # up to here, `save` has repeated the removals
        self._sweep_until: LogPosition | None = None
        self._count = Count(source, spec)

    def measure(self) -> Indexed:
        """Return the last count of faces, and 0 bytes, since they take no memory in this process."""
        return Indexed(count_faces(self._count.known), 0)

    def ready(self) -> Searcher:
        searcher = super().ready()
        if self._collections.current(self._spec.key) == searcher.name:
            return searcher
        with self._lock:  # another server has replaced the collection
            return self._catch_up()

    def renew(self, lost: Searcher) -> Searcher:
        """Return the searcher that replaces one whose collection is gone."""
        with self._lock:
            if self._searchable is lost:
                self._searchable = None
            return self._catch_up()

    def follow(self, head: LogPosition) -> bool:
        """Make sure, SETTLE_S after the log has reached `head`, that Milvus contains all its changes, whichever server
        made them. Return whether it does."""
        if self._settled == head or self._searchable is None:
            return True
        if self._due is None:
            self._due = (time.monotonic() + SETTLE_S, head)
        when, until = self._due
        if time.monotonic() >= when and self._settle(until):
            self._due = None
        return self._settled == head

    def behind(self, head: LogPosition) -> int:
        """Return how many changes this process has not checked yet; Milvus most likely contains them."""
        known = self._settled if self._settled and self._settled.number > self._position.number else self._position
        return max(0, head.number - known.number) if self._searchable else 0

    def compare(self) -> tuple[Difference, int]:
        """Compare the collection with the database; return the differences and how many faces the collection has.
        Changes that other servers make meanwhile don't count."""
        with self._lock:
            try:
                return self._compare(self._catch_up())
            except CollectionLost:
                self._searchable = None
                return self._compare(self._catch_up())

    def scrub(self) -> bool:
        """Ask Milvus to clear its files of removed faces, which it does some time later. Return whether there is no
        collection, and so nothing to clear."""
        name = self._collections.current(self._spec.key)
        if name is not None:
            with suppress(Unusable):  # the next `save` asks again
                self._milvus.purge(name)
        return name is None

    def save(self) -> None:
        """Repeat the moves and removals that precede the last call, and ask Milvus to clear its files of removed faces.

        This is needed if a server wrote a face that another server was moving or removing, and died before it could
        check.
        """
        searcher, until = self._searchable, self._sweep_until
        self._sweep_until = self._source.head(self._spec)
        if searcher is None or searcher.name is None or until is None or until == self._swept:
            return
        try:
            if self._remove_again(searcher.name, until):
                self._milvus.purge(searcher.name)
        except CollectionLost:
            return  # the next search builds it again
        self._swept = until

    # Runs without the lock, so that changes needn't wait. Settling twice, or by several servers, does no harm.

    def _settle(self, until: LogPosition) -> bool:
        """Make sure that Milvus contains the log's changes (see `follow`); return False if this has to be tried
        again."""
        searcher = self._searchable
        if searcher is None or searcher.name is None:
            return True
        lost, reached = self._collections.current(self._spec.key) != searcher.name, None
        try:
            if not lost:
                reached = self._settle_in(searcher.name, until)
        except CollectionLost:
            lost = True
        with self._unless_changing() as free:
            if not free or self._searchable is not searcher:
                return free
            if lost:
                self._searchable = None
                self._catch_up()
            elif reached is None:
                _log.warning(REBUILT, self._spec.key.gallery)
                self._build()
            else:
                self._settled = until
                if self._position.number < reached.number:
                    self._position = reached
                    self._count.changed(reached)
            return True

    def _settle_in(self, name: str, until: LogPosition) -> LogPosition | None:
        """Write the log's changes to the collection; return the position up to which it is then complete, None if
        unknown."""
        since = self._milvus.position(name)
        if since is None:
            return None
        if since.number >= until.number:  # another server has settled it
            return self._replay(name, since, since)
        reached = self._replay(name, since, until)
        if reached is not None:
            self._milvus.mark(name, reached, self._spec.dimension)
        return reached

    @contextmanager
    def changing(self) -> Iterator[None]:
        if self._is_stale or self._searchable is None:
            self.ready()  # raises if Milvus can't be used, before anything is written to the database
        with super().changing():
            yield

    # The methods below are called with the lock held.

    def _compare(self, searcher: Searcher) -> tuple[Difference, int]:
        if searcher.name is None:
            return Difference((), (), 0), 0
        comparison = Comparison(self._milvus, searcher.name, self._spec.dimension)
        with self._source.read_all(self._spec) as (_, blocks):
            for block in blocks:
                comparison.compare(block)
            comparison.look_beyond()
        there = self._collections.owners([*comparison.missing, *comparison.different, *comparison.extra])
        missing, different = (
            tuple(key for key in keys if key in there) for keys in (comparison.missing, comparison.different)
        )
        extra = sum(key not in there for key in comparison.extra)
        return Difference(missing, different, extra), comparison.held

    def _apply_log(self) -> Searcher:
        for _ in range(SWITCHES):
            try:
                searcher = self._follow_log()
            except CollectionLost:
                _log.warning("Gallery key %d: its collection in Milvus is gone.", self._spec.key.gallery)
                self._searchable = None
                continue
            if self._collections.current(self._spec.key) == searcher.name:
                self._count.changed(self._position)
                return searcher
            self._searchable = None  # another server has replaced the collection meanwhile
        raise DatabaseBusy("Other servers keep replacing the gallery's vectors. Try again.")

    def _follow_log(self) -> Searcher:
        searcher = self._searchable or self._open()
        if searcher.name is None:
            return searcher
        while (changes := self._source.changes(self._spec, self._position, CHANGES_AT_ONCE)) is not None:
            self._apply(searcher.name, changes)
            self._position = changes.position
            if not changes.more:
                return searcher
        _log.warning("Gallery key %d: the change log is pruned; its vectors are written again.", self._spec.key.gallery)
        return self._build()

    def _open(self) -> Searcher:
        """Return a searcher of the current collection if the log continues it, else of a new one. A gallery that never
        had a face gets no collection, since there may be thousands of such galleries."""
        name = self._collections.current(self._spec.key)
        if name is None:
            return self._searcher_of(None) if self._head().number == 0 else self._build()
        if self._milvus.open(name, self._spec.dimension):
            since = self._milvus.position(name)
            reached = None if since is None else self._replay(name, since)
            if reached is not None:
                return self._use(name, reached)
        _log.warning(REBUILT, self._spec.key.gallery)
        return self._build()

    def _build(self) -> Searcher:
        """Build a new collection from the database, then make it the current one."""
        self._head()
        name = self._collections.begin(self._spec.key)
        self._milvus.make(name, self._spec.dimension)
        with self._source.read_all(self._spec) as (position, blocks):
            for block in blocks:
                self._milvus.add(name, block)
                self._collections.touch(name)
        reached = self._must_replay(name, position)
        self._milvus.mark(name, reached, self._spec.dimension)
        self._collections.switch(self._spec, name)
        # What other servers wrote to the old collection before the switch is in the log by now.
        return self._use(name, self._must_replay(name, reached))

    def _head(self) -> LogPosition:
        """Return the log's last position. Raises GalleryNotFound."""
        head = self._source.head(self._spec)
        if head is None:
            raise GalleryNotFound.of(self._spec.gallery_id)
        return head

    def _use(self, name: str, position: LogPosition) -> Searcher:
        self._position, self._settled = position, None
        self._searchable = self._searcher_of(name)
        return self._searchable

    def _searcher_of(self, name: str | None) -> Searcher:
        return Searcher(self._spec, self._source, self._milvus, name, count=self._count, renew=self.renew)

    def _must_replay(self, name: str, since: LogPosition) -> LogPosition:
        reached = self._replay(name, since)
        if reached is None:
            raise DatabaseBusy("The change log was pruned while vectors were written. Try again.")
        return reached

    def _replay(self, name: str, since: LogPosition, until: LogPosition | None = None) -> LogPosition | None:
        """Make sure that the collection contains the changes after `since`, up to `until`; return the position of the
        last one, or None if the log no longer has the changes after `since`."""
        while True:
            changes = self._source.changes(self._spec, since, CHANGES_AT_ONCE, until)
            if changes is None:
                self._head()
                return None
            self._apply(name, changes, only_missing=True)
            since = changes.position
            if not changes.more:
                return since

    def _apply(self, name: str, changes: Changes, *, only_missing: bool = False) -> None:
        """Apply changes: additions first, then moves, then removals. The order doesn't matter, since the log leaves out
        additions of faces that are gone."""
        for block in (step for step in changes.steps if isinstance(step, FaceBlock)):
            there = self._milvus.owners(name, block.faces.tolist()) if only_missing else {}
            self._write(name, block.only(np.array([key not in there for key in block.faces.tolist()], bool)))
        self._move(name, changes)
        self._remove(name, changes)

    def _write(self, name: str, block: FaceBlock) -> None:
        """Add or replace faces, and repeat this for those that changed meanwhile, until they equal the database's."""
        while len(block.faces):
            self._milvus.add(name, block)
            written = dict(zip(block.faces.tolist(), block.subjects.tolist(), strict=True))
            owners = self._collections.owners(list(written))
            self._milvus.remove(name, sorted(written.keys() - owners.keys()))
            other = [face for face, subject in owners.items() if subject != written[face]]
            block = self._source.faces_at(self._spec, other) or joined([], self._spec.dimension)

    def _move(self, name: str, changes: Changes) -> None:
        """Assign moved faces to the subjects that they belong to now; remove faces that no longer exist."""
        keys = sorted({key for step in changes.steps if isinstance(step, Moved) for key in step.faces.tolist()})
        if keys:
            block = self._source.faces_at(self._spec, keys) or joined([], self._spec.dimension)
            self._milvus.remove(name, sorted(set(keys) - set(block.faces.tolist())))
            there = self._milvus.owners(name, block.faces.tolist())
            pairs = zip(block.faces.tolist(), block.subjects.tolist(), strict=True)
            self._write(name, block.only(np.array([there.get(face) != subject for face, subject in pairs], bool)))

    def _remove(self, name: str, changes: Changes) -> bool:
        """Remove the faces and subjects that the changes removed; return whether there were any."""
        removed = [step for step in changes.steps if isinstance(step, Removed)]
        self._milvus.remove(name, [step.face for step in removed if step.face is not None])
        self._milvus.remove_subjects(name, [step.subject for step in removed if step.face is None])
        return bool(removed)

    def _remove_again(self, name: str, until: LogPosition) -> bool:
        removed = False
        since = self._swept or self._collections.log_start(self._spec.key.gallery)
        while since is not None and since.number < until.number:
            changes = self._source.changes(self._spec, since, CHANGES_AT_ONCE, until)
            if changes is None:  # the log was pruned: continue with what it still has
                since = self._collections.log_start(self._spec.key.gallery)
                continue
            self._move(name, changes)
            removed |= self._remove(name, changes)
            since = changes.position
        return removed


def _open(address: str, token: str | None, source: FaceSource, database: Database) -> MilvusBackend:
    return MilvusBackend(source, database, Milvus(parse_address(address), token))


FEATURE = Feature(open_index=_open)
