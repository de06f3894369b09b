"""The packages, the service's stages, the photos and the faces in them, opened once for all parts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from app.errors import InvalidInput
from app.face.detect import Detector
from app.face.formats import Limits
from app.inference.embedders import Embedder
from app.inference.session import EmbedderSession
from app.machine import cores
from app.models.commands import sample_photos
from app.models.opening import open_detector, open_embedder
from app.models.packages import locate
from app.package.folders import Package, find_packages, select
from app.pipeline import Pipeline
from app.types import Pixels

DETECTOR, EMBEDDER = "yunet", "sface"


@dataclass(frozen=True, slots=True)
class Stages:
    """``photos`` are image files, ``crops`` (N, 112, 112, 3) the faces in them, N ≥ 1."""

    models: Path
    cache: Path
    detector_file: Path
    detector: Detector
    package: Package
    session: EmbedderSession
    embedder: Embedder
    pipeline: Pipeline
    photos: tuple[bytes, ...]
    crops: Pixels

    @property
    def dimension(self) -> int:
        return self.session.dimension


@contextmanager
def open_stages(models: Path, cache: Path, source: Path, count: int, *, embedder: str = EMBEDDER) -> Iterator[Stages]:
    """Open the stages and up to `count` photos from `source` that show a face.

    Raises what loading packages raises, and InvalidInput ``no_photos`` if no photo shows a face.
    """
    packages = find_packages(models)
    found = select(packages, DETECTOR)
    detector_file = locate(found, cache)  # the file as shipped, which OpenCV reads
    package = select(packages, embedder)
    session = open_embedder(package, cache, "cpu", 1)
    cv2.setNumThreads(1)  # as the server does
    detector = open_detector(found, cache)
    pipeline = Pipeline(detector, Limits())
    files = sample_photos.load(source, count)
    with ThreadPoolExecutor(cores()) as threads:
        seen = {file: photo.faces for file, photo in zip(files, threads.map(pipeline.detect, files), strict=True)}
    crops = [face.crop for faces in seen.values() for face in faces if face.crop is not None]
    if not crops:
        raise InvalidInput(f"{source} holds no photos with faces", code="no_photos")
    shown = tuple(photo for photo, faces in seen.items() if faces)
    with Embedder(session) as embedding:
        yield Stages(
            models, cache, detector_file, detector, package, session, embedding, pipeline, shown, np.stack(crops)
        )
