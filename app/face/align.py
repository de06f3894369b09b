"""Cut the pictures of a face that models take out of its photo.

Embedders take a 112×112 crop, aligned by the landmarks. Its transform is Umeyama's closed form of the least-squares
similarity (S. Umeyama, "Least-squares estimation of transformation parameters between two point patterns", IEEE TPAMI
13(4), 1991), which in the plane needs no SVD: with points as complex numbers it is one division. Liveness models take
an upright square or rectangle around the face's box.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.package.manifest import CROP_SIDE, LivenessCut
from app.types import CANONICAL_LANDMARKS, Box, Pixels

TINY = float(np.finfo(np.float64).tiny)


def similarity_transform(src: ArrayLike, dst: ArrayLike) -> NDArray[np.float64]:
    """Return the rotation, uniform scale and shift that map ``src`` to ``dst`` best, in least squares.

    ``src`` and ``dst`` are (N, 2) points; the result is (2, 3) float64, ``[x', y'] = M @ [x, y, 1]``, never mirrored.
    Raises ValueError for points that are not finite, or all in one place.
    """
    points = np.asarray([src, dst], np.float64)
    if not np.isfinite(points).all():
        raise ValueError("landmarks must be finite numbers")
    p, q = points.view(np.complex128)[..., 0]
    p_mean, q_mean = p.sum() / len(p), q.sum() / len(q)
    p = p - p_mean
    spread = np.vdot(p, p).real
    if spread <= TINY:
        raise ValueError("landmarks must not all lie in one place")
    turn = np.vdot(p, q - q_mean) / spread  # s·cos θ + i s·sin θ
    shift = q_mean - turn * p_mean
    return np.array([[turn.real, -turn.imag, shift.real], [turn.imag, turn.real, shift.imag]])


def scale_of(matrix: NDArray[np.float64]) -> float:
    """Return the crop pixels per source pixel of a (2, 3) similarity."""
    return math.hypot(matrix[0, 0], matrix[1, 0])


def align(pixels: Pixels, landmarks: ArrayLike) -> Pixels:
    """Warp the face with these five (5, 2) ``landmarks`` onto the canonical ones.

    ``pixels`` is (H, W, 3) uint8 RGB, any size; the result is (112, 112, 3) uint8 RGB. Raises what
    `similarity_transform` raises.
    """
    return warp(pixels, similarity_transform(landmarks, CANONICAL_LANDMARKS), CROP_SIDE)


def warp(pixels: Pixels, matrix: NDArray[np.float64], side: int) -> Pixels:
    """Return a square of ``side`` pixels, to which the (2, 3) similarity ``matrix`` maps a part of the (H, W, 3) uint8
    RGB photo; black outside of the photo.

    Interpolates bilinearly: on LFW View 1 neither bicubic nor a replicated border gained. If two or more of the part's
    pixels fall on one of the square's, the part is first averaged over blocks, so that fine detail turns grey and not
    into moiré; the last row and column of blocks are filled up with the edge's pixels.
    """
    factor = max(1, int(1 / scale_of(matrix) + 1e-6))
    spans = []  # columns and rows of the part: what the square covers, and two blocks on either side
    for (x, y, shift), length in zip(cv2.invertAffineTransform(matrix).tolist(), pixels.shape[1::-1], strict=True):
        low, high = (shift + side * (end(x, 0) + end(y, 0)) for end in (min, max))
        first = min(max(0, math.floor(low) - 2 * factor), length - 1)
        spans.append(slice(first, min(max(first + 1, math.ceil(high) + 2 * factor), length)))
    across, down = spans
    part = pixels[down, across]
    if factor > 1:
        columns, rows = -(-part.shape[1] // factor), -(-part.shape[0] // factor)
        below, beside = rows * factor - part.shape[0], columns * factor - part.shape[1]
        filled = cv2.copyMakeBorder(part, 0, below, 0, beside, cv2.BORDER_REPLICATE)
        part = np.asarray(cv2.resize(filled, (columns, rows), interpolation=cv2.INTER_AREA), np.uint8)
    # A block's centre is (factor - 1) / 2 pixels after its first pixel's centre.
    behind = (factor - 1) / 2
    to_photo = np.array([[factor, 0, across.start + behind], [0, factor, down.start + behind], [0, 0, 1.0]])
    four = cv2.warpAffine(  # four channels take OpenCV 5 less than half the time of three, and give the same pixels
        cv2.cvtColor(part, cv2.COLOR_RGB2RGBA),
        matrix @ to_photo,
        (side, side),
        flags=cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=(0, 0, 0, 0),
    )
    return np.asarray(cv2.cvtColor(four, cv2.COLOR_RGBA2RGB), np.uint8)


@dataclass(frozen=True, slots=True)
class Cut:
    """The picture of a face that a model takes, ``side`` × ``side``, and how it is cut."""

    side: int
    how: LivenessCut

    def enlarges(self, box: Box) -> bool:
        """Return whether the picture would have more pixels than the part of the photo that it shows."""
        return self.side > self.how.scale * max(box.width, box.height)


def cut_face(pixels: Pixels, box: Box, cut: Cut, *, turned: int = 0) -> Pixels:
    """Return the (side, side, 3) uint8 RGB picture of the face at ``box``.

    ``pixels`` is the (H, W, 3) uint8 RGB photo; the picture is turned clockwise by ``turned`` degrees. It takes no more
    memory than the photo's part under the cut.
    """
    if cut.how.edge == "move":
        picture = _resized(_moved(pixels, box, cut.how), cut.side, cut.side, cut.how)
    else:
        picture = _reflected(pixels, box, cut)
    return np.ascontiguousarray(np.rot90(picture, -turned // 90)) if turned else picture


def _size(box: Box, how: LivenessCut) -> tuple[float, float]:
    """Return the cut's width and height in pixels of the photo, without regard to its edges."""
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

    The part inside the photo is first resized to its share of the picture, so that a large cut needs no large copy.
    """
    rows, columns = pixels.shape[:2]
    width, height = _size(box, cut.how)
    across, left, inner_width, right = _span(box.x + box.width / 2, width, columns, cut.side)
    down, above, inner_height, below = _span(box.y + box.height / 2, height, rows, cut.side)
    part = _resized(pixels[down, across], inner_width, inner_height, cut.how)
    return np.asarray(cv2.copyMakeBorder(part, above, below, left, right, cv2.BORDER_REFLECT_101), np.uint8)


def _span(centre: float, size: float, limit: int, side: int) -> tuple[slice, int, int, int]:
    """Return one axis of a cut: the photo's part of it, and how many of the picture's pixels are before, in and after
    that part."""
    start, length = math.floor(centre - size / 2), max(1, round(size))
    first = min(max(start, 0), limit - 1)
    last = max(min(start + length, limit), first + 1)
    before = min(round(max(0, first - start) / length * side), side - 1)
    after = min(round(max(0, start + length - last) / length * side), side - 1 - before)
    return slice(first, last), before, side - before - after, after


def _resized(part: Pixels, width: int, height: int, how: LivenessCut) -> Pixels:
    """Resize; with ``area``, enlarging interpolates as in facenox's training."""
    kind = cv2.INTER_LINEAR
    if how.resize == "area":
        kind = cv2.INTER_AREA if part.shape[1] >= width and part.shape[0] >= height else cv2.INTER_LANCZOS4
    return np.asarray(cv2.resize(part, (width, height), interpolation=kind), np.uint8)
