"""Estimate the head pose from the five landmarks.

A rigid mean face is fitted to the landmarks by scaled orthographic projection (the linear step of DeMenthon and Davis
1995, "Model-based object pose in 25 lines of code"), and the rotation is split into angles. A person's face differs
from the mean (a short nose looks like a raised head), so the result says whether a head is turned away, but not exactly
by how many degrees.
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
"""The landmarks of the mean face: x to the right, y down, z away from the camera, in units of the eyes' distance.

x and y: the medians of YuNet's landmarks in 500 photos of LFW, with the eyes made level and both sides averaged; most
of those people look into the camera. z: the tip of the nose is half the eyes' distance in front of the rest, as in
CompreFace's model of the face. With these values, the median pitch, roll and yaw over the 500 photos are 0, 1 and 0
degrees.
"""
LEAST_SPREAD = 1e-3
"""Minimum ratio of the smaller to the larger singular value of the fit: landmarks on one line or in one point have no
pose."""


@dataclass(frozen=True, slots=True)
class Pose:
    """A head's pose in degrees; all three are 0 for a face that looks into the camera. ``yaw`` is positive if the nose
    points to the left of the photo, ``pitch`` if it points upwards, ``roll`` if the head leans to the left of the
    photo, that is, counter-clockwise."""

    pitch: float
    roll: float
    yaw: float


def pose_of(landmarks: Landmarks) -> Pose | None:
    """Return the pose; None if the landmarks can't be those of a face. `landmarks`: (5, 2), in pixels, as the detector
    returns them."""
    fit = np.linalg.pinv(_centred(np.array(MEAN_FACE))) @ _centred(landmarks.astype(np.float64))  # (3, 2)
    left, spread, right = np.linalg.svd(fit.T, full_matrices=False)
    if not np.isfinite(spread).all() or spread[1] <= LEAST_SPREAD * spread[0]:
        return None
    rows = left @ right  # the first two rows of the nearest rotation
    turn = np.vstack([rows, np.cross(rows[0], rows[1])])
    # turn = Rz(roll) Rx(pitch) Ry(yaw), x to the right, y down, z away from the camera
    return Pose(
        pitch=-math.degrees(math.asin(float(np.clip(turn[2, 1], -1, 1)))),
        roll=-math.degrees(math.atan2(-turn[0, 1], turn[1, 1])),
        yaw=math.degrees(math.atan2(-turn[2, 0], turn[2, 2])),
    )


def _centred(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(points - points.mean(axis=0))
