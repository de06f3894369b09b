"""How many independent comparisons the photos of one person make, measured on the pairs of a calibration.

A subject's score is the best of its faces. If a stranger's scores with n of them were independent, the chance that one
reaches a threshold would be n times that of a single face; if all showed the same moment, it would be the same. The
power of n that lies in between is measured here (docs/decisions/several-photos.md).
"""

from __future__ import annotations

import numpy as np

from app.calibration.intervals import Ints
from app.calibration.pairs import Pairs

MOST_PHOTOS = 10
"""Photos of a person from which on it is left out: few people would outweigh all others."""
LEAST_MATCHES = 300
"""A photo and a person who match, of which so many at least are needed: the power then scatters by about 0.05."""
STEPS = 30
"""Halvings of the range 0 to 1: to 1e-9."""


def measure_independence(top: Pairs, people: Ints, threshold: float) -> float | None:
    """Return the power a for which comparisons with n photos of one person count as n^a independent ones, 0 to 1.

    ``top``: all non-mated pairs at or above ``threshold``, and others; ``people`` (N,): who the rows show, from 0. With
    n^a of them each, the matching pairs lead one to expect as many matching persons as were found. None: too few match.
    """
    matching = top.only(top.score >= threshold)
    photos = np.concatenate([matching.first, matching.second])
    persons = people[np.concatenate([matching.second, matching.first])]
    count = np.bincount(people)
    several = (count[persons] > 1) & (count[persons] <= MOST_PHOTOS)
    found = len(np.unique(photos[several] * len(count) + persons[several]))
    if found < LEAST_MATCHES:
        return None
    pairs = np.bincount(count[persons[several]], minlength=MOST_PHOTOS + 1)[1:]  # by n, from 1
    n = np.arange(1, MOST_PHOTOS + 1)
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        power = (low + high) / 2
        if (pairs * n ** (power - 1)).sum() < found:
            low = power
        else:
            high = power
    return round(high, 3)
