"""Which operating points decide in a gallery that has its own: at each false match rate, its own or the package's."""

from __future__ import annotations

import math

from app.calibration.operating_points import LEAST_RISE
from app.inference.manifest import Calibration, Point
from app.inference.thresholds import Thresholds

FLOOR_FACTOR = 10**0.5
"""A gallery's threshold is never laxer than the package's at so many times the FMR, unless an admin says so: half a
decade, the distance of the measured rates. The two populations that SFace was measured on (CelebA and LFW) differ by a
factor of 1.7 to 2.9 at one threshold: more than that is rather an error in the gallery than another population."""


def floor_of(package: Thresholds, fmr: float, *, allow_laxer: bool = False) -> float | None:
    """Return the laxest threshold that a gallery may decide with at ``fmr``; None if the package has no points.

    ``allow_laxer`` allows the package's most lenient point, below which no score is answered.
    """
    if package.lowest is None or package.highest is None:
        return None
    return package.threshold(
        package.highest if allow_laxer else min(max(fmr * FLOOR_FACTOR, package.lowest), package.highest)
    )


def deciding(package: Thresholds, own: Calibration, *, allow_laxer: bool) -> Thresholds:
    """Return the thresholds that decide: the gallery's ``own``, raised to the floor, where its pairs support the rate.

    Below its lowest rate the package's points decide, each at least as strict as the gallery's strictest.
    """
    floored = [(point, floor_of(package, point.fmr, allow_laxer=allow_laxer)) for point in own.points]
    stricter = [(point, None) for point in package.points if point.fmr < own.points[-1].fmr]
    found: list[Point] = []
    least = -math.inf
    for point, floor in [*floored, *stricter]:
        threshold = max(point.threshold, least, -math.inf if floor is None else floor)
        found.append(_raised(point, threshold))
        least = threshold + LEAST_RISE
    kept = tuple(point for point in found if point.threshold <= 1)
    return package.with_gallery(own, own.model_copy(update={"points": kept}))


def _raised(point: Point, threshold: float) -> Point:
    bounds = {
        "threshold_low": min(point.threshold_low, threshold),
        "threshold_high": max(point.threshold_high, threshold),
    }
    return point.model_copy(update={"threshold": threshold, **bounds})
