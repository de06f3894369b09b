"""The rules of a review, which find problems from scores between a gallery's faces. Pure functions over arrays.

Every score is compared with the gallery's own operating points, so the rules hold for any model package. Their
constants were chosen on one half of LFW's people and reported on the other (docs/how-to/keep-a-gallery-right.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.face.quality import QualityLevel
from app.recognition.decisions import IdentifyPoint, VerifyPoint
from app.types import UNKNOWN_QUALITY, Vectors

ROWS_AT_ONCE = 1_024
"""Number of a subject's faces compared at once with all of its faces."""
MATCHING_SHARE = 0.5
"""Two subjects may be one person if more than this share of either's faces matches a face of the other."""
GOOD = QualityLevel.MEDIUM.minimum
"""Quality that a face should have, enrollment's default. If a poorer face matches no other, that is not a finding."""
STRANGERS_FMR = 1e-2
"""A score below the threshold at this FMR means that a face doesn't look like its subject's other faces."""
Cosines = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Points:
    """The thresholds of a gallery, for verifying a subject and for identifying among all of them."""

    verify: VerifyPoint
    identify: IdentifyPoint
    strangers: Callable[[int], float]
    """Returns the threshold at STRANGERS_FMR, or at the nearest measured rate, by a subject's number of faces."""
    linked: float
    """The threshold at `LINKED_FMR`, or at the nearest measured rate."""


@dataclass(frozen=True, slots=True)
class Within:
    """Each face's best scores with the subject's other faces, (N,) each; -inf if there are too few."""

    best: Cosines
    second: Cosines
    at: NDArray[np.int64]
    """The row of the face with the best score; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class Alike:
    """How two subjects' faces compare: the best pair of faces, and the smaller share of faces that match."""

    score: float
    row: int
    other_row: int
    typical: float
    """The mean over both subjects' faces of the best score with the other subject."""
    matching: float


def compare_within(vectors: Vectors, among: Mask) -> Within:
    """Compare each face of a subject, (N, D) unit float32, with the subject's other faces that are in `among`."""
    count = len(vectors)
    best, second = np.full(count, -np.inf), np.full(count, -np.inf)
    at = np.full(count, -1, np.int64)
    for start in range(0, count, ROWS_AT_ONCE):
        scores = (vectors[start : start + ROWS_AT_ONCE] @ vectors.T).astype(np.float64)  # (R, N)
        rows = np.arange(len(scores))
        scores[:, ~among] = -np.inf
        scores[rows, start + rows] = -np.inf
        nearest = scores.argmax(axis=1)
        highest = scores[rows, nearest]
        scores[rows, nearest] = -np.inf
        here = slice(start, start + len(scores))
        best[here], second[here] = highest, scores.max(axis=1)
        at[here] = np.where(np.isfinite(highest), nearest, -1)
    return Within(best, second, at)


def nearest_wrong(vectors: Vectors, wrong: Vectors | None) -> Cosines:
    """Return each face's best score, (N,), with a subject's recorded wrong probes, (M, D); -inf if there are none."""
    if wrong is None:
        return np.full(len(vectors), -np.inf)
    return np.asarray((vectors @ wrong.T).max(axis=1), np.float64)


def find_corrected(within: Within, wrong: Cosines, points: Points) -> Mask:
    """Return which faces match a recorded wrong probe of their subject better than its other faces.

    `wrong` is (N,), from `nearest_wrong`; the result is (N,) bool.
    """
    return np.asarray((wrong >= points.verify.threshold) & (wrong > within.best))


def find_misplaced(within: Within, other: Cosines, points: Points) -> Mask:
    """Return which faces look like another subject and not like their own. `other` is (N,) the best score with another
    subject. A subject's only face is never misplaced: more likely the two subjects are one person."""
    compared = np.isfinite(within.best)
    return np.asarray(compared & (other >= points.identify.uncertain) & (within.best < points.verify.threshold))


def find_outliers(within: Within, qualities: NDArray[np.float32], strangers: float) -> Mask:
    """Return which faces, (N,) bool, are good enough to match but look like none of their subject's other faces;
    `qualities` is (N,), 0-100; `strangers` is `Points.strangers` for this number of faces. A face of unknown quality
    is never an outlier: it may be turned away."""
    good = (qualities >= GOOD) & (qualities != UNKNOWN_QUALITY)
    return np.asarray(np.isfinite(within.best) & (within.best < strangers) & good)


def find_groups(vectors: Vectors, points: Points) -> list[NDArray[np.int64]]:
    """Group a subject's faces, (N, D) unit float32, by single linkage: two faces of different groups score below
    `points.linked`. Return the rows of each group, the largest first."""
    group = np.full(len(vectors), -1, np.int64)
    for first in range(len(vectors)):
        if group[first] >= 0:
            continue
        group[first] = first
        open_ = np.array([first])
        while len(open_):
            members, open_ = open_[:ROWS_AT_ONCE], open_[ROWS_AT_ONCE:]
            linked = np.flatnonzero((vectors[members] @ vectors.T >= points.linked).any(axis=0) & (group < 0))
            group[linked] = first
            open_ = np.concatenate([open_, linked])
    groups = [np.flatnonzero(group == first) for first in np.unique(group)]
    return sorted(groups, key=len, reverse=True)


def find_harmful(within: Within, other: Cosines, qualities: NDArray[np.float32], points: Points) -> Mask:
    """Return which poor faces, (N,) bool, could be confused with another subject while none of their subject's other
    faces needs them to be recognised. `other` is (N,) the best score with another subject, `qualities` (N,) 0-100."""
    needed = np.zeros(len(other), bool)
    threshold = points.verify.threshold
    needed[within.at[(within.best >= threshold) & (within.second < threshold)]] = True
    return (qualities < GOOD) & (other >= points.identify.uncertain) & ~needed & (within.at >= 0)


def compare_subjects(
    first: Vectors,
    second: Vectors,
    points: Points,
    *,
    not_first: Vectors | None = None,
    not_second: Vectors | None = None,
) -> Alike:
    """Compare all faces of two subjects, (N, D) and (M, D) unit float32. A face that resembles a wrong probe of the
    other subject (`not_first`, `not_second`) more than that subject matches nothing."""
    scores = (first @ second.T).astype(np.float64)  # (N, M)
    of_first = nearest_wrong(first, not_second) > scores.max(axis=1)
    of_second = nearest_wrong(second, not_first) > scores.max(axis=0)
    scores[of_first[:, None] | of_second] = -1
    row, second_row = np.unravel_index(int(scores.argmax()), scores.shape)
    sides = scores.max(axis=1), scores.max(axis=0)
    matching = min(float((side >= points.verify.threshold).mean()) for side in sides)
    return Alike(
        score=float(scores[row, second_row]),
        row=int(row),
        other_row=int(second_row),
        typical=float(np.mean([side.mean() for side in sides])),
        matching=matching,
    )


def may_be_one(alike: Alike, points: Points) -> bool:
    return alike.score >= points.identify.threshold and alike.matching > MATCHING_SHARE
