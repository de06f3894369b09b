"""The memory that a photo takes, format by format: its peak in a process of its own, against what it counts as."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import cv2
import numpy as np
import pillow_heif
import pytest
from PIL import Image

from app.face.formats import BYTES_A_PIXEL, UNBOUNDED, format_of
from tests.support.images import avif_grid, encoded, grey16, heic, lab, turned

SIDE = 2100
"""So many pixels that a photo is costly, and what finding faces takes of any is in what it counts as."""
GREY = Image.linear_gradient("L").resize((SIDE, SIDE))
COLOUR = Image.merge("RGB", (GREY, GREY.rotate(90), GREY.rotate(180)))
SEEN_THROUGH = Image.merge("RGBA", (*COLOUR.split(), GREY))


def deep_heic(mode: str, image: Image.Image) -> bytes:
    """Ten bits a sample, colours not reduced."""
    file = io.BytesIO()
    values = np.asarray(image, np.uint16) << 8
    pillow_heif.encode(
        mode, image.size, values.tobytes(), file, quality=10, chroma=444, enc_params={"preset": "ultrafast"}
    )
    return file.getvalue()


def by_opencv(kind: str, image: Image.Image, *options: int) -> bytes:
    """Sixteen bits a sample in a PNG, ten in an AVIF."""
    values = np.asarray(image, np.uint16)
    return bytes(cv2.imencode(kind, values * 257 if kind == ".png" else values << 2, options)[1])


PHOTOS: Mapping[str, Callable[[], bytes]] = {
    "jpeg": lambda: encoded(COLOUR, "JPEG"),
    "jpeg turned": lambda: turned(COLOUR, "JPEG", 6),
    "jpeg cmyk": lambda: encoded(COLOUR.convert("CMYK"), "JPEG"),
    "jpeg progressive": lambda: encoded(COLOUR, "JPEG", progressive=True, subsampling=0),
    "jpeg progressive cmyk": lambda: encoded(COLOUR.convert("CMYK"), "JPEG", progressive=True),
    "png": lambda: encoded(COLOUR, "PNG", compress_level=1),
    "png not compressed": lambda: encoded(COLOUR, "PNG", compress_level=0),
    "png transparent": lambda: encoded(SEEN_THROUGH, "PNG", compress_level=1),
    "png palette": lambda: encoded(COLOUR.quantize(16), "PNG", compress_level=1, transparency=3),
    "png 16 bit": lambda: by_opencv(".png", SEEN_THROUGH, cv2.IMWRITE_PNG_COMPRESSION, 1),
    "png 16 bit grey": lambda: encoded(grey16(np.asarray(GREY, np.uint16) * 257), "PNG", compress_level=1),
    "bmp": lambda: encoded(COLOUR, "BMP"),
    "gif": lambda: encoded(COLOUR.quantize(64), "GIF", transparency=3),
    "webp": lambda: encoded(SEEN_THROUGH, "WEBP", method=0),
    "webp lossless": lambda: encoded(SEEN_THROUGH, "WEBP", method=0, lossless=True),
    "webp animated": lambda: encoded(COLOUR, "WEBP", method=0, save_all=True, append_images=[COLOUR.rotate(90)]),
    "tiff": lambda: encoded(COLOUR, "TIFF"),
    "tiff turned": lambda: turned(COLOUR, "TIFF", 6),
    "tiff lzw in one strip": lambda: encoded(
        SEEN_THROUGH, "TIFF", compression="tiff_lzw", strip_size=SIDE * SIDE * 4, tiffinfo={278: SIDE}
    ),
    "tiff float": lambda: encoded(GREY.convert("F"), "TIFF", compression="tiff_lzw"),
    "tiff float turned": lambda: turned(GREY.convert("F"), "TIFF", 6),
    "tiff integer": lambda: encoded(GREY.convert("I"), "TIFF", compression="tiff_lzw"),
    "tiff lab": lambda: encoded(lab(COLOUR), "TIFF"),
    "tiff jpeg": lambda: encoded(COLOUR, "TIFF", compression="jpeg"),
    "heic": lambda: heic(COLOUR),
    "heic of tiles": lambda: heic(COLOUR, tile_size=512),
    "heic 4:4:4 transparent": lambda: heic(SEEN_THROUGH, 6, chroma=444),
    "heic 10 bit": lambda: deep_heic("RGBA;16", SEEN_THROUGH),
    "avif": lambda: encoded(COLOUR, "AVIF", speed=10),
    "avif 4:4:4 transparent": lambda: encoded(SEEN_THROUGH, "AVIF", speed=10, subsampling="4:4:4"),
    "avif 10 bit": lambda: by_opencv(".avif", SEEN_THROUGH, cv2.IMWRITE_AVIF_DEPTH, 10, cv2.IMWRITE_AVIF_SPEED, 10),
    "avif of tiles": lambda: avif_grid(COLOUR.crop((0, 0, SIDE // 2, SIDE // 2)), 2, 2),
}

PROGRAM = """
import os, re, sys
from pathlib import Path
from app.face.detect import Detector
from app.face.formats import Limits
from app.face.image import open_image
from app.pipeline import Pipeline

LIMITS = Limits(max_bytes=1 << 30)
def memory(what):
    return int(re.search(what + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
def finding(path, min_face):
    pipeline = Pipeline(Detector(Path(sys.argv[2]), min_face=min_face), LIMITS)
    pipeline.detect(path.with_name("small PNG").read_bytes())
    data = path.read_bytes()
    before = memory("VmRSS")
    pipeline.detect(data)
    return memory("VmHWM") - before
files = sorted(Path(sys.argv[1]).iterdir())
for path in files:  # what libraries load and keep when they are first used
    if path.name.startswith("small"):
        open_image(path.read_bytes(), LIMITS).decode()
def measure(path):
    if not os.fork():  # which begins with a peak of its own
        print(path.name, finding(path, 20), sep="\\t", flush=True)
        os._exit(0)
    os.wait()
for path in files:
    if not path.name.startswith("small"):
        measure(path)
"""


@pytest.fixture(scope="module")
def peaks(yunet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The bytes that each photo took, from its file to its faces."""
    folder = tmp_path_factory.mktemp("photos")
    for name, make in PHOTOS.items():
        (folder / name).write_bytes(make())
    for kind in ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "AVIF"):
        (folder / f"small {kind}").write_bytes(encoded(Image.new("RGB", (64, 64)), kind))
    (folder / "small HEIC").write_bytes(heic(Image.new("RGB", (64, 64))))
    command = [sys.executable, "-c", PROGRAM, str(folder), str(yunet)]
    at_once = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}  # what is freed counts no longer
    done = subprocess.run(command, env=at_once, capture_output=True, text=True, check=True, timeout=1800)
    return {name: int(size) for name, _, size in (line.partition("\t") for line in done.stdout.splitlines())}


@pytest.mark.parametrize("name", PHOTOS)
def test_a_photo_takes_no_more_than_it_counts_as(name: str, peaks: dict[str, int]) -> None:
    if format_of(PHOTOS[name]()) not in UNBOUNDED:
        assert peaks[name] <= BYTES_A_PIXEL * SIDE**2
