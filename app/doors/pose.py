"""How a head is turned, from its five landmarks: an approximation, where a service that is replaced answers with one.

A rigid mean face is fitted to the landmarks by scaled orthographic projection (the linear step of DeMenthon and Davis
1995, "Model-based object pose in 25 lines of code"), and the rotation taken apart. The mean face is the canonical
landmarks every crop is aligned to (the average of frontal faces), with the nose tip half the eyes' distance in front
of the plane of the others, as CompreFace's own model of the face has it. What it can't know is how one person's face
differs from the mean: a long nose looks like a raised head. It is good for "turned away or not", not for degrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.face.align import CANONICAL_LANDMARKS
from app.types import Landmarks

NOSE = 2
"""Its place among the landmarks."""
NOSE_DEPTH = 0.5
"""Of the eyes' distance."""
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
    fit = np.linalg.pinv(_mean_face()) @ _centred(landmarks.astype(np.float64))  # (3, 2)
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


def _mean_face() -> NDArray[np.float64]:
    """(5, 3) x, y, z."""
    flat = CANONICAL_LANDMARKS.astype(np.float64)
    depth = np.zeros((len(flat), 1))
    depth[NOSE] = -NOSE_DEPTH * np.linalg.norm(flat[1] - flat[0])
    return _centred(np.hstack([flat, depth]))


def _centred(points: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(points - points.mean(axis=0))
