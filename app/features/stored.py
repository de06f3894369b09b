"""Check crops and templates that a gallery stores or that other programs made."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.face.formats import Limits
from app.face.image import decode
from app.package.manifest import CROP_SIDE
from app.types import UNIT_TOLERANCE, Pixels, Vectors

CROP_LIMITS = Limits(
    max_bytes=256 * 1024,  # seven times the size of the raw pixels
    max_pixels=CROP_SIDE**2,
    max_side=CROP_SIDE,
    min_side=CROP_SIDE,
    formats=frozenset({"JPEG"}),
)
"""Limits of a stored crop, since imported archives contain crops of other programs."""


def decode_crop(jpeg: bytes) -> Pixels:
    """Decode a stored crop, (112, 112, 3) uint8 RGB. Raises InvalidInput if it is anything else or damaged."""
    return decode(jpeg, CROP_LIMITS).pixels


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which rows have length 1, (N,) bool; False for rows with NaN."""
    return np.asarray(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE)
