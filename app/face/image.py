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
from contextlib import closing
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
    check_size,
    failure,
    open_file,
    size_before_opening,
)
from app.types import Pixels

REDUCTIONS = (8, 4, 2)
"""Factors by which libjpeg can shrink while it decodes, which is cheaper than decoding."""
MAX_SAVING = 2
"""What reducing a JPEG saves of its memory: a progressive one keeps up to 8 bytes of coefficients a pixel, and other
formats take up to 20 while they are decoded."""
PHOTOMETRIC = 262
"""The tag of a TIFF that is 0 where white is zero."""
DARK = 16
"""What is left of colours of 10 or 12 bits in 16, of which the upper 8 are kept, is below."""
WHITE = (255, 255, 255)
BAND_PIXELS = 1 << 16
"""Pixels of a band: its copies fit the processor's cache, and take 3 MB at most."""
CHANNELS = {"RGB": 3, "CMYK": 4}
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
    """Of the upright original, in pixels."""
    height: int


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image whose size is known and within the limits, and whose pixels take no memory yet."""

    data: bytes
    limits: Limits
    width: int
    """As the file says, before it is turned upright."""
    height: int
    _opened: ImageFile.ImageFile | None
    reducible: bool = False
    """Whether libjpeg can shrink it while decoding."""

    def pixels(self, factor: int = 1) -> int:
        """Return the number of pixels that decoding needs memory for. A reduced JPEG still keeps all coefficients."""
        return self.width * self.height // min(factor, MAX_SAVING) ** 2

    def decode(self, factor: int = 1) -> Decoded:
        """Decode the first picture, upright, as `decode` does; ``factor``: 1, or of REDUCTIONS. Call it once."""
        with closing(self._opened or open_file(self.data, self.limits)) as image:  # frees the reader's own pixels
            return _decode(image, self.data, factor)


def open_image(data: bytes, limits: Limits) -> EncodedImage:
    """Read the size without allocating pixels. Raises EmptyImage, UnsupportedImage, InvalidImage and ImageTooLarge,
    and what `decode` raises."""
    size = size_before_opening(data)
    if size is not None and len(data) <= limits.max_bytes:
        check_size(*size, limits)
        return EncodedImage(data, limits, *size, None)
    opened = open_file(data, limits)
    return EncodedImage(data, limits, *opened.size, opened, reducible=opened.format == "JPEG")


def decode(data: bytes, limits: Limits) -> Decoded:
    """Return the first (or only) picture in ``data``, upright, RGB, transparency on white.

    16-bit grey keeps the upper 8 of the bits that are used, 32-bit integers and floats are stretched from lowest to
    highest.
    Raises EmptyImage, UnsupportedImage, InvalidImage, ImageTooLarge and ImageTooSmall.
    """
    return open_image(data, limits).decode()


def _decode(image: ImageFile.ImageFile, data: bytes, factor: int) -> Decoded:
    name, size = str(image.format), image.size
    try:
        is_deep = any(";16" in str(tile.args) for tile in image.tile)
        scale, rgb = _read_jpeg(image, data, factor) if name == "JPEG" else (1, None)
        if rgb is not None:
            return _upright(rgb, _orientation(image), scale, size)
        image.load()
        if isinstance(image, WebPImageFile):
            image._decoder = image.fp = None  # frees its two canvases and a copy of the pixels, 12 bytes per pixel
        if name == "HEIF" and image.size != size:
            raise ValueError("the coded picture has another size than the container says")
        # Some formats have the orientation after the pixels. Pillow turns TIFF by itself, and gives its upright size.
        orientation = _orientation(image)
        rgb = _to_rgb(image)
        if is_deep and 0 < rgb.max() < DARK:  # Pillow keeps the upper 8 bits of colours
            raise UnsupportedImage(f"The {name} image leaves the upper bits of its colours empty; save it with 8 bits.")
        image.close()  # frees its pixels before these are turned
        return _upright(rgb, orientation, scale, size)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge("The image has too many pixels.") from error
    except (MemoryError, *READER_ERRORS) as error:
        raise failure(name, size, error) from error


def _orientation(image: ImageFile.ImageFile) -> int:
    """Return the EXIF orientation; 1 (upright) if it is missing, damaged or out of range."""
    try:
        value = image.getexif().get(274, 1)
    except READER_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _read_jpeg(image: ImageFile.ImageFile, data: bytes, wanted: int) -> tuple[int, Pixels | None]:
    """Return the reduction of a JPEG (``wanted``, or the nearest lower one that libjpeg has) and its pixels, RGB; None
    for these if Pillow has to decode it, with the same reduction. Raises what `decode_jpeg` raises."""
    width, height = image.size
    scale = next((factor for factor in REDUCTIONS if factor <= wanted and min(width, height) >= factor), 1)
    cmyk = image.mode == "CMYK"
    pixels = decode_jpeg(data, width, height, scale=scale, colours="CMYK" if cmyk else "RGB")
    if pixels is not None and not cmyk:
        return scale, pixels
    image.draft(None, (width // scale, height // scale))
    return scale, None


def _upright(pixels: NDArray[np.uint8], orientation: int, scale: int, whole: tuple[int, int]) -> Decoded:
    """Turn by the EXIF orientation; ``whole`` is the width and height before that and before the reduction by
    ``scale``.

    The last block of a reduced row or column may be incomplete; where it becomes the first, the grid begins before 0.
    """
    transposed, flip_x, flip_y = _TURNS[orientation]
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


def decode_jpeg(data: bytes, width: int, height: int, *, scale: int = 1, colours: str = "RGB") -> Pixels | None:
    """Return a JPEG's pixels, (H, W, C) uint8, in ``RGB`` or, for one of four components, ``CMYK``. Return None if
    something is odd about the file that costs no pixels; Pillow can read it then.

    ``width`` and ``height`` are the whole image's; ``scale`` 1, 2, 4 or 8 divides them, rounded up. Raises ValueError
    if the image is damaged, has lost bytes or has another size, LookupError for some damaged headers, and MemoryError.
    """
    pixels = np.empty((-(-height // scale), -(-width // scale), CHANNELS[colours]), np.uint8)
    size = {"min_height": pixels.shape[0], "min_width": pixels.shape[1], "min_factor": scale}
    try:
        decoded = simplejpeg.decode_jpeg(data, colours, buffer=pixels, strict=True, **size)
    except ValueError as error:
        if NO_MEMORY in str(error):
            raise MemoryError from error
        if _is_harmless(str(error), data):
            return None
        raise
    if decoded.shape != pixels.shape:
        raise ValueError("the image has another size than its header says")
    return pixels


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
