"""The vectors of one gallery in memory, searched exactly: FAISS finds faces, here they become subjects.

Knows integers and vectors only; what they stand for is `app.gallery.store`'s.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from app.gallery.records import FaceBlock
from app.types import Vector, Vectors

NO_ROW = -1
BLAS_FROM_QUERIES = 4
"""From how many queries at once FAISS multiplies matrices instead of going query by query. Its own threshold, 128,000,
never starts that. Measured on 300,000 x 128, milliseconds on one core, one by one against BLAS: 1 query 11 / 28,
3: 30 / 27, 4: 38 / 24, 64: 567 / 57. FAISS keeps it for the whole process."""
FETCH_MIN = 32
FETCH_PER_SUBJECT = 4
"""Faces asked of FAISS for each subject wanted; where that proves too few, `_search_all` looks at every face."""
WIDEN = 8
SPLIT_ROWS = 25_000
"""Of a part that is worth a thread of its own: about a millisecond's work for one query, at 128 numbers."""
EXACT_ROWS = 8_192
"""Rows scored at once in float64: 8 MiB at 128 numbers."""
MIN_WEIGHT = 1.0
"""A face of quality 0 still has a say in its subject's mean."""
GROWTH = 1.5
FLOAT_BYTES = 4
MAP_ENTRY_BYTES = 40
"""Of a subject in FAISS's map, about."""
FORGOTTEN_MIN = 1_024


@dataclass(frozen=True, slots=True)
class Match:
    """A subject's best face for a probe; among equal scores the face enrolled first.

    ``score`` is that face's cosine, ``mean_score`` that of the subject's mean template (see `Index.mean`).
    """

    subject: int
    face: int
    score: float
    mean_score: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How an index differs from what it should hold: keys of faces, and how many it holds beyond them."""

    missing: tuple[int, ...]
    different: tuple[int, ...]
    extra: int


class Index:
    """Exact search by inner product over unit vectors; safe to share between threads.

    Rows lie without gaps: a removed row is overwritten by the last one, so that removing costs the same at any size
    (FAISS's own `remove_ids` moves everything behind it). Each subject's rows are a doubly linked list through two
    int32 arrays. Beyond the vectors a face takes 28 bytes and a subject 40.

    A pass over many vectors is split by rows between `threads`, each with a thread of FAISS's own. FAISS's own way,
    OpenMP, leaves a single query on one core, and its threads wait for each other by spinning: where other work wants
    the same cores that costs far more than it brings (8 queries over 300,000 x 128 on a busy machine of two cores:
    0.24 s on one thread, 0.26 s split in two, 22 s by OpenMP on two).

    Scores are computed in float64 from the stored float32 rows, row by row, so that they depend on nothing but the
    two vectors: not on how many probes shared the pass, nor on where the row lies.
    """

    def __init__(self, dimension: int, *, threads: int = 1) -> None:
        """`threads` share one pass, the caller's included."""
        self.dimension = dimension
        self._threads = threads
        self._helpers = ThreadPoolExecutor(threads - 1, "search rows") if threads > 1 else None  # no thread until used
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM_QUERIES
        self._lock = threading.Lock()
        self._flat = faiss.IndexFlatIP(dimension)
        self._faces = np.empty(0, np.int64)
        self._subjects = np.empty(0, np.int64)
        self._weights = np.empty(0, np.float32)
        self._next = np.empty(0, np.int32)
        self._previous = np.empty(0, np.int32)
        self._first: Any = faiss.MapLong2Long()  # subject -> its first row; NO_ROW once it has none
        self._subject_count = 0
        self._forgotten = 0  # subjects that are in the map with NO_ROW

    @property
    def faces(self) -> int:
        return int(self._flat.ntotal)

    @property
    def subjects(self) -> int:
        """Subjects that have a face."""
        return self._subject_count

    @property
    def size(self) -> int:
        """Bytes of memory, of vectors and what finds their subjects."""
        with self._lock:
            arrays = (self._faces, self._subjects, self._weights, self._next, self._previous)
            entries = self._subject_count + self._forgotten
            return self.faces * self.dimension * FLOAT_BYTES + sum(a.nbytes for a in arrays) + entries * MAP_ENTRY_BYTES

    @property
    def rounding(self) -> float:
        """How far apart a float32 score may be from the exact one: a bound for any order of summation, D * eps / 2 for
        unit vectors (Higham 2002, section 3.1), twice, since two scores are compared, and twice again to be safe."""
        return 2 * self.dimension * float(np.finfo(np.float32).eps)

    def add(self, block: FaceBlock) -> None:
        """Adds faces, of known and new subjects. A face's key must not be in yet."""
        if not len(block.faces):
            return
        vectors = np.ascontiguousarray(block.vectors, dtype=np.float32)  # (N, D)
        if vectors.shape != (len(block.faces), self.dimension):
            message = (
                f"{len(block.faces)} faces need ({len(block.faces)}, {self.dimension}) vectors, not {vectors.shape}"
            )
            raise ValueError(message)
        with self._lock:
            start = self.faces
            self._reserve(start + len(block.faces))
            end = start + len(block.faces)
            self._faces[start:end] = block.faces
            self._subjects[start:end] = block.subjects
            self._weights[start:end] = np.maximum(block.qualities, MIN_WEIGHT)
            self._flat.add(vectors)
            self._link(start, end)

    def remove(self, face: int, subject: int) -> bool:
        """Removes one face of `subject`; False where it isn't in."""
        with self._lock:
            for row in self._rows_of(subject):
                if self._faces[row] == face:
                    self._remove_row(row)
                    return True
        return False

    def remove_subject(self, subject: int) -> int:
        """Removes the subject's faces and says how many there were."""
        removed = 0
        with self._lock:
            while (row := self._first.search(subject)) != NO_ROW:
                self._remove_row(row)
                removed += 1
        return removed

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """For each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first; fewer where
        there are fewer. Exact, whatever the number of faces a subject has."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        with self._lock:
            if limit < 1 or not len(probes) or not self.faces:
                return [[] for _ in probes]
            fetch = min(self.faces, max(FETCH_MIN, FETCH_PER_SUBJECT * limit))
            scores, rows = self._nearest(probes, fetch)
            best = self._best(probes, rows, limit)
            for place, floor in enumerate(scores[:, -1].tolist()):
                if not self._is_complete(best[place], floor, fetch, limit):
                    best[place] = self._search_all(probes[place], limit)
            return [self._matches(probe, found) for probe, found in zip(probes, best, strict=True)]

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Each probe, (Q, D) unit float32, against one subject; None where it has no face."""
        with self._lock:
            rows = np.fromiter(self._rows_of(subject), np.int64)
            if not len(rows):
                return [None] * len(vectors)
            best = self._best(vectors, np.tile(rows, (len(vectors), 1)), 1)
            return [self._matches(probe, found)[0] for probe, found in zip(vectors, best, strict=True)]

    def mean(self, subject: int) -> Vector | None:
        """(D,) unit float32: the mean of the subject's vectors, each weighted by its quality (at least MIN_WEIGHT).

        None where it has no face; zeros where the vectors cancel out.
        """
        with self._lock:
            rows = list(self._rows_of(subject))
            return self._mean(rows).astype(np.float32) if rows else None

    def view(self) -> FaceBlock:
        """All faces, in no order, not copied: only to be looked at while nobody adds or removes."""
        with self._lock:
            count = self.faces
            return FaceBlock(self._faces[:count], self._subjects[:count], self._weights[:count], self._vectors())

    def compare(self, blocks: Iterable[FaceBlock]) -> Difference:
        """What differs from `blocks`, all the faces there should be, each once. Nobody may add or remove meanwhile;
        searches go on between blocks."""
        with self._lock:
            order = np.argsort(self._faces[: self.faces])
            keys = self._faces[order]
        missing: list[int] = []
        different: list[int] = []
        seen = 0
        for block in blocks:
            places = np.searchsorted(keys, block.faces)
            there = places < len(keys)
            there[there] = keys[places[there]] == block.faces[there]
            with self._lock:
                equal = self._equal(block, there, order[places[there]])
            missing += block.faces[~there].tolist()
            different += block.faces[there][~equal].tolist()
            seen += int(np.count_nonzero(there))
        return Difference(tuple(missing), tuple(different), len(keys) - seen)

    # All below is called with the lock held.

    def _vectors(self) -> Vectors:
        """FAISS's own rows, (N, D), to be let go before the index grows."""
        numbers: NDArray[np.float32] = faiss.rev_swig_ptr(self._flat.get_xb(), self.faces * self.dimension)
        return numbers.reshape(self.faces, self.dimension)

    def _nearest(self, probes: Vectors, fetch: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """For each probe the `fetch` highest scores and their rows, (Q, fetch) each, best first."""
        parts = min(self._threads, self.faces // SPLIT_ROWS)
        if parts < 2 or self._helpers is None:
            return _nearest_in(self._vectors(), 0, self.faces, probes, fetch)
        vectors = self._vectors()
        edges = np.linspace(0, self.faces, parts + 1).astype(int).tolist()
        others = [
            self._helpers.submit(_nearest_in, vectors, start, end, probes, fetch) for start, end in pairwise(edges[1:])
        ]
        found = [_nearest_in(vectors, 0, edges[1], probes, fetch), *(other.result() for other in others)]
        scores = np.concatenate([part[0] for part in found], axis=1)
        rows = np.concatenate([part[1] for part in found], axis=1)
        best = np.argsort(-scores, axis=1, kind="stable")[:, :fetch]
        return np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)

    def _equal(self, block: FaceBlock, which: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the faces `which` of `block` are what lies in `rows`, bit by bit."""
        return np.asarray(
            (self._vectors()[rows] == block.vectors[which]).all(axis=1)
            & (self._subjects[rows] == block.subjects[which])
            & (self._weights[rows] == np.maximum(block.qualities[which], MIN_WEIGHT))
        )

    def _reserve(self, rows: int) -> None:
        if rows <= len(self._faces):
            return
        capacity = max(rows, int(len(self._faces) * GROWTH))
        for name in ("_faces", "_subjects", "_weights", "_next", "_previous"):
            old: NDArray[Any] = getattr(self, name)
            grown = np.empty(capacity, old.dtype)
            grown[: self.faces] = old[: self.faces]
            setattr(self, name, grown)

    def _link(self, start: int, end: int) -> None:
        """Puts the rows from `start` to `end` in front of their subjects' lists."""
        subjects = self._subjects[start:end]
        order = np.argsort(subjects, kind="stable")
        rows = order.astype(np.int32) + np.int32(start)
        begins = np.append(True, np.diff(subjects[order]) != 0)
        ends = np.append(begins[1:], True)
        keys = subjects[order][begins]
        old = self._first.search_multiple(keys).astype(np.int32)
        self._next[rows] = np.append(rows[1:], NO_ROW)
        self._next[rows[ends]] = old
        self._previous[rows] = np.append(np.int32(NO_ROW), rows[:-1])
        self._previous[rows[begins]] = NO_ROW
        known = old != NO_ROW
        self._previous[old[known]] = rows[ends][known]
        self._first.add(keys, rows[begins].astype(np.int64))
        self._subject_count += int(np.count_nonzero(~known))

    def _rows_of(self, subject: int) -> Iterator[int]:
        row = self._first.search(subject)
        while row != NO_ROW:
            yield row
            row = int(self._next[row])

    def _remove_row(self, row: int) -> None:
        self._unlink(row)
        last = self.faces - 1
        vectors = self._vectors()
        if row != last:
            self._move(last, row)
            vectors[row] = vectors[last]
        vectors[last] = 0  # a removed template isn't left behind in memory either
        del vectors
        self._flat.codes.resize(last * self.dimension * np.dtype(np.float32).itemsize)
        self._flat.ntotal = last

    def _unlink(self, row: int) -> None:
        before, after = int(self._previous[row]), int(self._next[row])
        if after != NO_ROW:
            self._previous[after] = before
        if before != NO_ROW:
            self._next[before] = after
            return
        self._set_first(int(self._subjects[row]), after)
        if after == NO_ROW:
            self._subject_count -= 1
            self._forget_one()

    def _move(self, source: int, target: int) -> None:
        for column in (self._faces, self._subjects, self._weights, self._next, self._previous):
            column[target] = column[source]
        before, after = int(self._previous[target]), int(self._next[target])
        if after != NO_ROW:
            self._previous[after] = target
        if before != NO_ROW:
            self._next[before] = target
        else:
            self._set_first(int(self._subjects[target]), target)

    def _set_first(self, subject: int, row: int) -> None:
        self._first.add(np.array([subject], np.int64), np.array([row], np.int64))

    def _forget_one(self) -> None:
        """FAISS's map can't forget a key; it is made anew before more of them are forgotten than known."""
        self._forgotten += 1
        if self._forgotten > self._subject_count + FORGOTTEN_MIN:
            # The row being removed is the only one that may still look like a first row without being one.
            rows = np.flatnonzero(self._previous[: self.faces] == NO_ROW)
            rows = rows[self._first.search_multiple(self._subjects[rows]) == rows]
            self._first = faiss.MapLong2Long()
            self._first.add(self._subjects[rows], rows)
            self._forgotten = 0

    def _scores(self, probes: Vectors, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(Q, R) exact cosines of each probe with its rows, (Q, R). Each is summed in the same order wherever the row
        lies and however many there are, which a BLAS product would not do."""
        vectors, wide = self._vectors(), probes.astype(np.float64)
        flat = rows.ravel()
        whose = np.repeat(np.arange(len(probes)), rows.shape[1])
        scores = np.empty(len(flat))
        for start in range(0, len(flat), EXACT_ROWS):
            some = slice(start, start + EXACT_ROWS)
            scores[some] = (vectors[flat[some]] * wide[whose[some]]).sum(axis=1)  # (EXACT_ROWS, D) float64
        return scores.reshape(rows.shape)

    def _best(self, probes: Vectors, rows: NDArray[np.int64], limit: int) -> list[list[tuple[int, float]]]:
        """For each probe the best row, with its score, of each of the best subjects among its `rows`, (Q, R)."""
        scores = self._scores(probes, rows)
        order = np.lexsort((self._faces[rows], -scores), axis=-1)
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        ranked = zip(self._subjects[rows].tolist(), rows.tolist(), scores.tolist(), strict=True)
        return [_firsts(*ranking, limit) for ranking in ranked]

    def _is_complete(self, best: Sequence[tuple[int, float]], floor: float, fetched: int, limit: int) -> bool:
        """Whether no face beyond those fetched, all of them at most `floor`, can belong among the best."""
        if fetched == self.faces:
            return True
        return len(best) == limit and best[-1][1] > floor + self.rounding

    def _search_all(self, probe: Vector, limit: int) -> list[tuple[int, float]]:
        """As `_best`, over all rows: where few subjects have most of the near faces, or many scores are equal."""
        rough = self._vectors() @ probe  # (N,)
        width = min(self.faces, WIDEN * max(FETCH_MIN, FETCH_PER_SUBJECT * limit))
        while True:
            near = np.argpartition(rough, -width)[-width:] if width < self.faces else np.arange(self.faces)
            best = self._best_rough(rough, near, limit)
            if len(best) == limit:
                near = np.flatnonzero(rough >= best[-1] - self.rounding)
            if len(best) == limit or width == self.faces:
                return self._best(probe[None], near[None], limit)[0]
            width = min(self.faces, WIDEN * width)

    def _best_rough(self, rough: NDArray[np.float32], rows: NDArray[np.int64], limit: int) -> list[float]:
        order = rows[np.argsort(-rough[rows])]
        _, firsts = np.unique(self._subjects[order], return_index=True)
        return [float(score) for score in rough[order[np.sort(firsts)[:limit]]]]

    def _matches(self, probe: Vector, best: Sequence[tuple[int, float]]) -> list[Match]:
        matches = []
        for row, score in best:
            subject = int(self._subjects[row])
            alone = self._next[row] == NO_ROW == self._previous[row]
            mean_score = score if alone else self._mean_score(probe, subject)
            matches.append(Match(subject, int(self._faces[row]), _cosine(score), _cosine(mean_score)))
        return matches

    def _mean_score(self, probe: Vector, subject: int) -> float:
        return float((self._mean(list(self._rows_of(subject))) * probe.astype(np.float64)).sum())

    def _mean(self, rows: list[int]) -> NDArray[np.float64]:
        ordered = np.array(rows)[np.argsort(self._faces[rows])]  # the sum doesn't depend on the rows' places
        total = (self._vectors()[ordered] * self._weights[ordered, None].astype(np.float64)).sum(axis=0)  # (D,)
        length = float(np.linalg.norm(total))
        unit: NDArray[np.float64] = total / length if length > 0 else total
        return unit


def _nearest_in(
    vectors: Vectors, start: int, end: int, probes: Vectors, fetch: int
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The rows from `start` to `end` alone; on this thread."""
    faiss.omp_set_num_threads(1)  # of this thread: OpenMP keeps it apart for each
    scores, rows = faiss.knn(probes, vectors[start:end], min(fetch, end - start), metric=faiss.METRIC_INNER_PRODUCT)
    return scores, rows + start


def _firsts(subjects: list[int], rows: list[int], scores: list[float], limit: int) -> list[tuple[int, float]]:
    """Row and score of the first appearance of each of the first `limit` subjects."""
    found: dict[int, tuple[int, float]] = {}
    for subject, row, score in zip(subjects, rows, scores, strict=True):
        if subject not in found:
            found[subject] = (row, score)
            if len(found) == limit:
                break
    return list(found.values())


def _cosine(score: float) -> float:
    """Vectors are of length 1 but for float32's rounding."""
    return min(1.0, max(-1.0, score))
