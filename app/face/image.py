"""Decode an image file: read its header, check the limits, and only then decode.

Pillow decodes, and libheif for HEIC. The format is recognised here by its signature, and only that format's reader is
called. The bytes are untrusted: whatever a reader raises becomes one of the errors of `app.errors`, and a picture is
decoded completely or not at all.
"""

from __future__ import annotations

import ctypes
import io
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin, Image, ImageCms, ImageFile, _imaging
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from app.errors import (
    EmptyImage,
    ImageTooLarge,
    ImageTooSmall,
    InvalidImage,
    LikenessError,
    Overloaded,
    UnsupportedImage,
)
from app.face.heif import read_container
from app.types import Pixels

REDUCTIONS = (8, 4, 2)
"""What libjpeg can shrink by while it decodes, at less than the cost of decoding."""
MAX_JPEG_SCANS = 100
"""Scans of a progressive JPEG; cameras and libraries write about ten, and each costs a pass over all the pixels
(https://libjpeg-turbo.org/pmwiki/uploads/About/TwoIssueswiththeJPEGStandard.pdf)."""
MAX_SAVING = 2
"""What reducing a JPEG saves of its memory: a progressive one keeps up to 6 bytes of coefficients a pixel, and other
formats take up to 17 while they are decoded."""
SMALL_PIXELS = 1_000_000
"""Less than this takes 17 MB at most, for which there is memory."""
NO_MEMORY_RETRY_S = 5.0
COMPOSED_FACTOR = 3
"""Pixels of a HEIF picture and its tiles together, in multiples of the limit of one picture."""
WHITE = (255, 255, 255)

_PILLOW_ERRORS = (
    OSError,  # truncated, "broken data stream", unidentified
    SyntaxError,  # its word for a damaged header
    ValueError,
    TypeError,
    LookupError,
    ArithmeticError,
    AttributeError,
    AssertionError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
    zlib.error,
    ImageCms.PyCMSError,
)
"""Everything that damaged files make Pillow and libheif raise, found by mutating files."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What an image may be at most; ``max_pixels`` and the sides hold for the size that the header claims."""

    max_bytes: int = 10 * 1024 * 1024
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16
    """No face of 20 pixels, forehead to chin, fits into less."""
    formats: frozenset[str] | None = None
    """The formats that are read; None for all. See `Header.format`."""


@dataclass(frozen=True, slots=True)
class Header:
    """What an image says about itself; ``width`` and ``height`` are upright, in pixels."""

    format: str
    """JPEG, PNG, WEBP, HEIF (HEIC), AVIF, BMP, TIFF or GIF."""
    width: int
    height: int
    orientation: int
    """EXIF orientation, 1-8 (TIFF 6.0, tag 274)."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Upright pixels, (H, W, 3) uint8 RGB, contiguous, read-only; each stands for ``scale`` × ``scale`` original ones.

    ``left`` and ``top`` say where the first of them begins in the upright original, in pixels: not at 0 where the
    last, incomplete blocks of a reduced photo were turned to the front.
    """

    pixels: Pixels
    scale: int
    left: int
    top: int
    header: Header

    @property
    def width(self) -> int:
        """Of the upright original."""
        return self.header.width

    @property
    def height(self) -> int:
        """Of the upright original."""
        return self.header.height


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """An image whose size is known and within the limits, and whose pixels take no memory yet."""

    data: bytes
    limits: Limits
    width: int
    """As the file says, before it is turned upright."""
    height: int
    _opened: ImageFile.ImageFile | None

    def pixels(self, factor: int = 1) -> int:
        """Return how many pixels decoding takes memory for. A reduced JPEG still keeps coefficients of all of it."""
        return self.width * self.height // min(factor, MAX_SAVING) ** 2

    def can_reduce(self) -> bool:
        return self._opened is not None and self._opened.format == "JPEG"

    def decode(self, factor: int = 1) -> Decoded:
        """Decode the first picture, upright, as `decode` does; ``factor``: 1, or of REDUCTIONS. Call it once."""
        return _decode(self._opened or _open(self.data, self.limits), factor)


def open_image(data: bytes, limits: Limits) -> EncodedImage:
    """Read the size without allocating pixels. Raises EmptyImage, UnsupportedImage, InvalidImage and ImageTooLarge,
    and what `decode` raises."""
    size = _size_before_opening(data)
    if size is not None and len(data) <= limits.max_bytes:
        _check_size(*size, limits)
        return EncodedImage(data, limits, *size, None)
    opened = _open(data, limits)
    return EncodedImage(data, limits, *opened.size, opened)


def _size_before_opening(data: bytes) -> tuple[int, int] | None:
    """Return the size in the head of a format whose reader allocates pixels when it opens; None for others."""
    if _SIGNATURES["WEBP"].match(data):
        return _webp_size(data)
    if _SIGNATURES["GIF"].match(data) and len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    return None


def read_header(data: bytes, limits: Limits) -> Header:
    """Format and upright size, without decoding.

    Raises EmptyImage, UnsupportedImage, InvalidImage, ImageTooLarge and ImageTooSmall.
    """
    return _header(_open(data, limits))


def decode(data: bytes, limits: Limits, *, reduction: Callable[[Header], int] | None = None) -> Decoded:
    """The first (or only) picture in ``data``, upright, RGB, transparency on white.

    ``reduction`` may answer 2, 4 or 8 where that much smaller will do; only JPEG can, others answer at full size.
    16-bit grey keeps its upper 8 bits, 32-bit integers and floats are stretched from lowest to highest.
    Raises as `read_header` does.
    """
    image = _open(data, limits)
    return _decode(image, reduction(_header(image)) if reduction else 1)


def _decode(image: ImageFile.ImageFile, factor: int) -> Decoded:
    name, size = str(image.format), image.size
    try:
        header = _header(image)  # decodes some PNGs
        scale = _reduce(image, factor)
        size = image.size
        image.load()
        if isinstance(image, WebPImageFile):
            image._decoder = image.fp = None  # its two canvases and a copy of the pixels, 12 bytes a pixel
        if name == "HEIF" and image.size != size:
            raise ValueError("the coded picture has another size than the container says")
        # Some formats keep orientation behind the pixels, and Pillow turns TIFF by itself.
        orientation = _orientation(image)
        rgb = _to_rgb(image)
        full = (header.height, header.width) if orientation >= 5 else (header.width, header.height)
        return _upright(rgb, orientation, scale, full, header)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge("The image has too many pixels.") from error
    except MemoryError as error:
        raise _no_memory(name, size) from error
    except _PILLOW_ERRORS as error:
        raise InvalidImage(f"The {name} image is damaged or cut short.", format=name) from error


# --- headers -------------------------------------------------------------------------------------------------------


def _open(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    """Header parsed and within the limits, pixels untouched."""
    if not data:
        raise EmptyImage("The image has no bytes.")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"The image has {len(data)} bytes; {limits.max_bytes} are allowed.",
            bytes=len(data),
            max_bytes=limits.max_bytes,
        )
    name = _recognise(data, limits.formats)
    _silence_pillow()
    try:
        image = _READERS[name](data, limits)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge("The image has too many pixels.") from error
    except MemoryError as error:
        raise _no_memory(name, _size_before_opening(data) or (0, 0)) from error
    except _PILLOW_ERRORS as error:
        raise InvalidImage(f"The {name} image is damaged or cut short.", format=name) from error
    width, height = image.size
    _check_size(width, height, limits)
    if min(width, height) < limits.min_side:
        message = f"The image is {width}×{height} pixels; a side must have {limits.min_side}."
        raise ImageTooSmall(message, width=width, height=height, min_side=limits.min_side)
    return image


def _no_memory(name: str, size: tuple[int, int]) -> LikenessError:
    """Return the error of a reader without memory: for a small image it says that a size in the file is damaged."""
    if size[0] * size[1] < SMALL_PIXELS:
        return InvalidImage(f"The {name} image is damaged or cut short.", format=name)
    return Overloaded("There is not enough memory for the image.", retry_after=NO_MEMORY_RETRY_S)


_SIGNATURES = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WEBP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "GIF": re.compile(rb"GIF8[79]a"),
    "TIFF": re.compile(rb"II[*+]\0|MM\0[*+]"),
    # The brands of ISO/IEC 23008-12 and of the AVIF specification; `mif1` alone says neither, its other brands do.
    "AVIF": re.compile(rb"\0...ftyp(?:avif|avis|mif1.{4}(?:.{4}){0,8}?avif)", re.DOTALL),
    "HEIF": re.compile(rb"\0...ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL),
    # Two letters are no signature; the size of the header that follows is one of these.
    "BMP": re.compile(rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL),
}


def _recognise(data: bytes, formats: frozenset[str] | None) -> str:
    readable = [name for name in _SIGNATURES if formats is None or name in formats]
    for name in readable:
        if _SIGNATURES[name].match(data):
            return name
    message = f"The bytes are no image of a kind that is read ({', '.join(readable)})."
    raise UnsupportedImage(message, readable=readable)


def _check_size(width: int, height: int, limits: Limits) -> None:
    """Only what is too large, which is known before some formats are opened."""
    if max(width, height) > limits.max_side:
        message = f"The image is {width}×{height} pixels; a side may have {limits.max_side}."
        raise ImageTooLarge(message, width=width, height=height, max_side=limits.max_side)
    if width * height > limits.max_pixels:
        message = f"The image is {width}×{height} pixels; {limits.max_pixels} are allowed."
        raise ImageTooLarge(message, width=width, height=height, max_pixels=limits.max_pixels)


def _header(image: ImageFile.ImageFile) -> Header:
    orientation = _orientation(image)
    width, height = image.size
    # A TIFF's size is upright in Pillow already.
    if orientation >= 5 and image.format != "TIFF":
        width, height = height, width
    return Header(format=str(image.format), width=width, height=height, orientation=orientation)


def _orientation(image: ImageFile.ImageFile) -> int:
    """EXIF orientation, 1 (upright) where it is missing, damaged or out of range: the picture itself is whole."""
    try:
        value = image.getexif().get(274, 1)
    except _PILLOW_ERRORS:
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _silence_pillow() -> None:
    """Keep Pillow's warnings about odd metadata out of the log, and from becoming errors under ``-W error``.

    A filter for the whole process, as `warnings.catch_warnings` must not be used in threads.
    """
    if warnings.filters[:1] != [("ignore", None, Warning, _PILLOW, 0)]:
        warnings.filterwarnings("ignore", module=_PILLOW.pattern)


@cache
def _silence_libtiff() -> None:
    """Keep libtiff from printing what is wrong with an image to standard error, beside the log: Pillow raises it too.

    It is reached through Pillow's library, which is linked to it; where its names are hidden there it goes on printing.
    """
    with suppress(OSError):
        pillow = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            if (set_handler := getattr(pillow, name, None)) is not None:
                set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
                set_handler(None)


_PILLOW = re.compile(r"PIL\.")


# --- one reader a format -------------------------------------------------------------------------------------------


def _read_jpeg(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    # Inside of pixel data an FF is always followed by 00 or RST, so that this counts scans (FF DA).
    scans = data.count(b"\xff\xda")
    if scans > MAX_JPEG_SCANS:
        raise UnsupportedImage(f"The JPEG has {scans} scans; {MAX_JPEG_SCANS} are read.", format="JPEG")
    return JpegImageFile(io.BytesIO(data))


def _read_png(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    return PngImageFile(io.BytesIO(b"".join(_essential_chunks(data))))


_PNG_PICTURE = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}


def _essential_chunks(data: bytes) -> Iterator[bytes]:
    """A PNG without what does not show in its first picture: text, profiles and animation frames are never inflated.

    Orientation (eXIf) may stand behind the pixels; it is moved before them.
    """
    yield data[:8]
    chunks: list[tuple[bytes, bytes]] = []
    at = 8
    while not chunks or chunks[-1][0] != b"IEND":
        (length,) = struct.unpack_from(">I", data, at)  # struct.error behind the end: cut short
        end = at + 12 + length
        chunks.append((data[at + 4 : at + 8], data[at:end]))
        at = end
    yield from (chunk for kind, chunk in chunks[:1])
    yield from (chunk for kind, chunk in chunks[1:] if kind == b"eXIf")
    yield from (chunk for kind, chunk in chunks[1:] if kind in _PNG_PICTURE)


def _read_webp(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    # Opening allocates the canvas, so that its size is looked at before.
    size = _webp_size(data)
    if size is None:
        raise InvalidImage("The WEBP image is damaged or cut short.", format="WEBP")
    _check_size(*size, limits)
    return WebPImageFile(io.BytesIO(data))


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Canvas width and height (RFC 9649, sections 2.5-2.7)."""
    kind, start = data[12:16], data[20:30]
    if len(start) < 10:
        return None
    if kind == b"VP8X":
        return int.from_bytes(start[4:7], "little") + 1, int.from_bytes(start[7:10], "little") + 1
    if kind == b"VP8L":
        bits = int.from_bytes(start[1:5], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(start[6:8], "little") & 0x3FFF, int.from_bytes(start[8:10], "little") & 0x3FFF
    return None


def _read_gif(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    # Opening may already allocate the first frame.
    if len(data) >= 10:
        width, height = struct.unpack_from("<HH", data, 6)
        _check_size(width, height, limits)
    return GifImageFile(io.BytesIO(data))


def _read_heif(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    _check_container(data, limits, "HEIF")
    return _heif_reader()(io.BytesIO(data))


@cache
def _heif_reader() -> Callable[[io.BytesIO], ImageFile.ImageFile]:
    """Load libheif when the first such photo comes: it takes 20 ms and most servers never see one.

    Raises UnsupportedImage where the extra `heic` is not installed.
    """
    try:
        import pillow_heif  # noqa: PLC0415 - see above
    except ImportError as error:
        message = "This server reads no HEIC photos: install likeness[heic], or send JPEG."
        raise UnsupportedImage(message) from error
    pillow_heif.options.DECODE_THREADS = 1  # requests run side by side already
    pillow_heif.options.THUMBNAILS = pillow_heif.options.DEPTH_IMAGES = pillow_heif.options.AUX_IMAGES = False
    reader: Callable[[io.BytesIO], ImageFile.ImageFile] = pillow_heif.HeifImageFile
    return reader


def _read_avif(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    _check_container(data, limits, "AVIF")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # requests run side by side already
    return AvifImagePlugin.AvifImageFile(io.BytesIO(data))


def _check_container(data: bytes, limits: Limits, name: str) -> None:
    """Check the size of everything in the container that may be decoded, before a decoder sees it."""
    container = read_container(data)
    if container.moving:
        raise UnsupportedImage(f"{name} image sequences are not supported; send a photo.", format=name)
    for width, height in container.coded_sizes():
        _check_size(width, height, limits)
    # The tiles of a grid overlap its last row and column, and its transparency is a second picture.
    if container.pixels() > COMPOSED_FACTOR * limits.max_pixels:
        raise ImageTooLarge(f"The {name} is composed of too many pixels.", max_pixels=limits.max_pixels)


def _read_bmp(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    return BmpImageFile(io.BytesIO(data))


def _read_tiff(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    _silence_libtiff()
    image = TiffImageFile(io.BytesIO(data))
    # A tile is decoded whole, however little of it the picture needs.
    tile = (image.tag_v2.get(322, 1), image.tag_v2.get(323, 1))
    if not all(isinstance(side, int) for side in tile) or tile[0] * tile[1] > limits.max_pixels:
        raise ImageTooLarge("The TIFF has tiles of too many pixels.", max_pixels=limits.max_pixels)
    return image


_READERS: dict[str, Callable[[bytes, Limits], ImageFile.ImageFile]] = {
    "JPEG": _read_jpeg,
    "PNG": _read_png,
    "WEBP": _read_webp,
    "AVIF": _read_avif,
    "HEIF": _read_heif,
    "GIF": _read_gif,
    "TIFF": _read_tiff,
    "BMP": _read_bmp,
}


# --- pixels --------------------------------------------------------------------------------------------------------


def _reduce(image: ImageFile.ImageFile, wanted: int) -> int:
    """Have libjpeg decode ``wanted`` times smaller, or as near below it as it can; answers by how much."""
    if image.format != "JPEG" or wanted < 2:
        return 1
    factor = next((f for f in REDUCTIONS if f <= wanted and min(image.size) >= f), 1)
    width, height = image.size
    image.draft(None, (width // factor, height // factor))
    return round(width / image.size[0])


def _to_rgb(image: Image.Image) -> NDArray[np.uint8]:
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
    """RGB, what is transparent composited on white."""
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    rgba = image.convert("LA").convert("RGBA") if image.mode == "La" else image.convert("RGBA")
    paper = Image.new("RGB", image.size, WHITE)
    paper.paste(rgba.convert("RGB"), mask=rgba.getchannel("A"))
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
    """16, but for TIFFs of 12 bits a sample (tag 258), which Pillow opens as 16."""
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


def _upright(pixels: NDArray[np.uint8], orientation: int, scale: int, full: tuple[int, int], header: Header) -> Decoded:
    """Turn by the EXIF orientation; ``full`` is the stored width and height before the reduction by ``scale``.

    The last block of a reduced row or column may be incomplete; where it becomes the first, the grid begins before 0.
    """
    transposed, flip_x, flip_y = _TURNS[orientation]
    overhang_x = pixels.shape[1] * scale - full[0]
    overhang_y = pixels.shape[0] * scale - full[1]
    if transposed:
        pixels = pixels.transpose(1, 0, 2)
        overhang_x, overhang_y = overhang_y, overhang_x
    pixels = pixels[:: -1 if flip_y else 1, :: -1 if flip_x else 1]
    pixels = np.ascontiguousarray(pixels)
    pixels.flags.writeable = False
    return Decoded(pixels, scale, -overhang_x if flip_x else 0, -overhang_y if flip_y else 0, header)


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
