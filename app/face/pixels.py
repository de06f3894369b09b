"""From a decoded Pillow image of any mode to RGB pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageCms
from PIL.TiffImagePlugin import TiffImageFile

WHITE = (255, 255, 255)


def to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """(H, W, 3) uint8 RGB of a loaded image of any of Pillow's modes."""
    if image.mode.startswith("I;16"):
        return _grey(_sixteen_bits(image))
    if image.mode in ("I", "F"):
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = np.asarray(image, np.float64)
        return _grey(_stretched(values))
    if image.mode == "LAB":
        return np.asarray(_from_lab(image), np.uint8)
    return np.asarray(_opaque(image), np.uint8)


def _opaque(image: Image.Image) -> Image.Image:
    """Return the image as RGB, what is transparent composited on white."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    rgba = image if image.mode == "RGBA" else image.convert("RGBA")  # which would copy it
    paper = Image.new("RGB", image.size, WHITE)
    paper.paste(rgba, mask=rgba)
    return paper


def _from_lab(image: Image.Image) -> Image.Image:
    lab, srgb = ImageCms.createProfile("LAB"), ImageCms.createProfile("sRGB")
    transform = ImageCms.buildTransform(ImageCms.ImageCmsProfile(lab), ImageCms.ImageCmsProfile(srgb), "LAB", "RGB")
    return transform.apply(image)


def _sixteen_bits(image: Image.Image) -> NDArray[np.uint8]:
    """The upper 8 bits of grey values; ``transparency`` is a PNG's one transparent value."""
    values = np.asarray(image)
    grey = (values >> (_significant_bits(image) - 8)).clip(0, 255).astype(np.uint8)
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return grey


def _significant_bits(image: Image.Image) -> int:
    """Return the significant bits of a sample: 16, but 12 for TIFFs that say so (tag 258), which Pillow opens as 16."""
    bits = image.tag_v2.get(258, (16,)) if isinstance(image, TiffImageFile) else (16,)
    return 12 if bits in ((12,), 12) else 16


def _stretched(values: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Values of no declared range, from their lowest to their highest; what is not finite is black."""
    finite = np.isfinite(values)
    if not finite.any():
        raise ValueError("no finite pixel")
    low, high = float(values[finite].min()), float(values[finite].max())
    share = (np.where(finite, values, low) - low) / ((high - low) or 1.0)
    return np.asarray(np.rint(share * 255), np.uint8)


def _grey(values: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.repeat(values[:, :, None], 3, axis=2)
