"""The service's own stages for measuring: the same code that answers requests, without HTTP or SQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from app.errors import InvalidImage, NoFace
from app.face.align import CROP_SIDE
from app.face.detect import open_detector
from app.face.formats import Limits
from app.face.image import decode
from app.inference.embedder import Embedder
from app.inference.package import find_packages, load_package, select
from app.inference.session import Device, open_embedder
from app.pipeline import Pipeline, choose_face
from app.types import Pixels, Vector

DETECTOR = "yunet"
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Service:
    """A pipeline and an embedder, as the service has them."""

    pipeline: Pipeline
    embedder: Embedder
    limits: Limits
    package: str
    dimension: int

    def embed_photo(self, data: bytes) -> tuple[Vector, float]:
        """Return unit vector and quality of the photo's most prominent face. Raises NoFace, and what decoding
        raises.
        """
        photo = self.pipeline.embed(data, self.embedder)
        if not photo.faces:
            raise NoFace("The photo shows no face.")
        face = photo.faces[choose_face(photo).index]
        if face.template is None:
            raise ValueError("the pipeline left a face without a template")
        return face.template.vector, face.quality.score

    def embed_crop(self, data: bytes) -> tuple[Vector, float]:
        """Return the unit vector of an image that is already an aligned crop; its unknown quality counts as 100."""
        return self.embed_pixels(self.crop(data)), 100.0

    def crop(self, data: bytes) -> Pixels:
        """Return an image of this size as (112, 112, 3). Raises InvalidImage for another size."""
        pixels = self.pixels(data)
        if pixels.shape != (CROP_SIDE, CROP_SIDE, 3):
            raise InvalidImage(
                f"An aligned crop is {CROP_SIDE}×{CROP_SIDE}, this is {pixels.shape[1]}×{pixels.shape[0]}."
            )
        return pixels

    def pixels(self, data: bytes) -> Pixels:
        """Return the whole photo, (H, W, 3) uint8 RGB, upright."""
        return decode(data, self.limits).pixels

    def embed_pixels(self, crop: Pixels) -> Vector:
        """Return the unit vector of one (112, 112, 3) uint8 RGB aligned crop."""
        templates, _ = self.embedder.embed([crop])
        return templates[0].vector


@contextmanager
def open_service(
    package: Path, models: Path, cache: Path, device: Device, threads: int, *, flip: bool = False
) -> Iterator[Service]:
    """Load the embedder of the folder ``package`` and the detector of ``models``; both are closed at the end."""
    session = open_embedder(load_package(package), cache, device, 1)
    detector = select(find_packages(models), DETECTOR)
    limits = Limits(max_bytes=64 * MIB)
    embedder = Embedder(session, workers=threads, flip=flip)
    try:
        pipeline = Pipeline(open_detector(detector, cache), limits)
        yield Service(pipeline, embedder, limits, session.package_id, session.dimension)
    finally:
        embedder.close()
