"""Operating points of one population: the people enrolled in a gallery, whose pairs are known to be non-mated.

Two subjects may be one person who was enrolled twice. Such a pair looks like a false match and would raise the
thresholds of the lowest rates. So a rule leaves such pairs out and lists them: the score of the two subjects' mean
templates reaches the package's strictest operating point, and each is the other's most similar subject.

The rule may err in two directions. It may leave out two people who look alike: each stated rate may then be too low, by
at most the share of pairs left out, so rates below that share are not supported. And if a person is enrolled three
times, it leaves out only one of the three pairs, so thresholds may be too high.

`deciding` returns, for each false match rate, the threshold that decides: the gallery's own, or the package's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.models.calibration import operating_points as points
from app.models.calibration.intervals import Interval, Ints
from app.models.calibration.operating_points import SamePeople
from app.package.manifest import Calibration
from app.package.thresholds import Thresholds, extended, raised
from app.types import Sizes, Vectors

LEAST_SUBJECTS = 30
"""Minimum number of subjects: with few groups, a bootstrap's intervals are too narrow (Cameron, Gelbach and Miller
2008, "Bootstrap-based improvements for inference with clustered errors", who call five to thirty groups few)."""
MOST_FACES = 10_000
"""Maximum number of faces to compare: 5e7 pairs, of which fifty reach a threshold at FMR 1e-6."""
MOST_OF_SUBJECT = 10
"""Maximum faces of one subject to compare, so that no subject outweighs the others."""
BLOCK = 128
NAME = "gallery"


@dataclass(frozen=True, slots=True)
class Suspicion:
    """Two subjects who may be one person: the rows of their most similar pair of faces, and that pair's score."""

    first: int
    second: int
    score: float


@dataclass(frozen=True, slots=True)
class RateDifference:
    """A threshold of the package, the FMR that the package states for it, and the FMR found in this population.
    ``found`` is None if the rate is too high to be measured exactly."""

    fmr: float
    threshold: float
    found: Interval | None


@dataclass(frozen=True, slots=True)
class Figures:
    """How a population was measured. The numbers are those of the sample, if only a sample was compared."""

    subjects: int
    """Subjects that have faces with templates of the package."""
    faces: int
    compared_subjects: int
    compared_faces: int
    suspicious: int = 0
    """Pairs of subjects who may be one person."""
    left_out: int = 0
    """Pairs of faces that were left out, since they are of such subjects."""
    expected: float | None = None
    """Number of such pairs of subjects expected by chance, at the package's lowest rate; None without operating
    points."""
    missed: float = 0.0
    """By how much each stated FMR is too low at most, which is the case if all pairs left out are of different
    people."""
    differences: tuple[RateDifference, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredPopulation:
    """The operating points that the pairs of one population support."""

    figures: Figures
    calibration: Calibration | None = None
    """None if the pairs support fewer than two rates."""
    suspicions: tuple[Suspicion, ...] = ()
    """All suspicious pairs, highest score first."""


def sampled(subjects: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Return which faces are in a sample of about ``share`` of the subjects, chosen by their hashed keys: (N,) bool."""
    if share >= 1:
        return np.ones(len(subjects), np.bool_)
    mixed = subjects.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)  # splitmix64 (Steele et al. 2014)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    chosen: NDArray[np.bool_] = (mixed ^ (mixed >> np.uint64(31))).astype(np.float64) < share * 2.0**64
    return chosen


def sample_share(sizes: Sizes) -> float:
    """Return the share of the subjects to compare, for about MOST_FACES faces."""
    return MOST_FACES / max(1, sum(min(faces, MOST_OF_SUBJECT) * subjects for faces, subjects in sizes.items()))


def sample_rows(subjects: NDArray[np.int64], share: float, taken: Counter[int]) -> NDArray[np.int64]:
    """Return the rows of a block to compare. ``subjects``, (N,): the keys of its faces' subjects. ``taken``: the number
    of faces per subject in this block and those before it, which this updates."""
    rows = []
    chosen = np.flatnonzero(sampled(subjects, share))
    for row, subject in zip(chosen.tolist(), subjects[chosen].tolist(), strict=True):
        taken[subject] += 1
        if taken[subject] <= MOST_OF_SUBJECT:
            rows.append(row)
    return np.array(rows, np.int64)


def measure_population(
    vectors: Vectors,
    subjects: NDArray[np.int64],
    package: Thresholds,
    *,
    measured_on: str,
    progress: Callable[[int], None] = lambda _rows: None,
) -> MeasuredPopulation:
    """Measure operating points. ``vectors``: (N, D), unit length; ``subjects``: (N,), the keys of their subjects.

    ``progress`` is called after each short step with the number of rows that it has compared.
    """
    who = np.unique(subjects, return_inverse=True)[1].astype(np.int64)
    people = int(who.max(initial=-1)) + 1
    if people < LEAST_SUBJECTS:
        return MeasuredPopulation(Figures(people, len(who), people, len(who)))
    compared = points.compare_all(vectors, who, block=BLOCK, progress=progress)
    # Without operating points, use a score that only two photos of the same moment reach.
    above = points.SAME_PHOTO if package.lowest is None else package.threshold(package.lowest)
    suspicious = _suspicious(vectors, who, above, progress)
    keys = [points.pair_keys(rows, others, len(who)) for rows, others in suspicious]
    same = SamePeople(np.unique(np.concatenate([np.empty(0, np.int64), *keys])), len(keys), 0, 0)
    share = len(same.keys) / (compared.nonmated_count - len(same.keys))
    rates = [rate for rate in points.RATES if rate >= share]
    measured = points.measure(compared, who, same=same, rates=rates, progress=lambda _: progress(0))
    about = f"all pairs of {len(who)} faces of {people} subjects, without {len(same.keys)} of subjects who may be one"
    calibration = None
    if len(points.rising(measured.points)) > 1:
        calibration = points.calibration(measured, name=NAME, measured_on=measured_on, pairs=about, default=True)
    package_points = package.calibration.points if package.calibration else ()
    rates_here = points.false_match_rates(measured, who, [point.threshold for point in package_points])
    figures = Figures(
        subjects=people,
        faces=len(who),
        compared_subjects=people,
        compared_faces=len(who),
        suspicious=len(suspicious),
        left_out=len(same.keys),
        expected=None if package.lowest is None else package.lowest * people * (people - 1) / 2,
        missed=len(same.keys) / calibration.comparisons if calibration else 0.0,
        differences=tuple(
            RateDifference(point.fmr, point.threshold, rate)
            for point, rate in zip(package_points, rates_here, strict=True)
        ),
    )
    return MeasuredPopulation(figures, calibration, _suspicions(vectors, suspicious))


def _suspicious(vectors: Vectors, who: Ints, above: float, progress: Callable[[int], None]) -> list[tuple[Ints, Ints]]:
    """Return the pairs of people who are each other's most similar person, with a score of their means of at least
    ``above``; each person is given by the rows of their faces."""
    means = points.mean_vectors(vectors, who)
    nearest, highest = np.empty(len(means), np.int64), np.empty(len(means), np.float32)
    for start in range(0, len(means), BLOCK):
        scores = means[start : start + BLOCK] @ means.T
        rows = np.arange(len(scores))
        scores[rows, rows + start] = -np.inf
        nearest[start : start + BLOCK] = scores.argmax(axis=1)
        highest[start : start + BLOCK] = scores.max(axis=1)
        progress(0)
    numbers = np.arange(len(means))
    mutual = (nearest[nearest] == numbers) & (numbers < nearest) & (highest >= above)
    rows_of = points.rows_of_people(who)
    return [(rows_of[person], rows_of[nearest[person]]) for person in np.flatnonzero(mutual)]


def _suspicions(vectors: Vectors, suspicious: list[tuple[Ints, Ints]]) -> tuple[Suspicion, ...]:
    suspicions = []
    for rows, others in suspicious:
        scores = vectors[rows] @ vectors[others].T
        row, column = np.unravel_index(int(scores.argmax()), scores.shape)
        suspicions.append(Suspicion(int(rows[row]), int(others[column]), float(scores.max())))
    return tuple(sorted(suspicions, key=lambda suspicion: -suspicion.score))


FLOOR_FACTOR = 10**0.5
"""A gallery's threshold at an FMR is never laxer than the package's threshold at this factor times the FMR, unless an
admin allows it. The factor is half a decade, the distance of measured rates. The two populations that SFace was
measured on (CelebA and LFW) differ by a factor of 1.7 to 2.9 at the same threshold, so a larger difference is more
likely caused by an error in the gallery than by its population."""


def floor_of(package: Thresholds, fmr: float, *, allow_laxer: bool = False) -> float | None:
    """Return the lowest threshold that a gallery may decide with at ``fmr``; None if the package has no points.

    With ``allow_laxer`` this is the package's most lenient point, below which no score is answered.
    """
    if package.lowest is None or package.highest is None:
        return None
    return package.threshold(
        package.highest if allow_laxer else min(max(fmr * FLOOR_FACTOR, package.lowest), package.highest)
    )


def deciding(package: Thresholds, calibration: Calibration, *, allow_laxer: bool) -> Thresholds:
    """Return the thresholds that decide. At the rates that the gallery's pairs support, they are those of its
    ``calibration``, raised to the floor.

    Below the calibration's lowest rate, they are the package's thresholds, with corrected rates: multiplied by the
    gallery's rate over the package's rate, both at the calibration's highest threshold, since populations differ by
    about the same factor at all rates (docs/explanation/accuracy.md). If that threshold is above all of the package's,
    lower rates are not supported.
    """
    floors = [floor_of(package, point.fmr, allow_laxer=allow_laxer) for point in calibration.points]
    pairs = zip(calibration.points, floors, strict=True)
    floored = extended([point if floor is None else raised(point, floor) for point, floor in pairs], ())
    stated = package.fmr_of(floored[-1].threshold)
    ratio = None if stated is None else floored[-1].fmr / stated
    independence = package.independence if calibration.independence is None else calibration.independence
    return package.with_gallery(calibration.model_copy(update={"points": floored}), independence, ratio)
