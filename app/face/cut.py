"""The picture around a face, cut out of its photo as a model was trained to see it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np

from app.inference.manifest import LivenessCut
from app.types import Box, Pixels


@dataclass(frozen=True, slots=True)
class Cut:
    """The picture of a face that one model is shown: a ``side`` × ``side`` picture."""

    side: int
    how: LivenessCut

    def enlarges(self, box: Box) -> bool:
        """Return whether the picture would have more pixels than the part of the photo that it shows."""
        return self.side > self.how.scale * max(box.width, box.height)


def cut_face(pixels: Pixels, box: Box, cut: Cut, *, turned: int = 0) -> Pixels:
    """Return the (side, side, 3) uint8 RGB picture of the face at ``box``.

    ``pixels`` is the (H, W, 3) uint8 RGB photo; the picture is turned clockwise by ``turned`` degrees. Takes no more
    memory than the photo's part under the cut.
    """
    if cut.how.edge == "move":
        picture = _resized(_moved(pixels, box, cut.how), cut.side, cut.side, cut.how)
    else:
        picture = _reflected(pixels, box, cut)
    return np.ascontiguousarray(np.rot90(picture, -turned // 90)) if turned else picture


def _size(box: Box, how: LivenessCut) -> tuple[float, float]:
    """Return the cut's width and height in pixels of the photo, before its edges are minded."""
    if how.shape == "square":
        side = max(box.width, box.height, 1.0) * how.scale
        return side, side
    return max(box.width, 1.0) * how.scale, max(box.height, 1.0) * how.scale


def _moved(pixels: Pixels, box: Box, how: LivenessCut) -> Pixels:
    """Return the part of the photo; its corners are computed as in minivision's `CropImage`."""
    rows, columns = pixels.shape[:2]
    width, height = _size(box, how)
    factor = min(1.0, (columns - 1) / width, (rows - 1) / height)
    width, height = width * factor, height * factor
    left = float(np.clip(box.x + box.width / 2 - width / 2, 0, columns - 1 - width))
    top = float(np.clip(box.y + box.height / 2 - height / 2, 0, rows - 1 - height))
    return pixels[int(top) : int(top + height) + 1, int(left) : int(left + width) + 1]


def _reflected(pixels: Pixels, box: Box, cut: Cut) -> Pixels:
    """Return the picture of a cut that is mirrored beyond the photo's edges.

    The part inside the photo is brought to its share of the picture first, so that a large cut needs no large copy.
    """
    rows, columns = pixels.shape[:2]
    width, height = _size(box, cut.how)
    across, left, inner_width, right = _span(box.x + box.width / 2, width, columns, cut.side)
    down, above, inner_height, below = _span(box.y + box.height / 2, height, rows, cut.side)
    part = _resized(pixels[down, across], inner_width, inner_height, cut.how)
    return np.asarray(cv2.copyMakeBorder(part, above, below, left, right, cv2.BORDER_REFLECT_101), np.uint8)


def _span(centre: float, size: float, limit: int, side: int) -> tuple[slice, int, int, int]:
    """Return one axis of a cut: the photo's part of it, and how many of the picture's pixels lie before, in and after
    that part."""
    start, length = math.floor(centre - size / 2), max(1, round(size))
    first = min(max(start, 0), limit - 1)
    last = max(min(start + length, limit), first + 1)
    before = min(round(max(0, first - start) / length * side), side - 1)
    after = min(round(max(0, start + length - last) / length * side), side - 1 - before)
    return slice(first, last), before, side - before - after, after


def _resized(part: Pixels, width: int, height: int, how: LivenessCut) -> Pixels:
    """Resize; what is enlarged under ``area`` is interpolated as facenox's training did it."""
    kind = cv2.INTER_LINEAR
    if how.resize == "area":
        kind = cv2.INTER_AREA if part.shape[1] >= width and part.shape[0] >= height else cv2.INTER_LANCZOS4
    return np.asarray(cv2.resize(part, (width, height), interpolation=kind), np.uint8)
