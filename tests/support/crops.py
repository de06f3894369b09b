"""Aligned crops for tests: real ones where the research data lies beside the checkout, drawn ones elsewhere."""

from __future__ import annotations

import io
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image

from app.types import Pixels
from training.data.dataset import decode_crop
from training.data.drawn.dataset import ProceduralFaces

ARCHIVE = Path(__file__).parents[3] / "shared" / "data" / "train112" / "train112.tar"


def some_crops(count: int) -> Pixels:
    """(count, 112, 112, 3) uint8 RGB, the same every time on one machine."""
    if ARCHIVE.is_file():
        with tarfile.open(ARCHIVE) as archive:
            files = islice((entry for entry in archive if entry.name.endswith(".jpg")), count)
            found = [archive.extractfile(entry) for entry in files]
            return np.stack([decode_crop(file.read()) for file in found if file is not None])
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
