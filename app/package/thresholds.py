"""Compute thresholds by error rate, from the operating points in a manifest or measured in a gallery."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from app.choices import CalibrationSource, Fallback
from app.errors import OperatingPointUnavailable
from app.package.manifest import Calibration, Manifest, Point
from app.types import Vector, Vectors

BOTH_FUSED = 3.0
"""If both templates are fused, the power of one is multiplied by 1 - this * ln(the other's length), since their scores
spread further than the two lengths alone tell. Measured with `sface` on each half of 1,063 people of train112: 2.9
and 2.8, the same for 2 to 8 photos on either side (docs/decisions/several-photos.md)."""
RATE_TOLERANCE = 1e-9
"""Relative tolerance: a rate that differs from a measured one only by rounding counts as measured."""


@dataclass(frozen=True, slots=True)
class DecidedBy:
    """The calibration that a threshold comes from; ``name`` is None for a package without operating points."""

    source: CalibrationSource
    name: str | None
    fallback: Fallback | None = None
    ratio: float | None = None
    """The FMR found in the gallery divided by the stated one. The package's rates below the gallery's are multiplied by
    this."""


LEAST_RISE = 1e-6
"""Minimum distance between the thresholds of two points, which are rounded to it."""


def extended(points: Sequence[Point], lower: Sequence[Point]) -> tuple[Point, ...]:
    """Return the points, and below their rates those of ``lower``, raised so that a lower rate is never laxer.

    Raising a point leaves its FNMR unknown. Points above a cosine of 1 are left out.
    """
    kept: list[Point] = []
    for point in [*points, *(point for point in lower if point.fmr < points[-1].fmr * (1 - RATE_TOLERANCE))]:
        least = kept[-1].threshold + LEAST_RISE if kept else -1.0
        kept.append(raised(point, least))
        if kept[-1].threshold > 1:
            return tuple(kept[:-1])
    return tuple(kept)


def raised(point: Point, least: float) -> Point:
    """Return the point with at least this threshold; if it was raised, without its FNMR."""
    if point.threshold >= least:
        return point
    high = max(point.threshold_high, least)
    unknown = {"fnmr": None, "fnmr_low": None, "fnmr_high": None}
    return point.model_copy(update={"threshold": least, "threshold_high": high, **unknown})


def _at_ratio(point: Point, ratio: float) -> Point:
    """Return the point at ``ratio`` times its rate, without its FNMR, which is another population's."""
    return point.model_copy(update={"fmr": point.fmr * ratio, "fnmr": None, "fnmr_low": None, "fnmr_high": None})


def fmr_for(fpir: float, comparisons: float) -> float:
    """Return the FMR of one comparison that gives ``fpir`` over this many independent ones (at least one):
    1 - (1 - FPIR)^(1 / comparisons) (Daugman 2000, "Biometric decision landscapes")."""
    return fpir if comparisons <= 1 else -math.expm1(math.log1p(-fpir) / comparisons)


def fuse_templates(vectors: Vectors) -> tuple[Vector, float]:
    """Return the mean (D,) of (N, D) unit vectors scaled to length 1, and its length before, 0 to 1.

    Raises ValueError if it is 0, which photos of a person never give.
    """
    mean = vectors.astype(np.float64).mean(axis=0)
    length = float(np.linalg.norm(mean))
    if length < 1e-6:
        raise ValueError("the templates cancel each other out")
    return (mean / length).astype(np.float32), min(1.0, length)


class Thresholds:
    """Thresholds by error rate, from a calibration of a manifest.

    Below the default calibration's rates, the calibration with the most comparisons decides, but never more laxly.
    Between measured points the score is interpolated linearly in log10(FMR); it is not extrapolated.
    """

    def __init__(self, manifest: Manifest) -> None:
        self.bias_card = manifest.bias_card
        deciding = next((measured for measured in manifest.calibrations if measured.default), None)
        self.package, self.recipe = manifest.id, manifest.recipe_digest
        self._sources: tuple[DecidedBy, ...] = (DecidedBy("package", deciding.name if deciding else None),)
        self._lowest_of_source: tuple[float, ...] = (deciding.points[-1].fmr,) if deciding else ()
        largest = max(manifest.calibrations, key=lambda measured: measured.comparisons, default=None)
        if deciding and largest and largest.points[-1].fmr < deciding.points[-1].fmr:
            deciding = deciding.model_copy(update={"points": extended(deciding.points, largest.points)})
            self._sources += (DecidedBy("package", largest.name, "rate_not_supported"),)
        if deciding and largest and deciding.independence is None:
            deciding = deciding.model_copy(update={"independence": largest.independence})
        powers = [calibration.fusion for calibration in (deciding, largest) if calibration]
        self.fusion: float | None = next((power for power in powers if power is not None), None)
        """`app.models.calibration.fusion`; None if it was not measured."""
        self._use(deciding)

    def _use(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.points = calibration.points if calibration else ()
        self.highest: float | None = self.points[0].fmr if self.points else None
        self.lowest: float | None = self.points[-1].fmr if self.points else None
        """The highest and the lowest FMR that were measured."""
        self.measured_range = (self.points[-1].fmr, self.points[0].fmr) if self.points else (0.0, math.inf)
        """Both, lowest first: the range to clamp rates to. It holds every rate if none was measured."""
        measured = calibration.independence if calibration else None
        self.independence = 1.0 if measured is None else measured
        """Comparisons with n faces of a subject count as n to this power; 1 (independent) if it was not measured."""
        # ascending in log10(FMR), so thresholds fall
        self._log_fmr = np.log10(np.array([point.fmr for point in reversed(self.points)], np.float64))
        self._threshold = np.array([point.threshold for point in reversed(self.points)], np.float64)

    def with_gallery(self, calibration: Calibration, independence: float, ratio: float | None) -> Thresholds:
        """Return a gallery's thresholds: those of its ``calibration`` and, if there is a ``ratio``, the package's
        points at lower rates, each at ``ratio`` times its rate."""
        lowest, last = calibration.points[-1].fmr, calibration.points[-1].threshold
        carried = () if ratio is None else tuple(_at_ratio(point, ratio) for point in self.points)
        lower = tuple(point for point in carried if point.fmr < lowest and point.threshold >= last + LEAST_RISE)
        thresholds = copy(self)
        changes = {"points": calibration.points + lower, "independence": independence}
        thresholds._use(calibration.model_copy(update=changes))
        fallen = [replace(source, fallback="rate_not_supported", ratio=ratio) for source in self._sources]
        thresholds._sources = (DecidedBy("gallery", calibration.name), *fallen)
        thresholds._lowest_of_source = (lowest, *(rate * (ratio or 1) for rate in self._lowest_of_source))
        return thresholds

    def without_gallery(self, fallback: Fallback) -> Thresholds:
        """Return the same thresholds, with the reason why the gallery's own don't decide."""
        thresholds = copy(self)
        thresholds._sources = tuple(replace(source, fallback=fallback) for source in self._sources)
        return thresholds

    def decided_by(self, fmr: float) -> DecidedBy:
        """Return the calibration that the threshold at ``fmr`` comes from."""
        for source, lowest in zip(self._sources, self._lowest_of_source, strict=False):
            if fmr >= lowest * (1 - RATE_TOLERANCE):
                return source
        return self._sources[-1]

    def threshold(self, fmr: float, length: float = 1.0, other: float = 1.0) -> float:
        """Return the lowest score at which a pair matches at false match rate ``fmr``.

        ``length`` and ``other`` are those of the two templates' means; 1 means a single photo. Raises
        OperatingPointUnavailable if ``fmr`` is outside the measured range (details: lowest, highest).
        """
        if self.lowest is None or self.highest is None:
            raise self._unavailable(f"{self.package} has no measured operating points")
        if not self.lowest * (1 - RATE_TOLERANCE) <= fmr <= self.highest * (1 + RATE_TOLERANCE):
            raise self._unavailable(
                f"{self.package} was measured at false match rates {self.lowest:g} to {self.highest:g}, not at {fmr:g}"
            )
        single = float(np.interp(math.log10(fmr), self._log_fmr, self._threshold))
        if single <= 0 or length == other == 1:
            return single
        return min(1.0, single / self.reduction_of_two(length, other))

    def reduction_of_two(self, length: float, other: float) -> float:
        """Return the factor that reduces scores of two fused templates to those of two photos at the same FMR."""
        return float(length ** self.power(1.0)) * float(other ** self.power(length))

    def power(self, other: float) -> float:
        """Return the power of a fused template's length that reduces its scores to those of one photo at the same FMR.

        ``other`` is the length of the compared template's mean, if that is also fused: see BOTH_FUSED. If the power was
        not measured, it is 1: the photos' mean score must then reach the threshold.
        """
        return 1.0 if self.fusion is None else self.fusion * (1 - BOTH_FUSED * math.log(other))

    def fmr_of(self, threshold: float) -> float | None:
        """Return the FMR at a threshold, the inverse of `threshold`; None outside the measured range."""
        if self.calibration is None or not self._threshold[-1] <= threshold <= self._threshold[0]:
            return None
        return float(10 ** np.interp(threshold, self._threshold[::-1], self._log_fmr[::-1]))

    def _unavailable(self, message: str) -> OperatingPointUnavailable:
        return OperatingPointUnavailable(message, lowest=self.lowest, highest=self.highest)
