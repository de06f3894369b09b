"""Convert numbers to the form that other services use: boxes in whole pixels, similarities with few decimals."""

from __future__ import annotations

import math

from app.types import Face, Photo

DIGITS = 5
"""Decimals of similarities and probabilities."""


def round_down(similarity: float) -> float:
    """Round down to DIGITS decimals, so that rounding never raises a similarity to a client's threshold."""
    scale = 10.0**DIGITS
    return math.floor(similarity * scale) / scale


def corners(face: Face, photo: Photo) -> dict[str, int]:
    """Return the corners of a face's box in whole pixels, clipped to the photo: `x_min`, `y_min`, `x_max`, `y_max`."""
    box = face.box
    return {
        "x_min": _within(box.x, photo.width),
        "y_min": _within(box.y, photo.height),
        "x_max": _within(box.x + box.width, photo.width),
        "y_max": _within(box.y + box.height, photo.height),
    }


def _within(value: float, size: int) -> int:
    return min(max(round(value), 0), size)
