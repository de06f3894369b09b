"""Operating points of a package, measured on photos of people: a folder of photos for each person."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.calibration import operating_points as points
from app.calibration.intervals import Ints
from app.calibration.operating_points import NOBODY, Measurement, OperatingPoint
from app.errors import InvalidImage, InvalidInput, NoFace
from app.face.detect import open_detector
from app.face.formats import Limits
from app.face.image import decode
from app.inference import golden
from app.inference.embedder import Embedder
from app.inference.manifest import CROP_SIDE, Manifest
from app.inference.package import Package
from app.inference.session import EmbedderSession, open_embedder
from app.pipeline import Pipeline, choose_face
from app.recognition.decisions import subjects_for
from app.types import Pixels, Vector, Vectors

MOST_ALIKE = 5
"""Pairs of photos of different people that are shown: somebody may be there under two names."""


@dataclass(frozen=True, slots=True)
class Photographed:
    """The photos that show a face, in the rows' order: (N, D) unit vectors and who each shows, from 0, (N,)."""

    paths: tuple[Path, ...]
    vectors: Vectors
    people: Ints

    @classmethod
    def of(cls, found: Sequence[tuple[str, Path, Vector]]) -> Photographed:
        """Return photos given with the name of their person. Raises InvalidInput ``too_few_people``."""
        names = [name for name, _, _ in found]
        if len(set(names)) < 2:
            raise InvalidInput(
                "Photos of two people at least are needed.", code="too_few_people", found=len(set(names))
            )
        vectors = np.stack([vector for _, _, vector in found]).astype(np.float32)
        return cls(tuple(path for _, path, _ in found), vectors, points.numbered(names))

    @property
    def count(self) -> int:
        """The number of people."""
        return int(self.people.max()) + 1


@dataclass(frozen=True, slots=True)
class PackageMeasured:
    """The figures of one package, and the photos of different people that are most alike."""

    measurement: Measurement
    left_out: int
    """Pairs of photos that show one person under two names."""
    most_alike: tuple[tuple[Path, Path, float], ...]


@dataclass(frozen=True, slots=True)
class Tools:
    """The service's own pipeline with one package. Safe to share between threads."""

    pipeline: Pipeline
    embedder: Embedder
    session: EmbedderSession

    def template_of(self, photo: bytes) -> Vector:
        """Return the template of the face that a photo is about. Raises NoFace, and what decoding raises."""
        found = self.pipeline.detect(photo)
        if not found.faces:
            raise NoFace("no face was found")
        return self._template(found.faces[choose_face(found).index].crop)

    def template_of_crop(self, image: bytes) -> Vector:
        """Return the template of an image that is an aligned crop. Raises InvalidImage for another size."""
        return self._template(aligned_crop(image))

    def _template(self, crop: Pixels) -> Vector:
        [template], _ = self.embedder.embed([crop])
        return template.vector

    def with_golden(self, manifest: Manifest) -> Manifest:
        """Return the manifest with golden vectors: points hold for the templates that the package makes here."""
        return golden.with_golden(manifest, self.session.run)


def aligned_crop(image: bytes) -> Pixels:
    """Return the pixels of an aligned crop, (112, 112, 3). Raises InvalidImage for any other size."""
    pixels = decode(image, Limits()).pixels
    if pixels.shape != (CROP_SIDE, CROP_SIDE, 3):
        found = f"{pixels.shape[1]}×{pixels.shape[0]}"
        raise InvalidImage(f"An aligned crop has {CROP_SIDE}×{CROP_SIDE} pixels; this one has {found}.")
    return pixels


@contextmanager
def opened(package: Package, detector: Package, cache: Path) -> Iterator[Tools]:
    """Open a package and a detector on the CPU. Raises Unusable as `open_embedder` does."""
    session = open_embedder(package, cache, "cpu")
    with Embedder(session) as embedder:
        yield Tools(Pipeline(open_detector(detector, cache), Limits()), embedder, session)


def measure_package(
    photos: Photographed,
    *,
    same_above: float | None = None,
    progress: Callable[[int], None] = lambda _rows: None,
) -> PackageMeasured:
    """Measure all pairs, without people under two names whose photos' mean score is ``same_above`` or more.

    Raises InvalidInput ``too_few_people`` if the pairs support fewer than two rates.
    """
    compared = points.compare_all(photos.vectors, photos.people, progress=progress)
    same = NOBODY
    if same_above is not None:
        same = points.same_people(photos.vectors, photos.people, compared, above=same_above)
    measured = points.measure(compared, photos.people, same=same)
    if len(points.rising(measured.points)) < 2:
        message = (
            f"{measured.comparisons:,} pairs of {photos.count} people support fewer than two false match rates: "
            f"{people_for(points.RATES[1], photos.count, measured.comparisons)} people with as many photos each would."
        )
        raise InvalidInput(message, code="too_few_people", found=photos.count, comparisons=measured.comparisons)
    top = compared.top
    kept = np.flatnonzero(~measured.left_out)[:MOST_ALIKE]
    alike = [(photos.paths[top.first[i]], photos.paths[top.second[i]], float(top.score[i])) for i in kept.tolist()]
    return PackageMeasured(measured, len(same.keys), tuple(alike))


def people_for(fmr: float, people: int, comparisons: int) -> int:
    """Return how many people, with as many photos each, have enough pairs for a rate: pairs grow with their square."""
    return math.ceil(people * math.sqrt(points.LEAST_ERRORS / fmr / comparisons))


def with_points(
    manifest: Manifest, found: PackageMeasured, *, name: str, measured_on: str, about: str, default: bool
) -> Manifest:
    """Return the manifest with what was measured, as a calibration of this name."""
    new = points.calibration(found.measurement, name=name, measured_on=measured_on, pairs=about, default=default)
    return points.with_calibration(manifest, new)


HEADS = ("FMR", "threshold", "95 % interval", "false matches", "FNMR", "95 % interval")


def rows(measured: Sequence[OperatingPoint]) -> list[list[str]]:
    """Return the points as a table's rows, under HEADS."""
    return [
        [
            f"{point.fmr:g}",
            f"{point.threshold.value:.4f}",
            f"{point.threshold.low:.4f}-{point.threshold.high:.4f}",
            f"{point.false_matches:,}",
            "-" if math.isnan(point.fnmr.value) else f"{point.fnmr.value:.2%}",
            "-" if math.isnan(point.fnmr.value) else f"{point.fnmr.low:.2%}-{point.fnmr.high:.2%}",
        ]
        for point in measured
    ]


def remarks(found: PackageMeasured, people: int, fpir: float) -> list[str]:
    """Say which rates the pairs support, what `identify` does beyond them, and who may be there twice."""
    lowest = found.measurement.points[-1].fmr
    lines = []
    if lower := next((rate for rate in points.RATES if rate < lowest), None):
        more = people_for(lower, people, found.measurement.comparisons)
        lines.append(f"FMR {lower:g} needs about {more:,} people with as many photos each.")
    lines.append(
        f"FPIR {fpir:g}, the server's default, is supported up to {subjects_for(fpir, lowest):,} subjects: in a larger "
        f"gallery `identify` decides at FMR {lowest:g}, and its answer says which FPIR to expect."
    )
    lines += [f"Most alike of two people: {score:.3f} {one} {other}" for one, other, score in found.most_alike]
    return lines
