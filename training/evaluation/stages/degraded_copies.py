"""Photos degraded in one way each, to see whether quality falls where recognition does."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import cv2
import numpy as np
from PIL import Image

from app.types import Pixels

READ_NOISE = 2.0
"""Standard deviation in grey levels that a dark photo keeps however little light there is."""


@dataclass(frozen=True, slots=True)
class Degradation:
    """One way (a key of `WAYS`) at one strength, in the way's own unit."""

    way: str
    strength: float

    @property
    def name(self) -> str:
        return f"{self.way} {self.strength:g}"

    def apply(self, pixels: Pixels, rng: np.random.Generator) -> Pixels:
        """Return a degraded copy of (H, W, 3) uint8 RGB."""
        return WAYS[self.way].apply(pixels, self.strength, rng)


@dataclass(frozen=True, slots=True)
class Way:
    """``strengths`` from mild to strong, for faces some 100 pixels wide in the middle of their photo."""

    apply: Callable[[Pixels, float, np.random.Generator], Pixels]
    strengths: tuple[float, ...]


def blurred(pixels: Pixels, sigma: float, _rng: np.random.Generator) -> Pixels:
    """Blur by a Gaussian of ``sigma`` pixels: out of focus."""
    return np.asarray(cv2.GaussianBlur(pixels, (0, 0), sigma), np.uint8)


def smeared(pixels: Pixels, pixels_moved: float, rng: np.random.Generator) -> Pixels:
    """Blur along a line in some direction: motion during the exposure."""
    length, degrees = round(pixels_moved), float(rng.uniform(0, 180))
    middle = (length - 1) / 2
    line = np.zeros((length, length), np.float32)
    line[length // 2] = 1
    line = np.asarray(
        cv2.warpAffine(line, cv2.getRotationMatrix2D((middle, middle), degrees, 1), (length, length)), np.float32
    )
    return np.asarray(cv2.filter2D(pixels, -1, line / line.sum()), np.uint8)


def shrunk(pixels: Pixels, factor: float, _rng: np.random.Generator) -> Pixels:
    """Shrink to ``factor`` times the size, averaged."""
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA), np.uint8)


def exposed(pixels: Pixels, factor: float, rng: np.random.Generator) -> Pixels:
    """Multiply the light by ``factor``, with noise, clipped and rounded to 8 bits as a camera does."""
    light = pixels.astype(np.float32) * factor + rng.normal(0, READ_NOISE, pixels.shape)
    return np.asarray(np.clip(light, 0, 255), np.uint8)


def grainy(pixels: Pixels, sigma: float, rng: np.random.Generator) -> Pixels:
    """Add Gaussian noise of ``sigma`` grey levels."""
    return np.asarray(np.clip(pixels + rng.normal(0, sigma, pixels.shape), 0, 255), np.uint8)


def compressed(pixels: Pixels, jpeg_quality: float, _rng: np.random.Generator) -> Pixels:
    """Compress as JPEG and decode again."""
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "JPEG", quality=round(jpeg_quality))
    return np.asarray(Image.open(data).convert("RGB"), np.uint8)


def tilted(pixels: Pixels, degrees: float, _rng: np.random.Generator) -> Pixels:
    """Rotate in the picture's plane."""
    height, width = pixels.shape[:2]
    matrix = cv2.getRotationMatrix2D((width / 2, height / 2), degrees, 1)
    return np.asarray(cv2.warpAffine(pixels, matrix, (width, height)), np.uint8)


def turned_aside(pixels: Pixels, degrees: float, _rng: np.random.Generator) -> Pixels:
    """Foreshorten as a head turned to the side (without its occlusion: a flat card hides nothing)."""
    return _card(pixels, degrees, up=False)


def nodded(pixels: Pixels, degrees: float, _rng: np.random.Generator) -> Pixels:
    """Foreshorten as a head turned up or down."""
    return _card(pixels, degrees, up=True)


def _card(pixels: Pixels, degrees: float, *, up: bool) -> Pixels:
    """Return the photo as a flat card turned about its upright (or lying) middle axis, seen from three times its
    width."""
    height, width = pixels.shape[:2]
    corners = np.array([[-0.5, -0.5], [0.5, -0.5], [0.5, 0.5], [-0.5, 0.5]])
    angle, distance = math.radians(degrees), 3.0
    along = corners[:, 1] if up else corners[:, 0]
    depth = distance + along * math.sin(angle)
    near = corners * distance / depth[:, None]
    near[:, 1 if up else 0] *= math.cos(angle)
    size = np.array([width, height])
    matrix = cv2.getPerspectiveTransform(
        ((corners + 0.5) * size).astype(np.float32), ((near + 0.5) * size).astype(np.float32)
    )
    return np.asarray(cv2.warpPerspective(pixels, matrix, (width, height)), np.uint8)


def cut_right(pixels: Pixels, keep: float, _rng: np.random.Generator) -> Pixels:
    """Keep the left ``keep`` of the photo."""
    return np.ascontiguousarray(pixels[:, : round(pixels.shape[1] * keep)])


def cut_top(pixels: Pixels, keep: float, _rng: np.random.Generator) -> Pixels:
    """Keep the lower ``keep`` of the photo."""
    return np.ascontiguousarray(pixels[round(pixels.shape[0] * (1 - keep)) :])


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "blur (σ px)": Way(blurred, (1.5, 2.5, 4, 6)),
        "motion (px)": Way(smeared, (7, 13)),
        "shrink (×)": Way(shrunk, (0.5, 0.33, 0.25, 0.18)),
        "darken (×)": Way(exposed, (0.3, 0.15, 0.07, 0.04)),
        "brighten (×)": Way(exposed, (1.8, 2.6, 4)),
        "noise (σ levels)": Way(grainy, (15, 40)),
        "JPEG (quality)": Way(compressed, (20, 8)),
        "tilt (°)": Way(tilted, (15, 30)),
        "turn (°)": Way(turned_aside, (30, 45, 60)),
        "nod (°)": Way(nodded, (30, 45, 60)),
        "cut right (kept)": Way(cut_right, (0.66, 0.58, 0.5)),
        "cut top (kept)": Way(cut_top, (0.62, 0.55)),
    }
)


def png(pixels: Pixels) -> bytes:
    """Encode (H, W, 3) uint8 RGB without further loss."""
    return cv2.imencode(".png", pixels[:, :, ::-1], [cv2.IMWRITE_PNG_COMPRESSION, 1])[1].tobytes()


def degradations() -> list[Degradation]:
    """Return every way at every strength."""
    return [Degradation(name, strength) for name, way in WAYS.items() for strength in way.strengths]
