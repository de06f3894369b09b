"""The rows of an index in memory: their vectors, the copy that its kind of search reads, and whose they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from app.memory import room_to_grow
from app.search.quantised import NO_ROW, ByteScan, ExactScan, Levels, Scan, encode
from app.search.types import IndexKind, Keys
from app.types import Sizes, Vectors

MAP_ENTRY_BYTES = 40
"""Approximate size of a subject in FAISS's map."""
FORGOTTEN_MIN = 1_024


class Rows:
    """Rows without gaps: a removed row is overwritten by the last one, so removing costs the same at any size.

    Not safe to share between threads, but a scan may be used while others write: it keeps the arrays of its time, which
    are replaced when they grow.
    """

    def __init__(self, dimension: int, kind: IndexKind) -> None:
        self._exact = np.empty((0, dimension), np.float32)
        self._codes: Levels = np.empty((0, 0), np.int8)
        self._error = 0.0
        self.count = 0
        self.kind: IndexKind = "fp32"
        self.convert(kind)

    @property
    def vectors(self) -> Vectors:
        """The rows, (N, D); valid until rows are added."""
        return self._exact[: self.count]

    @property
    def size(self) -> int:
        """Bytes in use."""
        return self.vectors.nbytes + self._codes[: self.count].nbytes

    def scan(self) -> Scan:
        if self.kind == "fp32":
            return ExactScan(self.vectors)
        return ByteScan(self._codes[: self.count], self._error)

    def append(self, vectors: Vectors) -> None:
        end = self.count + len(vectors)
        self._exact = grown(self._exact, self.count, end)
        self._codes = grown(self._codes, self.count, end)
        self._exact[self.count : end] = vectors
        if self.kind == "int8":
            self._codes[self.count : end], error = encode(vectors)
            self._error = max(self._error, error)
        self.count = end

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        last = self.count - 1
        for array in (self._exact, self._codes):
            array[row] = array[last]
            array[last] = 0  # so that no removed template stays in memory
        self.count = last
        if not last:
            self._error = 0.0

    def convert(self, kind: IndexKind) -> None:
        """Replace the copy by another kind's."""
        if kind == self.kind:
            return
        self.kind, self._error = kind, 0.0
        width = self._exact.shape[1] if kind == "int8" else 0
        self._codes = room_to_grow(self.count, (width,), np.dtype(np.int8))
        if kind == "int8" and self.count:
            self._codes[: self.count], self._error = encode(self.vectors)


class SubjectRows:
    """Each subject's rows are a doubly linked list in two int32 arrays, so adding, removing and moving a row cost the
    same at any size. Not safe to share between threads."""

    def __init__(self) -> None:
        self._subjects = np.empty(0, np.int64)
        self._next = np.empty(0, np.int32)
        self._previous = np.empty(0, np.int32)
        self._faces = np.empty(0, np.int32)  # at a subject's first row: how many rows it has
        self._first: Any = faiss.MapLong2Long()  # subject -> its first row; NO_ROW once it has none
        self._count = 0
        self._forgotten = 0  # subjects that are in the map with NO_ROW
        self.sizes: Sizes = {}
        """Replaced with each change, so that it may be read at any moment."""

    @property
    def subjects(self) -> Keys:
        """The subject of each row, (N,); valid until rows are added."""
        return self._subjects[: self._count]

    @property
    def size(self) -> int:
        arrays = (self._subjects, self._next, self._previous, self._faces)
        return (
            sum(array[: self._count].nbytes for array in arrays)
            + (self.subject_count + self._forgotten) * MAP_ENTRY_BYTES
        )

    @property
    def subject_count(self) -> int:
        """Number of subjects that have a row."""
        return sum(self.sizes.values())

    def append(self, subjects: Keys) -> None:
        """Add a row for each of these subjects, at the front of the subject's list."""
        start, end = self._count, self._count + len(subjects)
        self._subjects, self._next, self._previous, self._faces = (
            grown(array, start, end) for array in (self._subjects, self._next, self._previous, self._faces)
        )
        self._subjects[start:end] = subjects
        self._count = end
        order = np.argsort(subjects, kind="stable")
        rows = order.astype(np.int32) + np.int32(start)
        begins = np.append(True, np.diff(subjects[order]) != 0)
        ends = np.append(begins[1:], True)
        keys = np.ascontiguousarray(subjects[order][begins], np.int64)
        old = self._first.search_multiple(keys).astype(np.int32)
        self._next[rows] = np.append(rows[1:], NO_ROW)
        self._next[rows[ends]] = old
        self._previous[rows] = np.append(np.int32(NO_ROW), rows[:-1])
        self._previous[rows[begins]] = NO_ROW
        known = old != NO_ROW
        self._previous[old[known]] = rows[ends][known]
        self._first.add(keys, rows[begins].astype(np.int64))
        before = np.where(known, self._faces[old], 0)
        self._faces[rows[begins]] = before + np.diff(np.flatnonzero(begins), append=len(rows))
        self._resize(before, self._faces[rows[begins]])

    def first(self, subject: int) -> int:
        """Return a row of the subject; NO_ROW if it has none."""
        return int(self._first.search(subject))

    def rows_of(self, subject: int) -> Iterator[int]:
        row = self.first(subject)
        while row != NO_ROW:
            yield row
            row = int(self._next[row])

    def give(self, row: int, subject: int) -> None:
        """Give the row to another subject."""
        self._unlink(row)
        first = self.first(subject)
        faces = 0 if first == NO_ROW else int(self._faces[first])
        self._subjects[row], self._next[row], self._previous[row] = subject, first, NO_ROW
        self._faces[row] = faces + 1
        self._resize(np.array([faces]), np.array([faces + 1]))
        if first != NO_ROW:
            self._previous[first] = row
        self._set_first(subject, row)

    def remove(self, row: int) -> None:
        """Remove a row; the last row takes its place."""
        self._unlink(row)
        last = self._count - 1
        if row != last:
            self._move(last, row)
        self._count = last

    def faces_of(self, subject: int) -> int:
        """Return how many rows a subject has, which must have one."""
        return int(self._faces[self.first(subject)])

    def _unlink(self, row: int) -> None:
        before, after, subject = int(self._previous[row]), int(self._next[row]), int(self._subjects[row])
        faces = self.faces_of(subject)
        self._resize(np.array([faces]), np.array([faces - 1]))
        if after != NO_ROW:
            self._previous[after] = before
        if before != NO_ROW:
            self._next[before] = after
            self._faces[self.first(subject)] = faces - 1
            return
        self._set_first(subject, after)
        if after != NO_ROW:
            self._faces[after] = faces - 1
        else:
            self._forget_one()

    def _resize(self, before: NDArray[np.int32], after: NDArray[np.int32]) -> None:
        """Count subjects that had so many rows, (S,), and have so many now; 0: none."""
        sizes = Counter(self.sizes)
        sizes.update(_counted(after))
        sizes.subtract(_counted(before))
        self.sizes = {faces: subjects for faces, subjects in sizes.items() if faces and subjects}

    def _move(self, source: int, target: int) -> None:
        for column in (self._subjects, self._next, self._previous, self._faces):
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
        """Replace FAISS's map, which can't remove a key, before it has more removed subjects than others."""
        self._forgotten += 1
        if self._forgotten > self.subject_count + FORGOTTEN_MIN:
            # The row being removed is the only one that may still look like a first row without being one.
            rows = np.flatnonzero(self._previous[: self._count] == NO_ROW)
            rows = rows[self._first.search_multiple(self._subjects[rows]) == rows]
            self._first = faiss.MapLong2Long()
            self._first.add(self._subjects[rows], rows)
            self._forgotten = 0


def _counted(faces: NDArray[np.int32]) -> dict[int, int]:
    values, counts = np.unique(faces, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))


def grown(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """Return `array`, or a larger copy of its first `count` rows if it has no room for so many `rows`."""
    if rows <= len(array):
        return array
    larger = room_to_grow(rows, array.shape[1:], array.dtype)
    larger[:count] = array[:count]
    return larger
