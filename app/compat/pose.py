"""How a head is turned, from its five landmarks: an approximation, where a service that is replaced answers with one.

A rigid mean face is fitted to the landmarks by scaled orthographic projection (the linear step of DeMenthon and Davis
1995, "Model-based object pose in 25 lines of code"), and the rotation taken apart. What it can't know is how one
person's face differs from the mean: a short nose looks like a raised head. It is good for "turned away or not", not
for degrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.types import Landmarks

MEAN_FACE = (
    (-0.5, 0.0, 0.0),
    (0.5, 0.0, 0.0),
    (0.0, 0.585, -0.5),
    (-0.43, 1.062, 0.0),
    (0.43, 1.062, 0.0),
)
"""The landmarks' x to the right, y down, z away from the camera, in units of the eyes' distance.

x and y: the medians of what YuNet sees in 500 photos of LFW, the eyes made level, left and right made alike: most of
those people look into the camera. z: the nose tip half the eyes' distance in front of the rest, as in CompreFace's own
model of the face. Of the 500 photos the median pitch, roll and yaw are then 0, 1 and 0 degrees."""
LEAST_SPREAD = 1e-3
"""Landmarks that lie on one line, or in one point, say nothing: the smaller singular value as a share of the larger."""


@dataclass(frozen=True, slots=True)
class Pose:
    """Degrees, all 0 for a face that looks into the camera. ``yaw``: positive where the nose points to the left of the
    photo; ``pitch``: positive upwards; ``roll``: positive where the head leans to the left of the photo, that is,
    counter-clockwise."""

    pitch: float
    roll: float
    yaw: float


def pose_of(landmarks: Landmarks) -> Pose | None:
    """None where the landmarks are those of no face."""
    fit = np.linalg.pinv(_centred(np.array(MEAN_FACE))) @ _centred(landmarks.astype(np.float64))  # (3, 2)
    left, spread, right = np.linalg.svd(fit.T, full_matrices=False)
    if not np.isfinite(spread).all() or spread[1] <= LEAST_SPREAD * spread[0]:
        return None
    rows = left @ right  # the nearest two rows of a rotation
    turn = np.vstack([rows, np.cross(rows[0], rows[1])])
    # turn = Rz(roll) Rx(pitch) Ry(yaw), x to the right, y down, z away from the camera
    return Pose(
        pitch=-math.degrees(math.asin(float(np.clip(turn[2, 1], -1, 1)))),
        roll=-math.degrees(math.atan2(-turn[0, 1], turn[1, 1])),
        yaw=math.degrees(math.atan2(-turn[2, 0], turn[2, 2])),
    )


def _centred(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(points - points.mean(axis=0))
