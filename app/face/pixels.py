"""From a decoded Pillow image of any mode to RGB pixels, a band of rows at a time: beside the image and the result,
no step holds more than a band."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

WHITE = (255, 255, 255)
BAND_PIXELS = 1 << 16
"""Pixels of a band: its copies fit the processor's cache, and take 3 MB at most."""


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8 RGB of a loaded image of any of Pillow's modes. Raises ValueError for nothing but NaNs."""
    convert = _converter(image)
    rgb = np.empty((image.height, image.width, 3), np.uint8)
    for top, band in _bands(image):
        rgb[top : top + band.height] = convert(band)
    return rgb


def _bands(image: Image.Image) -> Iterator[tuple[int, Image.Image]]:
    """Yield the first row of each band and the band."""
    rows = max(1, BAND_PIXELS // image.width)
    for top in range(0, image.height, rows):
        yield top, image.crop((0, top, image.width, min(image.height, top + rows)))


def _converter(image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Return what turns a band of the image into (H, W, 3) or, for grey values, (H, W, 1)."""
    if image.mode.startswith("I;16"):
        return _upper_bits(image)
    if image.mode in ("I", "F"):
        return _stretch(image)
    if image.mode == "LAB":
        return _from_lab()
    return _opaque


def _opaque(image: Image.Image) -> NDArray[np.uint8]:
    """Return the image as RGB, what is transparent composited on white."""
    if not image.has_transparency_data:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"), np.uint8)
    if image.mode == "La":
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    paper = Image.new("RGB", image.size, WHITE)
    paper.paste(rgba, mask=rgba)
    return np.asarray(paper, np.uint8)


def _from_lab() -> Callable[[Image.Image], NDArray[np.uint8]]:
    lab, srgb = (ImageCms.ImageCmsProfile(ImageCms.createProfile(space)) for space in ("LAB", "sRGB"))
    transform = ImageCms.buildTransform(lab, srgb, "LAB", "RGB")
    return lambda band: np.asarray(transform.apply(band), np.uint8)


def _upper_bits(image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Keep the upper 8 bits of grey values; ``transparency`` is a PNG's one transparent value."""
    shift = _significant_bits(image) - 8
    transparent = image.info.get("transparency")

    def convert(band: Image.Image) -> NDArray[np.uint8]:
        values = np.asarray(band)
        grey = (values >> shift).clip(0, 255).astype(np.uint8)
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return grey[:, :, None]

    return convert


def _significant_bits(image: Image.Image) -> int:
    """Return the significant bits of a sample: 16, but 12 for TIFFs that say so (tag 258), which Pillow opens as 16."""
    bits = image.tag_v2.get(258, (16,)) if isinstance(image, TiffImageFile) else (16,)
    return 12 if bits in ((12,), 12) else 16


def _stretch(image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Spread values of no declared range, from their lowest to their highest; what is not finite is black."""
    low, high = math.inf, -math.inf
    for _, band in _bands(image):
        values = _values(band)
        finite = np.isfinite(values)
        low = min(low, float(values.min(where=finite, initial=math.inf)))
        high = max(high, float(values.max(where=finite, initial=-math.inf)))
    if low > high:
        raise ValueError("no finite pixel")

    def convert(band: Image.Image) -> NDArray[np.uint8]:
        values = _values(band)
        share = (np.where(np.isfinite(values), values, low) - low) / ((high - low) or 1.0)
        return np.rint(share * 255).astype(np.uint8)[:, :, None]

    return convert


def _values(band: Image.Image) -> NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.asarray(band, np.float64)
