"""The index of one gallery in memory: FAISS or 8-bit products find near faces, which exact scores then rank by subject.

It knows only keys and vectors, and keeps one row per face. Rows are only appended: a removed row keeps its place,
masked and without its vector, until the rest is copied into new rows; a face that moves to another subject is removed
and appended. So a view can be read without a lock.

`Index.begin` makes one pass over the rows for all probes, and `Index._finish` ends the search for each of them.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Protocol, TypeAlias

import faiss
import numpy as np
from numpy.typing import NDArray

from app.choices import GpuSearch, IndexKind
from app.memory import room_to_grow
from app.search.quantised import NO_ROW, ByteScan, Levels, Near, Scan, encode, merged, nothing_near, rounding
from app.search.types import Difference, FaceBlock, FinishSearch, Keys, Match
from app.types import Sizes, Vector, Vectors

BLAS_FROM_QUERIES = 4
"""From this many queries on, a pass is one matrix product by FAISS's BLAS. Fewer queries compute their products one by
one and then take the best, in a third of the time of FAISS's own search with a heap. On one core, in nanoseconds per
row of 10,000 and 200,000 x 128: one query 23 and 50 (by FAISS's heap 141 and 116), 4 by BLAS 93 and 126. FAISS's own
threshold, one for the whole process, is too high to ever use BLAS."""
COLUMN_BYTES = 29
"""Bytes of a row besides its vector."""
MAP_ENTRY_BYTES = 40
"""Approximate bytes of a subject in FAISS's map."""
MIN_WEIGHT = 1.0
"""Lower qualities are stored as this one, as in snapshots since 0.1.0."""
EXACT_ROWS = 1_024
"""Rows scored at once in float64: 1 MiB at 128 numbers, which fits in a core's cache."""
FETCH_MIN = 32
FETCH_PER_SUBJECT = 4
"""A pass fetches this many rows for each wanted subject, at least FETCH_MIN; further passes WIDEN times as many."""
ROUGH_FETCH, ROUGH_DIMENSION = 4, 128
"""With ``int8``, whose scores may be wrong by about 0.03, a pass fetches this many times as many rows for vectors of
this length, and more for longer ones, whose scores of strangers are closer together."""
WIDEN = 8
"""Factor by which a search fetches more rows each time that the rows found don't suffice."""
PIECE_ROWS = 16_384
"""Rows copied at once for a snapshot or new rows: 8 MiB at 128 numbers."""
Best = list[tuple[int, float]]
"""The best row of each of several subjects, and its score, best first."""


@dataclass(frozen=True, slots=True)
class ExactScan:
    """Reads the vectors themselves. A score may be wrong by `error`."""

    vectors: Vectors
    error: float

    def nearest(self, start: int, end: int, probes: Vectors, fetch: int) -> Near:
        part, width = self.vectors[start:end], min(fetch, end - start)
        if len(probes) < BLAS_FROM_QUERIES:
            every = np.empty((len(probes), len(part)), np.float32)
            products: Any = getattr(faiss, "fvec_inner_products_ny")  # noqa: B009 - mypy doesn't see it
            for probe, row in zip(probes, every, strict=True):
                products(faiss.swig_ptr(row), faiss.swig_ptr(probe), faiss.swig_ptr(part), len(probe), len(part))
            rows = np.argpartition(every, len(part) - width, axis=1)[:, -width:]
            scores = np.take_along_axis(every, rows, 1)
            best = np.argsort(-scores, axis=1, kind="stable")
            scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
        else:
            faiss.omp_set_num_threads(1)  # for this thread: OpenMP keeps a number for each thread
            scores, rows = faiss.knn(probes, part, width, metric=faiss.METRIC_INNER_PRODUCT)
        floors = np.full(len(probes), -np.inf, np.float32) if width == len(part) else scores[:, -1]
        return Near(scores, rows + start, floors, np.full(len(probes), self.error))


@dataclass(frozen=True, slots=True)
class View:
    """The rows as of one moment. Rows removed since then are masked; rows added since then are not in it.

    Scores are computed in float64 from the stored float32 vectors, row by row, so they depend only on the two vectors,
    not on the number of probes scored together, the row's place, or the kind of search.
    """

    count: int
    """Number of rows, including removed ones."""
    faces: Keys
    subjects: Keys
    weights: NDArray[np.float32]
    there: NDArray[np.bool_]
    """Which rows are not removed."""
    vectors: Vectors
    scan: Scan
    rows: Rows
    renewals: int
    """The rows' ``renewals`` at that moment."""

    def block(self, start: int, end: int) -> FaceBlock:
        """Return the faces of the rows from `start` to `end`."""
        rows = np.flatnonzero(self.there[start:end]) + start
        return FaceBlock(self.faces[rows], self.subjects[rows], self.weights[rows], self.vectors[rows])

    def blocks(self) -> Iterator[FaceBlock]:
        """Yield all faces in pieces."""
        for start in range(0, self.count, PIECE_ROWS):
            yield self.block(start, start + PIECE_ROWS)

    def best(self, probe: Vector, rows: NDArray[np.int64], limit: int) -> Best:
        """Return the best row and its score of each of the `limit` best subjects among these rows, (R,)."""
        scores, wide = np.empty(len(rows)), probe.astype(np.float64)
        for start in range(0, len(rows), EXACT_ROWS):
            part = slice(start, start + EXACT_ROWS)
            scores[part] = (self.vectors[rows[part]] * wide).sum(axis=1)  # BLAS depends on the number of rows
        there = self.there[rows]  # read last, since a row is masked before its vector is removed
        rows, scores = rows[there], scores[there]
        order = np.lexsort((self.faces[rows], -scores))
        best: dict[int, tuple[int, float]] = {}
        for subject, row, score in zip(
            self.subjects[rows[order]].tolist(), rows[order].tolist(), scores[order].tolist(), strict=True
        ):
            if subject not in best:
                best[subject] = (row, score)
                if len(best) == limit:
                    break
        return list(best.values())

    def best_near(self, probe: Vector, near: Near, place: int, limit: int) -> Best | None:
        """Return the `best` of the rows found for the probe, which is the one at `place` in `near`; None if other rows
        may belong among them."""
        floor, error, there = float(near.floors[place]), float(near.errors[place]), near.rows[place] != NO_ROW
        rows, scores = near.rows[place][there], near.scores[place][there]
        few = max(FETCH_MIN, FETCH_PER_SUBJECT * limit)
        best = self.best(probe, rows[:few], limit)
        if len(rows) > few:  # score only those that may be better than the first few
            least = best[-1][1] if len(best) == limit else -np.inf
            best = self.best(probe, rows[scores >= least - error], limit)
        complete = floor == -np.inf or (len(best) == limit and best[-1][1] > floor + error)
        return best if complete else None


class Rows:
    """Not safe to share between threads, but its views are.

    Each subject's rows are a linked list: a row knows the subject's previous row, and a map knows the last one. So the
    cost of adding and removing a row doesn't depend on the size.
    """

    def __init__(self, dimension: int, kind: IndexKind) -> None:
        self._faces = np.empty(0, np.int64)
        self._subjects = np.empty(0, np.int64)
        self._weights = np.empty(0, np.float32)
        self._there = np.empty(0, np.bool_)
        self._before = np.empty(0, np.int32)  # the subject's previous row; NO_ROW for its first
        self._held = np.empty(0, np.int32)  # at a subject's last row: the number of its rows
        self._vectors = np.empty((0, dimension), np.float32)
        self._codes: Levels = np.empty((0, 0), np.int8)
        self._error = 0.0  # the largest distance between a vector and its decoded copy
        self._rounding = rounding(dimension)
        self._last: Any = faiss.MapLong2Long()  # subject -> its last row, even after that is removed
        self._subject_count = 0  # number of subjects in the map
        self.count = 0
        """Number of rows, including removed ones."""
        self.removed = 0
        self.renewals = 0
        """How many times rows changed their places; views from before don't see later removals and moves."""
        self.sizes: Sizes = {}
        """The number of subjects by number of faces. Each change replaces it, so that it may be read at any moment."""
        self.kind: IndexKind = "fp32"
        self.convert(kind)

    @property
    def size(self) -> int:
        """Return the bytes in use."""
        row = COLUMN_BYTES + 4 * self._vectors.shape[1] + self._codes.shape[1]
        return int(self.count * row + self._subject_count * MAP_ENTRY_BYTES)

    def view(self) -> View:
        end, vectors = self.count, self._vectors[: self.count]
        columns = self._faces[:end], self._subjects[:end], self._weights[:end], self._there[:end]
        exact = self.kind == "fp32"
        scan = ExactScan(vectors, self._rounding) if exact else ByteScan(self._codes[:end], self._error)
        return View(end, *columns, vectors, scan, self, self.renewals)

    def append(self, block: FaceBlock) -> None:
        start, end = self.count, self.count + len(block.faces)
        if start == end:
            return
        if end > len(self._faces):
            self.renewals += 1
        for name in ("_faces", "_subjects", "_weights", "_there", "_before", "_held", "_vectors", "_codes"):
            column: NDArray[Any] = getattr(self, name)
            if end > len(column):
                larger = room_to_grow(end, column.shape[1:], column.dtype)
                larger[:start] = column[:start]
                setattr(self, name, larger)
        self._faces[start:end], self._subjects[start:end] = block.faces, block.subjects
        self._weights[start:end] = np.maximum(block.qualities, MIN_WEIGHT)
        self._there[start:end] = True
        self._vectors[start:end] = block.vectors
        if self.kind == "int8":
            self._codes[start:end], error = encode(self._vectors[start:end])
            self._error = max(self._error, error)
        self._link(block.subjects, start)
        self.count = end

    def remove(self, row: int) -> None:
        """Mask a row and remove its vector. The row must be there."""
        self._there[row] = False
        self._vectors[row] = 0
        self._codes[row] = 0
        last = int(self._last.search(int(self._subjects[row])))
        held = int(self._held[last])
        sizes = Counter(self.sizes)
        if held > 1:
            sizes[held - 1] += 1
        sizes[held] -= 1
        self.sizes = dict(+sizes)
        self._held[last] = held - 1
        self.removed += 1

    def move(self, faces: Keys, subjects: Keys) -> None:
        """Give each of the faces, (N,), to a subject, (N,). Faces that aren't there are skipped."""
        wanted = dict(zip(faces.tolist(), subjects.tolist(), strict=True))
        self.renewals += 1
        end = self.count
        rows = np.flatnonzero(np.isin(self._faces[:end], faces) & self._there[:end])
        keys = np.array([wanted[face] for face in self._faces[rows].tolist()], np.int64)
        moved = FaceBlock(self._faces[rows], keys, self._weights[rows], self._vectors[rows])
        for row in rows.tolist():
            self.remove(row)
        self.append(moved)

    def rows_of(self, *subjects: int, among: int | None = None) -> list[list[int]]:
        """Return each subject's present rows, in the order of their faces, so that a sum doesn't depend on the rows'
        places; with `among`, only those within the first `among` rows."""
        rows_of = []
        for last in self._last.search_multiple(np.array(subjects, np.int64)).tolist() if subjects else ():
            rows, row = [], last
            while row != NO_ROW:
                if self._there[row] and (among is None or row < among):
                    rows.append(row)
                row = int(self._before[row])
            rows_of.append(sorted(rows, key=self._faces.item))
        return rows_of

    def convert(self, kind: IndexKind) -> None:
        """Replace the copy of the vectors by another kind's."""
        if kind == self.kind:
            return
        self.kind, self._error = kind, 0.0
        width = self._vectors.shape[1] if kind == "int8" else 0
        self._codes = room_to_grow(self.count, (width,), np.dtype(np.int8))
        if kind == "int8" and self.count:
            self._codes[: self.count], self._error = encode(self._vectors[: self.count])

    def _link(self, subjects: Keys, start: int) -> None:
        """Append the new rows from `start` on to their subjects' lists."""
        order = np.argsort(subjects, kind="stable")
        rows = order.astype(np.int32) + np.int32(start)
        keys, begins, counts = np.unique(subjects[order], return_index=True, return_counts=True)
        ends = rows[begins + counts - 1]
        last = self._last.search_multiple(keys).astype(np.int32)
        self._before[rows[1:]] = rows[:-1]
        self._before[rows[begins]] = last
        self._last.add(keys, ends.astype(np.int64))
        held = np.where(last == NO_ROW, 0, self._held[last])
        self._held[ends] = held + counts
        self._subject_count += int(np.count_nonzero(last == NO_ROW))
        sizes = Counter(self.sizes)
        sizes.update(self._held[ends].tolist())
        sizes.subtract(held.tolist())
        self.sizes = dict(+sizes)  # without the count of subjects with 0 faces


SPLIT_ROWS = 25_000
"""Minimum rows for another thread: about a millisecond's work for one query, at 128 numbers."""
QUICK_NUMBERS = 25_000 * 128
"""A pass over this many numbers takes less than a millisecond for one query."""
COMPACT_FROM, COMPACT_SHARE = 1_024, 0.25
"""The remaining rows are copied into new ones from this number of removed rows on, plus this share of all rows."""


class RowsOnGpu(Protocol):
    """A copy of an index's rows in a GPU's memory (`app.features.gpu_search`)."""

    def search(
        self, read: Callable[[], View], probes: Vectors, fetch: int, *, half: bool
    ) -> tuple[View, int, Near] | None:
        """Return the present rows, the number of rows from the first on that were searched, and the best of these; None
        if the CPU has to search."""

    def maintain(self, read: Callable[[], View], *, half: bool) -> None:
        """Forget removed rows. Call it often, in the background."""


class FoundGpu(Protocol):
    """A GPU that searches indexes."""

    def copy(self, dimension: int) -> RowsOnGpu:
        """Return a place on the GPU for an index's rows."""

    def tidy(self) -> None:
        """Free the memory of closed indexes. Call it often."""

    def close(self) -> None: ...


FindGpu: TypeAlias = Callable[[GpuSearch], FoundGpu | None]
"""Returns the GPU to search on in this way; None, with a line in the log, if there is none."""


class Index:
    """Search by inner product over unit vectors, exact with every `kind`; safe to share between threads.

    Besides the vectors and, with the kind ``int8``, a copy of a quarter of their size, a face takes 29 bytes and a
    subject 40.

    A pass over many vectors is split by rows between `threads`, each with one FAISS thread. FAISS's own method, OpenMP,
    leaves a single query on one core, and its threads spin while they wait for each other, which costs far more than it
    gains if other work wants the same cores (8 queries over 300,000 x 128 on a busy machine of two cores: 0.24 s on one
    thread, 0.26 s split in two, 22 s by OpenMP on two).

    A search takes the lock only at its end, so faces may be added and removed while it runs. Its answer has
    every face that was added before it began, and none that was removed before its scores were computed.
    """

    def __init__(
        self, dimension: int, *, threads: int = 1, kind: IndexKind = "fp32", gpu: FoundGpu | None = None
    ) -> None:
        """`threads`, including the caller's, share one pass. With a `gpu`, passes over more than a few rows run there:
        over float32 with the kind ``fp32``, over float16 with ``int8``. The CPU's part then works without a copy, which
        for 10 million rows of 512 numbers would take 18 s and 5 GB."""
        self.dimension = dimension
        self._threads = threads
        self._helpers = ThreadPoolExecutor(threads - 1, "search rows") if threads > 1 else None  # no thread until used
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM_QUERIES
        self._lock = threading.RLock()  # around the rows' changes
        self._tending = threading.Lock()
        self._on_gpu = None if gpu is None else gpu.copy(dimension)
        self.kind: IndexKind = kind
        self._rows = Rows(dimension, self._kind_on_cpu)
        self._publish()

    @property
    def faces(self) -> int:
        rows = self._rows
        return rows.count - rows.removed

    @property
    def quick(self) -> bool:
        """Return whether a search costs less than handing it to another thread."""
        return self._rows.count * self.dimension <= QUICK_NUMBERS

    @property
    def _kind_on_cpu(self) -> IndexKind:
        return self.kind if self._on_gpu is None else "fp32"

    @property
    def _half(self) -> bool:
        """Return whether a GPU may search over float16."""
        return self.kind != "fp32"

    @property
    def size(self) -> int:
        """Return the bytes of memory in use."""
        return self._rows.size

    # Changes

    def convert(self, kind: IndexKind) -> None:
        """Search by another kind from now on. Searches can't end while it makes the kind's copy of the vectors."""
        with self._tending, self._lock:
            self.kind = kind
            self._rows.convert(self._kind_on_cpu)
            self._publish()

    def add(self, block: FaceBlock) -> None:
        """Add faces of known and new subjects. Their keys must not be in the index yet."""
        wanted = (len(block.faces), self.dimension)
        if wanted[0] and block.vectors.shape != wanted:
            raise ValueError(f"{wanted[0]} faces need {wanted} vectors, not {block.vectors.shape}")
        with self._lock:
            self._rows.append(block)
            self._publish()

    def move(self, faces: Keys, subjects: Keys) -> None:
        """Give each of the faces, (N,), to a subject, (N,). Faces that aren't there are skipped."""
        with self._lock:
            self._rows.move(faces, subjects)
            self._publish()

    def remove(self, face: int, subject: int) -> bool:
        """Remove one face of `subject`; return False if it isn't there."""
        with self._lock:
            (rows,) = self._rows.rows_of(subject)
            for row in rows:
                if self._view.faces[row] == face:
                    self._rows.remove(row)
                    self._publish()
                    return True
        return False

    def remove_subject(self, subject: int) -> int:
        """Remove the subject's faces and return their number."""
        with self._lock:
            (rows,) = self._rows.rows_of(subject)
            for row in rows:
                self._rows.remove(row)
            self._publish()
        return len(rows)

    def maintain(self) -> None:
        """Do background work: copy the remaining rows if many were removed, and make a GPU forget removed faces.
        Searches and changes go on meanwhile."""
        with self._tending:
            if self._rows.removed > COMPACT_FROM + COMPACT_SHARE * self._rows.count:
                self._compact()
        if self._on_gpu is not None:
            self._on_gpu.maintain(lambda: self._view, half=self._half)

    def _compact(self) -> None:
        """Copy the remaining rows into new ones, and in the end apply the changes made meanwhile."""
        with self._lock:
            before, fresh = self.frozen(), Rows(self.dimension, self._rows.kind)
        for block in before.blocks():
            fresh.append(block)
        places = np.cumsum(before.there) - 1
        with self._lock:
            now = self._view
            for row in np.flatnonzero(before.there & ~now.there[: before.count]).tolist():
                fresh.remove(int(places[row]))
            fresh.append(now.block(before.count, now.count))
            self._rows = fresh
            self._publish()

    def _publish(self) -> None:
        """Replace what searches read without the lock. Call it with the lock held, at the end of a change."""
        self._view = self._rows.view()
        self.sizes = self._rows.sizes
        """The number of subjects by number of faces."""

    # Searches

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Return for each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first.

        Fewer are returned only if the index has fewer subjects.
        """
        return [finish(limit) for finish in self.begin(vectors, limit)]

    def begin(self, vectors: Vectors, limit: int) -> list[FinishSearch]:
        """Make one pass for all probes; return a function for each that scores the found rows on the calling thread."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or not self.sizes:
            return [lambda _limit: [] for _ in probes]
        fetch, on_gpu = max(FETCH_MIN, FETCH_PER_SUBJECT * limit), None
        if self.kind != "fp32":
            fetch *= ROUGH_FETCH * max(1, round(math.sqrt(self.dimension / ROUGH_DIMENSION)))
        if self._on_gpu is not None and not self.quick:
            on_gpu = self._on_gpu.search(lambda: self._view, probes, fetch, half=self._half)
        if on_gpu is None:
            view = self._view
            near = self._nearest(view, probes, fetch)
        else:
            view, there, near = on_gpu
            near = merged([near, self._nearest(view, probes, fetch, start=there)], fetch)
        return [partial(self._finish, view, probe, near, place) for place, probe in enumerate(probes)]

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Compare each probe, (Q, D) unit float32, with one subject; None if it has no face."""
        with self._lock:
            view = self._view
            (rows,) = np.array(self._rows.rows_of(subject), np.int64)
            matches = [self._matches(view, probe, view.best(probe, rows, 1)) for probe in vectors]
        return [best[0] if best else None for best in matches]

    def frozen(self) -> View:
        """Return a view to copy the faces from while they change. Faces removed meanwhile stay in it, but may have lost
        their vectors."""
        with self._lock:
            return replace(self._view, there=self._view.there.copy())

    def compare(self, blocks: Iterable[FaceBlock]) -> Difference:
        """Compare with `blocks`, which has all faces that should be there, each once. No face may be added or removed
        meanwhile; searches go on."""
        view = self.frozen()
        rows = np.flatnonzero(view.there)
        rows = rows[np.argsort(view.faces[rows])]
        keys = view.faces[rows]
        missing: list[int] = []
        different: list[int] = []
        seen = 0
        for block in blocks:
            places = np.searchsorted(keys, block.faces)
            there = places < len(keys)
            there[there] = keys[places[there]] == block.faces[there]
            ours, theirs = rows[places[there]], block.only(there)
            equal = (
                (view.vectors[ours] == theirs.vectors).all(axis=1)
                & (view.subjects[ours] == theirs.subjects)
                & (view.weights[ours] == np.maximum(theirs.qualities, MIN_WEIGHT))
            )
            missing += block.faces[~there].tolist()
            different += theirs.faces[~equal].tolist()
            seen += len(ours)
        return Difference(tuple(missing), tuple(different), len(keys) - seen)

    def _finish(self, view: View, probe: Vector, near: Near, place: int, limit: int) -> list[Match]:
        """Return the `limit` best subjects, from the found rows, or from more if others could be among the best."""
        fetch = max(FETCH_MIN, near.rows.shape[1])
        while (best := view.best_near(probe, near, place, limit)) is None:
            fetch *= WIDEN
            near, place = self._nearest(view, probe[None], fetch), 0
        matches = self._matches(view, probe, best)
        if view.rows is self._rows and view.rows.renewals == view.renewals:
            return matches
        with self._lock:  # rare: rows have moved meanwhile
            view = self._rows.view()
            return self._finish(view, probe, self._nearest(view, probe[None], fetch), 0, limit)

    def _matches(self, view: View, probe: Vector, best: Best) -> list[Match]:
        """Return rows and scores as matches, with the scores of the subjects' mean templates. Weighting the mean by
        quality finds no more people, and would suppress profiles."""
        matches, subjects = [], [int(view.subjects[row]) for row, _ in best]
        with self._lock:  # taken only once: with many searches, the thread that holds it also waits for the GIL
            rows_of = view.rows.rows_of(*subjects, among=view.count)
            vectors_of = [view.vectors[rows] if len(rows) > 1 else None for rows in rows_of]
        for (row, score), subject, rows, vectors in zip(best, subjects, rows_of, vectors_of, strict=True):
            mean_score, length = score, 1.0
            if vectors is not None:
                mean = vectors.mean(axis=0, dtype=np.float64)
                length = float(np.linalg.norm(mean))  # 0 if the vectors cancel out
                mean_score = float((mean / (length or 1.0) * probe.astype(np.float64)).sum())
            face, faces = int(view.faces[row]), max(1, len(rows))
            # Clip to cosines: vectors have length 1 only within float32's rounding.
            cosine, mean_cosine = max(-1.0, min(score, 1.0)), max(-1.0, min(mean_score, 1.0))
            matches.append(Match(subject, face, cosine, mean_cosine, faces, min(length, 1.0)))
        return matches

    def _nearest(self, view: View, probes: Vectors, fetch: int, *, start: int = 0) -> Near:
        """Return for each probe the `fetch` rows from `start` on that score highest.

        If there are enough rows, they are scanned in parts, one per thread.
        """
        if start >= view.count:
            return nothing_near(len(probes))
        parts = min(self._threads, (view.count - start) // SPLIT_ROWS)
        if parts < 2 or self._helpers is None:
            return view.scan.nearest(start, view.count, probes, fetch)
        edges = np.linspace(start, view.count, parts + 1).astype(int).tolist()
        scan = partial(view.scan.nearest, probes=probes, fetch=fetch)
        others = [self._helpers.submit(scan, begin, stop) for begin, stop in pairwise(edges[1:])]
        return merged([scan(start, edges[1]), *(other.result() for other in others)], fetch)
