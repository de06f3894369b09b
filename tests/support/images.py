"""One image of every kind that the service reads."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pillow_heif
from numpy.typing import NDArray
from PIL import Image
from skimage.data import astronaut

ORIENTATION = 274


def photo(width: int = 96, height: int = 64) -> Image.Image:
    """The astronaut's face, small."""
    face = astronaut()  # type: ignore[no-untyped-call]  # scikit-image has no types here
    return Image.fromarray(face[40:200, 120:360]).resize((width, height), Image.Resampling.BOX)


def encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def turned(image: Image.Image, kind: str, orientation: int) -> bytes:
    """The image's pixels with a note that they must be turned."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image, kind, exif=exif)


def heic(image: Image.Image, orientation: int = 1, **options: Any) -> bytes:
    """The image as phones write it, turned by the container (`irot`, `imir`); ``tile_size`` makes a grid."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    made = pillow_heif.from_pillow(image)
    made.info["exif"] = exif.tobytes()
    file = io.BytesIO()
    made.save(file, quality=80, **options)
    return file.getvalue()


def pixels(image: Image.Image) -> NDArray[np.int64]:
    return np.asarray(image.convert("RGB"), np.int64)


def grey16(values: Any) -> Image.Image:
    return Image.fromarray(np.asarray(values, np.uint16))


EVERY_KIND: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(photo(), "JPEG"),
    "jpeg progressive": lambda: encoded(photo(), "JPEG", progressive=True),
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
    "gif": lambda: encoded(photo(), "GIF"),
    "heic": lambda: heic(photo()),
    "heic turned": lambda: heic(photo(), 6),
    "heic of tiles": lambda: heic(photo(200, 150), tile_size=64),
    "heic transparent": lambda: heic(photo().convert("RGBA")),
    "avif": lambda: encoded(photo(), "AVIF"),
    "avif turned": lambda: turned(photo(), "AVIF", 6),
    "avif transparent": lambda: encoded(photo().convert("RGBA"), "AVIF"),
    "avif 4:4:4": lambda: encoded(photo(), "AVIF", subsampling="4:4:4"),
    "tiff": lambda: encoded(photo(), "TIFF"),
    "tiff lzw": lambda: encoded(photo(), "TIFF", compression="tiff_lzw"),
    "tiff jpeg": lambda: encoded(photo(), "TIFF", compression="jpeg"),
    "tiff deflate": lambda: encoded(photo(), "TIFF", compression="tiff_adobe_deflate"),
    "tiff fax": lambda: encoded(photo().convert("1"), "TIFF", compression="group4"),
    "bigtiff": lambda: encoded(photo(), "TIFF", big_tiff=True),
}
