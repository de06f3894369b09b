"""Resample the contract's crops to a cutout of another size: two matrices, since nothing is turned.

A matrix product is the same on every device; ONNX's Resize has more modes than its runtimes agree on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from app.inference.manifest import CROP_SIDE, Cutout

CUBIC = -0.75
"""The free parameter of Keys' cubic convolution (IEEE TASSP 1981), as OpenCV's INTER_CUBIC has it."""


def resampling(cutout: Cutout) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return two (side, 112) matrices: rows @ channel @ columns.T is the cutout of a (112, 112) channel.

    Beyond the crop its outermost pixels are repeated.
    """
    return _along(cutout, cutout.top), _along(cutout, cutout.left)


def _along(cutout: Cutout, shift: float) -> NDArray[np.float64]:
    places = (np.arange(cutout.side) - shift) / cutout.scale  # in pixels of the crop
    first = np.floor(places).astype(np.int64) - 1
    matrix = np.zeros((cutout.side, CROP_SIDE))
    for tap in range(4):
        pixel = first + tap
        np.add.at(matrix, (np.arange(cutout.side), pixel.clip(0, CROP_SIDE - 1)), _cubic(np.abs(places - pixel)))
    return matrix


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the weight of a pixel at a distance of 0 to 2 pixels."""
    near = ((CUBIC + 2) * distance - (CUBIC + 3)) * distance**2 + 1
    far = ((CUBIC * distance - 5 * CUBIC) * distance + 8 * CUBIC) * distance - 4 * CUBIC
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
