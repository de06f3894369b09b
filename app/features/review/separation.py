"""Estimate how well a gallery tells its people apart, from its own faces, with intervals by resampling subjects.

Every face is a probe twice: compared with the other faces of its subject (a miss adds to the FNMR), and as a stranger's
face, with its subject left out (a match with any other subject adds to the FPIR). Counts are added up some subjects at
a time. For the intervals, only ROUNDS resampled sums are kept, by a Poisson bootstrap (Hanley and MacGibbon 2006,
"Creating non-parametric bootstrap samples using Poisson frequencies"): in each sum, each subject counts a Poisson(1)
number of times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import percentile_interval, wilson

ROUNDS = 400
"""Number of resampled sums. With 400, the 95 % interval reaches from the tenth lowest to the tenth highest."""
LEAST_SUBJECTS = 30
"""Minimum subjects: with fewer, intervals by resampling them are too narrow (Cameron, Gelbach and Miller 2008)."""
COLUMNS = 4
ErrorCounts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """An error rate with its 95 % interval, and the numbers of faces and subjects that it was measured on."""

    value: float
    low: float
    high: float
    faces: int
    subjects: int


def count(misses: NDArray[np.bool_], false_positives: NDArray[np.bool_], *, mated: NDArray[np.bool_]) -> ErrorCounts:
    """Return one subject's counts, (COLUMNS,): mated faces, misses among them, all faces, false positives.

    The arguments say of each face, (N,) bool, whether it was missed, was a false positive, and has other faces of its
    subject to be compared with (`mated`).
    """
    return np.array([mated.sum(), (misses & mated).sum(), len(false_positives), false_positives.sum()], np.int64)


class Separation:
    """Adds up counts, and estimates rates from them."""

    def __init__(self, saved: Mapping[str, Any] | None = None) -> None:
        """Continue from the counts in `saved`, which `save` returned, if given."""
        self._sums = np.zeros(COLUMNS, np.int64)
        self._resampled = np.zeros((ROUNDS, COLUMNS), np.int64)
        self._subjects = np.zeros(2, np.int64)  # numbers of subjects: those with mated faces, and those with faces
        if saved:
            self._sums = np.array(saved["sums"], np.int64)
            self._resampled = np.array(saved["resampled"], np.int64)
            self._subjects = np.array(saved["subjects"], np.int64)

    def save(self) -> dict[str, Any]:
        return {
            "sums": self._sums.tolist(),
            "resampled": self._resampled.tolist(),
            "subjects": self._subjects.tolist(),
        }

    def add(self, counts: ErrorCounts, seed: int) -> None:
        """Add the counts of S subjects, (S, COLUMNS). Each call needs a different `seed`."""
        weights = np.random.default_rng(seed).poisson(1, (ROUNDS, len(counts)))
        self._resampled += weights @ counts
        self._sums += counts.sum(axis=0)
        self._subjects += np.count_nonzero(counts[:, [0, 2]], axis=0)

    @property
    def faces(self) -> int:
        return int(self._sums[2])

    @property
    def fnmr(self) -> MeasuredRate | None:
        """Return the share of faces that don't match the other faces of their subject; None if there are too few
        subjects."""
        return self._rate(0, 1, int(self._subjects[0]))

    @property
    def fpir(self) -> MeasuredRate | None:
        """Return the share of faces that would be taken for another subject; None if there are too few subjects."""
        return self._rate(2, 3, int(self._subjects[1]))

    def _rate(self, trials: int, errors: int, subjects: int) -> MeasuredRate | None:
        if subjects < LEAST_SUBJECTS:
            return None
        value = float(self._sums[errors] / self._sums[trials])
        drawn = self._resampled[self._resampled[:, trials] > 0]
        interval = percentile_interval(value, drawn[:, errors] / drawn[:, trials])
        if value in {0.0, 1.0}:  # all resampled sums agree, so they say nothing about other subjects
            interval = wilson(round(value * subjects), subjects)
        return MeasuredRate(value, interval.low, interval.high, int(self._sums[trials]), subjects)
