"""The index of one gallery in memory: FAISS or 8-bit products find near faces, exact scores make subjects of them.

Knows keys and vectors only.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import Protocol, TypeAlias

import faiss
import numpy as np

from app.choices import GpuSearch, IndexKind
from app.search.quantised import BLAS_FROM_QUERIES, NO_ROW, Near, merged, nothing_near
from app.search.rows import MIN_WEIGHT, WIDEN, Best, Rows, View, mean_of
from app.search.types import Answer, Difference, FaceBlock, Keys, Match
from app.types import Sizes, Vector, Vectors

FETCH_MIN = 32
FETCH_PER_SUBJECT = 4
"""Faces fetched by a pass for each subject wanted; where they prove too few, passes for WIDEN times as many follow."""
ROUGH_FETCH, ROUGH_DIMENSION = 4, 128
"""Times as many for ``int8``, whose scores may be wrong by some 0.03, for vectors of that length; the longer they are,
the closer the scores of strangers."""
SPLIT_ROWS = 25_000
"""Rows that are worth a thread of their own: about a millisecond's work for one query, at 128 numbers."""
QUICK_NUMBERS = 25_000 * 128
"""A pass over so many numbers takes less than a millisecond for one query."""
COMPACT_FROM, COMPACT_SHARE = 1_024, 0.25
"""Number of removed rows, plus this share of all rows, from which the rows that are left are copied into new ones."""


class RowsOnGpu(Protocol):
    """A copy of an index's rows in a GPU's memory (`app.features.gpu_search`)."""

    def search(
        self, read: Callable[[], View], probes: Vectors, fetch: int, *, half: bool
    ) -> tuple[View, int, Near] | None:
        """Return the rows as they are now, how many of them, the first ones, were searched, and those of them that
        score highest; None where the CPU has to search."""

    def tend(self, read: Callable[[], View], *, half: bool) -> None:
        """Forget removed rows; called often, in the background."""


class FoundGpu(Protocol):
    """A GPU that searches indexes."""

    def copy(self, dimension: int) -> RowsOnGpu:
        """Return the place of an index's rows."""

    def tidy(self) -> None:
        """Free what indexes that are gone had there; called often."""

    def close(self) -> None: ...


FindGpu: TypeAlias = Callable[[GpuSearch], FoundGpu | None]
"""Returns the GPU to search on in this way; None, with a line in the log, where there is none."""


class Index:
    """Search by inner product over unit vectors, exact whatever the `kind`; safe to share between threads.

    Beyond the vectors and, with the kind ``int8``, a quarter of their size for a copy, a face takes 29 bytes and a
    subject 40.

    A pass over many vectors is split by rows between `threads`, each with one thread of FAISS's. FAISS's own way,
    OpenMP, leaves a single query on one core, and its threads wait for each other by spinning: where other work wants
    the same cores, that costs far more than it brings (8 queries over 300,000 x 128 on a busy machine of two cores:
    0.24 s on one thread, 0.26 s split in two, 22 s by OpenMP on two).

    Faces come and go while a search runs, which takes the lock only to begin and to end. Its answer has every face that
    was added before it began, and none that was removed before its scores were made.
    """

    def __init__(
        self, dimension: int, *, threads: int = 1, kind: IndexKind = "fp32", gpu: FoundGpu | None = None
    ) -> None:
        """`threads` share one pass, the caller's included. With a `gpu`, passes over more than a few rows run there:
        over float32 with the kind ``fp32``, over float16 with ``int8``; what the CPU does then it does without a copy,
        which 10 million rows of 512 numbers would take 18 s and 5 GB for."""
        self.dimension = dimension
        self._threads = threads
        self._helpers = ThreadPoolExecutor(threads - 1, "search rows") if threads > 1 else None  # no thread until used
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM_QUERIES
        self._lock = threading.RLock()  # around the rows' changes
        self._tending = threading.Lock()
        self._on_gpu = None if gpu is None else gpu.copy(dimension)
        self.kind: IndexKind = kind
        self._rows = Rows(dimension, self._kind_on_cpu)

    @property
    def faces(self) -> int:
        rows = self._rows
        return rows.count - rows.removed

    @property
    def sizes(self) -> Sizes:
        """How many subjects have so many faces."""
        return self._rows.sizes

    @property
    def quick(self) -> bool:
        """Whether a search costs less than handing it to another thread."""
        return self._rows.count * self.dimension <= QUICK_NUMBERS

    @property
    def _kind_on_cpu(self) -> IndexKind:
        return self.kind if self._on_gpu is None else "fp32"

    @property
    def _half(self) -> bool:
        """Whether a GPU may search over float16."""
        return self.kind != "fp32"

    @property
    def size(self) -> int:
        """Bytes of memory in use."""
        return self._rows.size

    # Changes

    def convert(self, kind: IndexKind) -> None:
        """Search by another kind from now on. Makes its copy of the vectors while searches wait to begin."""
        with self._tending, self._lock:
            self.kind = kind
            self._rows.convert(self._kind_on_cpu)

    def add(self, block: FaceBlock) -> None:
        """Add faces of known and new subjects. Their keys must not be in the index yet."""
        wanted = (len(block.faces), self.dimension)
        if wanted[0] and block.vectors.shape != wanted:
            raise ValueError(f"{wanted[0]} faces need {wanted} vectors, not {block.vectors.shape}")
        with self._lock:
            self._rows.append(block)

    def move(self, faces: Keys, subjects: Keys) -> None:
        """Give each of the faces, (N,), to a subject, (N,); those that aren't there are passed over."""
        with self._lock:
            self._rows.move(faces, subjects)

    def remove(self, face: int, subject: int) -> bool:
        """Remove one face of `subject`; return False if it isn't there."""
        with self._lock:
            view = self._rows.view()
            for row in self._rows.rows_of(subject):
                if view.faces[row] == face:
                    self._rows.remove(row)
                    return True
        return False

    def remove_subject(self, subject: int) -> int:
        """Remove the subject's faces and return their number."""
        with self._lock:
            rows = self._rows.rows_of(subject)
            for row in rows:
                self._rows.remove(row)
        return len(rows)

    def tend(self) -> None:
        """Do what is due in the background: copy the rows that are left where many were removed, and have a GPU forget
        removed faces. Searches and changes go on meanwhile."""
        with self._tending:
            if self._rows.removed > COMPACT_FROM + COMPACT_SHARE * self._rows.count:
                self._compact()
        if self._on_gpu is not None:
            self._on_gpu.tend(self._view, half=self._half)

    def _compact(self) -> None:
        """Copy the rows that are left into new ones, and apply at the end what changed meanwhile."""
        with self._lock:
            old, fresh = self._rows, Rows(self.dimension, self._rows.kind)
            before = old.frozen()
        for block in before.blocks():
            fresh.append(block)
        places = np.cumsum(before.there) - 1
        with self._lock:
            now = old.view()
            for row in np.flatnonzero(before.there & ~now.there[: before.count]).tolist():
                fresh.remove(int(places[row]))
            fresh.append(now.block(before.count, now.count))
            self._rows = fresh

    # Searches

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Return for each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first.

        There are fewer only where the index has fewer, however many faces a subject has.
        """
        return [answer(limit) for answer in self.begin(vectors, limit)]

    def begin(self, vectors: Vectors, limit: int) -> list[Answer]:
        """Make one pass for all probes; what is returned for each scores the rows found, on the caller's thread."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or not self.sizes:
            return [lambda _limit: [] for _ in probes]
        view, near = self._pass(probes, self._fetch(limit))
        return [partial(self._answer, view, probe, near.of(place)) for place, probe in enumerate(probes)]

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Compare each probe, (Q, D) unit float32, with one subject; None if it has no face."""
        with self._lock:
            view = self._rows.view()
            rows = np.array(self._rows.rows_of(subject), np.int64)
            matches = [self._matches(view, probe, view.best(probe, rows, 1)) for probe in vectors]
        return [best[0] if best else None for best in matches]

    def frozen(self) -> View:
        """Return all faces as they are now, to be copied while others change them: removed ones may lose their vectors
        meanwhile."""
        with self._lock:
            return self._rows.frozen()

    def compare(self, blocks: Iterable[FaceBlock]) -> Difference:
        """Compare with `blocks`, all the faces there should be, each once. No face may be added or removed meanwhile;
        searches go on."""
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

    def _view(self) -> View:
        with self._lock:
            return self._rows.view()

    def _fetch(self, limit: int) -> int:
        if self.kind == "fp32":
            return _few(limit)
        return _few(limit) * ROUGH_FETCH * max(1, round(math.sqrt(self.dimension / ROUGH_DIMENSION)))

    def _answer(self, view: View, probe: Vector, near: Near, limit: int) -> list[Match]:
        """Return the `limit` best subjects, from the rows found or, while others can be among them, from more."""
        fetch = self._fetch(limit)
        while (best := _best(view, probe, near, limit)) is None:
            fetch *= WIDEN
            near = self._nearest(view, probe[None], fetch)
        matches = self._matches(view, probe, best)
        if view.rows is self._rows and view.rows.renewals == view.renewals:
            return matches
        with self._lock:  # rare: rows have got other places meanwhile
            view = self._rows.view()
            return self._answer(view, probe, self._nearest(view, probe[None], self._fetch(limit)), limit)

    def _matches(self, view: View, probe: Vector, best: Best) -> list[Match]:
        """Return rows and scores as matches, with the scores of the subjects' mean templates."""
        matches, subjects = [], [int(view.subjects[row]) for row, _ in best]
        with self._lock:  # once, and FAISS asked once: where many search, who holds it waits for the interpreter too
            rows_of = view.rows.rows_of_all(subjects, view.count)
            vectors_of = [view.vectors[view.ordered(rows)] if len(rows) > 1 else None for rows in rows_of]
        for (row, score), subject, rows, vectors in zip(best, subjects, rows_of, vectors_of, strict=True):
            mean_score, length = score, 1.0
            if vectors is not None:
                mean, length = mean_of(vectors)
                mean_score = float((mean * probe.astype(np.float64)).sum())
            face, faces = int(view.faces[row]), max(1, len(rows))
            matches.append(Match(subject, face, _cosine(score), _cosine(mean_score), faces, length))
        return matches

    def _pass(self, probes: Vectors, fetch: int) -> tuple[View, Near]:
        """Return the rows as they are now, and those of them that score highest for each probe."""
        if self._on_gpu is not None and not self.quick:
            found = self._on_gpu.search(self._view, probes, fetch, half=self._half)
            if found is not None:
                view, there, near = found
                return view, merged([near, self._nearest(view, probes, fetch, start=there)], fetch)
        view = self._view()
        return view, self._nearest(view, probes, fetch)

    def _nearest(self, view: View, probes: Vectors, fetch: int, *, start: int = 0) -> Near:
        """Return for each probe the `fetch` rows from `start` on that score highest.

        The rows are scanned in parts, one a thread, if they are enough for that.
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


def _best(view: View, probe: Vector, near: Near, limit: int) -> Best | None:
    """Return the `View.best` of the rows found for one probe; None if others may belong among them."""
    floor, error, there = float(near.floors[0]), float(near.errors[0]), near.rows[0] != NO_ROW
    rows, scores = near.rows[0][there], near.scores[0][there]
    few = _few(limit)
    best = view.best(probe, rows[:few], limit)
    if len(rows) > few:  # only those that may be better than the first few
        least = best[-1][1] if len(best) == limit else -np.inf
        best = view.best(probe, rows[scores >= least - error], limit)
    complete = floor == -np.inf or (len(best) == limit and best[-1][1] > floor + error)
    return best if complete else None


def _few(limit: int) -> int:
    return max(FETCH_MIN, FETCH_PER_SUBJECT * limit)


def _cosine(score: float) -> float:
    """Clip to -1…1: vectors have length 1 only within float32's rounding."""
    return min(1.0, max(-1.0, score))
