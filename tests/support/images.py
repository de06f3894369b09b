"""Make an image of every kind that the service reads."""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image, ImageCms

from app.types import Pixels

ORIENTATION = 274


def photo(width: int = 96, height: int = 64) -> Image.Image:
    """Return the astronaut's face, small."""
    from skimage.data import astronaut  # noqa: PLC0415 - slow, and many only import this module

    face = astronaut()  # type: ignore[no-untyped-call]  # scikit-image has no types here
    return Image.fromarray(face[40:200, 120:360]).resize((width, height), Image.Resampling.BOX)


def encoded(image: Image.Image | Pixels, kind: str = "PNG", **options: Any) -> bytes:
    """Return an image, or (H, W, 3) uint8 RGB, as a file."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def resized(pixels: Pixels, scale: float) -> Pixels:
    kind = cv2.INTER_AREA if scale < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=kind), np.uint8)


def turned(image: Image.Image, kind: str, orientation: int) -> bytes:
    """Return the image's pixels with an orientation tag that says how to turn them."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, kind, exif=exif)


def heic(image: Image.Image, orientation: int = 1, **options: Any) -> bytes:
    """Return the image as phones write it, turned by properties (`irot`, `imir`); ``tile_size`` makes a grid."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    made = pillow_heif.from_pillow(image)
    made.info["exif"] = exif.tobytes()
    file = io.BytesIO()
    made.save(file, quality=80, enc_params={"preset": "ultrafast"}, **options)
    return file.getvalue()


def avif_grid(tile: Image.Image, rows: int, columns: int) -> bytes:
    """Return an AVIF of ``rows`` × ``columns`` tiles of one picture (ISO/IEC 23008-12, 6.6.2.3), made by hand."""
    data = encoded(tile, "AVIF", speed=10)
    coded = data[data.index(b"mdat") + 4 :]
    at = data.index(b"av1C") - 4
    config = data[at : at + int.from_bytes(data[at : at + 4], "big")]
    count = rows * columns
    size, whole = (tile.width, tile.height), (tile.width * columns, tile.height * rows)

    def box(kind: bytes, *content: bytes) -> bytes:
        return struct.pack(">I4s", 8 + sum(map(len, content)), kind) + b"".join(content)

    def full(kind: bytes, version: int, flags: int, *content: bytes) -> bytes:
        return box(kind, struct.pack(">I", version << 24 | flags), *content)

    def extent(item: int, method: int, offset: int, length: int) -> bytes:
        return struct.pack(">4H2I", item, method, 0, 1, offset, length)

    def meta(offset: int) -> bytes:
        entries = [(item, 1, b"av01", b"\1\x82\3") for item in range(1, count + 1)]
        entries.append((count + 1, 0, b"grid", b"\4\3"))
        infos = [
            full(b"infe", 2, hidden, struct.pack(">HH", item, 0), kind, b"\0") for item, hidden, kind, _ in entries
        ]
        properties = [full(b"ispe", 0, 0, struct.pack(">II", *size)), config, full(b"pixi", 0, 0, b"\3\x08\x08\x08")]
        used = [struct.pack(">HB", item, len(indices)) + indices for item, _, _, indices in entries]
        places = [extent(item + 1, 0, offset + item * len(coded), len(coded)) for item in range(count)]
        grid = struct.pack(">4B2H", 0, 0, rows - 1, columns - 1, *whole)
        tiles = struct.pack(f">HH{count}H", count + 1, count, *range(1, count + 1))
        return full(
            b"meta",
            0,
            0,
            full(b"hdlr", 0, 0, bytes(4), b"pict", bytes(13)),
            full(b"pitm", 0, 0, struct.pack(">H", count + 1)),
            full(b"iloc", 1, 0, struct.pack(">HH", 0x4400, count + 1), *places, extent(count + 1, 1, 0, len(grid))),
            full(b"iinf", 0, 0, struct.pack(">H", count + 1), *infos),
            full(b"iref", 0, 0, box(b"dimg", tiles)),
            box(
                b"iprp",
                box(b"ipco", *properties, full(b"ispe", 0, 0, struct.pack(">II", *whole))),
                full(b"ipma", 0, 0, struct.pack(">I", count + 1), *used),
            ),
            box(b"idat", grid),
        )

    head = box(b"ftyp", b"avif", bytes(4), b"avifmif1miaf")
    return head + meta(len(head) + len(meta(0)) + 8) + box(b"mdat", coded * count)


def lab(image: Image.Image) -> Image.Image:
    srgb, target = (ImageCms.ImageCmsProfile(ImageCms.createProfile(name)) for name in ("sRGB", "LAB"))
    converted = ImageCms.applyTransform(image, ImageCms.buildTransform(srgb, target, "RGB", "LAB"))
    assert converted is not None
    return converted


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image.convert("RGB"), np.int64)


def grey16(values: Any) -> Image.Image:
    return Image.fromarray(np.asarray(values, np.uint16))


def white_is_zero(values: Any) -> bytes:
    """Return a TIFF of 16-bit grey values of which 0 is white."""
    return _tagged(encoded(grey16(values), "TIFF"), 262, 1, 0)


def float_colours() -> bytes:
    """Return a TIFF of three floats a pixel."""
    tags = {256: 32, 257: 32, 258: 32, 259: 1, 262: 2, 273: 8, 277: 3, 278: 32, 279: 32 * 32 * 12, 339: 3}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in sorted(tags.items()))
    at = 8 + 32 * 32 * 12
    return b"II*\0" + struct.pack("<I", at) + bytes(at - 8) + struct.pack("<H", len(tags)) + entries + bytes(4)


def preview_first() -> bytes:
    """Return a TIFF whose first picture is marked as a smaller version of another, as in cameras' raw files."""
    return encoded(photo(), "TIFF", tiffinfo={254: 1})


def bmp_without_alpha(image: Image.Image) -> bytes:
    """Return a BMP of 32 bits a pixel whose fourth byte is 0 everywhere, with the masks of a version 4 header."""
    below = np.zeros((image.height, image.width, 4), np.uint8)
    below[:, :, :3] = np.asarray(image.convert("RGB"))[::-1, :, ::-1]
    masks = struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    head = struct.pack("<IiiHHIIiiII", 108, image.width, image.height, 1, 32, 3, below.size, 0, 0, 0, 0)
    head += masks + bytes(108 - len(head) - len(masks))
    return b"BM" + struct.pack("<IHHI", 14 + len(head) + below.size, 0, 0, 14 + len(head)) + head + below.tobytes()


def _tagged(tiff: bytes, tag: int, old: int, new: int) -> bytes:
    """Return the little-endian TIFF with another value for a tag that holds a single SHORT."""
    entry = "<HHIHH"
    assert tiff.count(struct.pack(entry, tag, 3, 1, old, 0)) == 1
    return tiff.replace(struct.pack(entry, tag, 3, 1, old, 0), struct.pack(entry, tag, 3, 1, new, 0))


EVERY_KIND: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(photo(), "JPEG"),
    "jpeg progressive": lambda: encoded(photo(), "JPEG", progressive=True),
    "jpeg in restart intervals": lambda: encoded(photo().convert("L"), "JPEG", restart_marker_rows=1),
    "jpeg cmyk": lambda: encoded(photo().convert("CMYK"), "JPEG"),
    "jpeg of two pictures": lambda: encoded(photo(), "MPO", save_all=True, append_images=[photo()]),
    "png": lambda: encoded(photo(), "PNG"),
    "png in many chunks": lambda: encoded(photo(400, 300), "PNG", compress_level=0),
    "png palette": lambda: encoded(photo().convert("P"), "PNG", transparency=3),
    "png 16 bit": lambda: encoded(grey16(pixels(photo())[:, :, 0] * 257), "PNG"),
    "webp": lambda: encoded(photo(), "WEBP"),
    "webp lossless": lambda: encoded(photo().convert("RGBA"), "WEBP", lossless=True),
    "webp animated": lambda: encoded(photo(), "WEBP", save_all=True, append_images=[photo().rotate(90)]),
    "bmp": lambda: encoded(photo(), "BMP"),
    "bmp palette": lambda: encoded(photo().convert("P"), "BMP"),
    "bmp of 32 bits": lambda: bmp_without_alpha(photo()),
    "gif": lambda: encoded(photo(), "GIF"),
    "heic": lambda: heic(photo()),
    "heic turned": lambda: heic(photo(), 6),
    "heic of tiles": lambda: heic(photo(200, 150), tile_size=64),
    "heic transparent": lambda: heic(photo().convert("RGBA")),
    "avif": lambda: encoded(photo(), "AVIF"),
    "avif turned": lambda: turned(photo(), "AVIF", 6),
    "avif transparent": lambda: encoded(photo().convert("RGBA"), "AVIF"),
    "avif of tiles": lambda: avif_grid(photo(64, 64), 2, 3),
    "avif 4:4:4": lambda: encoded(photo(), "AVIF", subsampling="4:4:4"),
    "tiff": lambda: encoded(photo(), "TIFF"),
    "tiff 16 bit, white is zero": lambda: white_is_zero(pixels(photo())[:, :, 0] * 257),
    "tiff lzw": lambda: encoded(photo(), "TIFF", compression="tiff_lzw"),
    "tiff jpeg": lambda: encoded(photo(), "TIFF", compression="jpeg"),
    "tiff deflate": lambda: encoded(photo(), "TIFF", compression="tiff_adobe_deflate"),
    "tiff fax": lambda: encoded(photo().convert("1"), "TIFF", compression="group4"),
    "bigtiff": lambda: encoded(photo(), "TIFF", big_tiff=True),
}


def deep_heic(mode: str, image: Image.Image) -> bytes:
    """Return a HEIC with ten bits for each sample and full colour resolution."""
    file = io.BytesIO()
    values = np.asarray(image, np.uint16) << 8
    pillow_heif.encode(
        mode, image.size, values.tobytes(), file, quality=10, chroma=444, enc_params={"preset": "ultrafast"}
    )
    return file.getvalue()


def by_opencv(kind: str, image: Image.Image, *options: int) -> bytes:
    """Return a PNG with sixteen bits for each sample, or an AVIF with ten."""
    values = np.asarray(image, np.uint16)
    return bytes(cv2.imencode(kind, values * 257 if kind == ".png" else values << 2, options)[1])


def every_kind(side: int) -> dict[str, Callable[[], bytes]]:
    """Return functions that make a square photo, one for each kind that is decoded differently."""

    @functools.cache
    def grey() -> Image.Image:
        return Image.linear_gradient("L").resize((side, side))

    @functools.cache
    def colour() -> Image.Image:
        return Image.merge("RGB", (grey(), grey().rotate(90), grey().rotate(180)))

    @functools.cache
    def seen_through() -> Image.Image:
        return Image.merge("RGBA", (*colour().split(), grey()))

    strip: dict[str, Any] = {"compression": "tiff_lzw", "strip_size": side * side * 4, "tiffinfo": {278: side}}
    return {
        "jpeg": lambda: encoded(colour(), "JPEG"),
        "jpeg turned": lambda: turned(colour(), "JPEG", 6),
        "jpeg cmyk": lambda: encoded(colour().convert("CMYK"), "JPEG"),
        "jpeg progressive": lambda: encoded(colour(), "JPEG", progressive=True, subsampling=0),
        "jpeg progressive cmyk": lambda: encoded(colour().convert("CMYK"), "JPEG", progressive=True),
        "png": lambda: encoded(colour(), "PNG", compress_level=1),
        "png not compressed": lambda: encoded(colour(), "PNG", compress_level=0),
        "png transparent": lambda: encoded(seen_through(), "PNG", compress_level=1),
        "png palette": lambda: encoded(colour().quantize(16), "PNG", compress_level=1, transparency=3),
        "png 16 bit": lambda: by_opencv(".png", seen_through(), cv2.IMWRITE_PNG_COMPRESSION, 1),
        "png 16 bit grey": lambda: encoded(grey16(np.asarray(grey(), np.uint16) * 257), "PNG", compress_level=1),
        "bmp": lambda: encoded(colour(), "BMP"),
        "gif": lambda: encoded(colour().quantize(64), "GIF", transparency=3),
        "webp": lambda: encoded(seen_through(), "WEBP", method=0),
        "webp lossless": lambda: encoded(seen_through(), "WEBP", method=0, lossless=True),
        "webp animated": lambda: encoded(
            colour(), "WEBP", method=0, save_all=True, append_images=[colour().rotate(90)]
        ),
        "tiff": lambda: encoded(colour(), "TIFF"),
        "tiff turned": lambda: turned(colour(), "TIFF", 6),
        "tiff lzw in one strip": lambda: encoded(seen_through(), "TIFF", **strip),
        "tiff float": lambda: encoded(grey().convert("F"), "TIFF", compression="tiff_lzw"),
        "tiff float turned": lambda: turned(grey().convert("F"), "TIFF", 6),
        "tiff integer": lambda: encoded(grey().convert("I"), "TIFF", compression="tiff_lzw"),
        "tiff lab": lambda: encoded(lab(colour()), "TIFF"),
        "tiff jpeg": lambda: encoded(colour(), "TIFF", compression="jpeg"),
        "heic": lambda: heic(colour()),
        "heic of tiles": lambda: heic(colour(), tile_size=min(512, side // 2)),
        "heic 4:4:4 transparent": lambda: heic(seen_through(), 6, chroma=444),
        "heic 10 bit": lambda: deep_heic("RGBA;16", seen_through()),
        "avif": lambda: encoded(colour(), "AVIF", speed=10),
        "avif 4:4:4 transparent": lambda: encoded(seen_through(), "AVIF", speed=10, subsampling="4:4:4"),
        "avif 10 bit": lambda: by_opencv(
            ".avif", seen_through(), cv2.IMWRITE_AVIF_DEPTH, 10, cv2.IMWRITE_AVIF_SPEED, 10
        ),
        "avif of tiles": lambda: avif_grid(colour().crop((0, 0, side // 2, side // 2)), 2, 2),
    }
