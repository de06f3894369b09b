"""Cut a face with its surroundings out of a picture; the surroundings let the service find the face in the cut."""

from __future__ import annotations

from typing import Final, Protocol

import cv2
import numpy as np

from app.errors import InvalidInput
from app.types import Pixels

MARGIN: Final = 0.6
"""Margin on each side of a face, as a share of its width and height."""
JPEG_QUALITY: Final = 95


class Placed(Protocol):
    """A box in a picture, in pixels."""

    @property
    def x(self) -> float: ...
    @property
    def y(self) -> float: ...
    @property
    def width(self) -> float: ...
    @property
    def height(self) -> float: ...


def around(pixels: Pixels, box: Placed) -> Pixels:
    """Return a copy of the part of a (H, W, 3) uint8 RGB picture with the box and MARGIN around it."""
    height, width = pixels.shape[:2]
    left, right = int(box.x - MARGIN * box.width), int(box.x + (1 + MARGIN) * box.width) + 1
    top, bottom = int(box.y - MARGIN * box.height), int(box.y + (1 + MARGIN) * box.height) + 1
    return np.array(pixels[max(0, top) : min(height, bottom), max(0, left) : min(width, right)])


def to_jpeg(pixels: Pixels) -> bytes:
    """Return a (H, W, 3) uint8 RGB picture as JPEG. Raises InvalidInput ``invalid_image`` for an empty one."""
    bgr = np.ascontiguousarray(pixels[..., ::-1])
    done, data = cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]) if bgr.size else (False, bgr)
    if not done:
        raise InvalidInput("The face could not be written as JPEG.", code="invalid_image")
    return data.tobytes()
