"""The rules of a review, which find problems by the scores between a gallery's faces: pure functions over arrays.

Scores are compared with the gallery's operating points, so the rules work with any model package. The constants were
chosen on one half of LFW's people and measured on the other (docs/how-to/keep-a-gallery-right.md).
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
"""Number of a subject's faces that are compared at once with all its faces."""
MATCHING_SHARE = 0.5
"""Two subjects may be one person if more than this share of each one's faces match a face of the other."""
GOOD = QualityLevel.MEDIUM.minimum
"""Minimum quality of a good face: enrollment's default. A poorer face that matches no other is not a finding."""
STRANGERS_FMR = 1e-2
"""FMR whose threshold a face's score with one of its subject's other faces must reach to look like them."""
Cosines = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Points:
    """A gallery's thresholds."""

    verify: VerifyPoint
    identify: IdentifyPoint
    strangers: Callable[[int], float]
    """Returns the threshold at STRANGERS_FMR, or at the nearest measured rate, for a subject with this number of
    faces."""
    linked: float
    """The threshold at `LINKED_FMR`, or at the nearest measured rate."""


@dataclass(frozen=True, slots=True)
class Within:
    """The best and second-best score of each of a subject's N faces with its other faces, (N,) each; -inf if there are
    too few."""

    best: Cosines
    second: Cosines
    at: NDArray[np.int64]
    """The row of the other face with the best score; -1 if there is none."""


@dataclass(frozen=True, slots=True)
class Alike:
    """How two subjects' faces compare: the best pair of faces, and the smaller share of faces that match."""

    score: float
    row: int
    other_row: int
    typical: float
    """Each face's best score with the other subject: the mean of the two subjects' means."""
    matching: float


def compare_within(vectors: Vectors, among: Mask) -> Within:
    """Compare each face of a subject with its other faces that are in `among`, (N,) bool. `vectors`: (N, D) unit
    float32."""
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
    """Return which faces, (N,) bool, match a recorded wrong probe of their subject, and better than its other faces.

    `wrong`, (N,), is the result of `nearest_wrong`.
    """
    return np.asarray((wrong >= points.verify.threshold) & (wrong > within.best))


def find_misplaced(within: Within, other: Cosines, points: Points) -> Mask:
    """Return which faces, (N,) bool, look like another subject and not like their own. `other`, (N,), is each face's
    best score with another subject. A subject's only face is never misplaced: more likely, the two subjects are one
    person."""
    compared = np.isfinite(within.best)
    return np.asarray(compared & (other >= points.identify.uncertain) & (within.best < points.verify.threshold))


def find_outliers(within: Within, qualities: NDArray[np.float32], strangers: float) -> Mask:
    """Return which faces, (N,) bool, are good but look like none of their subject's other faces. `qualities` is (N,),
    0-100; `strangers` is the threshold that `Points.strangers` returns. A face of unknown quality is never an outlier,
    since it may be turned away."""
    good = (qualities >= GOOD) & (qualities != UNKNOWN_QUALITY)
    return np.asarray(np.isfinite(within.best) & (within.best < strangers) & good)


def find_groups(vectors: Vectors, points: Points) -> list[NDArray[np.int64]]:
    """Return the rows of each group of a subject's faces, (N, D) unit float32, the largest first. Groups are made by
    single linkage: two faces of different groups always score below `points.linked`."""
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
    """Return which poor faces, (N,) bool, could be confused with another subject and are not needed: no other face of
    their subject matches this one alone. `other`, (N,), is the best score with another subject; `qualities`, (N,), is
    0-100."""
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
    """Compare all faces of two subjects, (N, D) and (M, D) unit float32. `not_first` and `not_second` are the subjects'
    recorded wrong probes: a face that resembles a wrong probe of the other subject more than it resembles that subject
    matches none of its faces."""
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
