"""Measure how much stricter decisions on a fused probe must be: the mean template of several photos of a person.

A fused template shows more of the person and less of the moment. When it is scaled to length 1, its scores with
everybody move away from 0: at a single photo's threshold, five photos would match strangers three times as often as
stated. How far scores move depends on the mean's length before scaling, which is 1 for photos of the same moment and
smaller the more they differ. So the threshold is that of a single photo divided by length^power. One power, measured
here, holds for two to eight photos, similar or not, at all rates (docs/decisions/several-photos.md).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from app.models.calibration.intervals import Bools, Floats, Ints, allowed_errors
from app.models.calibration.operating_points import BLOCK, NOBODY, SamePeople, rows_of_people
from app.models.calibration.pairs import STEPS
from app.package.thresholds import fuse_templates
from app.types import Vectors

PHOTOS = (2, 3, 5, 8)
"""Numbers of photos in the fused probes that the power is measured on."""
DRAWS = 3
"""Number of fused probes per person and number of photos; more of them would add no evidence."""
FMRS = (1e-4, 1e-3)
"""False match rates at which the power may be measured; the first one that LEAST_MATCHES pairs support is used. SFace's
power is 0.32 at 1e-2, 0.30 at 1e-3, 0.28 at 1e-4 and 0.23 at 3e-5."""
LEAST_MATCHES = 100
LEAST_PEOPLE = 100
"""Minimum number of people who have as many photos as a number in PHOTOS for this number to be used."""


def measure_fusion(vectors: Vectors, people: Ints, *, same: SamePeople = NOBODY, seed: int = 0) -> float | None:
    """Return the power at which fused probes match strangers as often as single photos do, 0 to 1.

    ``vectors``: (N, D), unit length; ``people``: (N,), the person in each row, numbered from 0. Photos in a pair of
    ``same`` are left out. At the returned power, log(found rate / asked rate) is 0 on average over the numbers in
    PHOTOS that LEAST_PEOPLE have. None if too few people have two photos.
    """
    kept: Bools = np.ones(len(people), bool)
    kept[np.concatenate([same.keys // len(people), same.keys % len(people)])] = False
    vectors, people = vectors[kept], np.unique(people[kept], return_inverse=True)[1].astype(np.int64)
    rng, rows = np.random.default_rng(seed), rows_of_people(people)
    exceeded: list[Callable[[float], float]] = []
    for photos in PHOTOS:
        able = [person for person, rows_of_person in enumerate(rows) if len(rows_of_person) >= photos]
        if len(able) < LEAST_PEOPLE:
            break
        singles = np.concatenate([rows[person] for person in able])
        single, count = _top(vectors[singles], people[singles], np.ones(len(singles)), vectors, people)
        fmr = next((fmr for fmr in FMRS if allowed_errors(fmr, count) >= LEAST_MATCHES), None)
        if fmr is None:
            break
        drawn = [
            fuse_templates(vectors[rng.permutation(rows[person])[:photos]]) for person in able for _ in range(DRAWS)
        ]
        lengths, probes = np.array([length for _, length in drawn]), np.stack([vector for vector, _ in drawn])
        fused, compared = _top(probes, np.repeat(able, DRAWS).astype(np.int64), lengths, vectors, people)
        exceeded.append(partial(_log_ratio, fused, single[allowed_errors(fmr, count), 0], fmr * compared))
    if not exceeded:
        return None
    low, high = 0.0, 1.0
    for _ in range(STEPS):
        power = (low + high) / 2
        if sum(log_ratio(power) for log_ratio in exceeded) > 0:
            low = power
        else:
            high = power
    return round(high, 3)


def _log_ratio(fused: Floats, threshold: float, expected: float, power: float) -> float:
    """Return log(reached / expected): ``reached`` is the number of ``fused`` scores that reach the threshold at this
    power."""
    reached = int((fused[:, 0] * fused[:, 1] ** power >= threshold).sum())
    return math.log(max(reached, 0.5) / expected)


def _top(probes: Vectors, shown: Ints, lengths: Floats, vectors: Vectors, people: Ints) -> tuple[Floats, int]:
    """Return the highest non-mated scores, in falling order, each with its probe's length, (K, 2); and the number of
    all scores.

    K is ten times as many as reach a single photo's threshold at the highest rate, since fused probes reach it about
    four times as often.
    """
    parts, count = [], 0
    for start in range(0, len(probes), BLOCK):
        scores = probes[start : start + BLOCK] @ vectors.T  # (block, N)
        row, column = np.nonzero(shown[start : start + BLOCK, None] != people[None, :])
        non_mated = scores[row, column]
        kept = min(len(non_mated), 10 * allowed_errors(FMRS[-1], len(non_mated)) + 1)
        best = np.argpartition(-non_mated, kept - 1)[:kept]
        parts.append(np.stack([non_mated[best], lengths[start + row[best]]], axis=1))
        count += len(non_mated)
    top: Floats = np.concatenate(parts).astype(np.float64)
    return top[np.argsort(-top[:, 0], kind="stable")], count
