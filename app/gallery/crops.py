"""Aligned crops as a gallery keeps them."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from app.types import Pixels

JPEG_QUALITY = 95
FULL_CHROMA = 0
"""Pillow's name for 4:4:4: halved chroma would cost an embedder more than it saves here."""


def encode_crop(crop: Pixels) -> bytes:
    """(H, W, 3) uint8 RGB as a JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(crop).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=FULL_CHROMA)
    return buffer.getvalue()


def decode_crop(jpeg: bytes) -> Pixels:
    """(H, W, 3) uint8 RGB."""
    with Image.open(io.BytesIO(jpeg)) as image:
        return np.array(image.convert("RGB"))
