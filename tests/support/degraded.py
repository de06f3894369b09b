"""Degrade photos in one way each. All are (H, W, 3) uint8 RGB."""

from __future__ import annotations

import math

import cv2
import numpy as np

from app.types import Pixels


def shrunk(pixels: Pixels, factor: float) -> Pixels:
    """Shrink to ``factor`` times the size, averaging pixels."""
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA), np.uint8)


def smeared(pixels: Pixels, pixels_moved: float, rng: np.random.Generator) -> Pixels:
    """Blur along a line in some direction: motion during the exposure."""
    length, degrees = round(pixels_moved), float(rng.uniform(0, 180))
    middle = (length - 1) / 2
    line = np.zeros((length, length), np.float32)
    line[length // 2] = 1
    line = np.asarray(
        cv2.warpAffine(line, cv2.getRotationMatrix2D((middle, middle), degrees, 1), (length, length)), np.float32
    )
    return np.asarray(cv2.filter2D(pixels, -1, line / line.sum()), np.uint8)


def nodded(pixels: Pixels, degrees: float) -> Pixels:
    """Foreshorten the photo like a head that looks up or down.

    The photo is a flat card turned about its horizontal middle axis, seen from three times its width.
    """
    height, width = pixels.shape[:2]
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    angle, distance = math.radians(degrees), 3.0
    depth = distance + corners[:, 1] * math.sin(angle)
    near = corners * distance / depth[:, None]
    near[:, 1] *= math.cos(angle)
    size = np.array([width, height])
    matrix = cv2.getPerspectiveTransform(
        ((corners + 0.5) * size).astype(np.float32), ((near + 0.5) * size).astype(np.float32)
    )
    return np.asarray(cv2.warpPerspective(pixels, matrix, (width, height)), np.uint8)
