"""Operating points: the thresholds at false match rates, from all pairs of a set of faces, with intervals.

Every non-mated pair is compared (139 million among 16,682 faces) and the highest scores are kept exactly, so that a
threshold at FMR 1e-6 rests on counted pairs and not on a fitted tail. Pairs of one person are not independent, so the
intervals come from a bootstrap over people.

Sets made by machines hold people who are there twice, under two names. Their pairs look like false matches and push
the thresholds up. `same_people` finds them by the scores alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.runtime.package import Calibration, Manifest, Point
from app.types import Vectors
from training import metrics
from training.metrics import AllPairs, Bools, Interval, Ints

RATES = (1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
MARGIN = 2.0
"""Top scores are kept down to this many times the highest rate: rounds of the bootstrap need more than the set does."""
LEAST_ERRORS = 10
"""A rate that fewer non-mated pairs than this would exceed is not measured by the set."""
ROUNDS = 200
SAMPLE_ROWS = 512


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """A threshold at an FMR and the FNMR it costs, each with a 95 % interval over people."""

    fmr: float
    threshold: Interval
    fnmr: Interval
    false_matches: int
    """Non-mated pairs at or above the threshold: how many pairs the figure rests on."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """``pairs`` and what they gave. ``left_out`` (P,) marks the top pairs that were taken for one person's."""

    pairs: AllPairs
    points: tuple[OperatingPoint, ...]
    left_out: Bools
    comparisons: int
    """Non-mated pairs compared, those left out taken away."""


def numbered(people: Sequence[str]) -> Ints:
    """(N,) people as numbers from 0."""
    return np.unique(np.asarray(people), return_inverse=True)[1].astype(np.int64)


def compare_all(
    vectors: Vectors,
    people: Ints,
    *,
    highest_fmr: float = RATES[0],
    progress: Callable[[int], None] = lambda _rows: None,
) -> AllPairs:
    """Every pair of (N, D) unit ``vectors`` once; keeps the scores that rates up to ``highest_fmr`` need."""
    floor = _floor(vectors, people, min(0.5, MARGIN * highest_fmr))
    return metrics.all_pairs(vectors, people, floor=floor, progress=progress)


def _floor(vectors: Vectors, people: Ints, share: float) -> float:
    """A score that about ``share`` of the non-mated pairs reach, from a sample of rows."""
    rows = np.random.default_rng(0).permutation(len(vectors))[:SAMPLE_ROWS]
    other = people[rows][:, None] != people[None, :]
    return float(np.quantile((vectors[rows] @ vectors.T)[other], 1 - share))


def measure(
    pairs: AllPairs,
    people: Ints,
    *,
    merged: NDArray[np.int64] | None = None,
    rates: Sequence[float] = RATES,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> Measurement:
    """Thresholds at ``rates`` with the FNMR beside each.

    ``merged`` (people,) gives those who are one person the same number (`same_people`): pairs between them are left
    out of the non-mated ones. They aren't counted as mated either: they were found by their scores.
    """
    one = np.arange(int(people.max()) + 1) if merged is None else merged
    left_out: Bools = one[people[pairs.top.first]] == one[people[pairs.top.second]]
    fewer = _pairs_within(one[people]) - _pairs_within(people)
    comparisons = pairs.nonmated_count - fewer
    measurable = [rate for rate in rates if metrics.allowed_errors(rate, comparisons) >= LEAST_ERRORS]
    thresholds = [pairs.threshold(rate, without=left_out, fewer=fewer) for rate in measurable]
    weights = metrics.people_weights(len(np.unique(one[people])), rounds, seed)
    samples = _bootstrap(pairs, one[people], ~left_out, list(zip(measurable, thresholds, strict=True)), weights)
    kept = pairs.top.score[~left_out]
    points = tuple(
        OperatingPoint(
            fmr=rate,
            threshold=metrics.percentile_interval(threshold, samples[:, i, 0]),
            fnmr=metrics.percentile_interval(metrics.fnmr_at(threshold, pairs.mated), samples[:, i, 1]),
            false_matches=int((kept >= threshold).sum()),
        )
        for i, (rate, threshold) in enumerate(zip(measurable, thresholds, strict=True))
    )
    return Measurement(pairs, points, left_out, comparisons)


def _pairs_within(people: Ints) -> int:
    """Pairs of faces of the same person."""
    counts = np.bincount(people)
    return int((counts * (counts - 1) // 2).sum())


def _bootstrap(
    pairs: AllPairs, people: Ints, kept: Bools, points: Sequence[tuple[float, float]], weights: Ints
) -> NDArray[np.float64]:
    """(rounds, points, 2) the threshold at each point's rate, and the FNMR at the point's own threshold, with the
    people drawn anew. ``weights`` (rounds, people) says how often; a pair of people counts weight × weight times."""
    score = pairs.top.score[kept]
    people = np.unique(people, return_inverse=True)[1]
    first, second = people[pairs.top.first[kept]], people[pairs.top.second[kept]]
    order = np.argsort(pairs.mated, kind="stable")
    mated_of = people[pairs.mated_first[order]]
    below = np.searchsorted(pairs.mated[order], [threshold for _, threshold in points], side="left")
    faces = np.bincount(people)
    samples = np.full((len(weights), len(points), 2), math.nan)
    for r, weight in enumerate(weights):
        total = _weighted_comparisons(weight, faces)
        reached = np.cumsum(weight[first] * weight[second])
        failures = np.concatenate([[0], np.cumsum(weight[mated_of])])
        for i, (rate, _) in enumerate(points):
            place = int(np.searchsorted(reached, metrics.allowed_errors(rate, total), side="right"))
            samples[r, i, 0] = score[min(place, len(score) - 1)]
            samples[r, i, 1] = failures[below[i]] / failures[-1] if failures[-1] else math.nan
    return samples


def _weighted_comparisons(weight: Ints, faces: Ints) -> int:
    """Σ over pairs of different people of weight·weight × faces·faces."""
    shown = weight * faces
    return int((int(shown.sum()) ** 2 - int((shown * shown).sum())) // 2)


def same_people(pairs: AllPairs, people: Ints, *, above: float) -> Ints:
    """(people,) the lowest number of each group of people that are taken for one person.

    Two people are joined where the mean score over all pairs of their faces is at or above ``above``: a chance match of
    one odd photo (blurred, turned, in the dark) doesn't join two people with several photos each.
    Only pairs among the kept top scores can be seen; where a pair of faces isn't among them it counts as the floor.
    """
    size = int(people.max()) + 1
    faces = np.bincount(people, minlength=size)
    low = np.minimum(people[pairs.top.first], people[pairs.top.second])
    high = np.maximum(people[pairs.top.first], people[pairs.top.second])
    keys, inverse, count = np.unique(low * size + high, return_inverse=True, return_counts=True)
    total = np.bincount(inverse, weights=pairs.top.score)
    i, j = keys // size, keys % size
    mean = (total + (faces[i] * faces[j] - count) * pairs.top.floor) / (faces[i] * faces[j])
    return _joined(size, i[mean >= above], j[mean >= above])


def _joined(size: int, first: Ints, second: Ints) -> Ints:
    """Connected components: the lowest member's number for each of ``size`` members."""
    root = np.arange(size)

    def find(member: int) -> int:
        while root[member] != member:
            root[member] = root[root[member]]
            member = int(root[member])
        return member

    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        low, high = sorted((find(a), find(b)))
        root[high] = low
    return np.array([find(member) for member in range(size)], np.int64)


def calibration(measurement: Measurement, *, name: str, measured_on: str, pairs: str, default: bool) -> Calibration:
    """What the manifest holds of a measurement."""
    return Calibration(
        name=name,
        measured_on=measured_on,
        pairs=pairs,
        comparisons=measurement.comparisons,
        mated=len(measurement.pairs.mated),
        points=tuple(_point(point) for point in measurement.points),
        default=default,
    )


def _point(point: OperatingPoint) -> Point:
    """Rounded to what can be meant: a threshold to 1e-6, upwards, a rate to 1e-7."""
    threshold = math.ceil(point.threshold.value * 1e6) / 1e6
    return Point(
        fmr=point.fmr,
        threshold=threshold,
        threshold_low=min(threshold, round(point.threshold.low, 6)),
        threshold_high=max(threshold, round(point.threshold.high, 6)),
        fnmr=round(point.fnmr.value, 7),
        fnmr_low=min(round(point.fnmr.value, 7), round(point.fnmr.low, 7)),
        fnmr_high=max(round(point.fnmr.value, 7), round(point.fnmr.high, 7)),
    )


def with_calibration(manifest: Manifest, new: Calibration) -> Manifest:
    """The manifest with ``new`` in place of the calibration of that name, or beside the others.

    Where ``new`` is the default no other one is; the first calibration of all always is.
    """
    others = [each for each in manifest.calibrations if each.name != new.name]
    if new.default:
        others = [each.model_copy(update={"default": False}) for each in others]
    elif not any(each.default for each in others):
        new = new.model_copy(update={"default": True})
    calibrations = tuple(sorted([*others, new], key=lambda each: each.name))
    # Validated anew: model_copy alone would check nothing.
    return Manifest.model_validate_json(manifest.model_copy(update={"calibrations": calibrations}).model_dump_json())
