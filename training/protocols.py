"""What is measured, on templates that are already made: pairs (1:1), identification (1:N), retrieval.

A photo without a face never matches: its pairs score -1, so that a mated pair counts as an error and a non-mated one
as rightly refused; searched for, it is a miss; as a stranger it finds nobody. Nothing is left out of a figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from training import metrics
from training.metrics import Bools, Curve, Floats, FoldAccuracy, Interval, Ints
from training.pairs import PairList, person_of
from training.photos import Templates

NO_MATCH = -1.0
"""The score of a pair one of whose photos has no face."""
FMRS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
FPIRS = (1e-1, 1e-2, 1e-3)
CMC_DEPTH = 10


@dataclass(frozen=True, slots=True)
class Rate:
    """1 − FNMR (``match``) at an FMR (or FPIR), the threshold it needs, and a 95 % interval."""

    at: float
    threshold: float
    match: Interval


@dataclass(frozen=True, slots=True)
class Verification:
    """1:1 figures of one list of pairs."""

    mated: int
    nonmated: int
    accuracy: FoldAccuracy | None
    """Over the folds, each decided by the others' threshold; None where the list has no folds."""
    best_accuracy: float
    """With the threshold that suits these very pairs best: flattering, and named so."""
    equal_error_rate: float
    match_rates: tuple[Rate, ...]
    """At each FMR that these non-mated pairs can measure; intervals by bootstrap over people."""
    pairs_without_face: int
    photos: int
    photos_without_face: Mapping[str, str]


def pair_scores(templates: Templates, pairs: PairList) -> Floats:
    """(P,) float64 cosine of each pair, `NO_MATCH` where a photo has no face."""
    first = templates.rows([pair.first for pair in pairs.pairs])
    second = templates.rows([pair.second for pair in pairs.pairs])
    scores = np.einsum("pd,pd->p", templates.vectors[first], templates.vectors[second], dtype=np.float64)
    found: Bools = templates.found[first] & templates.found[second]
    return np.where(found, np.clip(scores, -1, 1), NO_MATCH)


def pair_people(pairs: PairList) -> Ints:
    """(P, 2) people of each pair, numbered from 0."""
    names = [person_of(photo) for pair in pairs.pairs for photo in (pair.first, pair.second)]
    return np.unique(names, return_inverse=True)[1].reshape(-1, 2).astype(np.int64)


def verification(
    templates: Templates,
    pairs: PairList,
    *,
    folds: Ints | None,
    fmrs: Sequence[float] = FMRS,
    rounds: int = 1000,
    seed: int = 0,
) -> Verification:
    """``folds`` (P,) or None for no accuracy over folds."""
    scores, mated = pair_scores(templates, pairs), pairs.mated
    people = pair_people(pairs)
    nonmated_count = int((~mated).sum())
    rates = []
    for fmr in (rate for rate in fmrs if metrics.allowed_errors(rate, nonmated_count) > 0):
        match = metrics.match_rate_interval(scores, mated, people, fmr, rounds=rounds, seed=seed)
        rates.append(Rate(fmr, metrics.threshold_at_fmr(scores[~mated], fmr), match))
    threshold = metrics.best_threshold(scores, mated)
    failed = {photo: templates.failures[photo] for photo in pairs.photos if photo in templates.failures}
    return Verification(
        mated=int(mated.sum()),
        nonmated=nonmated_count,
        accuracy=None if folds is None else metrics.fold_accuracy(scores, mated, folds),
        best_accuracy=float(np.mean((scores >= threshold) == mated)),
        equal_error_rate=metrics.equal_error_rate(scores[mated], scores[~mated]),
        match_rates=tuple(rates),
        pairs_without_face=int((scores == NO_MATCH).sum()),
        photos=len(pairs.photos),
        photos_without_face=failed,
    )


def curve_points(curve: Curve, count: int = 400) -> list[tuple[float, float, float]]:
    """(threshold, FMR, FNMR) at up to ``count`` places spread evenly over both error rates' logarithms, for JSON."""
    last = len(curve.fmr) - 1
    wanted = np.geomspace(1e-7, 1, count // 2)
    by_fmr = np.searchsorted(-curve.fmr, -wanted, side="left")
    by_fnmr = np.searchsorted(curve.fnmr, wanted, side="left")
    rows = np.unique(np.clip(np.concatenate([[0], by_fmr, by_fnmr]), 0, last - 1)) if last else np.array([0])
    return [(float(curve.threshold[i]), float(curve.fmr[i]), float(curve.fnmr[i])) for i in rows]


@dataclass(frozen=True, slots=True)
class Draw:
    """Who is enrolled and who searches, by photo: ``mates[i]`` shows the person of ``enrolled[i]``."""

    enrolled: tuple[str, ...]
    mates: tuple[str, ...]
    strangers: tuple[str, ...]


def draw_people(photos: Sequence[str], people: int, seed: int, strangers: int | None = None) -> Draw:
    """``people`` at random among those with two photos or more: one photo enrolled, another one searches. Of everyone
    else (or of ``strangers`` of them) one photo each searches too. Raises ValueError where there are too few people."""
    rng = np.random.default_rng(seed)
    of: dict[str, list[str]] = {}
    for photo in sorted(photos):
        of.setdefault(person_of(photo), []).append(photo)
    several = [name for name, theirs in of.items() if len(theirs) > 1]
    if people > len(several):
        raise ValueError(f"{people} people with two photos are needed, {len(several)} are there")
    chosen = [several[i] for i in rng.permutation(len(several))[:people]]
    twos = [rng.permutation(len(of[name]))[:2] for name in chosen]
    others = [name for name in of if name not in set(chosen)]
    asked = [others[i] for i in rng.permutation(len(others))[:strangers]]
    return Draw(
        enrolled=tuple(of[name][two[0]] for name, two in zip(chosen, twos, strict=True)),
        mates=tuple(of[name][two[1]] for name, two in zip(chosen, twos, strict=True)),
        strangers=tuple(of[name][rng.integers(len(of[name]))] for name in asked),
    )


@dataclass(frozen=True, slots=True)
class Served:
    """What the service's own threshold for an FPIR does: the manifest's operating points, corrected for the gallery."""

    asked: float
    threshold: float
    fpir: float
    fnir: float


@dataclass(frozen=True, slots=True)
class Identification:
    """1:N figures of one draw. Intervals are Wilson's: each search is another person's."""

    seed: int
    subjects: int
    mated_searches: int
    stranger_searches: int
    rank1: Interval
    cmc: tuple[float, ...]
    match_rates: tuple[Rate, ...]
    """1 − FNIR at FPIRs, thresholds from these very strangers."""
    served: tuple[Served, ...]
    """At the service's thresholds, which know nothing of these strangers."""


def identification(
    templates: Templates,
    draw: Draw,
    seed: int,
    fpirs: Sequence[float] = FPIRS,
    *,
    service_threshold: Callable[[float], float | None] = lambda _fpir: None,
) -> Identification:
    """Searches each mate and each stranger among the enrolled. ``service_threshold`` answers the service's threshold
    for an FPIR, or None where it has none."""
    ranking, strangers = searches(templates, draw)
    count = len(draw.mates)
    rates = []
    for fpir in (rate for rate in fpirs if metrics.allowed_errors(rate, len(strangers)) > 0):
        missed = round(metrics.fnir_at_fpir(ranking, strangers, fpir) * count)
        measured = metrics.threshold_at_fpir(strangers, fpir)
        rates.append(Rate(fpir, measured, metrics.wilson(count - missed, count)))
    return Identification(
        seed=seed,
        subjects=len(draw.enrolled),
        mated_searches=count,
        stranger_searches=len(strangers),
        rank1=metrics.wilson(int((ranking.rank == 1).sum()), count),
        cmc=tuple(float(share) for share in metrics.cmc(ranking.rank, min(CMC_DEPTH, len(draw.enrolled)))),
        match_rates=tuple(rates),
        served=tuple(
            Served(
                asked=fpir,
                threshold=threshold,
                fpir=metrics.fmr_at(threshold, strangers),
                fnir=float(np.mean((ranking.rank > 1) | (ranking.mate_score < threshold))),
            )
            for fpir in fpirs
            if (threshold := service_threshold(fpir)) is not None
        ),
    )


def searches(templates: Templates, draw: Draw) -> tuple[metrics.Ranking, Floats]:
    """The mates' ranking, and each stranger's highest score."""
    enrolled, mates = templates.rows(draw.enrolled), templates.rows(draw.mates)
    strangers = templates.rows(draw.strangers)
    ranking = metrics.rank_subjects(_scores(templates, mates, enrolled), np.arange(len(mates)))
    return ranking, _scores(templates, strangers, enrolled).max(axis=1, initial=NO_MATCH)


def _scores(templates: Templates, probes: Ints, enrolled: Ints) -> NDArray[np.float64]:
    scores = (templates.vectors[probes] @ templates.vectors[enrolled].T).astype(np.float64)
    found = templates.found[probes][:, None] & templates.found[enrolled][None, :]
    return np.where(found, scores, NO_MATCH)


def retrieval_figures(
    vectors: NDArray[np.float32], people: Ints, *, rounds: int, seed: int, ks: Sequence[int] = (1, 2, 4, 8)
) -> dict[str, Interval]:
    """Recall@k, MAP@R and R-precision, with intervals by bootstrap over the people searched for."""
    result = metrics.retrieval(vectors, people, ks)
    per_image = {f"Recall@{k}": result.recall_of[k].astype(np.float64) for k in ks}
    per_image |= {"MAP@R": result.average_precision, "R-precision": result.r_precision_of}
    _, owner = np.unique(people[result.searched], return_inverse=True)
    faces = np.bincount(owner)
    weights = metrics.people_weights(len(faces), rounds, seed)
    figures = {}
    for name, values in per_image.items():
        sums = np.bincount(owner, weights=values)
        samples = (weights @ sums) / (weights @ faces)
        figures[name] = metrics.percentile_interval(float(np.mean(values)), samples)
    return figures


def mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation (``ddof`` 1; NaN for one value)."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
