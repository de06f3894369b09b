"""Read what a gallery stores, or what other programs have made to be stored: crops and templates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.face.formats import Limits
from app.face.image import decode
from app.package.manifest import CROP_SIDE
from app.types import UNIT_TOLERANCE, Pixels, Vectors

CROP_LIMITS = Limits(
    max_bytes=256 * 1024,  # seven times the pixels' own size
    max_pixels=CROP_SIDE**2,
    max_side=CROP_SIDE,
    min_side=CROP_SIDE,
    formats=frozenset({"JPEG"}),
)
"""What a stored crop may be: imported archives bring crops that other programs made."""


def decode_crop(jpeg: bytes) -> Pixels:
    """Decode a stored crop, (112, 112, 3) uint8 RGB. Raises InvalidInput if it is anything else or damaged."""
    return decode(jpeg, CROP_LIMITS).pixels


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which rows have length 1, (N,). Rows with NaN have not."""
    return np.asarray(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE)
