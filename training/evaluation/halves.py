"""Stated against found: a gallery of half of the people is calibrated, and its thresholds are tried on the other half.

The calibration is the service's own (`app.calibration.population`), with the floor and without it. Nobody of one half
is in the other, and nothing is chosen on either.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from app.calibration import operating_points as points
from app.calibration.deciding import deciding
from app.calibration.intervals import Interval, Ints
from app.calibration.operating_points import Measurement
from app.calibration.population import Population, measure_population, sample_rows, sample_share
from app.errors import OperatingPointUnavailable
from app.inference.thresholds import Thresholds
from app.types import Vectors

RATES = (1e-2, 1e-3, 1e-4, 1e-5)
WAYS = ("package", "gallery", "gallery with the floor")


@dataclass(frozen=True, slots=True)
class Found:
    """The rates of a threshold stated for ``stated``, on people whom it was not measured on."""

    stated: float
    threshold: float
    fmr: Interval
    fnmr: float
    """NaN without mated pairs."""


@dataclass(frozen=True, slots=True)
class Split:
    """One split of the people. ``found`` has the rates that each way supports."""

    seed: int
    calibrated: Mapping[str, int]
    measured: Mapping[str, int]
    found: Mapping[str, tuple[Found, ...]]


def try_split(
    vectors: Vectors,
    people: Ints,
    package: Thresholds,
    *,
    seed: int,
    rounds: int,
    progress: Callable[[int], None] = lambda _rows: None,
) -> Split:
    """Split (N, D) ``vectors`` of ``people`` numbered from 0 in two halves of people, and try one's thresholds."""
    halves = np.random.default_rng(seed).permutation(int(people.max()) + 1) % 2
    own, other = (np.flatnonzero(halves[people] == half) for half in (0, 1))
    population = _calibrated(vectors[own], people[own], package, progress)
    if population.calibration is None:
        raise ValueError(f"{population.figures.compared_subjects} people support no operating points")
    who = np.unique(people[other], return_inverse=True)[1].astype(np.int64)
    measured = points.measure(points.compare_all(vectors[other], who, progress=progress), who, rates=(), rounds=1)
    mine = population.calibration
    ways = {
        WAYS[0]: package,
        WAYS[1]: deciding(package, mine, allow_laxer=True),
        WAYS[2]: deciding(package, mine, allow_laxer=False),
    }
    supported = [rate for rate in RATES if rate >= mine.points[-1].fmr * (1 - 1e-9)]
    return Split(
        seed,
        {
            "people": population.figures.compared_subjects,
            "faces": population.figures.compared_faces,
            "comparisons": mine.comparisons,
        }
        | {"suspicious": len(population.suspicions), "left_out": population.figures.left_out},
        {"people": int(who.max()) + 1, "faces": len(who), "comparisons": measured.comparisons},
        {
            name: _found(measured, who, way, RATES if name == WAYS[0] else supported, rounds)
            for name, way in ways.items()
        },
    )


def _calibrated(vectors: Vectors, people: Ints, package: Thresholds, progress: Callable[[int], None]) -> Population:
    """Measure as the service does, on its sample of the faces."""
    rows = sample_rows(people, sample_share(len(np.unique(people)), len(people)), Counter())
    return measure_population(vectors[rows], people[rows], package, measured_on="half of the people", progress=progress)


def _found(measured: Measurement, who: Ints, way: Thresholds, rates: Sequence[float], rounds: int) -> tuple[Found, ...]:
    stated = []
    for rate in rates:
        try:
            stated.append((rate, way.threshold(rate)))
        except OperatingPointUnavailable:
            continue
    rows = points.false_match_rates(measured, who, [threshold for _, threshold in stated], rounds=rounds)
    mated = measured.pairs.mated
    return tuple(
        Found(rate, threshold, fmr, float(np.mean(mated < threshold)) if mated.size else float("nan"))
        for (rate, threshold), fmr in zip(stated, rows, strict=True)
        if fmr is not None
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """One stated rate over all splits: means, the least and most, and the mean ends of the splits' intervals."""

    way: str
    stated: float
    splits: int
    threshold: float
    fmr: float
    least: float
    most: float
    low: float
    high: float
    fnmr: float


def summarise(splits: Sequence[Split]) -> list[Summary]:
    rows = []
    for way in WAYS:
        for rate in RATES:
            found = [one for split in splits for one in split.found[way] if one.stated == rate]
            if found:
                rates = [one.fmr.value for one in found]
                rows.append(
                    Summary(
                        way,
                        rate,
                        len(found),
                        threshold=float(np.mean([one.threshold for one in found])),
                        fmr=float(np.mean(rates)),
                        least=min(rates),
                        most=max(rates),
                        low=float(np.mean([one.fmr.low for one in found])),
                        high=float(np.mean([one.fmr.high for one in found])),
                        fnmr=float(np.mean([one.fnmr for one in found])),
                    )
                )
    return rows
