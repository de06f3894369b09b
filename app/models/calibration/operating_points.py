"""Measure operating points, the thresholds at false match rates, with intervals, from all pairs of a set of faces.

Every non-mated pair is compared (139 million among 16,682 faces), and the highest scores are kept exactly, so that a
threshold at FMR 1e-6 comes from counted pairs and not from a fitted curve. A person's pairs are not independent, so
intervals come from a bootstrap over people.

Sets collected by programs contain people under two names, photos in another person's folder, and the same photo twice.
Such pairs look like false matches and raise the thresholds of the lowest rates by much. `same_people` finds them by
their scores.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from app.models.calibration import pairs as comparing
from app.models.calibration.intervals import (
    Bools,
    Floats,
    Interval,
    Ints,
    allowed_errors,
    people_weights,
    percentile_interval,
    weighted_pairs,
    wilson,
)
from app.models.calibration.pairs import AllPairs, Pairs, measure_independence
from app.package.manifest import SCORE_BINS, Calibration, Point, Scores
from app.package.thresholds import LEAST_RISE
from app.types import Vectors

RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
MARGIN = 2.0
"""Top scores are kept up to this factor times the highest rate, since rounds of the bootstrap may need more of them
than the set itself."""
LEAST_ERRORS = 10
"""Minimum pairs of different people that must reach a threshold for its rate to be measured. All pairs of photos of the
same two people count as one."""
INDEPENDENCE_FMR = 3e-3
"""FMR at which `measure_independence` counts matches. The power it finds rises from 0.84 at 1e-2 to 0.95 at 1e-5. At
this rate it is 0.88, which gives whole galleries the stated rates (docs/decisions/several-photos.md)."""
ROUNDS = 200
SAMPLE_ROWS = 512
BLOCK = 2048


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A threshold at an FMR, and the FNMR at this threshold, both with a 95 % interval over people."""

    fmr: float
    threshold: Interval
    fnmr: Interval
    false_matches: int
    """Number of non-mated pairs at or above the threshold."""
    people: int = 0
    """Number of different pairs of people among the false matches."""


@dataclass(frozen=True, slots=True)
class SamePeople:
    """Pairs of the same person under different names, found by `same_people`."""

    keys: Ints
    """(E,), sorted: i × N + j for each such pair of rows i < j, of N rows."""
    people: int
    """Number of pairs of names that are one person's."""
    photos: int
    """Number of photos in another person's folder."""
    copies: int
    """Number of pairs that are the same photo twice, or two photos of the same moment."""


NOBODY = SamePeople(np.empty(0, np.int64), 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Measurement:
    """``pairs``, and the points measured on them. ``left_out``, (P,) bool, marks the top pairs that are in
    `SamePeople`."""

    pairs: AllPairs
    points: tuple[OperatingPoint, ...]
    left_out: Bools
    comparisons: int
    """Number of non-mated pairs compared, without those left out."""
    independence: float | None = None
    """`measure_independence` at INDEPENDENCE_FMR."""


def number_people(people: Sequence[str]) -> Ints:
    """Return the number of each name, (N,), from 0: equal names have the same number."""
    return np.unique(np.asarray(people), return_inverse=True)[1].astype(np.int64)


def compare_all(
    vectors: Vectors,
    people: Ints,
    *,
    highest_fmr: float = RATES[0],
    block: int = comparing.BLOCK,
    progress: Callable[[int], None] = lambda _rows: None,
) -> AllPairs:
    """Compare every pair of ``vectors``, (N, D) of unit length, once; keep the scores that rates up to ``highest_fmr``
    need."""
    share, floor = min(1.0, MARGIN * highest_fmr), -math.inf
    if share < 1:  # find, on a sample of rows, the score that about this share of the non-mated pairs reach
        rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE_ROWS]
        other = people[rows][:, None] != people[None, :]
        floor = float(np.quantile((vectors[rows] @ vectors.T)[other], 1 - share))
    return comparing.all_pairs(vectors, people, floor=floor, block=block, progress=progress)


def measure(
    pairs: AllPairs,
    people: Ints,
    *,
    same: SamePeople = NOBODY,
    rates: Sequence[float] = RATES,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[int], None] = lambda _rounds: None,
) -> Measurement:
    """Return the thresholds at ``rates``, with the FNMR at each. Rates that the set is too small for are left out.

    Pairs in ``same`` count neither as mated nor as non-mated: mated pairs that were found by their high scores would
    make the FNMR look better. Without mated pairs, the FNMR is NaN. ``progress`` is called with the number of rounds
    done in each step.
    """
    left_out: Bools = np.isin(pairs.top.first * len(people) + pairs.top.second, same.keys)
    kept = pairs.without(left_out, len(same.keys))
    shown = _pairs_of_people(kept.top, people)
    measurable = [rate for rate in rates if shown(allowed_errors(rate, kept.nonmated_count)) >= LEAST_ERRORS]
    at = [(rate, kept.threshold(rate)) for rate in measurable]
    weights = people_weights(int(people.max()) + 1, rounds, seed)
    samples = _bootstrap(kept, people, at, weights=weights, progress=progress)
    points = []
    for i, (rate, threshold) in enumerate(at):
        false_matches = int((kept.top.score >= threshold).sum())
        fnmr = _fnmr(threshold, pairs, people, samples[:, i, 1])
        interval = percentile_interval(threshold, samples[:, i, 0])
        points.append(OperatingPoint(rate, interval, fnmr, false_matches, shown(false_matches)))
    dense = [threshold for rate, threshold in at if rate >= INDEPENDENCE_FMR]
    independence = measure_independence(kept.top, people, dense[-1]) if dense else None
    return Measurement(pairs, tuple(points), left_out, kept.nonmated_count, independence)


def _pairs_of_people(top: Pairs, people: Ints) -> Callable[[int], int]:
    """Return a function that counts the different pairs of people among the n highest pairs."""
    sides = np.sort(np.stack([people[top.first], people[top.second]]), axis=0)
    _, begins = np.unique(sides[0] * (int(people.max()) + 1) + sides[1], return_index=True)
    begins.sort()
    return lambda highest: int(np.searchsorted(begins, highest))


def false_match_rates(
    measured: Measurement,
    people: Ints,
    thresholds: Sequence[float],
    *,
    floor: float | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> list[Interval | None]:
    """Return the FMR at each threshold, without the pairs left out; None for a threshold below the scores that were
    kept.

    ``floor``: the score down to which all pairs were kept, by default the lowest kept score. The interval is that of a
    bootstrap over people, but at least Wilson's for independent pairs, since very few false matches vary too little in
    a bootstrap.
    """
    top = measured.pairs.top.only(~measured.left_out)
    score, first, second = top.score, people[top.first], people[top.second]
    counts = np.searchsorted(-score, [-threshold for threshold in thresholds], side="right")
    faces, samples = np.bincount(people), []
    for weight in people_weights(int(people.max()) + 1, rounds, seed):
        reached = np.concatenate([[0], np.cumsum(weight[first] * weight[second])])
        samples.append(reached[counts] / max(weighted_pairs(weight, faces), 1))
    lowest = floor if floor is not None else float(score[-1]) if len(score) else math.inf
    rates: list[Interval | None] = []
    for threshold, count, drawn in zip(thresholds, counts.tolist(), np.transpose(samples), strict=True):
        plain, resampled = wilson(count, measured.comparisons), percentile_interval(count / measured.comparisons, drawn)
        rates.append(
            None
            if threshold < lowest
            else Interval(plain.value, min(plain.low, resampled.low), max(plain.high, resampled.high))
        )
    return rates


def _fnmr(threshold: float, pairs: AllPairs, people: Ints, samples: Floats) -> Interval:
    """Return the FNMR with its interval. If no mated pair failed, or all did, all rounds of the bootstrap agree; the
    interval is then Wilson's, with each person counted once."""
    if not pairs.mated.size:
        return Interval(math.nan, math.nan, math.nan)
    value = float(np.mean(pairs.mated < threshold))
    if value not in {0.0, 1.0}:
        return percentile_interval(value, samples)
    shown = len(np.unique(people[pairs.mated_first]))
    return wilson(round(value * shown), shown)


def _bootstrap(
    pairs: AllPairs,
    people: Ints,
    points: Sequence[tuple[float, float]],
    *,
    weights: Ints,
    progress: Callable[[int], None],
) -> Floats:
    """Return the threshold at each point's rate, and the FNMR at the point's own threshold, with people resampled:
    (rounds, points, 2). ``weights``, (rounds, people): how often each person counts; a pair of people counts weight ×
    weight times."""
    score, first, second = pairs.top.score, people[pairs.top.first], people[pairs.top.second]
    order = np.argsort(pairs.mated, kind="stable")
    mated_of = people[pairs.mated_first[order]]
    below = np.searchsorted(pairs.mated[order], [threshold for _, threshold in points], side="left")
    faces = np.bincount(people)
    samples = np.full((len(weights), len(points), 2), math.nan)
    for r, weight in enumerate(weights):
        total = weighted_pairs(weight, faces)
        reached = np.cumsum(weight[first] * weight[second])
        failures = np.concatenate([[0], np.cumsum(weight[mated_of])])
        for i, (rate, _) in enumerate(points):
            place = int(np.searchsorted(reached, allowed_errors(rate, total), side="right"))
            samples[r, i, 0] = score[min(place, len(score) - 1)]
            samples[r, i, 1] = failures[below[i]] / failures[-1] if failures[-1] else math.nan
        progress(1)
    return samples


MANY_COMPARISONS = 10
MANY_PHOTOS = 5
SURE_SHARE = 0.8
"""Share of ``above`` that a mean over many comparisons has to reach. A mean varies less than a single score, so it is
equally strong evidence."""
SAME_PHOTO = 0.9
"""Score that two photos of a person hardly ever reach unless they are the same photo or of the same moment."""


def same_people(vectors: Vectors, people: Ints, pairs: AllPairs, *, above: float) -> SamePeople:
    """Return the pairs that show the same person under two names. ``vectors``: (N, D), unit length; ``people``: (N,),
    numbered from 0. Such pairs are:

    - two names whose photos' mean score is at or above ``above``, or 0.8 × that over 10 comparisons or more;
    - a photo whose mean score with another person's photos, five or more, is at or above 0.8 × ``above``;
    - two photos that score 0.9 or more.

    Choose ``above`` in the gap between the mean scores of different people and those of the same person.
    """
    counts, means, rows_of = np.bincount(people), mean_vectors(vectors, people), rows_of_people(people)
    names = _two_names(means, counts, above)
    photos = _misplaced(vectors, people, means, counts, above)
    copies = pairs.top.score >= SAME_PHOTO
    keys = [pair_keys(rows_of[a], rows_of[b], len(people)) for a, b in names]
    keys += [pair_keys(np.array([row]), rows_of[person], len(people)) for row, person in photos]
    keys.append(pairs.top.first[copies] * len(people) + pairs.top.second[copies])
    return SamePeople(np.unique(np.concatenate(keys)), len(names), len({row for row, _ in photos}), int(copies.sum()))


def mean_vectors(vectors: Vectors, people: Ints) -> Vectors:
    """Return each person's mean vector, (people, D). The dot product of two is the mean score between all photos of the
    two people."""
    sums = np.zeros((int(people.max()) + 1, vectors.shape[1]), np.float64)
    np.add.at(sums, people, vectors)
    means: Vectors = (sums / np.bincount(people)[:, None]).astype(np.float32)
    return means


def rows_of_people(people: Ints) -> list[Ints]:
    """Return the rows of each person. ``people``: (N,), the person in each row, numbered from 0."""
    return np.split(np.argsort(people, kind="stable"), np.cumsum(np.bincount(people))[:-1])


def _two_names(means: Vectors, counts: Ints, above: float) -> list[tuple[int, int]]:
    """Return the pairs of people whose photos' mean score is at least ``above``, or SURE_SHARE of it if there are many
    comparisons."""
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(means), BLOCK):
        scores = means[start : start + BLOCK] @ means.T
        many = counts[start : start + BLOCK, None] * counts[None, :] >= MANY_COMPARISONS
        rows, columns = np.nonzero(scores >= np.where(many, SURE_SHARE * above, above))
        pairs += [(a, b) for a, b in zip((rows + start).tolist(), columns.tolist(), strict=True) if a < b]
    return pairs


def _misplaced(vectors: Vectors, people: Ints, means: Vectors, counts: Ints, above: float) -> list[tuple[int, int]]:
    """Return the photos that show another person than stated: pairs of a photo's row and the person it shows."""
    others = np.flatnonzero(counts >= MANY_PHOTOS)
    misplaced: list[tuple[int, int]] = []
    for start in range(0, len(vectors), BLOCK):
        scores = vectors[start : start + BLOCK] @ means[others].T
        row, column = np.nonzero(scores >= SURE_SHARE * above)
        shown = zip((row + start).tolist(), others[column].tolist(), strict=True)
        misplaced += [(row, person) for row, person in shown if people[row] != person]
    return misplaced


def pair_keys(rows: Ints, others: Ints, count: int) -> Ints:
    """Return the key, int64, of every pair of a row in ``rows`` and a row in ``others``, as in `SamePeople.keys` but
    unsorted. ``count`` is the number of all rows."""
    first, second = np.meshgrid(rows, others)
    keys: Ints = (np.minimum(first, second) * count + np.maximum(first, second)).ravel().astype(np.int64)
    return keys


def rising(points: Sequence[OperatingPoint]) -> tuple[OperatingPoint, ...]:
    """Return the points whose threshold is above that of the point before. Thresholds may repeat if several pairs have
    the same score."""
    kept: list[OperatingPoint] = []
    for point in points:
        if not kept or point.threshold.value > kept[-1].threshold.value + LEAST_RISE:
            kept.append(point)
    return tuple(kept)


def calibration(
    measurement: Measurement, *, name: str, measured_on: str, pairs: str, default: bool, fusion: float | None = None
) -> Calibration:
    """Return a measurement as the manifest's calibration; ``fusion``: from `fusion.measure_fusion`.

    Raises ValueError if fewer than two points have rising thresholds.
    """
    rounded = tuple(_point(point) for point in rising(measurement.points))
    if len(rounded) < 2:
        raise ValueError(f"{measurement.comparisons} pairs support fewer than two false match rates: more people")
    mated, _ = np.histogram(measurement.pairs.mated, SCORE_BINS, (-1, 1))
    nonmated = measurement.pairs.histogram.reshape(SCORE_BINS, -1).sum(axis=1)
    return Calibration(
        name=name,
        measured_on=measured_on,
        pairs=pairs,
        comparisons=measurement.comparisons,
        mated=len(measurement.pairs.mated),
        points=rounded,
        default=default,
        scores=Scores(nonmated=tuple(nonmated.tolist()), mated=tuple(mated.tolist())),
        independence=measurement.independence,
        fusion=fusion,
    )


def _point(point: OperatingPoint) -> Point:
    """Return the point for a manifest, rounded to meaningful digits: thresholds to 1e-6, upwards, and rates to 1e-7."""
    threshold = math.ceil(point.threshold.value * 1e6) / 1e6
    measured = not math.isnan(point.fnmr.value)
    fnmr = round(point.fnmr.value, 7) if measured else None
    return Point(
        fmr=point.fmr,
        threshold=threshold,
        threshold_low=min(threshold, round(point.threshold.low, 6)),
        threshold_high=max(threshold, round(point.threshold.high, 6)),
        fnmr=fnmr,
        fnmr_low=None if fnmr is None else min(fnmr, round(point.fnmr.low, 7)),
        fnmr_high=None if fnmr is None else max(fnmr, round(point.fnmr.high, 7)),
    )
