"""Cosines as the similarities of 0 to 1 that clients of other services expect: by the false match rate, not by feel.

A client that was written for another service compares a similarity with 0.8, 0.9 or 0.99. What such a number means is
fixed here, once for all model packages, as the false match rate (FMR) at which two different people reach it:

| similarity | FMR | why here |
|---|---|---|
| 0.5 | 1e-2 | CompreFace's documentation: most comparisons of different people lie below it, most of one above |
| 0.8 | 1e-3 | the least that Rekognition's searches return unless asked otherwise |
| 0.9 | 1e-4 | what this service decides verifications at unless asked otherwise |
| 0.95 | 1e-5 | halfway in rate between its neighbours |
| 0.99 | 1e-6 | what AWS advises where a mistake is grave; the strictest rate that packages are usually measured at |

Between those the similarity is linear in log10(FMR), and the package's own measured operating points say which cosine
has which rate, as `app.inference.manifest.Thresholds` interpolates them; from the strictest measured point up to a
cosine
of 1, and from the most lenient one down to -1, it is a straight line, where nothing was measured and nothing is said
but the order. A package without operating points has the straight line alone: (cosine + 1) / 2.

The map is strictly increasing and continuous, so it changes no order and no decision, and it has an inverse: a
threshold asked for as a similarity is turned into a cosine, and the comparison is made there.
`python -m app.compat.similarity` prints the table of the default package.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from app.inference.manifest import Thresholds
from app.inference.package import load_package

LEVELS: tuple[tuple[float, float], ...] = (
    (1.0, 0.0),
    (1e-2, 0.5),
    (1e-3, 0.8),
    (1e-4, 0.9),
    (1e-5, 0.95),
    (1e-6, 0.99),
    (1e-9, 0.999),
)
"""FMR and similarity: the table above, and an end on either side for packages measured beyond it."""
SHOWN = (0.5, 0.8, 0.9, 0.95, 0.99)
LEAST_STEP = 1e-6
"""Anchors nearer to each other, on either scale, count as one: so no slope can eat the digits of a float."""


@dataclass(frozen=True, slots=True)
class Similarity:
    """A strictly increasing, continuous map from -1...1 onto 0...1, linear between its anchors."""

    cosines: tuple[float, ...]
    """Rising from -1 to 1."""
    similarities: tuple[float, ...]
    """Rising from 0 to 1, as many."""

    @classmethod
    def of(cls, thresholds: Thresholds) -> Similarity:
        """The map of a package; one without operating points is fine."""
        points = thresholds.calibration.points if thresholds.calibration else ()
        return cls.through((point.fmr, point.threshold) for point in points)

    @classmethod
    def through(cls, points: Iterable[tuple[float, float]]) -> Similarity:
        """The map through (FMR, cosine) pairs, the cosines rising as the rates fall."""
        measured = sorted((math.log10(fmr), cosine) for fmr, cosine in points if LEVELS[-1][0] <= fmr < 1)
        levels = [(math.log10(fmr), similarity) for fmr, similarity in LEVELS]
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
        """0 to 1; a cosine that rounding has pushed out of -1 to 1 counts as the end it left by."""
        return _along(self.cosines, self.similarities, cosine)

    def cosine_of(self, similarity: float) -> float:
        """-1 to 1, the inverse of `of_cosine`; what is below 0 or above 1 counts as 0 or 1."""
        return _along(self.similarities, self.cosines, similarity)


def fmr_of(similarity: float) -> float:
    """The false match rate that a similarity between 0.5 and 0.99 stands for."""
    levels = [(level, math.log10(fmr)) for fmr, level in LEVELS]
    return float(10 ** _between(levels, similarity))


def similarity_table(thresholds: Thresholds) -> str:
    """Similarity, FMR and cosine as a Markdown table."""
    found = Similarity.of(thresholds)
    lines = [f"| similarity | FMR | cosine ({thresholds.package}) |", "|---|---|---|"]
    lines += [f"| {level:g} | {fmr_of(level):.0e} | {found.cosine_of(level):.3f} |" for level in SHOWN]
    return "\n".join(lines)


def _between(points: list[tuple[float, float]], x: float) -> float:
    """Linear interpolation in points sorted by their first number."""
    return _along(tuple(one for one, _ in points), tuple(other for _, other in points), x)


def _along(xs: tuple[float, ...], ys: tuple[float, ...], x: float) -> float:
    """Linear interpolation, exact at the points themselves and never past the ends of a stretch."""
    if x <= xs[0]:
        return ys[0]
    if x >= xs[-1]:
        return ys[-1]
    right = bisect_right(xs, x)
    left = right - 1
    share = (x - xs[left]) / (xs[right] - xs[left])
    low, high = sorted((ys[left], ys[right]))
    return min(max(ys[left] + share * (ys[right] - ys[left]), low), high)


if __name__ == "__main__":
    package = load_package(Path(__file__).resolve().parents[2] / "models" / "sface")
    sys.stdout.write(similarity_table(Thresholds(package.manifest)) + "\n")
