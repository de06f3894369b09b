"""Operating points of a package, measured on photos of people: a folder of photos for each person."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from app.calibration import operating_points as points
from app.calibration.intervals import Ints
from app.calibration.operating_points import NOBODY, Measurement, OperatingPoint
from app.errors import InvalidInput
from app.recognition.decisions import comparisons_for
from app.types import Vector, Vectors

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


def measure_package(
    photos: Photographed,
    *,
    same_above: float | None = None,
) -> PackageMeasured:
    """Measure all pairs, without people under two names whose photos' mean score is ``same_above`` or more.

    Raises InvalidInput ``too_few_people`` if the pairs support fewer than two rates.
    """
    compared = points.compare_all(photos.vectors, photos.people)
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
        f"FPIR {fpir:g}, the server's default, is supported up to {comparisons_for(fpir, lowest):,} subjects of one "
        f"photo: in a larger gallery `identify` decides at FMR {lowest:g}, and its answer says which FPIR to expect."
    )
    lines += [f"Most alike of two people: {score:.3f} {one} {other}" for one, other, score in found.most_alike]
    return lines
