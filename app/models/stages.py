"""Open the service's own stages for measuring: the same code that answers requests, without HTTP or SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.choices import Device
from app.errors import InvalidImage
from app.face.detect import Detector
from app.face.formats import Limits
from app.face.image import decode
from app.inference.embedders import Embedder
from app.inference.session import EmbedderSession
from app.models.opening import open_detector, open_embedder
from app.package.folders import Package
from app.package.manifest import CROP_SIDE
from app.pipeline import Pipeline, choose_face, crop_of
from app.types import Pixels, Vector

LIMITS = Limits(max_bytes=64 * 1024 * 1024)
"""Limits of photos on this machine's disk, which are trusted more than uploads."""


@dataclass(frozen=True, slots=True)
class Stages:
    """A pipeline and an embedder, built as the service builds them. Safe to share between threads."""

    pipeline: Pipeline
    embedder: Embedder
    session: EmbedderSession
    detector: Detector

    def embed_photo(self, data: bytes) -> tuple[Vector, float]:
        """Return the unit vector and the quality, 0-100, of a photo's most prominent face.

        Raises NoFace, Unalignable, and what `decode` raises.
        """
        photo = self.pipeline.detect(data)
        face = photo.faces[choose_face(photo).index]
        return self.embed_pixels(crop_of(face)), face.quality.score

    def embed_crop(self, data: bytes) -> tuple[Vector, float]:
        """Return the unit vector of an aligned crop, and 100 as its quality, which is unknown."""
        return self.embed_pixels(aligned_crop(data)), 100.0

    def embed_pixels(self, crop: Pixels) -> Vector:
        """Return the unit vector of one (112, 112, 3) uint8 RGB aligned crop."""
        [template], _ = self.embedder.embed([crop])
        return template.vector


def pixels_of(data: bytes) -> Pixels:
    """Return the whole photo, (H, W, 3) uint8 RGB, upright."""
    return decode(data, LIMITS).pixels


def aligned_crop(data: bytes) -> Pixels:
    """Return the pixels of an aligned crop, (112, 112, 3). Raises InvalidImage for any other size."""
    pixels = pixels_of(data)
    if pixels.shape != (CROP_SIDE, CROP_SIDE, 3):
        size = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise InvalidImage(f"An aligned crop has {CROP_SIDE}×{CROP_SIDE} pixels; this one has {size}.")
    return pixels


@contextmanager
def open_stages(
    package: Package,
    detector: Package,
    cache: Path,
    device: Device = "cpu",
    *,
    workers: int | None = None,
    flip: bool = False,
) -> Iterator[Stages]:
    """Open a package and a detector, and close them at the end. Raises what `open_embedder` and `open_detector`
    raise."""
    session = open_embedder(package, cache, device)
    opened = open_detector(detector, cache)
    try:
        with Embedder(session, workers=workers, flip=flip) as embedder:
            yield Stages(Pipeline(opened, LIMITS), embedder, session, opened)
    finally:
        opened.close()
