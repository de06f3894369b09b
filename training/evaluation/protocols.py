"""Measure pairs (1:1) and retrieval on existing templates. `training.evaluation.identification` has 1:N.

A photo without a face never matches: its pairs score -1, so that a mated pair counts as an error and a non-mated one as
correctly rejected. No pair is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from app.models.calibration.intervals import (
    Bools,
    Floats,
    Interval,
    Ints,
    allowed_errors,
    people_weights,
    percentile_interval,
)
from training.evaluation import bootstrap, metrics
from training.evaluation.metrics import Curve, FoldAccuracy
from training.evaluation.pairs import PairList, person_of
from training.evaluation.photos import Templates

NO_MATCH = -1.0
"""The score of a pair in which a photo has no face."""
FMRS = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)


@dataclass(frozen=True, slots=True)
class MatchRate:
    """1 − FNMR (``match``) at an FMR (or FPIR), the threshold it needs, and a 95 % interval."""

    at: float
    threshold: float
    match: Interval


@dataclass(frozen=True, slots=True)
class Verification:
    """1:1 figures of one list of pairs; intervals by bootstrap over people."""

    mated: int
    nonmated: int
    accuracy: FoldAccuracy | None
    """Accuracy over the folds, each decided with the threshold that is best on the others; None without folds."""
    accuracy_interval: Interval | None
    best_accuracy: float
    """Accuracy at the threshold that is best for these same pairs. So it is too high."""
    equal_error_rate: float
    equal_error_rate_interval: Interval
    match_rates: tuple[MatchRate, ...]
    """1 − FNMR at each FMR that these non-mated pairs can measure."""
    pairs_without_face: int
    photos: int
    photos_without_face: Mapping[str, str]


def pair_scores(templates: Templates, pairs: PairList) -> Floats:
    """Return the cosine of each pair, (P,) float64; `NO_MATCH` if a photo has no face."""
    first = templates.rows([pair.first for pair in pairs.pairs])
    second = templates.rows([pair.second for pair in pairs.pairs])
    scores = np.einsum("pd,pd->p", templates.vectors[first], templates.vectors[second], dtype=np.float64)
    both_shown: Bools = templates.found[first] & templates.found[second]
    return np.where(both_shown, np.clip(scores, -1, 1), NO_MATCH)


def pair_people(pairs: PairList) -> Ints:
    """Return the (P, 2) people of each pair, numbered from 0."""
    names = [person_of(photo) for pair in pairs.pairs for photo in (pair.first, pair.second)]
    return np.unique(names, return_inverse=True)[1].reshape(-1, 2).astype(np.int64)


def verification(
    templates: Templates,
    pairs: PairList,
    *,
    folds: Ints | None,
    rounds: int = 1000,
    seed: int = 0,
) -> Verification:
    """Measure 1:1 over a list of pairs. ``folds`` is (P,); with None, accuracy over folds is not measured."""
    scores, mated = pair_scores(templates, pairs), pairs.mated
    people = pair_people(pairs)
    threshold = metrics.best_threshold(scores, mated)
    failed = {photo: templates.failures[photo] for photo in pairs.photos if photo in templates.failures}
    return Verification(
        mated=int(mated.sum()),
        nonmated=int((~mated).sum()),
        accuracy=None if folds is None else metrics.fold_accuracy(scores, mated, folds),
        accuracy_interval=None
        if folds is None
        else bootstrap.fold_accuracy_interval(scores, mated, folds, people, rounds=rounds, seed=seed),
        best_accuracy=float(np.mean((scores >= threshold) == mated)),
        equal_error_rate=metrics.equal_error_rate(scores[mated], scores[~mated]),
        equal_error_rate_interval=bootstrap.equal_error_rate_interval(scores, mated, people, rounds=rounds, seed=seed),
        match_rates=match_rates(scores, mated, people, FMRS, rounds=rounds, seed=seed),
        pairs_without_face=int((scores == NO_MATCH).sum()),
        photos=len(pairs.photos),
        photos_without_face=failed,
    )


def match_rates(
    scores: Floats, mated: Bools, people: Ints, fmrs: Sequence[float], *, rounds: int, seed: int
) -> tuple[MatchRate, ...]:
    """Return 1 − FNMR at each FMR for which the (P,) scores suffice; ``people`` (P, 2) are numbered from 0."""
    return tuple(
        MatchRate(
            fmr,
            metrics.threshold_at_fmr(scores[~mated], fmr),
            bootstrap.match_rate_interval(scores, mated, people, fmr, rounds=rounds, seed=seed),
        )
        for fmr in fmrs
        if allowed_errors(fmr, int((~mated).sum())) > 0
    )


def curve_points(curve: Curve) -> list[tuple[float, float, float]]:
    """Return (threshold, FMR, FNMR) for JSON, at up to 400 points spread evenly over the logarithms of both rates."""
    last = len(curve.fmr) - 1
    wanted = np.geomspace(1e-7, 1, 200)
    by_fmr = np.searchsorted(-curve.fmr, -wanted, side="left")
    by_fnmr = np.searchsorted(curve.fnmr, wanted, side="left")
    rows = np.unique(np.clip(np.concatenate([[0], by_fmr, by_fnmr]), 0, last - 1)) if last else np.array([0])
    return [(float(curve.threshold[i]), float(curve.fmr[i]), float(curve.fnmr[i])) for i in rows]


def retrieval_figures(
    vectors: NDArray[np.float32], people: Ints, *, rounds: int, seed: int, nmi: bool = False
) -> dict[str, Interval]:
    """Return Recall@k, MAP@R and R-precision, with intervals by bootstrap over the probes' people; with ``nmi`` also
    the NMI of k-means clusters, which is slow."""
    result = metrics.retrieval(vectors, people)
    per_image = {f"Recall@{k}": found.astype(np.float64) for k, found in result.recall_of.items()}
    per_image |= {"MAP@R": result.average_precision, "R-precision": result.r_precision_of}
    _, owner = np.unique(people[result.searched], return_inverse=True)
    faces = np.bincount(owner)
    weights = people_weights(len(faces), rounds, seed)
    figures = {}
    for name, values in per_image.items():
        sums = np.bincount(owner, weights=values)
        samples = (weights @ sums) / (weights @ faces)
        figures[name] = percentile_interval(float(np.mean(values)), samples)
    if nmi:
        assigned = metrics.clusters(vectors, len(np.unique(people)), seed)
        figures["NMI"] = bootstrap.nmi_interval(people, assigned, rounds=rounds, seed=seed)
    return figures
