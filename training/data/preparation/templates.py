"""A set's templates by a model package, with the centres of people and the threshold for one person."""

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
from app.package.thresholds import Thresholds
from app.types import Pixels, Vectors
from training.data.dataset import FaceSet

BLOCK = 128
"""Crops read and embedded at a time: below the embedder's queue limit."""
ROWS = 2048
"""Rows of a score matrix that are in memory at a time."""


@dataclass(frozen=True, slots=True)
class Templates:
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
    each: Callable[[int, Pixels], None] = lambda _index, _crop: None,
) -> Templates:
    """Embed every image. ``progress`` takes how many more are done, ``each`` gets each readable crop in turn."""
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
                each(index, crop)
            progress(len(indices))
    return Templates(vectors, faces.labels, list(faces.people), broken)


def _read(faces: FaceSet, index: int) -> Pixels | LikenessError:
    try:
        return faces[index][0]
    except LikenessError as error:
        return error


def sums(templates: Templates) -> Vectors:
    """Return (P, D): the sum of each person's templates; its direction is the person's centre."""
    out = np.zeros((len(templates.people), templates.vectors.shape[1]), np.float32)
    np.add.at(out, templates.labels, templates.vectors)
    return out


def choose_threshold(package: Package, comparisons: int, fpir: float, threshold: float | None) -> tuple[float, str]:
    """Return the score from which two images show one person, and how it was chosen, in words.

    Without ``threshold`` it is the package's operating point at which a share ``fpir`` of the people searched for among
    ``comparisons`` others are falsely found, or the strictest measured one if that is stricter still. Raises Unusable
    ``threshold_needed`` if the package has no operating points.
    """
    if threshold is not None:
        return threshold, "as given"
    thresholds = Thresholds(package.manifest)
    if thresholds.lowest is None:
        message = f"{package.id} has no measured operating points: say --threshold, a cosine."
        raise Unusable(message, code="threshold_needed", package=package.id)
    try:
        return thresholds.for_fpir(fpir, comparisons), f"FPIR {fpir:g} among {comparisons}"
    except OperatingPointUnavailable:
        return thresholds.threshold(thresholds.lowest), f"FMR {thresholds.lowest:g}, the lowest measured"
