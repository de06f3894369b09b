"""Compute 95 % intervals: Wilson's for counts of independent trials, a bootstrap over people for everything else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]
Bools: TypeAlias = NDArray[np.bool_]

TAIL = 0.025
Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A figure and its confidence interval, 95 % unless said otherwise."""

    value: float
    low: float
    high: float


def wilson(events: int, trials: int) -> Interval:
    """Return the proportion events / trials with Wilson's score interval (JASA 22, 1927), for independent trials."""
    if trials <= 0:
        return Interval(math.nan, 0.0, 1.0)
    p, z = events / trials, Z95
    middle = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials * trials))
    return Interval(p, max(0.0, middle - half), min(1.0, middle + half))


def percentile_interval(value: float, samples: ArrayLike) -> Interval:
    """Return ``value`` with the 95 % percentile interval of the bootstrap's ``samples``, (rounds,)."""
    low, high = np.nanquantile(np.asarray(samples, np.float64), [TAIL, 1 - TAIL])
    return Interval(value, float(low), float(high))


def people_weights(people: int, rounds: int, seed: int = 0) -> Ints:
    """Return (rounds, people) int64: how often each person is drawn in each round of a bootstrap over people.

    Faces of one person are not independent, so people are drawn with all their faces. A pair of people i, j then counts
    weight_i × weight_j times (Bolle et al., "The subsets bootstrap", CVIU 93, 2004).
    """
    rng = np.random.default_rng(seed)
    return rng.multinomial(people, np.full(people, 1 / people), size=rounds).astype(np.int64)


def weighted_pairs(weight: Ints, faces: Ints) -> int:
    """Return how many pairs of faces of different people a round compares. ``weight``, ``faces``: (people,), how often
    each person was drawn, and their number of faces."""
    shown = weight * faces
    return int((int(shown.sum()) ** 2 - int((shown * shown).sum())) // 2)


def allowed_errors(rate: float, trials: int) -> int:
    """Return the highest number of errors in ``trials`` that does not exceed ``rate``. Correct despite rounding (1e-3 ×
    1000 may be 0.999…). Raises ValueError for a rate outside 0-1."""
    if not 0 <= rate <= 1:
        raise ValueError("an error rate lies between 0 and 1")
    return math.floor(rate * trials * (1 + 1e-12) + 1e-12)
