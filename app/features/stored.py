"""Check stored crops and templates, which other programs may have made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from app.face.formats import Limits
from app.face.image import decode
from app.inference.embedders import Embedders
from app.package.manifest import CROP_SIDE
from app.types import UNIT_TOLERANCE, Pixels, Template, Vectors

CROP_LIMITS = Limits(
    max_bytes=256 * 1024,  # seven times as much as the raw pixels take
    max_pixels=CROP_SIDE**2,
    max_side=CROP_SIDE,
    min_side=CROP_SIDE,
    formats=frozenset({"JPEG"}),
)
"""Limits of a stored crop, since imported archives may contain other programs' crops."""


def decode_crop(jpeg: bytes) -> Pixels:
    """Return the pixels of a stored crop, (112, 112, 3) uint8 RGB. Raises InvalidInput if the JPEG is of another size
    or damaged."""
    return decode(jpeg, CROP_LIMITS).pixels


def embed_crops(embedders: Embedders, package: str, jpegs: Sequence[bytes]) -> list[Template | None]:
    """Return the templates of stored crops by a package; None for each crop that can't be decoded."""
    pixels = [crop_pixels(jpeg) for jpeg in jpegs]
    with embedders.use(package) as opened:
        made = iter(opened.embedder.embed([crop for crop in pixels if crop is not None])[0])
    return [None if crop is None else next(made) for crop in pixels]


def crop_pixels(jpeg: bytes) -> Pixels | None:
    """Return the pixels of a stored crop as `decode_crop` does; None if it raises an error."""
    try:
        return decode_crop(jpeg)
    except InvalidInput:
        return None


def is_unit(vectors: Vectors) -> NDArray[np.bool_]:
    """Return which of the (N, D) vectors have length 1, (N,) bool; vectors with NaN don't."""
    return np.asarray(np.abs(np.linalg.norm(vectors, axis=1) - 1) <= UNIT_TOLERANCE)
