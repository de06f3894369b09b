"""How well a face can be compared: 0-100, with the reasons that pull it down.

The score is 100 times a product of factors, one for each property, each 1 where the property costs nothing and
falling to 0 where false non-matches become the rule. How the constants were chosen and what they bring:
docs/quality.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import cv2
import numpy as np
from numpy.typing import NDArray

from app.types import Box, Detection, Landmarks, Pixels, Quality, Reason


class QualityLevel(StrEnum):
    """A gate at enrollment: the least quality score that it lets in."""

    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    @property
    def minimum(self) -> float:
        return MINIMUM_SCORES[self]


MINIMUM_SCORES = {QualityLevel.NONE: 0.0, QualityLevel.LOW: 15.0, QualityLevel.MEDIUM: 35.0, QualityLevel.HIGH: 70.0}


@dataclass(frozen=True, slots=True)
class Ramp:
    """0 at ``worst`` and beyond, 1 at ``good`` and beyond, straight between; the two may stand in either order."""

    worst: float
    good: float

    def __call__(self, value: float) -> float:
        return min(1.0, max(0.0, (value - self.worst) / (self.good - self.worst)))


RAMPS = {
    Reason.SMALL_FACE: Ramp(12.0, 60.0),
    Reason.LOW_SHARPNESS: Ramp(0.02, 0.12),
    Reason.LOW_BRIGHTNESS: Ramp(10.0, 60.0),
    Reason.OVEREXPOSED: Ramp(0.6, 0.1),
    Reason.EXTREME_POSE: Ramp(0.5, 0.1),
    Reason.CUT_OFF: Ramp(0.5, 0.05),
    Reason.LOW_SCORE: Ramp(0.4, 0.8),
}
REASON_BELOW = 0.7
"""A factor under this is named as a reason."""


@dataclass(frozen=True, slots=True)
class Measures:
    """What the factors are computed from."""

    size: float
    """Geometric mean of the box's sides, pixels of the original photo."""
    sharpness: float
    """Energy of the Laplacian over the variance of the grey values, in the middle of the crop."""
    brightness: float
    """Mean grey value in the middle of the crop, 0-255."""
    overexposed: float
    """Share of the middle of the crop that is (nearly) white, 0-1."""
    pose: float
    """How far the landmarks' shape is from the frontal one, 0 = the same, 1 = unlike."""
    cut_off: float
    """Share of the box that lies outside of the photo, 0-1."""
    score: float
    """The detector's own, 0-1."""


def assess(crop: Pixels, detection: Detection, width: int, height: int) -> Quality:
    """Quality of a face from its aligned (112, 112, 3) uint8 RGB ``crop`` and its ``detection``, in pixels of the
    upright original photo of ``width`` × ``height``. Takes a few tens of microseconds."""
    return grade(measure(crop, detection, width, height))


def grade(measures: Measures) -> Quality:
    factors = {
        Reason.SMALL_FACE: RAMPS[Reason.SMALL_FACE](measures.size),
        Reason.LOW_SHARPNESS: RAMPS[Reason.LOW_SHARPNESS](measures.sharpness),
        Reason.LOW_BRIGHTNESS: RAMPS[Reason.LOW_BRIGHTNESS](measures.brightness),
        Reason.OVEREXPOSED: RAMPS[Reason.OVEREXPOSED](measures.overexposed),
        Reason.EXTREME_POSE: RAMPS[Reason.EXTREME_POSE](measures.pose),
        Reason.CUT_OFF: RAMPS[Reason.CUT_OFF](measures.cut_off),
        Reason.LOW_SCORE: RAMPS[Reason.LOW_SCORE](measures.score),
    }
    reasons = tuple(reason for reason, factor in factors.items() if factor < REASON_BELOW)
    return Quality(score=round(100 * math.prod(factors.values()), 1), reasons=reasons)


def measure(crop: Pixels, detection: Detection, width: int, height: int) -> Measures:
    box = detection.box
    middle = cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY)[MIDDLE]
    return Measures(
        size=math.sqrt(max(0.0, box.area)),
        sharpness=_sharpness(np.asarray(middle, np.uint8)),
        brightness=float(middle.mean()),
        overexposed=float((middle >= NEARLY_WHITE).mean()),
        pose=_pose(detection.landmarks),
        cut_off=_outside(box, width, height),
        score=detection.score,
    )


MIDDLE = (slice(28, 100), slice(22, 90))
"""Rows and columns of the crop that hold brows to chin and cheek to cheek, not the background."""
NEARLY_WHITE = 250
FRONTAL: NDArray[np.float64] = np.array(
    [[38.2946, 51.6963], [73.5318, 51.5014], [56.0252, 71.7366], [41.5493, 92.3655], [70.7299, 92.2041]]
)
"""A frontal face's landmarks: the canonical ones of the crop."""
FRONTAL.flags.writeable = False


def _sharpness(grey: NDArray[np.uint8]) -> float:
    laplacian = cv2.Laplacian(grey, cv2.CV_32F)
    return float(np.square(laplacian).mean()) / (float(grey.var()) + 1.0)


def _pose(landmarks: Landmarks) -> float:
    """Procrustes distance between the landmarks and a frontal face's (Kendall 1984): free of shift, scale and turn."""
    p = np.asarray(landmarks, np.float64) @ (1, 1j)
    q = FRONTAL @ (1, 1j)
    p, q = p - p.mean(), q - q.mean()
    norm = float(np.linalg.norm(p) * np.linalg.norm(q))
    alike = abs(complex(np.vdot(p, q))) / norm if norm > 0 else 0.0
    return math.sqrt(max(0.0, 1 - alike * alike))


def _outside(box: Box, width: int, height: int) -> float:
    """Share of the box outside of the photo."""
    if box.width <= 0 or box.height <= 0:
        return 1.0
    inside_x = max(0.0, min(box.x + box.width, width) - max(box.x, 0.0))
    inside_y = max(0.0, min(box.y + box.height, height) - max(box.y, 0.0))
    return 1 - inside_x * inside_y / box.area
