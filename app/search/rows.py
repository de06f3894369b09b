"""The vectors of an index in memory, and the copy of them that its kind of search reads."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.memory import room_to_grow
from app.search.quantised import ByteScan, ExactScan, Levels, Scan, encode
from app.search.types import IndexKind
from app.types import Vectors


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


def grown(array: NDArray[Any], count: int, rows: int) -> NDArray[Any]:
    """Return `array`, or a larger copy of its first `count` rows if it has no room for so many `rows`."""
    if rows <= len(array):
        return array
    larger = room_to_grow(rows, array.shape[1:], array.dtype)
    larger[:count] = array[:count]
    return larger
