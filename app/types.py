"""The values that flow through the service: plain, frozen, complete when made.

Pixels are ``uint8`` RGB, coordinates are pixels of the upright original photo
(x to the right, y down, the first pixel's centre at 0, 0), vectors are unit ``float32``. Times are
text: UTC, ISO 8601, of equal length, so that they sort as text in the order of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
"""(H, W, 3) uint8 RGB, 0-255."""
Landmarks: TypeAlias = NDArray[np.float32]
"""(5, 2) float32 x, y: the person's right eye, left eye, nose tip, right and left mouth corner, that
is: left to right as one looks at the photo, the order of YuNet and of the canonical landmarks."""
CANONICAL_LANDMARKS: NDArray[np.float64] = np.array(
    [
        [38.2946, 51.6963],  # left eye as one looks at the photo
        [73.5318, 51.5014],  # right eye
        [56.0252, 71.7366],  # nose tip
        [41.5493, 92.3655],  # left mouth corner
        [70.7299, 92.2041],  # right mouth corner
    ]
)
"""(5, 2) float64 x, y of a frontal face in pixels of the 112×112 crop: the ArcFace reference points."""
CANONICAL_LANDMARKS.flags.writeable = False
Vector: TypeAlias = NDArray[np.float32]
"""(D,) float32 of length 1."""
Vectors: TypeAlias = NDArray[np.float32]
"""(N, D) float32, each row of length 1."""
UNIT_TOLERANCE = 1e-3
"""Maximum distance of a vector's length from 1: far above float32's rounding, far below a forgotten normalisation's."""
Sizes: TypeAlias = Mapping[int, int]
"""The number of subjects by their number of faces; subjects without a face are not counted."""


def count_faces(sizes: Sizes) -> int:
    """Return the total number of the subjects' faces."""
    return sum(faces * subjects for faces, subjects in sizes.items())


class Reason(StrEnum):
    """Why a face's quality is low."""

    SMALL_FACE = "small_face"
    LOW_SHARPNESS = "low_sharpness"
    LOW_BRIGHTNESS = "low_brightness"
    OVEREXPOSED = "overexposed"
    EXTREME_POSE = "extreme_pose"
    CUT_OFF = "cut_off"
    LOW_SCORE = "low_score"
    UNALIGNABLE = "unalignable"
    """The landmarks could not be confirmed: the face is shown, but never compared."""


class Verdict(StrEnum):
    """Whether a face is live, or a picture of one."""

    LIVE = "live"
    SPOOF = "spoof"
    UNCERTAIN = "uncertain"
    NOT_MEASURED = "not_measured"


class DoubtReason(StrEnum):
    """Why a face is not judged live."""

    LOW_SCORE = "low_score"
    BETWEEN_THRESHOLDS = "between_thresholds"
    SMALL_FACE = "small_face"
    NO_OPERATING_POINTS = "no_operating_points"


@dataclass(frozen=True, slots=True)
class Box:
    """An upright rectangle in pixels of the upright original; it may reach beyond the photo's edge."""

    x: float
    y: float
    width: float
    height: float

    @property
    def area(self) -> float:
        return self.width * self.height

    @property
    def centre(self) -> tuple[float, float]:
        return self.x + self.width / 2, self.y + self.height / 2

    def holds(self, x: float, y: float) -> bool:
        return self.x <= x <= self.x + self.width and self.y <= y <= self.y + self.height


@dataclass(frozen=True, slots=True)
class Detection:
    """One face as the detector saw it; ``score`` is the detector's own, 0-1."""

    box: Box
    landmarks: Landmarks
    score: float


UNKNOWN_QUALITY = 50.0
"""The quality stored with a template that came without one; the face's pose is also unknown."""


@dataclass(frozen=True, slots=True)
class Quality:
    """``score`` 0-100: higher means fewer expected false non-matches; ``reasons`` name what is poor."""

    score: float
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True)
class Liveness:
    """``score`` 0-1 is the models' probability that a face is live; the ``verdict`` is a decision at measured
    thresholds, with its reason."""

    score: float
    verdict: Verdict
    reason: DoubtReason | None


@dataclass(frozen=True, slots=True)
class Template:
    """A face's unit vector and the id of the package that made it; only equal ids may be compared."""

    vector: Vector
    package: str


@dataclass(frozen=True, slots=True)
class Face:
    """One detected face with its aligned crop, (112, 112, 3) uint8 RGB, and its template if it was embedded.

    A face whose landmarks could not be confirmed has neither landmarks nor crop, and its quality is 0 with the reason
    `unalignable`: the detector's landmarks for it are wrong, and such faces of different people match each other.
    """

    box: Box
    landmarks: Landmarks | None
    score: float
    """The detector's score, 0-1."""
    quality: Quality
    crop: Pixels | None
    template: Template | None = None
    cuts: tuple[Pixels, ...] = ()
    """The pictures of the face for liveness models, (S, S, 3) uint8 RGB each; empty if liveness is off."""
    liveness: Liveness | None = None


@dataclass(frozen=True, slots=True)
class Photo:
    """The faces that the pipeline found in one photo; ``width`` and ``height`` are the upright original's."""

    width: int
    height: int
    faces: tuple[Face, ...]
    rotated: int = 0
    """Clockwise degrees by which to turn the photo to make its surest face upright: 0, 90, 180 or 270. Boxes and
    landmarks are still in pixels of the photo as given."""
    stages: dict[str, float] = field(default_factory=dict)
    """Milliseconds spent in each stage: decode, detect, align, quality, liveness, embed (waiting included)."""
    batch_size: int | None = None
    """Number of faces in this photo's largest embedding batch, including other requests' faces."""


# Times

Precision = Literal["seconds", "microseconds"]
SKEW_S = 5.0
"""Maximum seconds by which the clocks of a database's servers may differ."""


def utc_now(offset: timedelta = timedelta(), precision: Precision = "microseconds") -> str:
    """Return the current time plus `offset`, such as ``2026-01-31T09:30:00.000000Z``."""
    return (datetime.now(UTC) + offset).isoformat(timespec=precision).replace("+00:00", "Z")


def utc_text(time: datetime | float) -> str:
    """Return a time in the form of `utc_now`; `time` is in seconds since 1970 or has a zone."""
    moment = time if isinstance(time, datetime) else datetime.fromtimestamp(time, UTC)
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def utc_seconds(text: str) -> float:
    """Return the seconds since 1970 of a time in the form of `utc_now`."""
    return datetime.fromisoformat(text).timestamp()
