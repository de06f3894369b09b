"""Group faces by person, by average linkage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from app.errors import OperatingPointUnavailable
from app.face.quality import QualityLevel
from app.types import Vectors

FALSE_LINKS: Final = 0.1
"""Expected number of wrongly linked faces: the FMR of a link among n faces is this number divided by n. Precision and
recall of pairs were then .999 and .971 (CFP, frontal), and .979 and .986 (LFW). Connected components, in contrast, put
2,218 of 2,707 faces into one group."""
USABLE: Final = QualityLevel.LOW.minimum
"""Minimum quality of a face to group."""
MOST: Final = 4_000
"""Maximum faces to group at once, since the work grows with the square of their number."""


class Rated(Protocol):
    """An operating point: a threshold and its false match rate."""

    @property
    def fmr(self) -> float: ...
    @property
    def threshold(self) -> float: ...


def link_threshold(points: Sequence[Rated], faces: int) -> float:
    """Return the score from which on groups of ``faces`` faces are linked: the threshold whose rate is nearest to
    FALSE_LINKS / faces. Raises OperatingPointUnavailable without operating points."""
    if not points:
        raise OperatingPointUnavailable("Grouping needs a package with measured operating points.")
    ordered = sorted(points, key=lambda point: point.fmr)
    rates = [math.log10(point.fmr) for point in ordered]
    wanted = math.log10(FALSE_LINKS / max(1, faces))
    return float(np.interp(wanted, rates, [point.threshold for point in ordered]))


def people_of(vectors: Vectors, points: Sequence[Rated]) -> list[list[int]]:
    """Return the rows of each person's faces, the person with the most faces first. ``vectors``: (N, D) unit vectors, N
    > 0.

    ``points`` are the operating points of the vectors' package. Raises what `link_threshold` raises.
    """
    labels = group_faces(vectors, link_threshold(points, len(vectors)))
    largest = np.argsort(-np.bincount(labels), kind="stable")
    return [np.flatnonzero(labels == label).tolist() for label in largest]


def group_faces(vectors: Vectors, threshold: float) -> NDArray[np.int64]:
    """Return the number of each face's group, (N,), from 0. ``vectors``: (N, D) unit vectors. Groups are joined, the
    most similar first, as long as the mean score between their faces is ``threshold`` or more.

    Nearest-neighbour chains (F. Murtagh, "A Survey of Recent Advances in Hierarchical Clustering Algorithms", The
    Computer Journal 26(4), 1983) take N² steps and find the same groups as if the best pair were searched for each
    time.
    """
    count = len(vectors)
    group = np.arange(count)
    sums = vectors.astype(np.float64)  # the mean score of two groups is the dot product of their mean vectors
    sizes = np.ones(count)
    alive = np.ones(count, bool)
    chain: list[int] = []
    while True:
        if not chain:
            rest = np.flatnonzero(alive)
            if not len(rest):
                break
            chain.append(int(rest[0]))
        last = chain[-1]
        scores = (sums @ sums[last]) / (sizes * sizes[last])
        scores[~alive] = -np.inf
        scores[last] = -np.inf
        nearest = int(scores.argmax())
        if scores[nearest] < threshold:  # complete: merging other groups can't raise their mean score with this one
            alive[last] = False
            chain.pop()
            continue
        if len(chain) > 1 and scores[chain[-2]] >= scores[nearest]:
            kept, gone = chain[-2], last
            del chain[-2:]
            sums[kept] += sums[gone]
            sizes[kept] += sizes[gone]
            alive[gone] = False
            group[group == gone] = kept
        else:
            chain.append(nearest)
    return np.unique(group, return_inverse=True)[1].astype(np.int64)
