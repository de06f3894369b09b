"""Rate how well a face can be compared, 0-100, with the reasons for a low score.

The score is 100 times a product of factors, one for each property: 1 if the property costs nothing, falling to 0 as
false non-matches become the rule. docs/explanation/quality.md says how the constants were chosen and what they gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Self

import cv2
import numpy as np
from numpy.typing import NDArray

from app.types import CANONICAL_LANDMARKS, Detection, Landmarks, Pixels, Quality, Reason


class QualityLevel(StrEnum):
    """The lowest quality that enrollment accepts, and its ``minimum`` score.

    The scores were chosen on degraded copies of LFW View 1 by the errors that each admits
    (docs/explanation/quality.md).
    """

    minimum: float

    NONE = "none", 0.0
    LOW = "low", 20.0
    MEDIUM = "medium", 40.0
    HIGH = "high", 70.0

    def __new__(cls, word: str, minimum: float = 0.0) -> Self:  # mypy checks `QualityLevel(word)` against this
        level = str.__new__(cls, word)
        level._value_, level.minimum = word, minimum
        return level


@dataclass(frozen=True, slots=True)
class Ramp:
    """0 at ``worst`` and beyond, 1 at ``good`` and beyond, linear between; either may be the larger."""

    measure: str
    """The field of `Measures` that it is for."""
    worst: float
    good: float

    def __call__(self, value: float) -> float:
        return min(1.0, max(0.0, (value - self.worst) / (self.good - self.worst)))


RAMPS: Mapping[Reason, Ramp] = MappingProxyType(
    {
        Reason.SMALL_FACE: Ramp("size", 8.0, 30.0),
        Reason.LOW_SHARPNESS: Ramp("sharpness", 0.05, 0.25),
        Reason.LOW_BRIGHTNESS: Ramp("brightness", 2.0, 30.0),
        Reason.OVEREXPOSED: Ramp("overexposed", 1.0, 0.1),
        Reason.EXTREME_POSE: Ramp("pose", 0.45, 0.12),
        Reason.CUT_OFF: Ramp("cut_off", 0.5, 0.05),
        Reason.LOW_SCORE: Ramp("score", 0.8, 0.93),
    }
)
"""Chosen on LFW View 1 and on degraded copies of its photos. Brightness counts only far below that of any skin in a
properly exposed photo: a higher ramp would avoid more errors, but also reject people for the colour of their skin."""
REASON_BELOW = 0.7
"""A factor below this is named as a reason."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The measurements that the factors are computed from."""

    size: float
    """Geometric mean of the box's sides, pixels of the original photo."""
    sharpness: float
    """Root mean square of the grey values' second derivative, the lower of x and y, divided by their standard
    deviation, in the middle of the crop smoothed by 1 pixel."""
    brightness: float
    """Mean grey value in the middle of the crop, 0-255."""
    overexposed: float
    """Share of the middle of the crop that is (nearly) white, 0-1."""
    pose: float
    """Procrustes distance of the landmarks from a frontal face's: 0 = the same shape, up to 1."""
    cut_off: float
    """Share of the face, brows to chin, that lies outside of the photo, 0-1."""
    score: float
    """The detector's score, 0-1."""


def grade(measures: Measures) -> Quality:
    """Return the quality of a face with these measures."""
    factors = {reason: ramp(getattr(measures, ramp.measure)) for reason, ramp in RAMPS.items()}
    reasons = tuple(reason for reason, factor in factors.items() if factor < REASON_BELOW)
    return Quality(score=round(100 * math.prod(factors.values()), 1), reasons=reasons)


def measure(crop: Pixels, detection: Detection, width: int, height: int) -> Measures:
    """Return the measures of a face from its aligned (112, 112, 3) uint8 RGB ``crop`` and its ``detection``.

    The detection is in pixels of the upright original of ``width`` × ``height``. Takes a few tens of microseconds.
    """
    middle = np.asarray(cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[MIDDLE], np.uint8)
    pose, cut_off = _pose_and_cut(detection.landmarks, width, height)
    return Measures(
        size=math.sqrt(max(0.0, detection.box.area)),
        sharpness=_sharpness(middle),
        brightness=float(middle.mean()),
        overexposed=np.count_nonzero(middle >= NEARLY_WHITE) / middle.size,
        pose=pose,
        cut_off=cut_off,
        score=detection.score,
    )


MIDDLE = (slice(28, 100), slice(22, 90))
"""Rows and columns of the crop that hold brows to chin and cheek to cheek, not the background."""
NEARLY_WHITE = 250
"""Grey value from which a pixel's detail is lost in the light."""
FRONTAL: NDArray[np.complex128] = np.asarray(CANONICAL_LANDMARKS @ (1, 1j), np.complex128)
"""(5,) x + iy: a frontal face's landmarks."""
FRONTAL_CENTRE = complex(FRONTAL.mean())
FRONTAL_SIZE = float(np.linalg.norm(FRONTAL - FRONTAL_CENTRE))
FACE_POINTS: NDArray[np.complex128] = (np.arange(22, 91, 4)[None, :] + 1j * np.arange(28, 109, 4)[:, None]).ravel()
"""(378,) x + iy: points all over a face in the crop."""


def _sharpness(grey: NDArray[np.uint8]) -> float:
    """Return the sharpness along the more blurred direction, independent of contrast; 0 for a flat picture.

    A moving face is blurred along one direction only. Of a dozen measures (Laplacian, Tenengrad, ratios of bands …)
    this one separated blurred copies of LFW View 1 from the photos best: area under the ROC 0.997, the plain
    Laplacian's 0.993.
    """
    smooth = cv2.GaussianBlur(grey, (0, 0), 1)
    curved = (cv2.norm(cv2.Sobel(smooth, cv2.CV_32F, *order), cv2.NORM_L2SQR) for order in ((2, 0), (0, 2)))
    return math.sqrt(min(curved) / smooth.size) / (float(smooth.std()) + 1)


def _pose_and_cut(landmarks: Landmarks, width: int, height: int) -> tuple[float, float]:
    """Return the distance of the landmarks' shape from a frontal one's, and the share of the face outside of the photo.

    With points as complex numbers the best similarity is one division (see `app.face.align`); the remainder is the
    Procrustes distance (Kendall, "Shape manifolds", Bull. London Math. Soc. 16, 1984), which doesn't depend on shift,
    scale and tilt.
    """
    seen = np.asarray(landmarks, np.float64) @ (1, 1j)
    centre = seen.sum() / len(seen)
    spread = float(np.linalg.norm(seen - centre))
    if spread == 0:
        return 1.0, 1.0
    product = np.vdot(FRONTAL - FRONTAL_CENTRE, seen - centre)
    alike = abs(product) / (FRONTAL_SIZE * spread)
    in_photo = (FACE_POINTS - FRONTAL_CENTRE) * (product / FRONTAL_SIZE**2) + centre
    x, y = in_photo.real, in_photo.imag
    outside = (x < -0.5) | (y < -0.5) | (x > width - 0.5) | (y > height - 0.5)
    return math.sqrt(max(0.0, 1 - alike * alike)), np.count_nonzero(outside) / len(FACE_POINTS)
