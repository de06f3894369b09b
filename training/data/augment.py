"""Augmentation: change training crops as cameras, networks and accessories do.

Everything takes and returns (112, 112, 3) uint8 RGB (any size works), draws only from a ``numpy.random.Generator``,
never writes into its arguments, and is meant for the loader's worker processes. The ranges of crop, low resolution and
colour are AdaFace's (Kim et al., CVPR 2022, and its published settings).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import cv2
import numpy as np
from numpy.typing import NDArray

from app.package.manifest import CROP_SIDE
from app.types import CANONICAL_LANDMARKS, Pixels
from training.recipe import Augmentation, named

CROP_AREA = (0.2, 1.0)
"""Share of the crop's area that crop-and-paste keeps."""
CROP_ASPECT = (0.75, 4 / 3)
LOW_SIDE = (0.2, 1.0)
"""Side that low resolution shrinks to, as a share of the crop's."""
COLOUR_RANGE = 0.5
"""Brightness, contrast and saturation are multiplied by 1 - 0.5 ... 1 + 0.5, in any order."""
BLUR_SIGMA = (0.4, 2.2)
BLUR_LENGTH = (3, 9)
"""Pixels that a crop moves in motion blur."""
JPEG_QUALITY = (15, 90)
ERASED_AREA = (0.02, 0.25)
"""Share of the crop's area that a rectangle covers (Random Erasing, Zhong et al., AAAI 2020, has 0.02-0.4)."""
ERASED_ASPECT = (0.3, 1 / 0.3)
LUMA = np.array([0.299, 0.587, 0.114], np.float32)
"""ITU-R BT.601."""
INTERPOLATIONS = (cv2.INTER_NEAREST, cv2.INTER_LINEAR, cv2.INTER_AREA, cv2.INTER_CUBIC, cv2.INTER_LANCZOS4)

Random = np.random.Generator


class Augment:
    """A recipe's table as a callable, ``(crop, random) -> crop``, that can be sent to other processes."""

    def __init__(self, config: Augmentation) -> None:
        self.config = config

    def __call__(self, crop: Pixels, random: Random) -> Pixels:
        # every change draws once, whether it is made or not, so that no change affects another's draw
        lots = random.random(len(CHANGES))
        for (name, change), lot in zip(CHANGES.items(), lots, strict=True):
            if lot < getattr(self.config, name):
                crop = change(crop, random)
        return named("augmentation", self.config.own)(crop, random) if self.config.own else crop


def flip(crop: Pixels, _random: Random) -> Pixels:
    """Mirror left and right."""
    return np.ascontiguousarray(crop[:, ::-1])


def colour(crop: Pixels, random: Random) -> Pixels:
    """Change brightness, contrast and saturation by random factors, in random order."""
    image: NDArray[np.float32] = crop.astype(np.float32)
    factors = random.uniform(1 - COLOUR_RANGE, 1 + COLOUR_RANGE, 3)
    for step in random.permutation(3):
        factor = np.float32(factors[step])
        if step == 0:
            image *= factor
        elif step == 1:
            mean = np.float32((image @ LUMA).mean())
            image = np.asarray((image - mean) * factor + mean, np.float32)
        else:
            luma = (image @ LUMA)[:, :, None]
            image = np.asarray(luma + (image - luma) * factor, np.float32)
    return _pixels(image)


def grey(crop: Pixels, _random: Random) -> Pixels:
    """Replace all three channels by the luma."""
    return np.repeat(_pixels(crop.astype(np.float32) @ LUMA)[:, :, None], 3, axis=2)


def crop_and_paste(crop: Pixels, random: Random) -> Pixels:
    """Keep a rectangle of the crop in place and make everything around it black."""
    top, left, height, width = _rectangle(crop, random, CROP_AREA, CROP_ASPECT)
    out = np.zeros_like(crop)
    out[top : top + height, left : left + width] = crop[top : top + height, left : left + width]
    return out


def occlusion(crop: Pixels, random: Random) -> Pixels:
    """Cover part of the face: half the time a rectangle, else a mask over the mouth or dark glasses."""
    return (rectangle, rectangle, mask, dark_glasses)[random.integers(4)](crop, random)


def rectangle(crop: Pixels, random: Random) -> Pixels:
    """Draw a rectangle of one colour or of noise."""
    top, left, height, width = _rectangle(crop, random, ERASED_AREA, ERASED_ASPECT)
    out = crop.copy()
    size = (height, width, 3) if random.random() < 0.5 else (1, 1, 3)
    out[top : top + height, left : left + width] = random.integers(0, 256, size, np.uint8)
    return out


def mask(crop: Pixels, random: Random) -> Pixels:
    """Draw a mask from the bridge of the nose to below the chin, as wide as the crop."""
    height, width = crop.shape[:2]
    (_, eyes), nose, (_, mouth) = (
        CANONICAL_LANDMARKS[:2].mean(0),
        CANONICAL_LANDMARKS[2],
        CANONICAL_LANDMARKS[3:].mean(0),
    )
    bridge = random.uniform(0.35 * eyes + 0.65 * nose[1], nose[1] + 4)
    side = random.uniform(nose[1] - 6, mouth - 6)
    points = np.array(
        [[nose[0], bridge], [CROP_SIDE - 6, side], [CROP_SIDE - 10, CROP_SIDE], [10, CROP_SIDE], [6, side]]
    )
    return _covered(crop, [points * [width / CROP_SIDE, height / CROP_SIDE]], _cloth(random))


def dark_glasses(crop: Pixels, random: Random) -> Pixels:
    """Draw two dark lenses over the canonical eyes, and the bridge between them."""
    height, width = crop.shape[:2]
    rx, ry = random.uniform(11, 16), random.uniform(7, 12)
    scale = np.array([width / CROP_SIDE, height / CROP_SIDE])
    angles = np.linspace(0, 2 * math.pi, 24, endpoint=False)
    ring = np.stack([np.cos(angles) * rx, np.sin(angles) * ry], 1)
    lenses = [(ring + eye + [0, 1]) * scale for eye in CANONICAL_LANDMARKS[:2]]
    (x0, y0), (x1, y1) = CANONICAL_LANDMARKS[:2]
    bridge = np.array([[x0, y0 - 2], [x1, y1 - 2], [x1, y1 + 1], [x0, y0 + 1]]) * scale
    shade = int(random.integers(4, 60))
    return _covered(crop, [*lenses, bridge], (shade, shade, shade))


def blur(crop: Pixels, random: Random) -> Pixels:
    """Blur by a Gaussian, or along a line in a random direction."""
    if random.random() < 0.5:
        return np.asarray(cv2.GaussianBlur(crop, (0, 0), random.uniform(*BLUR_SIGMA)), np.uint8)
    length = int(random.integers(BLUR_LENGTH[0], BLUR_LENGTH[1] + 1)) | 1
    kernel = np.zeros((length, length), np.float32)
    middle = length // 2
    angle = random.uniform(0, math.pi)
    dx, dy = middle * math.cos(angle), middle * math.sin(angle)
    start, stop = (round(middle - dx), round(middle - dy)), (round(middle + dx), round(middle + dy))
    cv2.line(kernel, start, stop, 1.0)
    return np.asarray(cv2.filter2D(crop, -1, kernel / kernel.sum()), np.uint8)


def low_resolution(crop: Pixels, random: Random) -> Pixels:
    """Shrink to 0.2-1 of the side and enlarge again, each with a random interpolation."""
    height, width = crop.shape[:2]
    share = random.uniform(*LOW_SIDE)
    small = (max(1, round(width * share)), max(1, round(height * share)))
    down, up = random.choice(INTERPOLATIONS, 2).tolist()
    shrunk = cv2.resize(crop, small, interpolation=down)
    return np.asarray(cv2.resize(shrunk, (width, height), interpolation=up), np.uint8)


def noise(crop: Pixels, random: Random) -> Pixels:
    """Add Gaussian noise with a standard deviation of 2-16 levels, the same in all channels or not."""
    height, width = crop.shape[:2]
    channels = int(random.choice([1, 3]))
    grain = random.standard_normal((height, width, channels), np.float32)
    return _pixels(crop + grain * np.float32(random.uniform(2, 16)))


def jpeg(crop: Pixels, random: Random) -> Pixels:
    """Compress as JPEG of quality 15-90, with colour at half resolution as cameras write it."""
    quality = int(random.integers(JPEG_QUALITY[0], JPEG_QUALITY[1] + 1))
    # the codec takes BGR
    _, data = cv2.imencode(".jpg", crop[:, :, ::-1], [cv2.IMWRITE_JPEG_QUALITY, quality])
    return np.ascontiguousarray(np.asarray(cv2.imdecode(data, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1])


CHANGES: Mapping[str, Callable[[Pixels, Random], Pixels]] = {
    "flip": flip,
    "colour": colour,
    "grey": grey,
    "crop_and_paste": crop_and_paste,
    "occlusion": occlusion,
    "blur": blur,
    "low_resolution": low_resolution,
    "noise": noise,
    "jpeg": jpeg,
}
"""Every change by its name in a recipe, in the order in which they are made."""


def _pixels(image: NDArray[np.float32]) -> Pixels:
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _rectangle(
    crop: Pixels, random: Random, area: tuple[float, float], aspect: tuple[float, float]
) -> tuple[int, int, int, int]:
    """Return top, left, height and width of a random rectangle in the crop; its aspect is uniform in the logarithm."""
    height, width = crop.shape[:2]
    pixels = random.uniform(*area) * height * width
    ratio = math.exp(random.uniform(math.log(aspect[0]), math.log(aspect[1])))
    tall = min(height, max(1, round(math.sqrt(pixels / ratio))))
    wide = min(width, max(1, round(math.sqrt(pixels * ratio))))
    return int(random.integers(height - tall + 1)), int(random.integers(width - wide + 1)), tall, wide


def _cloth(random: Random) -> tuple[int, int, int]:
    if random.random() < 0.5:  # most masks are white, pale blue or black
        pale: tuple[tuple[int, int, int], ...] = ((236, 238, 240), (150, 190, 214), (24, 24, 26))
        return pale[random.integers(3)]
    r, g, b = random.integers(0, 256, 3).tolist()
    return r, g, b


def _covered(crop: Pixels, polygons: list[NDArray[np.float64]], shade: tuple[int, int, int]) -> Pixels:
    out = np.ascontiguousarray(crop.copy())
    for points in polygons:
        cv2.fillPoly(out, [np.rint(points * 16).astype(np.int32)], shade, cv2.LINE_AA, 4)
    return out
