"""How many bytes decoding a photo takes at most, from the facts in its header.

Each format's figure is the peak beside the file that was sent: what its reader holds, the pixels in Pillow, and the RGB
result. They follow from how the readers work, and are compared with the peak of a process of its own, format by format
(tests/face/test_memory.py).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from PIL.TiffImagePlugin import TiffImageFile

RGB = 3
"""Bytes of one pixel of the result."""
CORE_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}
"""Bytes of one pixel in Pillow; 4 in every other mode (https://pillow.readthedocs.io/en/stable/handbook/concepts.html)."""
BASE = 8_000_000
"""The band of rows that is converted at a time, and what readers hold of an image of any size."""

COEFFICIENT = 2
"""Bytes of one sample's coefficient in libjpeg, which keeps all of an image that comes in several scans."""
PLANES = 8
"""One pixel's planes of colour and transparency, unreduced, of up to 16 bits."""
AVIF = PLANES + 4 + 4
"""Planes, the reader's RGBA and its copy in Python; the copy in Pillow comes when the reader's is gone."""
HEIF_PLAIN, HEIF_DEEP = 13, 21
"""Of 8 bits a sample; of more, which libheif reduces to 8 in another copy. Measured: 12.3 and 20."""
WEBP = 16
"""Two canvases, the picture in Python and in Pillow."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The memory that decoding takes: first in the reader, then while Pillow's pixels become RGB."""

    held: int
    """Bytes in the reader, however small the picture becomes."""
    reading: int
    """Bytes in the reader and in Pillow for each pixel decoded."""
    converting: int = 4 + RGB
    """Bytes for each pixel afterwards."""

    def bytes(self, width: int, height: int) -> int:
        """Return the peak of decoding ``width`` × ``height`` pixels."""
        pixels = width * height
        return BASE + max(self.held + self.reading * pixels, self.converting * pixels)


def plain(mode: str, *, held: int = 0) -> Cost:
    """Return the cost of a reader that writes rows into Pillow's pixels and holds ``held`` bytes beside them."""
    core = CORE_BYTES.get(mode, 4)
    return Cost(held, core, core + RGB)


def jpeg(mode: str, pixels: int, kept_layers: int) -> Cost:
    """Return a JPEG's cost; one of several scans, as a progressive one, keeps all coefficients of all its layers."""
    return plain(mode, held=COEFFICIENT * kept_layers * pixels)


def bmp(mode: str, pixels: int, *, packed: bool) -> Cost:
    """Return a BMP's cost; run lengths are unpacked in Python, twice a byte a pixel."""
    return plain(mode, held=2 * pixels if packed else 0)


def tiff(image: TiffImageFile) -> Cost:
    """Return a TIFF's cost: libtiff decodes a strip or a tile whole, maybe to RGBA, and Pillow turns it upright."""
    turned = CORE_BYTES.get(image.mode, 4) * image.width * image.height if image.tag_v2.get(274, 1) != 1 else 0
    if not image.use_load_libtiff:
        return plain(image.mode, held=turned)
    tags, (width, height) = image.tag_v2, image.size
    bits = tags.get(258, (1,))
    samples = math.ceil(max(bits) / 8) * max(len(bits), tags.get(277, 1))
    piece = tags[322] * tags[323] if 322 in tags else width * min(height, tags.get(278, height))
    return plain(image.mode, held=turned + piece * max(samples, 4))


def heif(bits: int, largest_part: int) -> Cost:
    """Return a HEIC's cost; its parts (tiles of a grid), of that many pixels at most, are decoded one by one."""
    return Cost(PLANES * largest_part, HEIF_DEEP if bits > 8 else HEIF_PLAIN)


def avif(largest_part: int) -> Cost:
    """Return an AVIF's cost; its parts are decoded one by one, too."""
    return Cost(PLANES * largest_part, AVIF)
