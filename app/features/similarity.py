"""Map cosines to the similarities, 0 to 1, that clients of other services expect, by way of false match rates.

A client that was written for another service compares similarities with a number such as 0.8, 0.9 or 0.99. For every
model package, this module defines a similarity by the false match rate (FMR) at which two different people reach it:

| similarity | FMR | why |
|---|---|---|
| 0.5 | 1e-2 | CompreFace's documentation: most pairs of different people lie below it, most of one person above |
| 0.8 | 1e-3 | the default threshold of Rekognition's searches |
| 0.9 | 1e-4 | this service's default operating point for verification |
| 0.95 | 1e-5 | halfway in rate between its neighbours |
| 0.99 | 1e-6 | AWS's advice for serious decisions; the strictest rate that packages are usually measured at |

A subject's faces are fused, and the subject's score is treated as a score of two photos. If the package's calibration
doesn't say how to fuse, the score is that of the best face. The rate is then that of comparing with all faces of a
subject that has the average number of faces (`app.recognition.decisions.count_comparisons`).

Between the rows of the table, the similarity is linear in log10(FMR). The package's measured operating points give the
rate of each cosine, interpolated as in `app.package.thresholds.Thresholds`. Beyond the strictest and the most lenient
measured point, the map is a straight line to the cosines 1 and -1, which only keeps the order. For a package without
operating points, the whole map is the straight line (cosine + 1) / 2.

The map is strictly increasing and continuous, so it changes neither an order nor a decision. It has an inverse: a
threshold given as a similarity is converted to a cosine, and cosines are compared.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from app.errors import PackageUnavailable
from app.inference.embedders import Embedders
from app.package.thresholds import Thresholds, fmr_for
from app.recognition.decisions import AnsweredScores, count_comparisons
from app.types import Sizes

LEVELS: tuple[tuple[float, float], ...] = (
    (1.0, 0.0),
    (1e-2, 0.5),
    (1e-3, 0.8),
    (1e-4, 0.9),
    (1e-5, 0.95),
    (1e-6, 0.99),
    (1e-9, 0.999),
)
"""Pairs of FMR and similarity: the table above, and one more pair at each end for packages measured beyond the
table."""
SHOWN = (0.5, 0.8, 0.9, 0.95, 0.99)
LEAST_STEP = 1e-7
"""Minimum distance between anchors, on both scales, so that no part of the map is too steep for a float's precision."""


@dataclass(frozen=True, slots=True)
class Similarity:
    """A strictly increasing, continuous map from -1...1 onto 0...1, linear between its anchors."""

    cosines: tuple[float, ...]
    """The anchors' cosines, rising from -1 to 1."""
    similarities: tuple[float, ...]
    """The anchors' similarities, rising from 0 to 1."""

    @classmethod
    def of(cls, thresholds: Thresholds, comparisons: float = 1.0) -> Similarity:
        """Return the map of a package, with or without operating points, for a score that is the best of
        ``comparisons`` independent comparisons."""
        return cls.through(((point.fmr, point.threshold) for point in thresholds.points), comparisons)

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]], comparisons: float = 1.0) -> Similarity:
        """Return the map through pairs of FMR and cosine, of which cosines rise as rates fall."""
        levels = [(math.log10(fmr_for(fmr, comparisons) if fmr < 1 else 1), level) for fmr, level in LEVELS]
        measured = sorted((math.log10(fmr), cosine) for fmr, cosine in points if levels[-1][0] <= math.log10(fmr) < 0)
        rates = {rate for rate, _ in measured}
        if measured:
            rates |= {rate for rate, _ in levels if measured[0][0] <= rate <= measured[-1][0]}
        anchors = [(-1.0, 0.0)]
        for rate in sorted(rates, reverse=True):
            anchor = _between(measured, rate), _between(sorted(levels), rate)
            if all(anchors[-1][axis] + LEAST_STEP <= anchor[axis] <= 1 - LEAST_STEP for axis in (0, 1)):
                anchors.append(anchor)
        anchors.append((1.0, 1.0))
        return cls(tuple(cosine for cosine, _ in anchors), tuple(similarity for _, similarity in anchors))

    def of_cosine(self, cosine: float) -> float:
        """Return the similarity, 0 to 1; cosines outside -1 to 1 are clipped."""
        return _along(self.cosines, self.similarities, cosine)

    def cosine_of(self, similarity: float) -> float:
        """Return the cosine, -1 to 1: the inverse of `of_cosine`. Similarities outside 0 to 1 are clipped."""
        return _along(self.similarities, self.cosines, similarity)


@dataclass(frozen=True, slots=True)
class AnsweredSimilarity:
    """How scores with enrolled faces are answered as similarities."""

    scale: Similarity
    scores: AnsweredScores
    threshold: float
    """The request's threshold, as a cosine."""

    @classmethod
    def of(
        cls, thresholds: Thresholds, threshold: float = 0.0, *, exact: bool, sizes: Sizes | None = None
    ) -> AnsweredSimilarity:
        """Return how a request's scores are answered. ``threshold``: the request's threshold, a similarity; ``exact``:
        whether the request's key may see exact scores; ``sizes``: the sizes of the compared subjects, None for single
        faces.

        Raises OperatingPointUnavailable.
        """
        comparisons = count_comparisons(sizes or {}, thresholds, fused_scores=True)
        # comparisons with one subject, on average
        scale = Similarity.of(thresholds, comparisons / max(1, sum((sizes or {}).values())))
        cosine = scale.cosine_of(threshold)
        return cls(scale, AnsweredScores.of(thresholds, cosine, exact=exact), cosine)

    def answered(self, score: float) -> float | None:
        """Return the similarity to answer for a score; None if the score is below the floor."""
        answered = self.scores.answered(score)
        return None if answered is None else self.scale.of_cosine(answered)


def fmr_of(similarity: float) -> float:
    """Return the false match rate of a similarity between 0.5 and 0.99."""
    levels = [(level, math.log10(fmr)) for fmr, level in LEVELS]
    return float(10 ** _between(levels, similarity))


def of_fmr(fmr: float) -> float:
    """Return the similarity of a false match rate, the inverse of `fmr_of`; 0.5 to 0.99."""
    rates = sorted((math.log10(rate), level) for rate, level in LEVELS if level in SHOWN)
    return _between(rates, math.log10(fmr))


FACE_LEVELS: tuple[tuple[float, float], ...] = (
    (0.0, 0.0),
    (0.7, 0.9),
    (0.78, 0.95),
    (0.87, 0.99),
    (0.91, 0.999),
    (1.0, 1.0),
)
"""Scores of YuNet, and the probability that is answered for each: 1 minus the share of photos without a face in which
YuNet finds a "face" with this score or more. Measured on 809 random photos of LFW View 1 that were cut into tiles of 31
pixels and shuffled: in 86 it finds one of 0.7 or more, in 42 of 0.78, in 8 of 0.87, in none of 0.91. In all of the
uncut photos it finds a face of 0.87 or more, and in half of them one of 0.929."""


def probability_of(score: float) -> float:
    """Return the probability, 0 to 1, for a detector's score, as clients of other services expect it."""
    return _between(list(FACE_LEVELS), score)


def score_of(probability: float) -> float:
    """Return the detector's score for a probability: the inverse of `probability_of`."""
    return _between([(level, score) for score, level in FACE_LEVELS], probability)


def similarity_table(thresholds: Thresholds) -> str:
    """Return a Markdown table of similarities, with the FMR and the package's cosine of each."""
    similarity = Similarity.of(thresholds)
    lines = [f"| similarity | FMR | cosine ({thresholds.package}) |", "|---|---|---|"]
    lines += [f"| {level:g} | {fmr_of(level):.0e} | {similarity.cosine_of(level):.3f} |" for level in SHOWN]
    return "\n".join(lines)


def _between(points: list[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between points (x, y), sorted by x."""
    return _along(tuple(first for first, _ in points), tuple(second for _, second in points), x)


def _along(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    """Interpolate linearly between the points (xs, ys). The result is exact at the points, and never outside the two
    nearest ys."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect_right(xs, x)
    left = right - 1
    share = (x - xs[left]) / (xs[right] - xs[left])
    low, high = sorted((ys[left], ys[right]))
    return min(max(ys[left] + share * (ys[right] - ys[left]), low), high)


def most_lenient(embedders: Embedders, package_id: str) -> float | None:
    """Return the threshold of a package's most lenient operating point; None if it has no points or is not
    installed."""
    try:
        points = embedders.thresholds(package_id).points
    except PackageUnavailable:
        return None
    return points[0].threshold if points else None
