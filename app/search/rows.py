"""The rows of an index in memory, one a face, and exact scores between them and probes.

Rows are only appended. A removed row keeps its place, masked and without its vector, until the rest is copied into new
rows; a face that moves to another subject is removed and appended. So whoever holds a view needs no lock to read it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import faiss
import numpy as np
from numpy.typing import NDArray

from app.choices import IndexKind
from app.memory import room_to_grow
from app.search.quantised import NO_ROW, ByteScan, ExactScan, Levels, Scan, encode
from app.search.types import FaceBlock, Keys
from app.types import Sizes, Vector, Vectors

COLUMN_BYTES = 29
"""Of a row beside its vector."""
MAP_ENTRY_BYTES = 40
"""Approximate size of a subject in FAISS's map."""
MIN_WEIGHT = 1.0
"""The lowest quality that a row keeps, as snapshots have since 0.1.0."""
EXACT_ROWS = 1_024
"""Rows scored at once in float64: 1 MiB at 128 numbers, which stay in a core's cache."""
WIDEN = 8
"""Factor by which a search looks at more rows each time that they hold too few subjects."""
PIECE_ROWS = 16_384
"""Rows copied at once for a snapshot or new rows: 8 MiB at 128 numbers."""
Best = list[tuple[int, float]]
"""The best row and its score of each of some subjects, the best first."""
R = TypeVar("R")


def widened(
    search: Callable[[Sequence[int], int], Sequence[R]], is_short: Callable[[R, int], bool], count: int, wanted: int
) -> list[R]:
    """Search for `count` probes, and again for those whose result is short: for WIDEN times as many rows each time.

    `search` takes the probes' places and how many rows are wanted, and returns a result for each; `is_short` takes a
    result and how many were wanted.
    """
    found = list(search(range(count), wanted)) if count else []
    while short := [place for place, result in enumerate(found) if is_short(result, wanted)]:
        wanted *= WIDEN
        for place, result in zip(short, search(short, wanted), strict=True):
            found[place] = result
    return found


@dataclass(frozen=True, slots=True)
class View:
    """The rows that there were at one moment. Rows removed since are masked in it, others added since are not in it.

    Scores are computed in float64 from the stored float32 vectors, row by row, so they depend on nothing but the two
    vectors: not on how many probes were scored together, on where the row lies, nor on the kind of search.
    """

    count: int
    """Number of rows, removed ones included."""
    faces: Keys
    subjects: Keys
    weights: NDArray[np.float32]
    there: NDArray[np.bool_]
    """Which rows are not removed."""
    vectors: Vectors
    scan: Scan
    rows: Rows
    renewals: int
    """The rows' own at that moment."""

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
            some = slice(start, start + EXACT_ROWS)
            scores[some] = (self.vectors[rows[some]] * wide).sum(axis=1)  # a BLAS product depends on how many rows
        there = self.there[rows]  # looked at last: a row is masked before its vector goes
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

    def ordered(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """Return the rows in the order of their faces, so that a sum doesn't depend on the rows' places."""
        return np.array([row for _, row in sorted(zip(self.faces[rows].tolist(), rows, strict=True))], np.int64)


class Rows:
    """Not safe to share between threads, but its views are.

    Each subject's rows are a list: a row knows the subject's row before it, and a map the last one. So adding and
    removing a row cost the same at any size.
    """

    def __init__(self, dimension: int, kind: IndexKind) -> None:
        self._faces = np.empty(0, np.int64)
        self._subjects = np.empty(0, np.int64)
        self._weights = np.empty(0, np.float32)
        self._there = np.empty(0, np.bool_)
        self._before = np.empty(0, np.int32)  # the subject's row before this one; NO_ROW for its first
        self._held = np.empty(0, np.int32)  # at a subject's last row: how many rows it has
        self._vectors = np.empty((0, dimension), np.float32)
        self._codes: Levels = np.empty((0, 0), np.int8)
        self._error = 0.0
        self._last: Any = faiss.MapLong2Long()  # subject -> its last row, also once that is removed
        self._subject_count = 0  # in the map
        self.count = 0
        """Rows, removed ones included."""
        self.removed = 0
        self.renewals = 0
        """How many times rows got other places: an earlier view doesn't see what was removed or moved since."""
        self.sizes: Sizes = {}
        """How many subjects have so many faces. Replaced with each change, so that it may be read at any moment."""
        self.kind: IndexKind = "fp32"
        self.convert(kind)

    @property
    def size(self) -> int:
        """Bytes in use."""
        row = COLUMN_BYTES + 4 * self._vectors.shape[1] + self._codes.shape[1]
        return int(self.count * row + self._subject_count * MAP_ENTRY_BYTES)

    def view(self) -> View:
        end, vectors = self.count, self._vectors[: self.count]
        columns = self._faces[:end], self._subjects[:end], self._weights[:end], self._there[:end]
        scan = ExactScan(vectors) if self.kind == "fp32" else ByteScan(self._codes[:end], self._error)
        return View(end, *columns, vectors, scan, self, self.renewals)

    def frozen(self) -> View:
        """Return a view in which rows removed later are not masked; they may have lost their vectors."""
        view = self.view()
        return replace(view, there=view.there.copy())

    def append(self, block: FaceBlock) -> None:
        start, end = self.count, self.count + len(block.faces)
        if start == end:
            return
        if end > len(self._faces):
            self.renewals += 1
        for name in ("faces", "subjects", "weights", "there", "before", "held", "vectors", "codes"):
            setattr(self, f"_{name}", _grown(getattr(self, f"_{name}"), start, end))
        self._faces[start:end], self._subjects[start:end] = block.faces, block.subjects
        self._weights[start:end] = np.maximum(block.qualities, MIN_WEIGHT)
        self._there[start:end] = True
        self._vectors[start:end] = block.vectors
        if self.kind == "int8":
            self._codes[start:end], error = encode(self._vectors[start:end])
            self._error = max(self._error, error)
        self._list(block.subjects, start)
        self.count = end

    def remove(self, row: int) -> None:
        """Mask a row and remove its vector. The row must be there."""
        self._there[row] = False
        self._vectors[row] = 0
        self._codes[row] = 0
        last = int(self._last.search(int(self._subjects[row])))
        self._resize(self._held[last : last + 1], self._held[last : last + 1] - 1)
        self._held[last] -= 1
        self.removed += 1

    def move(self, faces: Keys, subjects: Keys) -> None:
        """Give each of the faces, (N,), to a subject, (N,); those that aren't there are passed over."""
        wanted = dict(zip(faces.tolist(), subjects.tolist(), strict=True))
        self.renewals += 1
        end = self.count
        rows = np.flatnonzero(np.isin(self._faces[:end], faces) & self._there[:end])
        keys = np.array([wanted[face] for face in self._faces[rows].tolist()], np.int64)
        moved = FaceBlock(self._faces[rows], keys, self._weights[rows], self._vectors[rows])
        for row in rows.tolist():
            self.remove(row)
        self.append(moved)

    def rows_of(self, subject: int, among: int | None = None) -> list[int]:
        """Return the subject's rows that are there, those of the first `among` rows only if it is given."""
        return self._chain(int(self._last.search(subject)), among)

    def rows_of_all(self, subjects: Sequence[int], among: int | None = None) -> list[list[int]]:
        """Return `rows_of` each subject."""
        if not subjects:
            return []
        return [self._chain(row, among) for row in self._last.search_multiple(np.array(subjects, np.int64)).tolist()]

    def _chain(self, row: int, among: int | None) -> list[int]:
        """Return the rows that are there, from a subject's last one on back."""
        rows = []
        while row != NO_ROW:
            if self._there[row] and (among is None or row < among):
                rows.append(row)
            row = int(self._before[row])
        return rows

    def convert(self, kind: IndexKind) -> None:
        """Replace the copy of the vectors by another kind's."""
        if kind == self.kind:
            return
        self.kind, self._error = kind, 0.0
        width = self._vectors.shape[1] if kind == "int8" else 0
        self._codes = room_to_grow(self.count, (width,), np.dtype(np.int8))
        if kind == "int8" and self.count:
            self._codes[: self.count], self._error = encode(self._vectors[: self.count])

    def _list(self, subjects: Keys, start: int) -> None:
        """Put the new rows from `start` on at the end of their subjects' lists."""
        order = np.argsort(subjects, kind="stable")
        rows = order.astype(np.int32) + np.int32(start)
        begins = np.append(True, np.diff(subjects[order]) != 0)
        ends = np.append(begins[1:], True)
        keys = np.ascontiguousarray(subjects[order][begins], np.int64)
        last = self._last.search_multiple(keys).astype(np.int32)
        self._before[rows] = np.append(np.int32(NO_ROW), rows[:-1])
        self._before[rows[begins]] = last
        self._last.add(keys, rows[ends].astype(np.int64))
        held = np.where(last == NO_ROW, 0, self._held[last])
        self._held[rows[ends]] = held + np.diff(np.flatnonzero(begins), append=len(rows))
        self._subject_count += int(np.count_nonzero(last == NO_ROW))
        self._resize(held, self._held[rows[ends]])

    def _resize(self, before: NDArray[np.int32], after: NDArray[np.int32]) -> None:
        """Count subjects that had so many rows, (S,), and have so many now; 0: none."""
        sizes = Counter(self.sizes)
        sizes.update(after.tolist())
        sizes.subtract(before.tolist())
        self.sizes = {faces: subjects for faces, subjects in sizes.items() if faces and subjects}


def mean_of(vectors: Vectors) -> tuple[NDArray[np.float64], float]:
    """Return the (D,) mean of a subject's vectors, (N, D), scaled to length 1, and its length before, 0 to 1; zeros if
    they cancel out. Weights by quality find nobody more, and would leave out profiles."""
    mean: NDArray[np.float64] = vectors.mean(axis=0, dtype=np.float64)
    length = float(np.linalg.norm(mean))
    return (mean / length if length > 0 else mean), min(1.0, length)


def _grown(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """Return `array`, or a larger copy of its first `count` rows if it has no room for so many `rows`."""
    if rows <= len(array):
        return array
    larger = room_to_grow(rows, array.shape[1:], array.dtype)
    larger[:count] = array[:count]
    return larger
