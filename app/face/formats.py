"""Open an image file of any supported format: recognise it and check its size, without reading pixels.

The format is recognised by its signature, and only that format's reader is called: Pillow's, or libheif for HEIC.
"""

from __future__ import annotations

import ctypes
import io
import math
import mmap
import re
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from PIL import AvifImagePlugin, Image, ImageCms, ImageFile, _imaging
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from app.concurrency.overload import Why
from app.errors import (
    EmptyImage,
    ImageTooLarge,
    ImageTooSmall,
    InvalidImage,
    LikenessError,
    UnsupportedImage,
)
from app.wording import what_it_is

MAX_JPEG_SCANS = 100
"""Scans of a progressive JPEG; cameras and libraries write about ten, and each costs a pass over all the pixels
(https://libjpeg-turbo.org/pmwiki/uploads/About/TwoIssueswiththeJPEGStandard.pdf)."""
BYTES_A_PIXEL = 28
"""Upper bound of the memory for decoding a photo of 4 megapixels or more and finding its faces, except for UNBOUNDED.
Measured: up to 23.6, compared with the peak of a process of its own, format by format (tests/face/test_memory.py)."""
UNBOUNDED = frozenset({"HEIF", "AVIF"})
"""Formats that hold streams of their own, whose size the file's header does not bound: decoders refuse more than
16,384 × 16,384 pixels, 2 GiB at most."""
SEQUENCES = frozenset({b"avis", b"hevc", b"hevx", b"msf1"})
"""The first brand of a HEIF file that is a film (ISO/IEC 23008-12)."""
ALLOCATING = frozenset({"WEBP", "GIF"})
"""Formats whose readers allocate pixels when they open."""
SILENT = frozenset({"WEBP", "AVIF", "HEIF"})
"""Formats whose readers don't report a lack of memory."""
SMALL_PIXELS = 1_000_000
"""Pixels below which a failed reader never lacked memory: such an image takes at most 30 MB."""
READER_ERRORS = (
    OSError,  # truncated, "broken data stream", unidentified
    SyntaxError,  # Pillow's error for a damaged header
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
"""All exceptions of Pillow and libheif for damaged files, found by mutating files."""

_NOT_READ = re.compile(
    "unknown pixel mode|unknown data organization|[Uu]nsupported BMP|cannot handle .*layer|not yet supp"
)
"""Pillow's messages for undamaged files of a kind that it doesn't read, such as a TIFF of float colours."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest image that is accepted; ``max_pixels`` and the sides hold for the size that the header claims."""

    max_bytes: int = 10 * 1024 * 1024
    max_pixels: int = 50_000_000
    max_side: int = 16_384
    min_side: int = 16
    """Minimum side: a face of 20 pixels, forehead to chin, doesn't fit into less."""
    formats: frozenset[str] | None = None
    """JPEG, PNG, WEBP, HEIF (HEIC), AVIF, BMP, TIFF or GIF; None for all."""
    most_pixels: float = math.inf
    """Maximum pixels that are decoded: an image within the other limits that decodes to more is TooCostly."""


class TooCostly(Exception):
    """The photo decodes to more pixels than `Limits.most_pixels`."""


def open_image(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    """Read an image's header, and check its size before anything allocates its pixels.

    Raises EmptyImage, UnsupportedImage, InvalidImage, ImageTooLarge, ImageTooSmall, Overloaded and TooCostly.
    """
    if not data:
        raise EmptyImage("The image has no bytes.")
    if len(data) > limits.max_bytes:
        raise ImageTooLarge(
            f"The image has {len(data)} bytes; {limits.max_bytes} are allowed.",
            bytes=len(data),
            max_bytes=limits.max_bytes,
        )
    name, readable = format_of(data), [kind for kind in READABLE if limits.formats is None or kind in limits.formats]
    canvas = _check_canvas(name, data, limits) if name in ALLOCATING else None
    if name not in readable:
        message = what_it_is(data) or f"The bytes are no image of a kind that is read ({', '.join(readable)})."
        raise UnsupportedImage(message, readable=readable)
    # Pillow's warnings about odd metadata are neither for the log nor, under ``-W error``, errors. The filter is for
    # the whole process, since `warnings.catch_warnings` must not be used in threads.
    if warnings.filters[:1] != [("ignore", None, Warning, _PILLOW, 0)]:
        warnings.filterwarnings("ignore", module=_PILLOW.pattern)
    try:
        image = _READERS[name](data, limits)
    except Image.DecompressionBombError as error:
        raise ImageTooLarge("The image has too many pixels.") from error
    except (MemoryError, *READER_ERRORS) as error:
        if _NOT_READ.search(str(error)):
            message = f"{name} images with this kind of pixels are not read; save it as an ordinary JPEG or PNG."
            raise UnsupportedImage(message, format=name) from error
        raise failure(name, canvas or (0, 0), error) from error
    width, height = image.size
    check_size(width, height, limits)
    if min(width, height) < limits.min_side:
        message = f"The image is {width}×{height} pixels; a side must have {limits.min_side}."
        raise ImageTooSmall(message, width=width, height=height, min_side=limits.min_side)
    return image


def failure(name: str, size: tuple[int, int], error: Exception) -> LikenessError:
    """Return the error for a reader's exception: there was no memory, or the image is damaged. A small image that takes
    too much memory is damaged, too."""
    pixels = size[0] * size[1]
    lacking = isinstance(error, MemoryError) or (name in SILENT and not _are_free(BYTES_A_PIXEL * pixels))
    if lacking and pixels >= SMALL_PIXELS:
        return Why.MEMORY.error()
    return InvalidImage(f"The {name} image is damaged or cut short.", format=name)


def _are_free(size: int) -> bool:
    """Return whether this process could take this many bytes now."""
    try:
        mmap.mmap(-1, max(size, 1)).close()
    except (OSError, MemoryError):
        return False
    return True


_SIGNATURES = {
    "JPEG": re.compile(rb"\xff\xd8\xff"),
    "PNG": re.compile(rb"\x89PNG\r\n\x1a\n"),
    "WEBP": re.compile(rb"RIFF....WEBP", re.DOTALL),
    "GIF": re.compile(rb"GIF8[79]a"),
    "TIFF": re.compile(rb"II[*+]\0|MM\0[*+]"),
    # The brands of ISO/IEC 23008-12 and of the AVIF specification; `mif1` is for both, and the other brands decide.
    "AVIF": re.compile(rb"\0...ftyp(?:avif|avis|mif1.{4}(?:.{4}){0,8}?avif)", re.DOTALL),
    "HEIF": re.compile(rb"\0...ftyp(?:hei[cxms]|hev[cxms]|mif1|msf1)", re.DOTALL),
    # Two letters are not enough for a signature; the size of the following header is one of these.
    "BMP": re.compile(rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", re.DOTALL),
}


READABLE = tuple(_SIGNATURES)


def format_of(data: bytes) -> str:
    """Return the format whose signature the data has; an empty string if it has none."""
    return next((name for name, signature in _SIGNATURES.items() if signature.match(data)), "")


def check_size(width: int, height: int, limits: Limits) -> None:
    """Raise ImageTooLarge if a side or the number of pixels is above its limit."""
    if max(width, height) > limits.max_side:
        message = f"The image is {width}×{height} pixels; a side may have {limits.max_side}."
        raise ImageTooLarge(message, width=width, height=height, max_side=limits.max_side)
    if width * height > limits.max_pixels:
        message = f"The image is {width}×{height} pixels; {limits.max_pixels} are allowed."
        raise ImageTooLarge(message, width=width, height=height, max_pixels=limits.max_pixels)


@cache
def _silence_libtiff() -> None:
    """Keep libtiff from printing an image's errors to standard error, beside the log: Pillow raises them, too.

    The handlers are set through Pillow's library, which contains libtiff; if it hides their names, nothing changes.
    """
    with suppress(OSError):
        pillow = ctypes.CDLL(_imaging.__file__)
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            if (set_handler := getattr(pillow, name, None)) is not None:
                set_handler.argtypes, set_handler.restype = [ctypes.c_void_p], ctypes.c_void_p
                set_handler(None)


_PILLOW = re.compile(r"PIL\.")


def _read_jpeg(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    # First count the markers as bytes, which takes a tenth of the time and never finds fewer.
    if data.count(bytes([0xFF, START_OF_SCAN])) > MAX_JPEG_SCANS:
        # Data after the image's end, such as a motion photo's film, has no scans.
        scans = sum(marker == START_OF_SCAN for marker, _ in _jpeg_segments(data))
        if scans > MAX_JPEG_SCANS:
            raise UnsupportedImage(f"The JPEG has {scans} scans; {MAX_JPEG_SCANS} are read.", format="JPEG")
    return JpegImageFile(io.BytesIO(data))


START_OF_SCAN, END_OF_IMAGE = 0xDA, 0xD9
FIRST_WITH_LENGTH = 0xC0
"""JPEG markers below this have no segment; nor do those from RST0 to EOI, 0xD0 to 0xD9 (ITU-T T.81, annex B)."""
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")
"""Between pixels, FF is followed by 00 or a restart marker; any number of FF may stand before a marker."""


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield each marker and the start of its segment (at its length), up to the first end of image."""
    at = 2
    while match := _MARKER.search(data, at):
        marker, at = match[1][0], match.end()
        if marker == END_OF_IMAGE:
            return
        if marker >= FIRST_WITH_LENGTH and marker != 0xD8:
            yield marker, at
            at += int.from_bytes(data[at : at + 2], "big")


def _read_png(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    return PngImageFile(io.BytesIO(b"".join(_essential_chunks(data))))


_PNG_PICTURE = {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"}


def _essential_chunks(data: bytes) -> Iterator[bytes]:
    """Yield only the chunks of a PNG's first picture, so that text, profiles and animation frames are never inflated.

    The orientation (eXIf) may come after the pixels; it is moved before them.
    """
    yield data[:8]
    chunks: list[tuple[bytes, bytes]] = []
    at = 8
    while not chunks or chunks[-1][0] != b"IEND":
        (length,) = struct.unpack_from(">I", data, at)  # struct.error after the end: truncated
        end = at + 12 + length
        chunks.append((data[at + 4 : at + 8], data[at:end]))
        at = end
    yield from (chunk for kind, chunk in chunks[:1])
    yield from (chunk for kind, chunk in chunks[1:] if kind == b"eXIf")
    yield from (chunk for kind, chunk in chunks[1:] if kind in _PNG_PICTURE)


def _read_webp(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    if _webp_size(data) is None:  # nothing bounds the canvas
        raise InvalidImage("The WEBP image is damaged or cut short.", format="WEBP")
    return WebPImageFile(io.BytesIO(data))


def _webp_size(data: bytes) -> tuple[int, int] | None:
    """Return the canvas's width and height (RFC 9649, sections 2.5-2.7)."""
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


def _read_gif(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    return GifImageFile(io.BytesIO(data))


def _gif_size(data: bytes) -> tuple[int, int] | None:
    """Return the width and height of the screen, or of the first frame if it is larger (GIF89a, 17-24)."""
    if len(data) < 13:
        return None
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)  # after the colour table
    while data[at : at + 1] == b"!":  # an extension: a label, and blocks of data up to an empty one
        at += 2
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
    if data[at : at + 1] == b"," and len(data) >= at + 9:
        left, top, across, down = struct.unpack_from("<HHHH", data, at + 1)
        width, height = max(width, left + across), max(height, top + down)
    return width, height


def _check_canvas(name: str, data: bytes, limits: Limits) -> tuple[int, int] | None:
    """Return the size in the head of an image of an ALLOCATING format; None if the head is damaged.

    Raises ImageTooLarge and TooCostly.
    """
    size = _webp_size(data) if name == "WEBP" else _gif_size(data)
    if size is not None:
        check_size(*size, limits)
        if size[0] * size[1] > limits.most_pixels:
            raise TooCostly
    return size


def _read_heif(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    _refuse_films(data, "HEIF")
    return heif_reader()(io.BytesIO(data))


@cache
def heif_reader() -> Callable[[io.BytesIO], ImageFile.ImageFile]:
    """Load libheif at the first HEIC photo: it takes 20 ms, and most servers never see one.

    Raises UnsupportedImage if the extra `heic` is not installed.
    """
    try:
        import pillow_heif  # noqa: PLC0415 - see above
    except ImportError as error:
        message = "This server reads no HEIC photos: install likeness-server[heic], or send JPEG."
        raise UnsupportedImage(message) from error
    pillow_heif.options.DECODE_THREADS = 1  # requests run side by side already
    pillow_heif.options.THUMBNAILS = pillow_heif.options.DEPTH_IMAGES = pillow_heif.options.AUX_IMAGES = False
    reader: Callable[[io.BytesIO], ImageFile.ImageFile] = pillow_heif.HeifImageFile
    return reader


def _read_avif(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    _refuse_films(data, "AVIF")
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # requests run side by side already
    return AvifImagePlugin.AvifImageFile(io.BytesIO(data))


def _refuse_films(data: bytes, name: str) -> None:
    if data[8:12] in SEQUENCES:
        raise UnsupportedImage(f"{name} image sequences are not supported; send a photo.", format=name)


def _read_bmp(data: bytes, _limits: Limits) -> ImageFile.ImageFile:
    return BmpImageFile(io.BytesIO(data))


NEW_SUBFILE_TYPE, REDUCED = 254, 1
"""The tag that says what a TIFF's first picture is; its value for a reduced copy of another (TIFF 6.0, page 36)."""


def _read_tiff(data: bytes, limits: Limits) -> ImageFile.ImageFile:
    _silence_libtiff()
    image = TiffImageFile(io.BytesIO(data))
    tags = image.tag_v2
    if tags.get(NEW_SUBFILE_TYPE, 0) == REDUCED:
        raise UnsupportedImage("The TIFF begins with a preview, as cameras' raw files do; send a JPEG.", format="TIFF")
    # A tile is decoded whole, even if the picture needs little of it.
    tile = (tags.get(322, 1), tags.get(323, 1))
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
