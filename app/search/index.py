"""The index of one gallery in memory: FAISS or 8-bit products find near faces, exact scores make subjects of them.

Knows keys and vectors only.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.search.face_table import WIDEN, FaceTable
from app.search.gpu import Gpu, GpuFailed, GpuIndex
from app.search.quantised import BLAS_FROM_QUERIES, NO_ROW, Near, Scan, merged
from app.search.types import Difference, FaceBlock, IndexKind, Keys, Match
from app.types import Sizes, Vector, Vectors

FETCH_MIN = 32
FETCH_PER_SUBJECT = 4
"""Faces fetched by a pass for each subject wanted; where they prove too few, `_search_all` looks at every face."""
ROUGH_FETCH, ROUGH_DIMENSION = 4, 128
"""Times as many for ``int8``, whose scores may be wrong by some 0.03, for vectors of that length; the longer they are,
the closer the scores of strangers."""
SPLIT_ROWS = 25_000
"""Rows that are worth a thread of their own: about a millisecond's work for one query, at 128 numbers."""
QUICK_NUMBERS = 25_000 * 128
"""A pass over so many numbers takes less than a millisecond for one query."""
REPEAT_FROM = 1_024
"""With more rows overwritten while a pass runs, the pass is repeated with the lock held."""
GPU_REPLACE_FROM = REPEAT_FROM // 2
"""Rows overwritten since the GPU's copy was made, from which on it is made again."""
GPU_EXTEND_FROM = 8_192
"""Rows added since the GPU's copy was made, from which on they are added to it."""
GPU_KEEPS_REMOVED_S = 60.0
"""How long removed faces may stay on a GPU."""
R = TypeVar("R")
_log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Watch:
    """Collects what changes while a pass over the first `count` rows runs without the lock."""

    scan: Scan
    vectors: Vectors
    count: int
    low: int
    """Fewest rows there were since the beginning; rows from there on may hold other faces now."""
    overwritten: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _GpuCopy:
    index: GpuIndex
    watch: _Watch
    made_at: float


class Index:
    """Search by inner product over unit vectors, exact whatever the `kind`; safe to share between threads.

    Beyond the vectors and, with the kind ``int8``, a quarter of their size for a copy, a face takes 32 bytes and a
    subject 40.

    A pass over many vectors is split by rows between `threads`, each with one thread of FAISS's. FAISS's own way,
    OpenMP, leaves a single query on one core, and its threads wait for each other by spinning: where other work wants
    the same cores, that costs far more than it brings (8 queries over 300,000 x 128 on a busy machine of two cores:
    0.24 s on one thread, 0.26 s split in two, 22 s by OpenMP on two).

    Faces are added and removed while a pass runs. Rows that changed meanwhile are scored again before the answer is
    made; only that takes the lock. So an answer holds for the moment when it is made.
    """

    def __init__(self, dimension: int, *, threads: int = 1, kind: IndexKind = "fp32", gpu: Gpu | None = None) -> None:
        """`threads` share one pass, the caller's included. With a `gpu`, passes over more than a few rows run there:
        over float32 with the kind ``fp32``, over float16 with ``int8``."""
        self.dimension = dimension
        self._threads = threads
        self._helpers = ThreadPoolExecutor(threads - 1, "search rows") if threads > 1 else None  # no thread until used
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM_QUERIES
        self._lock = threading.Lock()
        self._table = FaceTable(dimension, kind)
        self._watches: set[_Watch] = set()
        self._gpu = gpu
        self._gpu_copy: _GpuCopy | None = None

    @property
    def faces(self) -> int:
        return self._table.count

    @property
    def sizes(self) -> Sizes:
        """How many subjects have so many faces."""
        return self._table.subject_rows.sizes

    @property
    def quick(self) -> bool:
        """Whether a search costs less than handing it to another thread."""
        return self.faces * self.dimension <= QUICK_NUMBERS

    @property
    def kind(self) -> IndexKind:
        return self._table.rows.kind

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        with self._lock:
            return self._table.size

    def convert(self, kind: IndexKind) -> None:
        """Search by another kind from now on. Makes its copy of the vectors while searches wait."""
        with self._lock:
            self._table.rows.convert(kind)

    def drop_stale_copies(self) -> None:
        """Drop the GPU's copy if it has held removed faces for GPU_KEEPS_REMOVED_S."""
        gpu, copy = self._gpu, self._gpu_copy
        if gpu and copy and copy.watch.overwritten and time.monotonic() - copy.made_at > GPU_KEEPS_REMOVED_S:
            gpu.run(self._drop_gpu_copy)

    def add(self, block: FaceBlock) -> None:
        """Add faces of known and new subjects. Their keys must not be in the index yet."""
        if not len(block.faces):
            return
        vectors = np.ascontiguousarray(block.vectors, dtype=np.float32)  # (N, D)
        if vectors.shape != (len(block.faces), self.dimension):
            message = (
                f"{len(block.faces)} faces need ({len(block.faces)}, {self.dimension}) vectors, not {vectors.shape}"
            )
            raise ValueError(message)
        with self._lock:
            self._table.append(block, vectors)

    def move(self, faces: Keys, subjects: Keys) -> None:
        """Give each of the faces, (N,), to a subject, (N,); those that aren't there are passed over."""
        wanted = dict(zip(faces.tolist(), subjects.tolist(), strict=True))
        with self._lock:
            for row in np.flatnonzero(np.isin(self._table.faces, faces)).tolist():
                self._table.subject_rows.give(row, wanted[int(self._table.faces[row])])

    def remove(self, face: int, subject: int) -> bool:
        """Remove one face of `subject`; return False if it isn't there."""
        with self._lock:
            for row in self._table.subject_rows.rows_of(subject):
                if self._table.faces[row] == face:
                    self._remove_row(row)
                    return True
        return False

    def remove_subject(self, subject: int) -> int:
        """Remove the subject's faces and return their number."""
        removed = 0
        with self._lock:
            while (row := self._table.subject_rows.first(subject)) != NO_ROW:
                self._remove_row(row)
                removed += 1
        return removed

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Return for each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first.

        There are fewer only where the index has fewer, however many faces a subject has.
        """
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or not self.faces:
            return [[] for _ in probes]
        fetch = _few(limit)
        rough = self.kind == "int8"
        if rough:
            fetch *= ROUGH_FETCH * max(1, round((self.dimension / ROUGH_DIMENSION) ** 0.5))
        found = self._pass(probes, limit, fetch)
        if rough:
            open_ = [place for place, matches in enumerate(found) if matches is None]
            if open_:
                for place, matches in zip(open_, self._pass(probes[open_], limit, WIDEN * fetch), strict=True):
                    found[place] = matches
        return [
            self._search_all(probe, limit) if matches is None else matches
            for probe, matches in zip(probes, found, strict=True)
        ]

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Compare each probe, (Q, D) unit float32, with one subject; None if it has no face."""
        with self._lock:
            rows = np.fromiter(self._table.subject_rows.rows_of(subject), np.int64)
            if not len(rows):
                return [None] * len(vectors)
            best = self._table.best(vectors, np.tile(rows, (len(vectors), 1)), 1)
            return [self._table.matches(probe, found)[0] for probe, found in zip(vectors, best, strict=True)]

    def copy(self) -> FaceBlock:
        """Return a copy of all faces, unordered."""
        with self._lock:
            table = self._table
            return FaceBlock(table.faces.copy(), table.subjects.copy(), table.weights.copy(), table.rows.vectors.copy())

    def compare(self, blocks: Iterable[FaceBlock]) -> Difference:
        """Compare with `blocks`, all the faces there should be, each once. No face may be added or removed meanwhile;
        searches go on between blocks."""
        with self._lock:
            order = np.argsort(self._table.faces)
            keys = self._table.faces[order]
        missing: list[int] = []
        different: list[int] = []
        seen = 0
        for block in blocks:
            places = np.searchsorted(keys, block.faces)
            there = places < len(keys)
            there[there] = keys[places[there]] == block.faces[there]
            with self._lock:
                equal = self._table.equal(block, there, order[places[there]])
            missing += block.faces[~there].tolist()
            different += block.faces[there][~equal].tolist()
            seen += int(np.count_nonzero(there))
        return Difference(tuple(missing), tuple(different), len(keys) - seen)

    # Passes, without the lock

    def _pass(self, probes: Vectors, limit: int, fetch: int) -> list[list[Match] | None]:
        """Answer each probe from the `fetch` nearest rows; None where others may belong to the answer."""
        if self._gpu is not None and not self.quick:
            try:
                return self._gpu.run(partial(self._pass_on_gpu, self._gpu, probes, limit, fetch))
            except GpuFailed as error:
                _log.warning("An index of %d faces is searched on the CPU from now on: %s", self.faces, error)
                self._gpu = None
        with self._watching() as watch:
            near = self._nearest(watch.scan, (0, watch.count), probes, fetch)
            with self._lock:
                return self._settled(watch, near, probes, fetch, limit)

    def _search_all(self, probe: Vector, limit: int) -> list[Match]:
        """Search all rows; for when few subjects have most of the near faces, or scores are equal."""
        with self._watching() as watch:
            rough = np.concatenate(
                self._in_parts((0, watch.count), lambda start, end: watch.scan.rough(start, end, probe))
            )
            with self._lock:
                rough = self._renewed(watch, rough, probe)
                error = float(max(self._errors(watch, probe[None])))
                best = self._table.best_of_all(probe, rough, error, limit, WIDEN * _few(limit))
                return self._table.matches(probe, best)

    @contextmanager
    def _watching(self) -> Iterator[_Watch]:
        with self._lock:
            watch = self._watch()
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.remove(watch)

    def _nearest(self, scan: Scan, rows: tuple[int, int], probes: Vectors, fetch: int) -> Near:
        """Return for each probe the `fetch` rows from `rows[0]` to `rows[1]` that score highest."""
        if rows[0] >= rows[1]:
            floors = np.full(len(probes), -np.inf, np.float32)
            return Near(np.empty((len(probes), 0), np.float32), np.empty((len(probes), 0), np.int64), floors)
        parts = self._in_parts(rows, lambda start, end: scan.nearest(start, end, probes, fetch))
        return merged(parts, fetch)

    def _in_parts(self, rows: tuple[int, int], scan: Callable[[int, int], R]) -> list[R]:
        """Scan the rows in parts, one a thread, if they are enough for that; return the results in order."""
        start, end = rows
        parts = min(self._threads, (end - start) // SPLIT_ROWS)
        if parts < 2 or self._helpers is None:
            return [scan(start, end)]
        edges = np.linspace(start, end, parts + 1).astype(int).tolist()
        others = [self._helpers.submit(scan, begin, stop) for begin, stop in pairwise(edges[1:])]
        return [scan(start, edges[1]), *(other.result() for other in others)]

    # On the GPU's thread, which alone makes copies there and drops them

    def _pass_on_gpu(self, gpu: Gpu, probes: Vectors, limit: int, fetch: int) -> list[list[Match] | None]:
        """Make a pass as `_pass` does. Raises GpuFailed."""
        watch = self._current_gpu_copy(gpu)
        try:
            near = watch.scan.nearest(0, watch.count, probes, fetch)
        except BaseException:
            self._drop_gpu_copy()
            raise
        with self._lock:
            return self._settled(watch, near, probes, fetch, limit)

    def _current_gpu_copy(self, gpu: Gpu) -> _Watch:
        """Return the watch of the GPU's copy, which is extended or made again where that is due. Raises GpuFailed.

        Rows are copied while others may write; the watch, made first, records what changes.
        """
        with self._lock:
            old, half = self._gpu_copy, self.kind != "fp32"
            if old is not None and (old.index.half != half or len(old.watch.overwritten) >= GPU_REPLACE_FROM):
                old = None
            if old is not None and self.faces - old.watch.low < GPU_EXTEND_FROM:
                return old.watch
            watch = self._watch()
            if old is not None and old.watch.low == old.watch.count:
                watch.overwritten.update(old.watch.overwritten)
            else:
                old = None
        self._drop_gpu_copy()
        try:
            watch.scan = index = GpuIndex(gpu, self.dimension, half=half) if old is None else old.index
            index.extend(watch.vectors)
        except BaseException:
            with self._lock:
                self._watches.discard(watch)
            raise
        self._gpu_copy = _GpuCopy(index, watch, time.monotonic())
        return watch

    def _drop_gpu_copy(self) -> None:
        with self._lock:
            if self._gpu_copy is not None:
                self._watches.discard(self._gpu_copy.watch)
                self._gpu_copy = None

    # All below is called with the lock held.

    def _watch(self) -> _Watch:
        rows = self._table.rows
        watch = _Watch(rows.scan(), rows.vectors, rows.count, rows.count)
        self._watches.add(watch)
        return watch

    def _remove_row(self, row: int) -> None:
        self._table.remove(row)
        for watch in self._watches:
            watch.overwritten.add(row)
            watch.low = min(watch.low, self.faces)

    def _settled(self, watch: _Watch, near: Near, probes: Vectors, fetch: int, limit: int) -> list[list[Match] | None]:
        """Bring a pass's result up to date and answer; None where other rows may belong to the answer."""
        if not self.faces:
            return [[] for _ in probes]
        if len(watch.overwritten) > REPEAT_FROM:
            near = self._nearest(self._table.rows.scan(), (0, self.faces), probes, fetch)
        elif watch.overwritten or not watch.low == watch.count == self.faces:
            near = self._with_changed(watch, near, probes, fetch)
        errors = self._errors(watch, probes)
        best = self._table.best(probes, self._promising(near, probes, errors, limit), limit)
        return [
            self._table.matches(probe, found) if _is_complete(found, float(floor), float(error), limit) else None
            for probe, found, floor, error in zip(probes, best, near.floors, errors, strict=True)
        ]

    def _promising(self, near: Near, probes: Vectors, errors: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
        """Replace by NO_ROW the rows that can't be in the answer, given the scores of the first few."""
        few = _few(limit)
        if near.scores.shape[1] <= few:
            return near.rows
        best = self._table.best(probes, near.rows[:, :few], limit)
        least = [found[-1][1] if len(found) == limit else -np.inf for found in best]
        wanted = near.scores >= (np.array(least) - errors)[:, None]  # of each probe the first ones
        return np.where(wanted, near.rows, NO_ROW)[:, : np.count_nonzero(wanted.any(axis=0))]

    def _with_changed(self, watch: _Watch, near: Near, probes: Vectors, fetch: int) -> Near:
        """Replace the rows that changed during the pass by all that were overwritten and the best of the new ones."""
        new = self._nearest(self._table.rows.scan(), (watch.low, self.faces), probes, fetch)
        changed = np.array(sorted(row for row in watch.overwritten if row < watch.low), np.int64)
        old = np.where((near.rows < watch.low) & ~np.isin(near.rows, changed), near.rows, NO_ROW)
        rows = np.concatenate([old, new.rows, np.tile(changed, (len(probes), 1))], axis=1)
        return Near(np.empty((len(probes), 0), np.float32), rows, np.maximum(near.floors, new.floors))

    def _renewed(self, watch: _Watch, rough: NDArray[np.float32], probe: Vector) -> NDArray[np.float32]:
        """Bring the scores of all rows up to date."""
        changed = np.array([row for row in watch.overwritten if row < watch.low], np.int64)
        rough = np.concatenate([rough[: watch.low], self._table.rows.scan().rough(watch.low, self.faces, probe)])
        rough[changed] = self._table.scores(probe[None], changed[None])[0]
        return rough

    def _errors(self, watch: _Watch, probes: Vectors) -> NDArray[np.float64]:
        """Return (Q,) bounds of the error of the pass's scores and of those of rows added since."""
        return np.maximum(watch.scan.errors(probes), self._table.rows.scan().errors(probes))


def _few(limit: int) -> int:
    return max(FETCH_MIN, FETCH_PER_SUBJECT * limit)


def _is_complete(best: list[tuple[int, float]], floor: float, error: float, limit: int) -> bool:
    """Return whether no other face, all of which score `floor` at most, can belong among the best."""
    return floor == -np.inf or (len(best) == limit and best[-1][1] > floor + error)
