"""Measure a package's operating points on photos of people, and show them as a table and a drawing."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from app.errors import InvalidInput
from app.models.calibration import operating_points as points
from app.models.calibration.fusion import measure_fusion
from app.models.calibration.intervals import Ints
from app.models.calibration.operating_points import NOBODY, Measurement, OperatingPoint
from app.package.manifest import SCORE_BINS, Calibration, Scores
from app.types import Vector, Vectors

MOST_ALIKE = 5
"""Number of the most similar pairs of different people to print, since somebody may be there under two names."""


@dataclass(frozen=True, slots=True)
class Photographed:
    """The photos that show a face, with their vectors, (N, D) of unit length, and people, (N,), numbered from 0, in the
    same order."""

    paths: tuple[Path, ...]
    vectors: Vectors
    people: Ints

    @classmethod
    def of(cls, photos: Sequence[tuple[str, Path, Vector]]) -> Photographed:
        """Return the photos, given as tuples of person's name, path and unit vector, (D,). Raises InvalidInput
        ``too_few_people``."""
        names = [name for name, _, _ in photos]
        if len(set(names)) < 2:
            raise InvalidInput(
                "Photos of two people at least are needed.", code="too_few_people", found=len(set(names))
            )
        vectors = np.stack([vector for _, _, vector in photos]).astype(np.float32)
        return cls(tuple(path for _, path, _ in photos), vectors, points.number_people(names))

    @property
    def count(self) -> int:
        return int(self.people.max()) + 1


@dataclass(frozen=True, slots=True)
class PackageMeasured:
    """A package's figures, and the most similar photos of different people."""

    measurement: Measurement
    left_out: int
    """Number of pairs of photos that show one person under two names."""
    most_alike: tuple[tuple[Path, Path, float], ...]
    fusion: float | None = None


def measure_package(
    photos: Photographed,
    *,
    same_above: float | None = None,
) -> PackageMeasured:
    """Measure all pairs of photos, except those of two names that are one person: their photos' mean score is at least
    ``same_above``.

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
    fusion = measure_fusion(photos.vectors, photos.people, same=same)
    return PackageMeasured(measured, len(same.keys), tuple(alike), fusion)


def people_for(fmr: float, people: int, comparisons: int) -> int:
    """Return how many people, with as many photos each, would have enough pairs for a rate. The number of pairs grows
    with the square of the number of people."""
    return math.ceil(people * math.sqrt(points.LEAST_ERRORS / fmr / comparisons))


HEADS = ("FMR", "threshold", "95 % interval", "false matches", "FNMR", "95 % interval")


def rows(measured: Sequence[OperatingPoint]) -> list[list[str]]:
    """Return the points as rows of a table with the heads HEADS."""
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


def remarks(measured: PackageMeasured, people: int, fmr: float, fpir: float) -> list[str]:
    """Return remarks: which rates the pairs support, what `identify` does with them, and which photos may show one
    person."""
    lowest = measured.measurement.points[-1].fmr
    lines = []
    if lower := next((rate for rate in points.RATES if rate < lowest), None):
        more = people_for(lower, people, measured.measurement.comparisons)
        lines.append(f"FMR {lower:g} needs about {more:,} people with as many photos each.")
    lines.append(
        f"FPIR {fpir:g}, the server's default, is supported up to {_comparisons_for(fpir, lowest):,} subjects of one "
        f"photo. If these decide, `identify` keeps to it and to FMR {max(fmr, lowest):g}; in a larger gallery it "
        f"decides at FMR {lowest:g}, and its answer says which FPIR to expect."
    )
    lines += [f"Most alike of two people: {score:.3f} {first} {second}" for first, second, score in measured.most_alike]
    return lines


WIDTH, HEIGHT, LEFT, TOP, GAP = 420, 300, 70, 50, 90
"""Width and height of a panel, the space to the left and at the top for labels, and the gap between panels, in
pixels."""
NONMATED, MATED = "#c2410c", "#1d4ed8"
Place = Callable[[float], float]


def svg(calibration: Calibration, title: str) -> str:
    """Return the drawing as SVG. Panels without measurements are left out."""
    panels = []
    if calibration.scores is not None:
        panels.append(_histogram(calibration.scores))
    if any(point.fnmr is not None for point in calibration.points):
        panels.append(_det(calibration))
    width = LEFT + len(panels) * (WIDTH + GAP)
    placed = [
        f'<g transform="translate({LEFT + number * (WIDTH + GAP)},{TOP})">{panel}</g>'
        for number, panel in enumerate(panels)
    ]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT + TOP + 60}" font-family="sans-serif"'
    return (
        f'{head} font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>{"".join(placed)}</svg>\n'
    )


def _histogram(scores: Scores) -> str:
    """Return a panel with the share of pairs in each bin of scores, on a logarithmic scale, for pairs of different
    people and of one person."""
    total = [max(1, sum(counts)) for counts in (scores.nonmated, scores.mated)]
    least = min(1 / pairs for pairs in total)
    lowest = math.floor(math.log10(least))
    x, y = _linear(-1, 1), _logarithmic(lowest, 0)
    lines = []
    for counts, whole, colour in zip((scores.nonmated, scores.mated), total, (NONMATED, MATED), strict=True):
        for bin_, count in enumerate(counts):
            if count:
                left, right = (x(2 * (bin_ + side) / SCORE_BINS - 1) for side in (0, 1))
                top = y(count / whole)
                lines.append(
                    f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{HEIGHT - top:.1f}" '
                    f'fill="{colour}" fill-opacity="0.45"/>'
                )
    ticks = [(x(value), f"{value:g}") for value in (-1, -0.5, 0, 0.5, 1)]
    legend = _words(10, 16, "pairs of different people", NONMATED) + _words(10, 32, "pairs of one person", MATED)
    return _frame(ticks, _powers(y, lowest, 0), "score", "share of the pairs") + "".join(lines) + legend


def _det(calibration: Calibration) -> str:
    """Return a panel with the FNMR over the FMR, both on logarithmic scales, and the FNMR's 95 % intervals."""
    drawn = [point for point in calibration.points if point.fnmr]
    values = [point.fmr for point in calibration.points]
    left, right = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    lowest = min((math.floor(math.log10(point.fnmr_low or point.fnmr or 1)) for point in drawn), default=-2)
    x, y = _logarithmic(left, right, across=True), _logarithmic(max(lowest, -6), 0)
    bars = [
        f'<path d="M{x(point.fmr):.1f} {y(point.fnmr_low or 10.0**lowest):.1f}V{y(point.fnmr_high or 1):.1f}" '
        f'stroke="{MATED}"/>'
        for point in drawn
    ]
    path = "L".join(f"{x(point.fmr):.1f} {y(point.fnmr or 1):.1f}" for point in drawn)
    line = f'<path d="M{path}" fill="none" stroke="{MATED}" stroke-width="2"/>' if drawn else ""
    words = "false match rate", "false non-match rate"
    return _frame(_powers(x, left, right), _powers(y, max(lowest, -6), 0), *words) + "".join(bars) + line


def _linear(low: float, high: float) -> Place:
    return lambda value: (value - low) / (high - low) * WIDTH


def _logarithmic(low: int, high: int, *, across: bool = False) -> Place:
    """Return a function that places values on a logarithmic axis from 10^low to 10^high, vertical or, with ``across``,
    horizontal."""

    def place(value: float) -> float:
        share = (math.log10(max(value, 10.0**low)) - low) / max(1, high - low)
        return share * WIDTH if across else (1 - share) * HEIGHT

    return place


def _powers(place: Place, low: int, high: int) -> list[tuple[float, str]]:
    return [(place(10.0**power), f"1e{power}") for power in range(low, high + 1)]


def _frame(across: Sequence[tuple[float, str]], upwards: Sequence[tuple[float, str]], below: str, beside: str) -> str:
    parts = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    parts += [f'<text x="{x:.1f}" y="{HEIGHT + 18}" text-anchor="middle">{text}</text>' for x, text in across]
    parts += [f'<text x="-8" y="{y + 4:.1f}" text-anchor="end">{text}</text>' for y, text in upwards]
    parts += [f'<path d="M0 {y:.1f}H{WIDTH}" stroke="#ddd"/>' for y, _ in upwards]
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT + 40}" text-anchor="middle">{below}</text>')
    parts.append(f'<text transform="translate(-50,{HEIGHT / 2})rotate(-90)" text-anchor="middle">{beside}</text>')
    return "".join(parts)


def _words(x: float, y: float, text: str, colour: str) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}">{text}</text>'


def _comparisons_for(fpir: float, fmr: float) -> int:
    """Return the largest number of comparisons at which ``fmr``, the lowest measured rate, still keeps to ``fpir``."""
    return math.floor(math.log1p(-fpir) / math.log1p(-fmr) * (1 + 1e-12))
