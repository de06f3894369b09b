"""Embed a set by a model package; compute people's centres and the threshold for one person."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.errors import LikenessError, OperatingPointUnavailable, Unusable
from app.inference.embedders import Embedder
from app.machine import cores
from app.package.folders import Package
from app.package.thresholds import Thresholds, fmr_for
from app.types import Pixels, Vectors
from training.data.dataset import FaceSet

BLOCK = 128
"""Number of crops read and embedded at a time, below the embedder's queue limit."""
ROWS = 2048
"""Number of a score matrix's rows in memory at a time."""


@dataclass(frozen=True, slots=True)
class CropTemplates:
    """``vectors`` is (N, D) float32, unit rows, zero where the image is broken; ``labels`` (N,) int64; ``broken`` maps
    an image's index to what is wrong with it."""

    vectors: Vectors
    labels: NDArray[np.int64]
    people: list[str]
    broken: dict[int, LikenessError]

    @property
    def readable(self) -> NDArray[np.int64]:
        """Return the indices of the images that have a template."""
        return np.setdiff1d(np.arange(len(self.labels)), np.array(sorted(self.broken), np.int64))


def embed_set(
    faces: FaceSet,
    embedder: Embedder,
    *,
    progress: Callable[[int], None] = lambda _images: None,
    on_crop: Callable[[int, Pixels], None] = lambda _index, _crop: None,
) -> CropTemplates:
    """Embed every image. ``progress`` gets the number of images embedded since its last call, ``on_crop`` every
    readable crop."""
    vectors = np.zeros((len(faces), embedder.dimension), np.float32)
    broken: dict[int, LikenessError] = {}
    with ThreadPoolExecutor(cores()) as readers:
        for start in range(0, len(faces), BLOCK):
            indices = range(start, min(start + BLOCK, len(faces)))
            results = dict(zip(indices, readers.map(lambda index: _read(faces, index), indices), strict=True))
            crops = {index: crop for index, crop in results.items() if not isinstance(crop, LikenessError)}
            broken |= {index: error for index, error in results.items() if isinstance(error, LikenessError)}
            templates, _ = embedder.embed(list(crops.values()))
            for (index, crop), template in zip(crops.items(), templates, strict=True):
                vectors[index] = template.vector
                on_crop(index, crop)
            progress(len(indices))
    return CropTemplates(vectors, faces.labels, list(faces.people), broken)


def _read(faces: FaceSet, index: int) -> Pixels | LikenessError:
    try:
        return faces[index][0]
    except LikenessError as error:
        return error


def sums(templates: CropTemplates) -> Vectors:
    """Return the sum of each person's templates, (P, D); its direction is the person's centre."""
    out = np.zeros((len(templates.people), templates.vectors.shape[1]), np.float32)
    np.add.at(out, templates.labels, templates.vectors)
    return out


def choose_threshold(package: Package, comparisons: int, fpir: float, threshold: float | None) -> tuple[float, str]:
    """Return the score from which on two images show one person, and a sentence on how it was chosen.

    Without ``threshold`` it is the package's operating point at which a share ``fpir`` of searches among
    ``comparisons`` others find somebody falsely, or the strictest measured one, if even that point is not measured.
    Raises Unusable ``threshold_needed`` if the package has no operating points.
    """
    if threshold is not None:
        return threshold, "as given"
    thresholds = Thresholds(package.manifest)
    if thresholds.lowest is None:
        message = f"{package.id} has no measured operating points: say --threshold, a cosine."
        raise Unusable(message, code="threshold_needed", package=package.id)
    try:
        return thresholds.threshold(fmr_for(fpir, comparisons)), f"FPIR {fpir:g} among {comparisons}"
    except OperatingPointUnavailable:
        return thresholds.threshold(thresholds.lowest), f"FMR {thresholds.lowest:g}, the lowest measured"
