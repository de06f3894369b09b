"""Thresholds by error rate, from the operating points in a manifest or measured in a gallery."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from app.errors import OperatingPointUnavailable
from app.inference.manifest import Calibration, Manifest

RATE_TOLERANCE = 1e-9
"""Relative: a rate that differs from a measured one by rounding alone counts as measured."""

Source: TypeAlias = Literal["package", "gallery"]
Fallback: TypeAlias = Literal["not_measured", "too_few_subjects", "other_model", "rate_not_supported"]
"""Why the package's calibration decides in a gallery that is to decide by its own."""


@dataclass(frozen=True, slots=True)
class DecidedBy:
    """The calibration that a threshold is from; ``name`` is None for a package without operating points."""

    source: Source
    name: str | None
    fallback: Fallback | None = None


class Thresholds:
    """Thresholds by error rate, from the default calibration of a manifest or the one named.

    Between measured points the score is interpolated linearly in log10(FMR); outside them nothing is extrapolated.
    """

    def __init__(self, manifest: Manifest, calibration: str | None = None) -> None:
        self.bias_card = manifest.bias_card
        chosen = (each for each in manifest.calibrations if (each.name == calibration if calibration else each.default))
        self.package, self.recipe = manifest.id, manifest.recipe_digest
        self._use(next(chosen, None))
        self._package_calibration = self.calibration
        self._gallery: Calibration | None = None
        self._fallback: Fallback | None = None

    def _use(self, calibration: Calibration | None) -> None:
        self.calibration = calibration
        self.points = calibration.points if calibration else ()
        # ascending in log10(FMR), so thresholds fall
        self._log_fmr = np.log10(np.array([point.fmr for point in reversed(self.points)], np.float64))
        self._threshold = np.array([point.threshold for point in reversed(self.points)], np.float64)

    def with_gallery(self, own: Calibration, deciding: Calibration) -> Thresholds:
        """Return the thresholds of a gallery: those of ``deciding``, which are its ``own`` where it supports a rate."""
        found = copy(self)
        found._use(deciding)
        found._gallery, found._fallback = own, None
        return found

    def without_gallery(self, fallback: Fallback) -> Thresholds:
        """Return the same thresholds, with the reason why no gallery's own decide."""
        found = copy(self)
        found._fallback = fallback
        return found

    def decided_by(self, fmr: float) -> DecidedBy:
        """Return whose measurement the threshold at ``fmr`` is."""
        if self._gallery is not None and fmr >= self._gallery.points[-1].fmr * (1 - RATE_TOLERANCE):
            return DecidedBy("gallery", self._gallery.name)
        name = self._package_calibration.name if self._package_calibration else None
        return DecidedBy("package", name, self._fallback if self._gallery is None else "rate_not_supported")

    @property
    def lowest(self) -> float | None:
        """The lowest FMR that was measured."""
        return self.points[-1].fmr if self.points else None

    @property
    def highest(self) -> float | None:
        """The highest FMR that was measured."""
        return self.points[0].fmr if self.points else None

    def threshold(self, fmr: float) -> float:
        """Return the lowest score at which a pair matches at false match rate ``fmr``.

        Raises OperatingPointUnavailable if ``fmr`` lies outside the measured range (details: lowest, highest).
        """
        if self.lowest is None or self.highest is None:
            raise self._unavailable(f"{self.package} has no measured operating points")
        if not self.lowest * (1 - RATE_TOLERANCE) <= fmr <= self.highest * (1 + RATE_TOLERANCE):
            raise self._unavailable(
                f"{self.package} was measured at false match rates {self.lowest:g} to {self.highest:g}, not at {fmr:g}"
            )
        return float(np.interp(math.log10(fmr), self._log_fmr, self._threshold))

    def for_fpir(self, fpir: float, subjects: int) -> float:
        """Return the threshold at which a search among ``subjects`` finds a stranger with probability ``fpir``.

        With independent comparisons FPIR = 1 - (1 - FMR)^subjects (Daugman 2000, "Biometric decision landscapes").
        Raises OperatingPointUnavailable as `threshold` does.
        """
        if not 0 < fpir < 1:
            raise self._unavailable(f"a false positive identification rate lies between 0 and 1, not at {fpir:g}")
        return self.threshold(-math.expm1(math.log1p(-fpir) / max(subjects, 1)))

    def fmr_of(self, threshold: float) -> float | None:
        """Return the FMR at a threshold, the inverse of `threshold`; None outside the measured range."""
        if self.calibration is None or not self._threshold[-1] <= threshold <= self._threshold[0]:
            return None
        return float(10 ** np.interp(threshold, self._threshold[::-1], self._log_fmr[::-1]))

    def _unavailable(self, message: str) -> OperatingPointUnavailable:
        return OperatingPointUnavailable(message, lowest=self.lowest, highest=self.highest)
