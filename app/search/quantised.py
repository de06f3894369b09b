"""Scan an 8-bit copy of an index's vectors, a quarter of their size, for the rows with high scores for a probe.

A scan (`Scan`) returns scores with a bound of their errors (`Near`). The caller scores the rows again, exactly,
and knows by the bound whether any other row could belong to the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numkong
import numpy as np
from numpy.typing import NDArray

from app.types import UNIT_TOLERANCE, Vectors

SPREAD = 6.0
"""The largest number of an int8 code, in standard deviations of a unit vector's numbers, 1 / sqrt(D); larger ones are
clipped. Rounding then moves a vector by about SPREAD / 127 / sqrt(12) = 0.014 for every D. Half the spread would clip
real vectors."""
MAX_LENGTH = 1 + UNIT_TOLERANCE
"""Upper bound of the length of stored vectors."""
ENCODE_ROWS = 8_192
"""Rows encoded at once, which bounds the memory for it."""
SCORES_AT_ONCE = 131_072
"""Scores of one integer product: 512 KiB, which fit in a core's cache until they are compared."""
ROWS_AT_ONCE = 32_768
"""Maximum rows of one integer product."""
SAMPLE_ROWS = 2_048
"""Minimum rows to score first, to estimate a floor for the interesting scores."""
SAMPLE_STRIDE = 64
"""Maximum distance in rows between two rows of the sample."""
EXPECT = 2
"""Multiple of the wanted rows that should be above that floor, since the small sample gives a coarse estimate."""
SETTLE_AT = 4
"""Multiple of the wanted rows to collect before sorting them."""
Levels: TypeAlias = NDArray[np.int8]
"""Within ±LARGEST."""
LARGEST = 127
LOWEST = np.iinfo(np.int32).min
NO_ROW = -1


@dataclass(frozen=True, slots=True)
class Near:
    """The highest scores and their rows for each of Q probes, (Q, F) each, best first, padded with -inf and NO_ROW.

    No other row scores above the floor, (Q,), which is -inf if there are no others. A score may be wrong by the probe's
    error, (Q,)."""

    scores: NDArray[np.float32]
    rows: NDArray[np.int64]
    floors: NDArray[np.float32]
    errors: NDArray[np.float64]


def nothing_near(probes: int) -> Near:
    """Return the result for this many probes if there are no rows."""
    empty = np.empty((probes, 0), np.float32)
    return Near(empty, empty.astype(np.int64), np.full(probes, -np.inf, np.float32), np.zeros(probes))


class Scan(Protocol):
    """The rows at the time it was made, including removed ones, which score 0. Safe to share between threads."""

    def nearest(self, start: int, end: int, probes: Vectors, fetch: int) -> Near:
        """Return about the `fetch` highest scores of each probe, (Q, D), among the rows from `start` to `end`, at least
        one. Runs on this thread."""
        ...


def rounding(dimension: int) -> float:
    """Bound the error of a float32 score: D * eps / 2 for unit vectors in any order of summation (Higham 2002, section
    3.1), doubled because two scores are compared, and doubled again as a margin."""
    return 2 * dimension * float(np.finfo(np.float32).eps)


def encode(vectors: Vectors) -> tuple[Levels, float]:
    """Return the (N, D) int8 copy of vectors, and the largest distance between a vector and its decoded copy.

    All vectors of a length have the same scale: LARGEST stands for SPREAD / sqrt(D), at most 1. Since the distance is
    measured, a clipped number costs speed, but never an answer.
    """
    step = _step(vectors.shape[1])
    codes = np.empty(vectors.shape, np.int8)
    farthest = 0.0
    for start in range(0, len(vectors), ENCODE_ROWS):
        part = vectors[start : start + ENCODE_ROWS]
        levels = np.clip(np.rint(part / step), -LARGEST, LARGEST)
        codes[start : start + ENCODE_ROWS] = levels
        distances = np.linalg.norm(levels * step - part, axis=1)
        farthest = max(farthest, float(distances.max()))
    return codes, farthest


class Columns:
    """(Q, D) levels, prepared for multiplying them by many rows with NumKong, which uses 8-bit instructions (VNNI,
    AMX); NumPy and FAISS don't for more than one query at a time."""

    def __init__(self, levels: Levels) -> None:
        self._packed: Any = numkong.dots_pack(np.ascontiguousarray(levels), dtype="int8")

    def products(self, rows: Levels) -> NDArray[np.int32]:
        """Return the (N, Q) exact products of rows, (N, D), N >= 1. Each call uses one thread."""
        return np.asarray(numkong.dots_packed(rows, self._packed), np.int32)


@dataclass(frozen=True, slots=True)
class ByteScan:
    """Multiplies codes by probes of eight bits, in integers."""

    codes: Levels
    error: float

    def nearest(self, start: int, end: int, probes: Vectors, fetch: int) -> Near:
        # Each probe has its own scale, the value of one level.
        steps = np.maximum(np.abs(probes).max(axis=1), np.finfo(np.float32).tiny).astype(np.float64) / LARGEST
        levels = np.rint(probes / steps[:, None]).astype(np.int8)
        columns = Columns(levels)
        best = _Best(len(probes), fetch, probes.shape[1])
        stride = min((end - start) // SAMPLE_ROWS, SAMPLE_STRIDE)
        if stride > 1:
            best.expect(columns.products(np.ascontiguousarray(self.codes[start:end:stride])), stride)
        size = max(1, min(ROWS_AT_ONCE, SCORES_AT_ONCE // len(probes)))
        for begin in range(start, end, size):
            best.offer(columns.products(self.codes[begin : min(end, begin + size)]), begin)
        # q * v - q' * v' = q' * (v - v') + (q - q') * v, each at most the product of the lengths.
        rounded = levels * steps[:, None]
        off = np.linalg.norm(probes - rounded, axis=1)
        errors = np.linalg.norm(rounded, axis=1) * self.error + off * MAX_LENGTH + rounding(probes.shape[1])
        return best.found(steps * _step(probes.shape[1]), errors)


class _Best:
    """Collects about the `keep` highest scores of each query. Scores below a rising floor are skipped at once."""

    def __init__(self, queries: int, keep: int, dimension: int) -> None:
        self._queries, self._keep = queries, keep
        self._span = 4 * LARGEST**2 * dimension  # larger than any difference of two scores
        self._floors = np.full(queries, LOWEST, np.int32)
        # The floors, repeated for all scores of an offer: broadcasting short rows is slower.
        self._floor_of_each = np.empty(0, np.int32)
        self._kept: list[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = []
        self._waiting = 0

    def expect(self, sample: NDArray[np.int32], stride: int) -> None:
        """Estimate floors from the scores of every `stride`-th row, (M, Q)."""
        rank = EXPECT * self._keep // stride + 1
        if rank < len(sample):
            there = np.partition(np.ascontiguousarray(sample.T), len(sample) - rank, axis=1)[:, -rank]
            self._floors = there - 1  # 1 lower, since many rows may have this score

    def offer(self, scores: NDArray[np.int32], first_row: int) -> None:
        """Take the (N, Q) scores of the rows from `first_row` on."""
        flat = scores.ravel()
        if len(self._floor_of_each) < len(flat):
            self._floor_of_each = np.tile(self._floors, len(scores))
        places = np.flatnonzero(flat > self._floor_of_each[: len(flat)])
        if len(places):
            rows, queries = np.divmod(places, self._queries)
            self._kept.append((queries, flat[places].astype(np.int64), rows + first_row))
            self._waiting += len(places)
            if self._waiting > SETTLE_AT * self._queries * self._keep:
                self._settle()

    def found(self, steps: NDArray[np.float64], errors: NDArray[np.float64]) -> Near:
        """Return the result; `steps`, (Q,), turn integer scores into cosines, which may be wrong by `errors`, (Q,)."""
        places = self._settle()
        width = int(places.max(initial=-1)) + 1
        scores = np.full((self._queries, width), -np.inf, np.float32)
        rows = np.full((self._queries, width), NO_ROW, np.int64)
        queries, kept, found_rows = self._kept[0]
        scores[queries, places], rows[queries, places] = kept * steps[queries], found_rows
        floors = np.where(self._floors == LOWEST, -np.inf, self._floors * steps).astype(np.float32)
        return Near(scores, rows, floors, errors)

    def _settle(self) -> NDArray[np.int64]:
        """Keep the highest scores, sorted; return the rank of each among its query's."""
        nothing = (np.empty(0, np.int64),) * 3
        queries, scores, rows = (np.concatenate(arrays) for arrays in zip(nothing, *self._kept, strict=True))
        order = np.argsort(queries * self._span - scores)
        queries, scores, rows = queries[order], scores[order], rows[order]
        places = np.arange(len(order)) - np.searchsorted(queries, np.arange(self._queries))[queries]
        best_dropped = places == self._keep
        self._floors[queries[best_dropped]] = scores[best_dropped]
        self._floor_of_each = np.empty(0, np.int32)
        kept = places < self._keep
        self._kept = [(queries[kept], scores[kept], rows[kept])]
        self._waiting = 0
        return np.asarray(places[kept])


def _step(dimension: int) -> np.float32:
    """Return the value of one level of an int8 code."""
    return np.float32(min(1.0, SPREAD / dimension**0.5) / LARGEST)


def merged(parts: Sequence[Near], fetch: int) -> Near:
    """Merge the results of several parts of the rows into the `fetch` best."""
    if len(parts) == 1:
        return parts[0]
    scores = np.concatenate([part.scores for part in parts], axis=1)
    rows = np.concatenate([part.rows for part in parts], axis=1)
    floors = np.max([part.floors for part in parts], axis=0)
    best = np.argsort(-scores, axis=1, kind="stable")
    if best.shape[1] > fetch:
        floors = np.maximum(floors, np.take_along_axis(scores, best[:, fetch : fetch + 1], 1)[:, 0])
    best = best[:, :fetch]
    errors = np.max([part.errors for part in parts], axis=0)
    return Near(np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1), floors, errors)
