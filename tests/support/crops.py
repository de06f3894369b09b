"""Aligned crops for tests, drawn."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image

from app.types import Pixels
from training.data.drawn import ProceduralFaces


def some_crops(count: int) -> Pixels:
    """(count, 112, 112, 3) uint8 RGB, the same every time on one machine."""
    drawn = ProceduralFaces(count, 1, 0)
    return np.stack([drawn[index][0] for index in range(count)])


def png(value: int, side: int = 112) -> bytes:
    """A PNG file of one colour, whose red is `value`."""
    return png_of(np.full((side, side, 3), (value, 255 - value, 7), np.uint8))


def png_of(crop: Pixels) -> bytes:
    """A PNG file of an image."""
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "PNG")
    return file.getvalue()
