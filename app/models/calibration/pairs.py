"""Compare all pairs of a set of faces, block by block, so that only one block of scores is in memory.

Also measure how many independent comparisons a person's photos make. A subject's score is that of its best face. If a
stranger's scores with the subject's n faces were independent, the best would reach a threshold n times as often as a
single face does; if all faces were equal, just as often. The truth is n to a power between 0 and 1, which is measured
here (docs/decisions/several-photos.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.models.calibration.intervals import Bools, Ints, allowed_errors
from app.types import Vectors

BLOCK = 1024
HISTOGRAM_BINS = 4000
"""Number of bins, each 0.0005 wide, over the cosine's range -1 to 1."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows and their scores, (P,) each."""

    score: NDArray[np.float32]
    first: Ints
    second: Ints

    def only(self, which: Bools | Ints) -> Pairs:
        """Return some of the pairs: those that a (P,) bool mask selects, or those at (n,) places, in this order."""
        return Pairs(self.score[which], self.first[which], self.second[which])


@dataclass(frozen=True, slots=True)
class AllPairs:
    """Scores of all pairs of a set: a histogram of the non-mated scores, the highest of these exactly, and all mated
    scores."""

    nonmated_count: int
    histogram: Ints
    """(HISTOGRAM_BINS,) counts of the non-mated scores over -1 to 1, equal bins."""
    top: Pairs
    """All non-mated pairs at or above the floor: rows i < j of the set, by descending score."""
    mated: NDArray[np.float32]
    """(M,) scores of all mated pairs."""
    mated_first: Ints
    mated_second: Ints

    def threshold(self, fmr: float) -> float:
        """Return the lowest threshold whose FMR does not exceed ``fmr``.

        Raises ValueError if too few top scores were kept for this rate.
        """
        allowed = allowed_errors(fmr, self.nonmated_count)
        if allowed >= self.top.score.size:
            raise ValueError(f"FMR {fmr:g} lies below the kept scores: lower the floor")
        return float(np.nextafter(np.float64(self.top.score[allowed]), math.inf))

    def without(self, left_out: Bools, fewer: int) -> AllPairs:
        """Return all pairs without the top pairs marked in ``left_out``, (P,) bool, and with ``fewer`` fewer non-mated
        pairs.

        The histogram stays the same.
        """
        return replace(self, nonmated_count=self.nonmated_count - fewer, top=self.top.only(~left_out))


def all_pairs(
    templates: Vectors,
    people: ArrayLike,
    *,
    floor: float,
    block: int = BLOCK,
    progress: Callable[[int], None] = lambda _rows: None,
) -> AllPairs:
    """Compare each pair of ``templates``, (N, D) of unit length, once; ``people``, (N,), says whose they are.

    In memory are one block of ``block`` × N scores, the non-mated pairs at or above ``floor``, and the mated pairs.
    ``progress`` is called with the number of rows done in each step.
    """
    who = np.unique(np.asarray(people), return_inverse=True)[1]
    histogram = np.zeros(HISTOGRAM_BINS, np.int64)
    tops: list[Pairs] = []
    mates: list[Pairs] = []
    for start in range(0, len(templates), block):
        # Compare these rows with themselves and all rows after them.
        scores = templates[start : start + block] @ templates[start:].T
        rows, columns = scores.shape
        once = np.arange(columns) > np.arange(rows)[:, None]
        mate = who[start : start + rows, None] == who[start:]
        histogram += _histogram(scores[once & ~mate])
        tops.append(_pairs(scores, once & ~mate & (scores >= floor), start))
        mates.append(_pairs(scores, once & mate, start))
        progress(rows)
    top, mated = _joined(tops), _joined(mates)
    return AllPairs(
        nonmated_count=int(histogram.sum()),
        histogram=histogram,
        top=top.only(np.argsort(-top.score, kind="stable")),
        mated=mated.score,
        mated_first=mated.first,
        mated_second=mated.second,
    )


def _histogram(scores: NDArray[np.float32]) -> Ints:
    index = ((scores + 1) * (HISTOGRAM_BINS / 2)).astype(np.int32)
    return np.bincount(np.clip(index, 0, HISTOGRAM_BINS - 1), minlength=HISTOGRAM_BINS).astype(np.int64)


def _pairs(scores: NDArray[np.float32], mask: Bools, start: int) -> Pairs:
    """Return the pairs that a mask selects in a block of scores whose rows and columns are numbered from ``start``."""
    row, column = np.nonzero(mask)
    return Pairs(scores[row, column], row.astype(np.int64) + start, column.astype(np.int64) + start)


def _joined(parts: list[Pairs]) -> Pairs:
    if not parts:
        return Pairs(np.empty(0, np.float32), np.empty(0, np.int64), np.empty(0, np.int64))
    return Pairs(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("score", "first", "second")))


MOST_PHOTOS = 10
"""Maximum photos of a person: people with more are left out, so that a few of them don't outweigh all others."""
LEAST_MATCHES = 300
"""Minimum number of matches of photos with other people; with this many, the power varies by about 0.05."""
STEPS = 30
"""Number of halvings of the range 0 to 1, which find the power to 1e-9."""


def measure_independence(top: Pairs, people: Ints, threshold: float) -> float | None:
    """Return the power a, 0 to 1, for which comparisons with n photos of a person count as n^a independent ones.

    ``top``: non-mated pairs, including all at or above ``threshold``; ``people``, (N,): the person in each row,
    numbered from 0. With this power, the number of matching pairs predicts how many people match a photo as was found.
    None if there are too few matches.
    """
    matching = top.only(top.score >= threshold)
    photos = np.concatenate([matching.first, matching.second])
    persons = people[np.concatenate([matching.second, matching.first])]
    count = np.bincount(people)
    several = (count[persons] > 1) & (count[persons] <= MOST_PHOTOS)
    persons_matched = len(np.unique(photos[several] * len(count) + persons[several]))
    if persons_matched < LEAST_MATCHES:
        return None
    # matching pairs by the person's number of photos, 1 to MOST_PHOTOS
    pairs = np.bincount(count[persons[several]], minlength=MOST_PHOTOS + 1)[1:]
    n = np.arange(1, MOST_PHOTOS + 1)
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        power = (low + high) / 2
        if (pairs * n ** (power - 1)).sum() < persons_matched:
            low = power
        else:
            high = power
    return round(high, 3)
