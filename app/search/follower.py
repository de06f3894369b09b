"""Indexes in this process's memory, which follow their galleries' change logs.

Every change arrives by the log, even this process's own, so that each is applied once and in order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from functools import partial
from typing import get_args

from app.choices import IndexKind
from app.errors import LikenessError
from app.search.index import FoundGpu, Index
from app.search.registry import GalleryIndex, Searchable
from app.search.snapshots import Snapshots
from app.search.types import (
    Changes,
    Difference,
    FaceBlock,
    FaceSource,
    Indexed,
    IndexSpec,
    LogPosition,
    Moved,
    Snapshotted,
)

FIRST_CHANGES, CHANGES_AT_ONCE = 100, 5_000
"""Maximum changes in the first read, and in each further one: usually there are few. With a limit of 5,000, PostgreSQL
may expect that many and read the whole table of faces (with 20,000 faces: 7 to 22 ms per enrollment in place of 0.1, in
a small gallery beside a large one, until it keeps a plan)."""
LAG_LIMIT = 50_000
"""An index that lacks more changes than this, and more than it has faces, is rebuilt, which reads less."""
_log = logging.getLogger(__name__)


class LocalBackend:
    """The process's own indexes in memory, with `snapshots` of them on disk if given.

    A pass over an index runs on `threads` or on the `gpu` (see `Index`), which is closed with the backend.
    """

    available = True
    kinds: Collection[IndexKind] = get_args(IndexKind)

    def __init__(
        self, source: FaceSource, snapshots: Snapshots | None = None, threads: int = 1, gpu: FoundGpu | None = None
    ) -> None:
        self._source = source
        self._snapshots = snapshots
        self._threads = threads
        self._gpu = gpu

    def check_health(self) -> None:
        """Free the GPU's unused memory. This backend is always available."""
        if self._gpu is not None:
            self._gpu.tidy()

    def open(self, spec: IndexSpec) -> LocalIndex:
        return LocalIndex(spec, self._source, self._snapshots, self._threads, self._gpu)

    def save(self, indexes: Sequence[GalleryIndex[Searchable]], galleries: Collection[int]) -> None:
        """Write the due snapshots, and remove those of other galleries."""
        if self._snapshots is None or not self._snapshots.claim():
            return
        for index in indexes:
            index.save()
        self._snapshots.keep_only(galleries)

    def snapshotted(self) -> Snapshotted | None:
        return self._snapshots.measure() if self._snapshots else None

    def discard(self, gallery: int) -> None:
        if self._snapshots and self._snapshots.claim():
            self._snapshots.discard(gallery)

    def close(self) -> None:
        if self._snapshots:
            self._snapshots.close()
        if self._gpu is not None:
            self._gpu.close()


class LocalIndex(GalleryIndex[Index]):
    def __init__(
        self, spec: IndexSpec, source: FaceSource, snapshots: Snapshots | None, threads: int, gpu: FoundGpu | None
    ) -> None:
        super().__init__(spec, source)
        self._snapshots = snapshots
        self._new = partial(Index, spec.dimension, threads=threads, gpu=gpu)
        self._kind = spec.kind
        self._position = LogPosition(-1, 0)
        self._saved: LogPosition | None = None  # the position of the snapshot on disk, as far as this process knows
        self._saving = threading.Lock()  # around writing and removing the snapshot; never waited for with _lock held
        self._erasures = 0  # erasures applied so far; a snapshot from before the last one must not stay

    def measure(self) -> Indexed:
        index = self._searchable
        return Indexed(index.faces, index.size) if index is not None else Indexed(0, 0)

    def behind(self, head: LogPosition) -> int:
        return 0 if self._searchable is None else max(0, head.number - self._position.number)

    def follow(self, head: LogPosition) -> bool:
        if self._searchable is None or self._position == head:
            return True
        with self._unless_changing() as free:
            if free:
                self._catch_up()
        return free

    def set_kind(self, kind: IndexKind) -> bool:
        """Convert the index's copy of the vectors while searches wait, unless the gallery is being changed."""
        if kind == self._kind:
            return True
        with self._unless_changing() as free:
            if free:
                self._kind = kind
                if self._searchable is not None:
                    self._searchable.convert(kind)
        return free

    def maintain(self) -> None:
        if (index := self._searchable) is not None:
            index.maintain()

    def compare(self) -> tuple[Difference, int]:
        with self._lock:
            self._catch_up()
            with self._source.read_all(self._spec) as (position, blocks):
                index = self._apply_log(until=position)
                return index.compare(blocks), index.faces

    def save(self) -> None:
        """Write a snapshot if one is due. Searches and changes go on meanwhile, since rows are only appended."""
        if self._snapshots is None:
            return
        with self._lock:
            index, position = self._searchable, self._position
            if index is None or self._is_stale:
                return
            if self._saved == position and self._snapshots.is_of(self._spec):
                self._snapshots.mark_complete(self._spec.key.gallery)
                return
            if index.faces < self._snapshots.min_faces:
                self._snapshots.discard(self._spec.key.gallery)
                self._saved = position
                return
            faces, erasures = index.frozen(), self._erasures
        with self._saving:
            self._snapshots.write(self._spec, faces, position)
            self._saved = position
        if self._erasures != erasures:
            self._drop_snapshot()

    def scrub(self) -> bool:
        """Remove the snapshot; return False if another process is writing one, which it then removes itself."""
        if self._snapshots is None:
            return True
        self._drop_snapshot()
        if not self._snapshots.is_there:
            return True
        return self._snapshots.claim() or not self._snapshots.is_being_written(self._spec.key.gallery)

    def _drop_snapshot(self, *, wait: bool = True) -> None:
        """Remove the snapshot; without `wait`, the thread that is just writing one removes it."""
        self._erasures += 1
        if self._snapshots is not None and self._saving.acquire(blocking=wait):
            try:
                self._snapshots.discard(self._spec.key.gallery)
                self._saved = None
            finally:
                self._saving.release()

    # Everything below is called with the lock held.

    def _apply_log(self, until: LogPosition | None = None) -> Index:
        """Apply the log up to `until`, or all of it."""
        index, most = self._searchable or self._open(), FIRST_CHANGES
        try:
            while (changes := self._source.changes(self._spec, self._position, most, until)) is not None:
                if changes.more and until is None and self._lags():
                    break
                self._apply(index, changes)
                if not changes.more:
                    return index
                most = CHANGES_AT_ONCE
            _log.warning(
                "Gallery key %d: the change log is pruned or too far ahead; the index is built again.",
                self._spec.key.gallery,
            )
        except LikenessError:
            raise
        except Exception:  # noqa: BLE001 - after any failure the index can't be trusted
            _log.exception("Gallery key %d: the index could not follow and is built again.", self._spec.key.gallery)
            self._searchable = None
        return self._build()

    def _lags(self) -> bool:
        """Return whether so many changes are missing that rebuilding the index reads less."""
        head = self._source.head(self._spec) or self._position
        faces = 0 if self._searchable is None else self._searchable.faces
        return head.number - self._position.number > max(LAG_LIMIT, faces)

    def _apply(self, index: Index, changes: Changes) -> None:
        for step in changes.steps:
            if isinstance(step, FaceBlock):
                index.add(step)
            elif isinstance(step, Moved):
                index.move(step.faces, step.subjects)
            elif step.face is None:
                index.remove_subject(step.subject)
                if step.erased:
                    self._drop_snapshot(wait=False)
            else:
                index.remove(step.face, step.subject)
        self._position = changes.position

    def _open(self) -> Index:
        """Load the snapshot if the log continues it; else build from the database."""
        snapshot = self._snapshots.open(self._spec) if self._snapshots else None
        if snapshot is None:
            return self._build()
        if self._source.changes(self._spec, snapshot.position, 0) is None:
            _log.warning("Gallery key %d: the change log doesn't continue the snapshot.", self._spec.key.gallery)
            return self._build()
        index = self._new(kind=self._kind)
        index.add(snapshot.faces)
        self._searchable, self._position, self._saved = index, snapshot.position, snapshot.position
        return index

    def _build(self) -> Index:
        with self._source.read_all(self._spec) as (position, blocks):
            index = self._new(kind=self._kind)
            for block in blocks:
                index.add(block)
        self._searchable, self._position = index, position
        self._drop_snapshot(wait=False)  # it may be from before an erasure that was not followed
        return index
