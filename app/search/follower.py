"""One gallery's index in memory, following the gallery's change log.

Every change comes by the log, this process's own ones too: whoever wrote it, it is applied once, in its order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import get_args

from app.errors import LikenessError
from app.gallery.change_reader import Feed
from app.gallery.records import Changes, FaceBlock, Gallery, Indexed, IndexKind, Position, Snapshotted
from app.search.gpu import Gpu
from app.search.index import Difference, Index
from app.search.protocol import GalleryIndex, in_step
from app.search.snapshots import Snapshots

CHANGES_AT_ONCE = 5_000
LAG_LIMIT = 50_000
"""An index that is behind by more changes than this, and than it has faces, is made anew: that reads less."""
_log = logging.getLogger(__name__)


class LocalIndexes:
    """Each process's own indexes in memory, with `snapshots` of them on disk where given.

    A pass over one's vectors runs on `threads` or on the `gpu` (see `Index`), which is closed with them.
    """

    def __init__(self, feed: Feed, snapshots: Snapshots | None, threads: int, gpu: Gpu | None = None) -> None:
        self._feed = feed
        self._snapshots = snapshots
        self._threads = threads
        self._gpu = gpu

    @property
    def available(self) -> bool:
        return True

    @property
    def kinds(self) -> Collection[IndexKind]:
        return get_args(IndexKind)

    def look(self) -> None:
        """Nothing to see: it is this process's memory."""

    def open(self, gallery: Gallery) -> LiveIndex:
        return LiveIndex(gallery, self._feed, self._snapshots, self._threads, self._gpu)

    def keep(self, known: Sequence[GalleryIndex]) -> None:
        """Writes the snapshots that are due, and removes those that aren't any gallery's."""
        if self._snapshots is None or not self._snapshots.claim():
            return
        for index in known:
            index.save()
        self._snapshots.keep_only(self._feed.heads().keys())

    def snapshotted(self) -> Snapshotted | None:
        return self._snapshots.kept() if self._snapshots else None

    def discard(self, gallery_key: int) -> None:
        if self._snapshots and self._snapshots.claim():
            self._snapshots.discard(gallery_key)

    def close(self) -> None:
        if self._snapshots:
            self._snapshots.close()
        if self._gpu is not None:
            self._gpu.close()


class LiveIndex:
    """Safe to share between threads. Its lock orders this process's changes to the gallery."""

    def __init__(
        self, gallery: Gallery, feed: Feed, snapshots: Snapshots | None, threads: int, gpu: Gpu | None = None
    ) -> None:
        self._gallery = gallery
        self._feed = feed
        self._snapshots = snapshots
        self._new = partial(Index, gallery.dimension, threads=threads, gpu=gpu)
        self._kind = gallery.search
        self._lock = threading.Lock()
        self._index: Index | None = None
        self._position = Position(-1, 0)
        self._saved: Position | None = None  # what the snapshot on disk holds, where this process knows it
        self._saving = threading.Lock()  # around writing and removing the snapshot; never waited for with _lock held
        self._erasures = 0  # that the log has told of; a snapshot from before one may not stay
        self._asked: object = None  # a new one each time that the index may not hold everything any more
        self._caught_up: object = None  # the one that was there before it last caught up

    def held(self) -> Indexed:
        """As far as it has come."""
        index = self._index
        return Indexed(index.faces, index.size) if index is not None else Indexed(0, 0)

    def drop_stale_copies(self) -> None:
        index = self._index
        if index is not None:
            index.drop_stale_copies()

    def behind(self, head: Position) -> int:
        """How many changes it lacks of a log that ends at `head`; 0 where no index is made yet."""
        return 0 if self._index is None else max(0, head.number - self._position.number)

    def ready(self) -> Index:
        """The index with everything that was acknowledged in this process; made where it isn't there yet.

        Raises NotFound ``gallery_not_found``.
        """
        index = self._index
        if index is not None and self._caught_up is self._asked:
            return index
        with self._lock:
            return self._catch_up()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change to SQL, of which one at a time is made; at the end the index holds it."""
        with self._lock, in_step(self.touch, self._catch_up):
            yield

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Around the gallery's deletion."""
        with self._lock:
            try:
                yield
            except BaseException:
                self.touch()
                raise
            self._index = None

    def touch(self) -> None:
        self._asked = object()

    def follow(self, head: Position) -> None:
        """Catches up with the log, which ends at `head`; leaves it to whoever is just changing the gallery."""
        if self._index is None or self._position == head or not self._lock.acquire(blocking=False):
            return
        try:
            self._catch_up()
        finally:
            self._lock.release()

    def search_by(self, kind: IndexKind) -> None:
        """Its copy of the vectors is made anew while searches wait; where somebody is just changing the gallery, at the
        next call."""
        if kind == self._kind or not self._lock.acquire(blocking=False):
            return
        try:
            self._kind = kind
            if self._index is not None:
                self._index.convert(kind)
        finally:
            self._lock.release()

    def rebuild(self) -> None:
        """Makes the index anew from SQL."""
        with self._lock:
            self._build()

    def compare(self) -> tuple[Difference, int]:
        """How the index differs from SQL, and how many faces it holds; this process's changes wait meanwhile."""
        with self._lock:
            self._catch_up()
            with self._feed.moment(self._gallery) as (position, blocks):
                index = self._catch_up(until=position)
                return index.compare(blocks), index.faces

    def save(self) -> None:
        """Writes a snapshot where one is due. Changes wait while the index is copied in memory, searches don't."""
        if self._snapshots is None:
            return
        with self._lock:
            index, position = self._index, self._position
            if index is None or self._caught_up is not self._asked:
                return
            if self._saved == position and self._snapshots.is_of(self._gallery):
                return
            if not self._snapshots.wants(index.faces):
                self._snapshots.discard(self._gallery.key)
                self._saved = position
                return
            faces, erasures = _copy(index.view()), self._erasures
        with self._saving:
            self._snapshots.write(self._gallery, faces, position)
            self._saved = position
        if self._erasures != erasures:
            self._drop_snapshot()

    def scrub(self) -> bool:
        """Removes the snapshot; False where another process is just writing one, which it then removes itself."""
        if self._snapshots is None:
            return True
        self._drop_snapshot()
        return self._snapshots.claim() or not self._snapshots.is_being_written(self._gallery.key)

    def _drop_snapshot(self) -> None:
        if self._snapshots is not None:
            with self._saving:
                self._snapshots.discard(self._gallery.key)
                self._saved = None

    # All below is called with the lock held.

    def _catch_up(self, until: Position | None = None) -> Index:
        """Not beyond `until`, where given."""
        asked = self._asked  # what comes later may be more than is read here
        index = self._index or self._open()
        try:
            while (changes := self._read(until)) is not None:
                self._apply(index, changes)
                if not changes.more:
                    break
            else:
                _log.warning(
                    "The change log of gallery key %d leads on no more, or too far: its index is made anew.",
                    self._gallery.key,
                )
                index = self._build()
        except LikenessError:
            raise
        except Exception:  # noqa: BLE001 - whatever it was, the index can't be trusted any more
            _log.exception("The index of gallery key %d could not follow; it is made anew.", self._gallery.key)
            self._index = None
            index = self._build()
        self._caught_up = asked
        return index

    def _read(self, until: Position | None) -> Changes | None:
        """What comes next; None where the index has to be made anew instead."""
        number = None if until is None else until.number
        changes = self._feed.changes(self._gallery, self._position, CHANGES_AT_ONCE, number)
        if changes is not None and changes.more and until is None:
            head = self._feed.heads().get(self._gallery.key, self._position)
            faces = 0 if self._index is None else self._index.faces
            if head.number - self._position.number > max(LAG_LIMIT, faces):
                return None
        return changes

    def _apply(self, index: Index, changes: Changes) -> None:
        for step in changes.steps:
            if isinstance(step, FaceBlock):
                index.add(step)
            elif step.face is None:
                index.remove_subject(step.subject)
                if step.erased:
                    self._forget_snapshot()
            else:
                index.remove(step.face, step.subject)
        self._position = changes.position

    def _forget_snapshot(self) -> None:
        """Removes it, or leaves that to the thread that is just writing it."""
        self._erasures += 1
        if self._snapshots is not None and self._saving.acquire(blocking=False):
            try:
                self._snapshots.discard(self._gallery.key)
                self._saved = None
            finally:
                self._saving.release()

    def _open(self) -> Index:
        """From the snapshot, where there is one that the log leads on from; else from SQL."""
        snapshot = self._snapshots.open(self._gallery) if self._snapshots else None
        if snapshot is None:
            return self._build()
        if self._feed.changes(self._gallery, snapshot.position, 0) is None:
            _log.warning("The change log doesn't lead on from the snapshot of gallery key %d.", self._gallery.key)
            return self._build()
        index = self._new(kind=self._kind)
        index.add(snapshot.faces)
        self._index, self._position, self._saved = index, snapshot.position, snapshot.position
        return index

    def _build(self) -> Index:
        with self._feed.moment(self._gallery) as (position, blocks):
            index = self._new(kind=self._kind)
            for block in blocks:
                index.add(block)
        self._index, self._position = index, position
        self._forget_snapshot()  # it may be from before an erasure that was not followed
        return index


def _copy(faces: FaceBlock) -> FaceBlock:
    return FaceBlock(faces.faces.copy(), faces.subjects.copy(), faces.qualities.copy(), faces.vectors.copy())
