"""Which operating points decide in a gallery that has its own: at each false match rate, its own or the package's."""

from __future__ import annotations

from app.inference.manifest import Calibration
from app.inference.thresholds import Thresholds, extended, raised

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
    floors = [floor_of(package, point.fmr, allow_laxer=allow_laxer) for point in own.points]
    floored = [
        point if floor is None else raised(point, floor) for point, floor in zip(own.points, floors, strict=True)
    ]
    independence = package.independence if own.independence is None else own.independence
    decides = {"points": extended(floored, package.points), "independence": independence}
    return package.with_gallery(own, own.model_copy(update=decides))
