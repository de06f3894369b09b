"""All pairs of a set of faces, compared block by block: memory holds one block of scores, never all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.calibration.intervals import Bools, Ints, allowed_errors
from app.types import Vectors

BLOCK = 1024
HISTOGRAM_BINS = 4000
"""Bins of 0.0005 over the cosine's range -1 to 1."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows with their scores, (P,) each."""

    score: NDArray[np.float32]
    first: Ints
    second: Ints


@dataclass(frozen=True, slots=True)
class AllPairs:
    """Every pair of a set, seen once: a histogram of the non-mated scores, the exact highest, all mated ones."""

    nonmated_count: int
    histogram: Ints
    """(HISTOGRAM_BINS,) counts of the non-mated scores over -1 to 1, equal bins."""
    top: Pairs
    """All non-mated pairs at or above the floor: rows i < j of the set, by descending score."""
    mated: NDArray[np.float32]
    """(M,) scores of all mated pairs."""
    mated_first: Ints
    mated_second: Ints

    def threshold(self, fmr: float, *, without: Bools | None = None, fewer: int = 0) -> float:
        """Return the lowest threshold whose FMR does not exceed ``fmr``, from the exact top scores.

        ``without`` (P,) marks top pairs to leave out, ``fewer`` says how many pairs of the whole set that removes.
        Raises ValueError where the kept top scores don't reach down to that rate.
        """
        scores = self.top.score if without is None else self.top.score[~without]
        allowed = allowed_errors(fmr, self.nonmated_count - fewer)
        if allowed >= scores.size:
            raise ValueError(f"FMR {fmr:g} lies below the kept scores: lower the floor")
        return float(np.nextafter(np.float64(scores[allowed]), math.inf))


def close_pairs(templates: Vectors, subjects: Ints, floor: float, *, block: int = BLOCK) -> Iterator[Pairs]:
    """Yield the pairs of different subjects that score ``floor`` or more among (N, D) unit templates, rows i < j.

    ``subjects`` (N,) are any numbers. One `Pairs` a block of rows, in no order.
    """
    for start, scores in _upper_blocks(templates, block):
        yield _where(scores, _different(subjects, start, scores) & (scores >= floor), start, start)


def all_pairs(
    templates: Vectors,
    people: ArrayLike,
    *,
    floor: float,
    block: int = BLOCK,
    progress: Callable[[int], None] = lambda _rows: None,
) -> AllPairs:
    """Compare each of (N, D) unit ``templates`` with each other once; ``people`` (N,) are their people.

    Memory holds one block of ``block`` × N scores, the non-mated pairs at or above ``floor`` and the mated pairs.
    ``progress`` takes the rows done in each step.
    """
    who = np.unique(np.asarray(people), return_inverse=True)[1]
    histogram = np.zeros(HISTOGRAM_BINS, np.int64)
    tops: list[Pairs] = []
    mates: list[Pairs] = []
    for start, scores in _upper_blocks(templates, block):
        different = _different(who, start, scores)
        histogram += _histogram(scores[different])
        tops.append(_where(scores, different & (scores >= floor), start, start))
        mates.append(_where(scores, _above_diagonal(scores) & ~different, start, start))
        progress(len(scores))
    top, mated = _joined(tops), _joined(mates)
    order = np.argsort(-top.score, kind="stable")
    return AllPairs(
        nonmated_count=int(histogram.sum()),
        histogram=histogram,
        top=Pairs(top.score[order], top.first[order], top.second[order]),
        mated=mated.score,
        mated_first=mated.first,
        mated_second=mated.second,
    )


def _upper_blocks(templates: Vectors, block: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yield (start, scores of rows start… with all rows from start on), block by block."""
    for start in range(0, len(templates), block):
        yield start, templates[start : start + block] @ templates[start:].T


def _above_diagonal(scores: NDArray[np.float32]) -> Bools:
    """Return which of a block's pairs have their second row after their first."""
    rows, columns = scores.shape
    above: Bools = np.arange(columns)[None, :] > np.arange(rows)[:, None]
    return above


def _different(who: Ints, start: int, scores: NDArray[np.float32]) -> Bools:
    """Return which of a block's pairs are of two people, each pair once."""
    others: Bools = who[start : start + len(scores), None] != who[None, start:]
    return _above_diagonal(scores) & others


def _histogram(scores: NDArray[np.float32]) -> Ints:
    index = ((scores + 1) * (HISTOGRAM_BINS / 2)).astype(np.int32)
    return np.bincount(np.clip(index, 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS).astype(np.int64)


def _where(scores: NDArray[np.float32], mask: Bools, first: int, second: int) -> Pairs:
    """Return the pairs of a mask over a block whose rows and columns are numbered from ``first`` and ``second``."""
    row, column = np.nonzero(mask)
    return Pairs(scores[row, column], row.astype(np.int64) + first, column.astype(np.int64) + second)


def _joined(parts: list[Pairs]) -> Pairs:
    if not parts:
        return Pairs(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64))
    return Pairs(*(np.concatenate([getattr(one, name) for one in parts]) for name in ("score", "first", "second")))
