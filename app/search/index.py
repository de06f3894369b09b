"""The vectors of one gallery in memory: FAISS finds faces, here they become subjects.

Knows integers and vectors only; what they stand for is `app.gallery.store`'s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.gallery.records import FaceBlock, IndexKind
from app.search.gpu import Gpu, GpuFailed, Mirror
from app.search.quantised import BLAS_FROM_QUERIES, NO_ROW, Near, Scan, merged, rounding
from app.search.rows import Rows, grown
from app.search.subject_rows import Chains
from app.types import Vector, Vectors

FETCH_MIN = 32
FETCH_PER_SUBJECT = 4
"""Faces asked of a pass for each subject wanted; where that proves too few, `_search_all` looks at every face."""
ROUGH_FETCH, ROUGH_DIMENSION = 4, 128
"""Times as many of the 8-bit kinds, whose scores may be wrong by some 0.03, for vectors of that length; the longer
they are, the nearer to each other strangers' scores lie."""
WIDEN = 8
SPLIT_ROWS = 25_000
"""Of a part that is worth a thread of its own: about a millisecond's work for one query, at 128 numbers."""
QUICK_NUMBERS = 25_000 * 128
"""A pass over so many takes less than a millisecond for one query."""
EXACT_ROWS = 1_024
"""Rows scored at once in float64: 1 MiB at 128 numbers, which stay in a core's cache."""
MIN_WEIGHT = 1.0
"""A face of quality 0 still has a say in its subject's mean."""
MOVED_MOST = 1_024
"""Rows that may be overwritten while a pass runs; with more, the pass is made again while nobody writes."""
MIRROR_MOVED = MOVED_MOST // 2
"""Rows overwritten since a GPU's mirror was made, from which on it is made anew."""
MIRROR_S = 60.0
"""So long what was removed may stay on a GPU."""
MIRROR_COME = 8_192
"""Rows that have come since it was brought up to date, from which on that is due again."""
R = TypeVar("R")
_log = logging.getLogger(__name__)


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


@dataclass(eq=False, slots=True)
class _Watch:
    """What happens to the rows while a pass over the first `count` of them, as they were, runs without the lock."""

    scan: Scan
    vectors: Vectors
    count: int
    low: int
    """Fewest rows that there were since: from there on, rows may be others."""
    moved: set[int] = field(default_factory=set)
    """Rows that were overwritten."""


@dataclass(frozen=True, slots=True)
class _Mirrored:
    """What is on the GPU, and since when."""

    mirror: Mirror
    watch: _Watch
    at: float


class Index:
    """Search by inner product over unit vectors, exact whatever the `kind`; safe to share between threads.

    Beyond the vectors and, with the kind ``int8``, a quarter of their size for a copy, a face takes 28 bytes and a
    subject 40.

    A pass over many vectors is split by rows between `threads`, each with a thread of FAISS's own. FAISS's own way,
    OpenMP, leaves a single query on one core, and its threads wait for each other by spinning: where other work wants
    the same cores that costs far more than it brings (8 queries over 300,000 x 128 on a busy machine of two cores:
    0.24 s on one thread, 0.26 s split in two, 22 s by OpenMP on two).

    Faces come and go while a pass runs. Rows that changed meanwhile are looked at again before the answer is made,
    which then holds for that moment: only that is done while others wait.

    Scores are computed in float64 from the stored float32 rows, row by row, so that they depend on nothing but the
    two vectors: not on how many probes shared the pass, nor on where the row lies, nor on the kind.
    """

    def __init__(
        self,
        dimension: int,
        *,
        threads: int = 1,
        kind: IndexKind = "fp32",
        gpu: Gpu | None = None,
    ) -> None:
        """`threads` share one pass, the caller's included. With a `gpu`, passes over more than a few rows are made
        there: of float32 with the kind ``fp32``, of float16 with ``int8``."""
        self.dimension = dimension
        self._threads = threads
        self._helpers = ThreadPoolExecutor(threads - 1, "search rows") if threads > 1 else None  # no thread until used
        faiss.cvar.distance_compute_blas_threshold = BLAS_FROM_QUERIES
        self._lock = threading.Lock()
        self._rows = Rows(dimension, kind)
        self._chains = Chains()
        self._faces = np.empty(0, np.int64)
        self._weights = np.empty(0, np.float32)
        self._watches: set[_Watch] = set()
        self._gpu = gpu
        self._mirrored: _Mirrored | None = None

    @property
    def faces(self) -> int:
        return self._rows.count

    @property
    def subjects(self) -> int:
        """Subjects that have a face."""
        return self._chains.subject_count

    @property
    def quick(self) -> bool:
        """Whether a search costs less than to wait for company for it (see `app.search.protocol.Searchable`)."""
        return self.faces * self.dimension <= QUICK_NUMBERS

    @property
    def kind(self) -> IndexKind:
        return self._rows.kind

    @property
    def size(self) -> int:
        """Bytes of memory, of vectors and what finds their subjects."""
        with self._lock:
            arrays = (self._faces[: self.faces], self._weights[: self.faces])
            return self._rows.size + self._chains.size + sum(array.nbytes for array in arrays)

    @property
    def rounding(self) -> float:
        """See `app.search.quantised.rounding`."""
        return rounding(self.dimension)

    def convert(self, kind: IndexKind) -> None:
        """From now on it is searched by another kind's copy, which is made now, while others wait."""
        with self._lock:
            self._rows.convert(kind)

    def drop_stale_copies(self) -> None:
        """Drop the GPU's copy where it has held removed faces for MIRROR_S. Call it often."""
        gpu, mirrored = self._gpu, self._mirrored
        if gpu and mirrored and mirrored.watch.moved and time.monotonic() - mirrored.at > MIRROR_S:
            gpu.run(self._give_up_mirror)

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
            end = start + len(block.faces)
            self._faces, self._weights = grown(self._faces, start, end), grown(self._weights, start, end)
            self._faces[start:end] = block.faces
            self._weights[start:end] = np.maximum(block.qualities, MIN_WEIGHT)
            self._chains.append(block.subjects)
            self._rows.append(vectors)

    def remove(self, face: int, subject: int) -> bool:
        """Removes one face of `subject`; False where it isn't in."""
        with self._lock:
            for row in self._chains.rows_of(subject):
                if self._faces[row] == face:
                    self._remove_row(row)
                    return True
        return False

    def remove_subject(self, subject: int) -> int:
        """Removes the subject's faces and says how many there were."""
        removed = 0
        with self._lock:
            while (row := self._chains.first(subject)) != NO_ROW:
                self._remove_row(row)
                removed += 1
        return removed

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """For each probe, (Q, D) unit float32, the `limit` subjects with the highest scores, best first; fewer where
        there are fewer, whatever the number of faces a subject has."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or not self.faces:
            return [[] for _ in probes]
        fetch = max(FETCH_MIN, FETCH_PER_SUBJECT * limit)
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
        """Each probe, (Q, D) unit float32, against one subject; None where it has no face."""
        with self._lock:
            rows = np.fromiter(self._chains.rows_of(subject), np.int64)
            if not len(rows):
                return [None] * len(vectors)
            best = self._best(vectors, np.tile(rows, (len(vectors), 1)), 1)
            return [self._matches(probe, found)[0] for probe, found in zip(vectors, best, strict=True)]

    def mean(self, subject: int) -> Vector | None:
        """(D,) unit float32: the mean of the subject's vectors, each weighted by its quality (at least MIN_WEIGHT).

        None where it has no face; zeros where the vectors cancel out.
        """
        with self._lock:
            rows = list(self._chains.rows_of(subject))
            return self._mean(rows).astype(np.float32) if rows else None

    def view(self) -> FaceBlock:
        """All faces, in no order, not copied: only to be looked at while nobody adds or removes."""
        with self._lock:
            count = self.faces
            return FaceBlock(self._faces[:count], self._chains.subjects, self._weights[:count], self._rows.vectors)

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

    # A pass, without the lock

    def _pass(self, probes: Vectors, limit: int, fetch: int) -> list[list[Match] | None]:
        """What can be said from `fetch` rows of each probe; None where others may belong to the answer."""
        if self._gpu is not None and not self.quick:
            try:
                return self._gpu.run(partial(self._pass_on, self._gpu, probes, limit, fetch))
            except GpuFailed as error:
                _log.warning("An index of %d faces is searched on the CPU from now on: %s", self.faces, error)
                self._gpu = None
        with self._watching() as watch:
            near = self._nearest(watch.scan, (0, watch.count), probes, fetch)
            with self._lock:
                return self._settled(watch, near, probes, fetch, limit)

    # On the GPU's thread, the only one that makes mirrors and gives them up

    def _pass_on(self, gpu: Gpu, probes: Vectors, limit: int, fetch: int) -> list[list[Match] | None]:
        """As `_pass`. Raises GpuFailed."""
        watch = self._current_mirror(gpu)
        try:
            near = watch.scan.nearest(0, watch.count, probes, fetch)
        except BaseException:
            self._give_up_mirror()
            raise
        with self._lock:
            return self._settled(watch, near, probes, fetch, limit)

    def _current_mirror(self, gpu: Gpu) -> _Watch:
        """What is on the GPU, brought up to date where that is due. Rows are taken while others write: those that
        change are known, since the watch is there before. Raises GpuFailed."""
        with self._lock:
            old, half = self._mirrored, self.kind != "fp32"
            if old is not None and (old.mirror.half != half or len(old.watch.moved) >= MIRROR_MOVED):
                old = None
            if old is not None and self.faces - old.watch.low < MIRROR_COME:
                return old.watch
            watch = _Watch(self._rows.scan(), self._rows.vectors, self.faces, self.faces)
            self._watches.add(watch)
            if old is not None and old.watch.low == old.watch.count:
                watch.moved.update(old.watch.moved)
            else:
                old = None
        self._give_up_mirror()
        try:
            watch.scan = mirror = Mirror(gpu, self.dimension, half=half) if old is None else old.mirror
            mirror.extend(watch.vectors)
        except BaseException:
            with self._lock:
                self._watches.discard(watch)
            raise
        self._mirrored = _Mirrored(mirror, watch, time.monotonic())
        return watch

    def _give_up_mirror(self) -> None:
        with self._lock:
            if self._mirrored is not None:
                self._watches.discard(self._mirrored.watch)
                self._mirrored = None

    @contextmanager
    def _watching(self) -> Iterator[_Watch]:
        with self._lock:
            watch = _Watch(self._rows.scan(), self._rows.vectors, self.faces, self.faces)
            self._watches.add(watch)
        try:
            yield watch
        finally:
            with self._lock:
                self._watches.remove(watch)

    def _nearest(self, scan: Scan, rows: tuple[int, int], probes: Vectors, fetch: int) -> Near:
        """For each probe the `fetch` rows that score highest."""
        if rows[0] >= rows[1]:
            floors = np.full(len(probes), -np.inf, np.float32)
            return Near(np.empty((len(probes), 0), np.float32), np.empty((len(probes), 0), np.int64), floors)
        parts = self._in_parts(rows, lambda start, end: scan.nearest(start, end, probes, fetch))
        return merged(parts, fetch)

    def _in_parts(self, rows: tuple[int, int], scan: Callable[[int, int], R]) -> list[R]:
        """Of so many rows as are worth it, a part a thread, in order."""
        start, end = rows
        parts = min(self._threads, (end - start) // SPLIT_ROWS)
        if parts < 2 or self._helpers is None:
            return [scan(start, end)]
        edges = np.linspace(start, end, parts + 1).astype(int).tolist()
        others = [self._helpers.submit(scan, begin, stop) for begin, stop in pairwise(edges[1:])]
        return [scan(start, edges[1]), *(other.result() for other in others)]

    def _search_all(self, probe: Vector, limit: int) -> list[Match]:
        """As `search`, by all rows' scores: where few subjects have most of the near faces, or many scores are
        equal."""
        with self._watching() as watch:
            rough = np.concatenate(
                self._in_parts((0, watch.count), lambda start, end: watch.scan.rough(start, end, probe))
            )
            with self._lock:
                rough = self._renewed(watch, rough, probe)
                error = float(max(self._errors(watch, probe[None])))
                return self._matches(probe, self._best_of_all(probe, rough, error, limit))

    # All below is called with the lock held.

    def _settled(self, watch: _Watch, near: Near, probes: Vectors, fetch: int, limit: int) -> list[list[Match] | None]:
        """What a pass has found, as it is now; None where it is not known to be all."""
        if not self.faces:
            return [[] for _ in probes]
        if len(watch.moved) > MOVED_MOST:
            near = self._nearest(self._rows.scan(), (0, self.faces), probes, fetch)
        elif watch.moved or not watch.low == watch.count == self.faces:
            near = self._with_changed(watch, near, probes, fetch)
        errors = self._errors(watch, probes)
        best = self._best(probes, self._promising(near, probes, errors, limit), limit)
        return [
            self._matches(probe, found) if _is_complete(found, float(floor), float(error), limit) else None
            for probe, found, floor, error in zip(probes, best, near.floors, errors, strict=True)
        ]

    def _promising(self, near: Near, probes: Vectors, errors: NDArray[np.float64], limit: int) -> NDArray[np.int64]:
        """The rows without those, NO_ROW, that the scores of the best leave no place for."""
        few = max(FETCH_MIN, FETCH_PER_SUBJECT * limit)
        if near.scores.shape[1] <= few:
            return near.rows
        best = self._best(probes, near.rows[:, :few], limit)
        least = [found[-1][1] if len(found) == limit else -np.inf for found in best]
        wanted = near.scores >= (np.array(least) - errors)[:, None]  # of each probe the first ones
        return np.where(wanted, near.rows, NO_ROW)[:, : np.count_nonzero(wanted.any(axis=0))]

    def _with_changed(self, watch: _Watch, near: Near, probes: Vectors, fetch: int) -> Near:
        """Without the rows that aren't there any more, with all that were overwritten and the best of the new ones."""
        new = self._nearest(self._rows.scan(), (watch.low, self.faces), probes, fetch)
        moved = np.array(sorted(row for row in watch.moved if row < watch.low), np.int64)
        old = np.where((near.rows < watch.low) & ~np.isin(near.rows, moved), near.rows, NO_ROW)
        rows = np.concatenate([old, new.rows, np.tile(moved, (len(probes), 1))], axis=1)
        return Near(np.empty((len(probes), 0), np.float32), rows, np.maximum(near.floors, new.floors))

    def _renewed(self, watch: _Watch, rough: NDArray[np.float32], probe: Vector) -> NDArray[np.float32]:
        """The scores of all rows as they are now."""
        moved = np.array([row for row in watch.moved if row < watch.low], np.int64)
        rough = np.concatenate([rough[: watch.low], self._rows.scan().rough(watch.low, self.faces, probe)])
        rough[moved] = self._scores(probe[None], moved[None])[0]
        return rough

    def _errors(self, watch: _Watch, probes: Vectors) -> NDArray[np.float64]:
        """(Q,) how far scores of a pass, and of rows that have come since, may be from the exact ones."""
        return np.maximum(watch.scan.errors(probes), self._rows.scan().errors(probes))

    def _equal(self, block: FaceBlock, which: NDArray[np.bool_], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the faces `which` of `block` are what lies in `rows`, bit by bit."""
        return np.asarray(
            (self._rows.vectors[rows] == block.vectors[which]).all(axis=1)
            & (self._chains.subjects[rows] == block.subjects[which])
            & (self._weights[rows] == np.maximum(block.qualities[which], MIN_WEIGHT))
        )

    def _remove_row(self, row: int) -> None:
        last = self.faces - 1
        for column in (self._faces, self._weights):
            column[row] = column[last]
        self._chains.remove(row)
        self._rows.remove(row)
        for watch in self._watches:
            watch.moved.add(row)
            watch.low = min(watch.low, last)

    def _scores(self, probes: Vectors, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """(Q, R) exact cosines of each probe with its rows, (Q, R), -inf with NO_ROW. Each is summed in the same order
        wherever the row lies and however many there are, which a BLAS product would not do."""
        vectors, wide = self._rows.vectors, probes.astype(np.float64)
        scores = np.full(rows.shape, -np.inf)
        for start in range(0, rows.shape[1], EXACT_ROWS):
            some = slice(start, start + EXACT_ROWS)
            for probe, mine, found in zip(wide, rows[:, some], scores[:, some], strict=True):
                there = mine != NO_ROW
                found[there] = (vectors[mine[there]] * probe).sum(axis=1)  # (EXACT_ROWS, D) float64
        return scores

    def _best(self, probes: Vectors, rows: NDArray[np.int64], limit: int) -> list[list[tuple[int, float]]]:
        """For each probe the best row, with its score, of each of the best subjects among its `rows`, (Q, R), of which
        those that are NO_ROW don't count."""
        scores = self._scores(probes, rows)
        order = np.lexsort((self._faces[rows], -scores), axis=-1)
        rows, scores = np.take_along_axis(rows, order, 1), np.take_along_axis(scores, order, 1)
        counts = np.count_nonzero(rows != NO_ROW, axis=1).tolist()
        ranked = zip(self._chains.subjects[rows].tolist(), rows.tolist(), scores.tolist(), counts, strict=True)
        return [
            _firsts(subjects[:count], found[:count], values[:count], limit) for subjects, found, values, count in ranked
        ]

    def _best_of_all(
        self, probe: Vector, rough: NDArray[np.float32], error: float, limit: int
    ) -> list[tuple[int, float]]:
        """As `_best`, over all rows, of scores (N,) that may be wrong by `error`."""
        count = len(rough)
        width = min(count, WIDEN * max(FETCH_MIN, FETCH_PER_SUBJECT * limit))
        while True:
            near = np.argpartition(rough, -width)[-width:] if width < count else np.arange(count)
            best = self._best_rough(rough, near, limit)
            if len(best) == limit:
                near = np.flatnonzero(rough >= best[-1] - 2 * error)
            if len(best) == limit or width == count:
                return self._best(probe[None], near[None], limit)[0]
            width = min(count, WIDEN * width)

    def _best_rough(self, rough: NDArray[np.float32], rows: NDArray[np.int64], limit: int) -> list[float]:
        order = rows[np.argsort(-rough[rows])]
        _, firsts = np.unique(self._chains.subjects[order], return_index=True)
        return [float(score) for score in rough[order[np.sort(firsts)[:limit]]]]

    def _matches(self, probe: Vector, best: Sequence[tuple[int, float]]) -> list[Match]:
        matches = []
        for row, score in best:
            subject = int(self._chains.subjects[row])
            alone = self._chains.is_alone(row)
            mean_score = score if alone else self._mean_score(probe, subject)
            matches.append(Match(subject, int(self._faces[row]), _cosine(score), _cosine(mean_score)))
        return matches

    def _mean_score(self, probe: Vector, subject: int) -> float:
        return float((self._mean(list(self._chains.rows_of(subject))) * probe.astype(np.float64)).sum())

    def _mean(self, rows: list[int]) -> NDArray[np.float64]:
        ordered = np.array(rows)[np.argsort(self._faces[rows])]  # the sum doesn't depend on the rows' places
        total = (self._rows.vectors[ordered] * self._weights[ordered, None].astype(np.float64)).sum(axis=0)  # (D,)
        length = float(np.linalg.norm(total))
        unit: NDArray[np.float64] = total / length if length > 0 else total
        return unit


def _is_complete(best: Sequence[tuple[int, float]], floor: float, error: float, limit: int) -> bool:
    """Whether no face beyond those looked at, none of which scored higher than `floor`, can belong among the best."""
    return floor == -np.inf or (len(best) == limit and best[-1][1] > floor + error)


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
