"""Decode an image file: read its header, check the limits, and only then decode.

Pillow decodes, TurboJPEG for JPEG and libheif for HEIC. The format is recognised by its signature (`app.face.formats`),
and only that format's reader is called. The bytes are untrusted: whatever a reader raises becomes one of the errors of
`app.errors`, and a picture is decoded completely or not at all. If a JPEG has missing or wrong bytes, libjpeg only
warns, fills the rest with grey and continues. Pillow and OpenCV drop its warnings; TurboJPEG's interface, which
simplejpeg calls, returns the first one. Its pixels are the same as Pillow's, in half the processor time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageCms, ImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from app.errors import ImageTooLarge, UnsupportedImage
from app.face.formats import (
    READER_ERRORS,
    Limits,
    TooCostly,
    failure,
    open_image,
)
from app.types import Box, Detection, Pixels

REDUCTIONS = (8, 4, 2)
"""Factors by which libjpeg can shrink while it decodes, which is cheaper than decoding."""
MAX_SAVING = 2
"""Largest factor of a reduction that counts when a JPEG's memory is estimated: a progressive one keeps up to 8 bytes of
coefficients per pixel of the whole image, where other formats take up to 20 bytes per pixel to decode."""
ORIENTATION = 274
"""The EXIF tag that says how to turn the picture."""
PHOTOMETRIC = 262
"""The tag of a TIFF that is 0 where white is zero."""
DARK = 16
"""Colours of 10 or 12 bits in 16, of which only the upper 8 bits are kept, stay below this value."""
WHITE = (255, 255, 255)
BAND_PIXELS = 1 << 16
"""Pixels of a band: its copies fit the processor's cache, and take 3 MB at most."""
EXTRANEOUS = re.compile(r"(\d+) extraneous bytes before marker 0xd9")
"""The warning of bytes between the last pixel and the end of the image."""
ODD = "Could not determine subsampling", "Invalid SOS parameters for sequential JPEG"
"""The error of colours sampled in a way that TurboJPEG does not read, and the warning of a scan header that some phones
write: libjpeg reads both."""
NO_MEMORY = "nsufficient memory"


@dataclass(frozen=True, slots=True)
class Decoded:
    """Upright pixels, (H, W, 3) uint8 RGB, contiguous, read-only; each stands for ``scale`` × ``scale`` original ones.

    ``left`` and ``top`` are the first one's position in the upright original, in pixels; not 0 if turning brought the
    last, incomplete blocks of a reduced photo to the front.
    """

    pixels: Pixels
    scale: int
    left: int
    top: int
    width: int
    """Width of the upright original, in pixels; ``height`` is the same for its height."""
    height: int

    def original(self, detection: Detection) -> Detection:
        """Map a detection from these pixels' coordinates to the original's."""
        if self.scale == 1:
            return detection
        box, shift = detection.box, np.array([self.left, self.top], np.float32)
        x, y = (np.array([box.x, box.y]) + 0.5) * self.scale - 0.5 + shift
        landmarks = (detection.landmarks + np.float32(0.5)) * np.float32(self.scale) - np.float32(0.5) + shift
        whole = Box(float(x), float(y), box.width * self.scale, box.height * self.scale)
        return Detection(whole, landmarks, detection.score)


def decode(data: bytes, limits: Limits) -> Decoded:
    """Return the first (or only) picture in ``data``, upright, RGB, transparency on white.

    16-bit grey keeps the upper 8 of the bits that are used, 32-bit integers and floats are stretched from lowest to
    highest.
    Raises EmptyImage, UnsupportedImage, InvalidImage, ImageTooLarge, ImageTooSmall, Overloaded and TooCostly.
    """
    return decode_opened(open_image(data, limits), data, limits)


def decode_opened(image: ImageFile.ImageFile, data: bytes, limits: Limits, scale: float = 1.0) -> Decoded:
    """Return the picture of an image that `open_image` has opened, and close it.

    A JPEG, whose bytes are ``data``, is reduced by the largest factor that leaves at least ``scale`` of its width and
    height, 0-1. Raises what `decode` raises.
    """
    with closing(image):
        name, size, reduced, rgb = str(image.format), image.size, 1, None
        if name == "JPEG":
            reduced = next((factor for factor in REDUCTIONS if factor * scale <= 1 and min(size) >= factor), 1)
        if size[0] * size[1] // min(reduced, MAX_SAVING) ** 2 > limits.most_pixels:
            raise TooCostly
        try:
            if name == "JPEG":
                rgb = decode_jpeg(data, *size, scale=reduced, cmyk=image.mode == "CMYK")
            if rgb is None:
                rgb = _read_by_pillow(image, reduced)
            orientation = 1
            with suppress(*READER_ERRORS):  # damaged metadata
                orientation = image.getexif().get(ORIENTATION, 1)  # some formats have it after the pixels
            image.close()  # frees the reader's pixels before their copy is turned
            return _upright(rgb, orientation, reduced, size)
        except Image.DecompressionBombError as error:
            raise ImageTooLarge("The image has too many pixels.") from error
        except (MemoryError, *READER_ERRORS) as error:
            raise failure(name, size, error) from error


def _read_by_pillow(image: ImageFile.ImageFile, scale: int) -> NDArray[np.uint8]:
    """Return an opened image's pixels, (H, W, 3) uint8 RGB; those of a JPEG reduced by ``scale``."""
    name, (width, height) = str(image.format), image.size
    is_deep = any(";16" in str(tile.args) for tile in image.tile)
    image.draft(None, (width // scale, height // scale))
    image.load()
    if isinstance(image, WebPImageFile):
        image._decoder = image.fp = None  # frees its two canvases and a copy of the pixels, 12 bytes per pixel
    if name == "HEIF" and image.size != (width, height):
        raise ValueError("the coded picture has another size than the container says")
    rgb = _to_rgb(image)
    if is_deep and 0 < rgb.max() < DARK:  # Pillow keeps the upper 8 bits of colours
        raise UnsupportedImage(f"The {name} image leaves the upper bits of its colours empty; save it with 8 bits.")
    return rgb


def _upright(pixels: NDArray[np.uint8], orientation: object, scale: int, whole: tuple[int, int]) -> Decoded:
    """Turn the picture upright by its EXIF orientation, if that is valid. ``whole`` is the original's width and height,
    before turning and before the reduction by ``scale``.

    The last block of a reduced row or column may be incomplete; where it becomes the first, the grid begins before 0.
    """
    transposed, flip_x, flip_y = _TURNS.get(orientation if isinstance(orientation, int) else 1, _TURNS[1])
    width, height = whole
    if transposed:
        pixels, width, height = pixels.transpose(1, 0, 2), height, width
    overhang_x = pixels.shape[1] * scale - width
    overhang_y = pixels.shape[0] * scale - height
    pixels = pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
    pixels = np.ascontiguousarray(pixels)
    pixels.flags.writeable = False
    return Decoded(pixels, scale, -overhang_x if flip_x else 0, -overhang_y if flip_y else 0, width, height)


_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, True, False),
    7: (True, True, True),
    8: (True, False, True),
}
"""EXIF orientation: rows and columns exchanged first, then mirrored left-right, then top-bottom."""


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
    """Return (H, W, 3) uint8 RGB of a loaded image of any of Pillow's modes, a band of rows at a time: beside the image
    and the result, no step holds more than a band. Raises ValueError for nothing but NaNs.
    """
    convert = _converter(image)
    if image.height * image.width <= BAND_PIXELS:
        return np.array(np.broadcast_to(convert(image), (image.height, image.width, 3)))
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
    """Return a function that converts a band of the image to (H, W, 3) or, for grey values, (H, W, 1)."""
    if image.mode.startswith(("I", "F")):
        convert = _upper_bits(image) if image.mode.startswith("I;16") else _stretch(image)
        white_is_zero = isinstance(image, TiffImageFile) and image.tag_v2.get(PHOTOMETRIC) == 0
        return (lambda band: 255 - convert(band)) if white_is_zero else convert  # Pillow turns 8 bits itself
    if isinstance(image, BmpImageFile) and image.mode == "RGBA" and image.getchannel("A").getextrema() == (0, 0):
        return lambda band: np.asarray(band.convert("RGB"), np.uint8)  # most programs leave the fourth byte 0
    if image.mode == "LAB":
        lab, srgb = (ImageCms.ImageCmsProfile(ImageCms.createProfile(space)) for space in ("LAB", "sRGB"))
        transform = ImageCms.buildTransform(lab, srgb, "LAB", "RGB")
        return lambda band: np.asarray(transform.apply(band), np.uint8)
    return _opaque


def _opaque(image: Image.Image) -> NDArray[np.uint8]:
    """Return the image as RGB, with transparency composited on white."""
    if not image.has_transparency_data:
        return np.asarray(image if image.mode == "RGB" else image.convert("RGB"), np.uint8)
    if image.mode == "La":
        image = image.convert("LA")
    rgba = image.convert("RGBA")
    paper = Image.new("RGB", image.size, WHITE)
    paper.paste(rgba, mask=rgba)
    return np.asarray(paper, np.uint8)


def _upper_bits(image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Keep the upper 8 of the bits that grey values use, since cameras put values of 10 or 12 bits into 16.

    ``transparency`` is a PNG's one transparent value.
    """
    highest = max(int(np.asarray(band).max()) for _, band in _bands(image))
    shift = max(highest.bit_length() - 8, 0)
    transparent = image.info.get("transparency")

    def convert(band: Image.Image) -> NDArray[np.uint8]:
        values = np.asarray(band)
        grey = (values >> shift).astype(np.uint8)
        if isinstance(transparent, int):
            grey[values == transparent] = 255
        return grey[:, :, None]

    return convert


def _stretch(image: Image.Image) -> Callable[[Image.Image], NDArray[np.uint8]]:
    """Stretch values without a declared range, from lowest to highest; values that are not finite become black."""
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


def decode_jpeg(data: bytes, width: int, height: int, *, scale: int = 1, cmyk: bool = False) -> Pixels | None:
    """Return a JPEG's pixels, (H, W, 3) uint8 RGB. Return None if Pillow has to read it: its four components are
    ``cmyk``, or the file has an oddity that loses no pixels.

    ``width`` and ``height`` are the whole image's; ``scale`` 1, 2, 4 or 8 divides them, rounded up. Raises ValueError
    if the image is damaged, has lost bytes or has another size, LookupError for some damaged headers, and MemoryError.
    """
    pixels = np.empty((-(-height // scale), -(-width // scale), 4 if cmyk else 3), np.uint8)
    size = {"min_height": pixels.shape[0], "min_width": pixels.shape[1], "min_factor": scale}
    try:
        decoded = simplejpeg.decode_jpeg(data, "CMYK" if cmyk else "RGB", buffer=pixels, strict=True, **size)
    except ValueError as error:
        if NO_MEMORY in str(error):
            raise MemoryError from error
        if _is_harmless(str(error), data):
            return None
        raise
    if decoded.shape != pixels.shape:
        raise ValueError("the image has another size than its header says")
    return None if cmyk else pixels


def _is_harmless(warning: str, data: bytes) -> bool:
    """Return whether all pixels are there: the warning is about the header, or about equal bytes before the end."""
    if found := EXTRANEOUS.search(warning):
        return re.search(rb"([^\xff])\1{%d}\xff\xd9" % (int(found[1]) - 1), data, re.DOTALL) is not None
    if any(odd in warning for odd in ODD):
        return True
    try:
        simplejpeg.decode_jpeg_header(data, strict=True)
    except ValueError as error:
        return str(error) == warning
    return False
