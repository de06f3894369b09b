"""95 % intervals of figures, by bootstrap over people: whole people are drawn, with everything that shows them.

Each round draws as many people as there are, with replacement, and computes the figure again, with the threshold found
from the drawn people. The interval is from the 2.5 % to the 97.5 % quantile of the rounds. A pair of people i, j counts
weight_i × weight_j times, a mated pair weight_i times (`people_weights`). Results are reproducible by ``seed``, and
vectorised over pairs, searches and images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.models.calibration.intervals import Bools, Floats, Interval, Ints, people_weights, percentile_interval, wilson
from training.evaluation import metrics
from training.evaluation.pairs import person_of

ROUNDS = 1000


def equal_error_rate_interval(
    scores: ArrayLike, mated: ArrayLike, people: ArrayLike, *, rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """Return the interval of `metrics.equal_error_rate`. ``people`` (P, 2) are the numbers, from 0, of each pair's two
    people."""
    ascending, is_mated, sides = _ascending(scores, mated, people)
    value = metrics.equal_error_rate(ascending[is_mated], ascending[~is_mated])
    first = np.flatnonzero(np.append(True, ascending[1:] > ascending[:-1]))
    counted = _pair_counts(is_mated, sides, rounds, seed)
    return percentile_interval(value, [_equal_error_rate(first, is_mated, counts) for counts in counted])


def _ascending(scores: ArrayLike, mated: ArrayLike, people: ArrayLike, *more: ArrayLike) -> list[NDArray[Any]]:
    """Return the scores in ascending order, and the other values of each pair in the same order."""
    order = np.argsort(np.asarray(scores, np.float64), kind="stable")
    known = (np.asarray(scores, np.float64), np.asarray(mated, bool), np.asarray(people, np.int64))
    return [values[order] for values in (*known, *map(np.asarray, more))]


def _equal_error_rate(first: Ints, is_mated: Bools, counts: Ints) -> float:
    """Return the equal error rate; ``first`` are the positions, among ascending scores, where a new score begins."""
    below_mated = np.concatenate([[0], np.cumsum(np.where(is_mated, counts, 0))])
    below_nonmated = np.concatenate([[0], np.cumsum(np.where(is_mated, 0, counts))])
    if below_mated[-1] == 0 or below_nonmated[-1] == 0:
        return math.nan
    places = np.append(first, len(is_mated))
    fmr = 1 - below_nonmated[places] / below_nonmated[-1]
    return metrics.crossing(fmr, below_mated[places] / below_mated[-1])


def match_rate_interval(
    scores: ArrayLike, mated: ArrayLike, people: ArrayLike, fmr: float, *, rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """Return the interval of 1 − FNMR at ``fmr``; the threshold is found again in every round. The arrays are those of
    `equal_error_rate_interval`."""
    descending, is_mated, sides = (values[::-1] for values in _ascending(scores, mated, people))
    value = 1 - metrics.fnmr_at(metrics.threshold_at_fmr(descending[~is_mated], fmr), descending[is_mated])
    counted = _pair_counts(is_mated, sides, rounds, seed)
    samples = [metrics.weighted_match_rate(descending, is_mated, counts, fmr) for counts in counted]
    return percentile_interval(value, samples)


def fold_accuracy_interval(
    scores: ArrayLike, mated: ArrayLike, folds: ArrayLike, people: ArrayLike, *, rounds: int = ROUNDS, seed: int = 0
) -> Interval:
    """Return the interval of the mean of `metrics.fold_accuracy`: every round finds each fold's threshold again, from
    the pairs drawn from the other folds. ``folds`` is (P,), the others are as for `equal_error_rate_interval`."""
    value = metrics.fold_accuracy(scores, mated, folds).mean
    ascending, is_mated, sides, fold_of = _ascending(scores, mated, people, folds)
    counted = _pair_counts(is_mated, sides, rounds, seed)
    samples = [_fold_accuracy(ascending, is_mated, fold_of, counts) for counts in counted]
    return percentile_interval(value, samples)


def _fold_accuracy(ascending: Floats, is_mated: Bools, fold_of: Ints, counts: Ints) -> float:
    drawn = np.flatnonzero(counts)
    ascending, is_mated, fold_of, counts = ascending[drawn], is_mated[drawn], fold_of[drawn], counts[drawn]
    won = np.where(is_mated, -counts, counts)
    names = np.unique(fold_of)
    if len(names) < 2:
        return math.nan
    accuracies = []
    for name in names:
        test = fold_of == name
        threshold = metrics.best_cut(ascending[~test], won[~test])
        right = (ascending[test] >= threshold) == is_mated[test]
        accuracies.append(counts[test][right].sum() / counts[test].sum())
    return float(np.mean(accuracies))


def _pair_counts(mated: Bools, sides: Ints, rounds: int, seed: int) -> Iterator[Ints]:
    """Yield for each round how often each pair counts, (P,)."""
    for weight in people_weights(int(sides.max()) + 1, rounds, seed):
        yield np.where(mated, weight[sides[:, 0]], weight[sides[:, 0]] * weight[sides[:, 1]])


def nmi_interval(labels: ArrayLike, assigned: ArrayLike, *, rounds: int = ROUNDS, seed: int = 0) -> Interval:
    """Return the interval of `metrics.normalised_mutual_information` of (N,) labels and clusters. The clusters of
    all images are kept; only the information is computed again, for the drawn people."""
    who = np.unique(np.asarray(labels), return_inverse=True)[1]
    cluster = np.unique(np.asarray(assigned), return_inverse=True)[1]
    joint, images = np.unique(np.stack([who, cluster], axis=1), axis=0, return_counts=True)
    samples = []
    for weight in people_weights(int(who.max()) + 1, rounds, seed):
        counts = weight[joint[:, 0]] * images
        both = _entropy(counts)
        alone = [_entropy(np.bincount(joint[:, side], weights=counts)) for side in (0, 1)]
        # With one person in one cluster both entropies are 0, and each determines the other. Rounding may exceed 1.
        samples.append(min(1.0, 2 * (sum(alone) - both) / sum(alone)) if sum(alone) > 0 else 1.0)
    return percentile_interval(metrics.normalised_mutual_information(who, cluster), samples)


def _entropy(counts: ArrayLike) -> float:
    seen = np.asarray(counts, np.float64)
    share = seen[seen > 0] / seen.sum()
    return float(-(share * np.log(share)).sum())


@dataclass(frozen=True, slots=True)
class Resampling:
    """How often each person is drawn in each round. The rounds are the same for every figure and every draw of enrolled
    people, so that means over draws have an interval, too."""

    column: Mapping[str, int]
    weights: Ints
    """(rounds, people)."""

    def of(self, photos: Sequence[str]) -> Ints:
        """Return how often the person of each photo is drawn, (rounds, photos)."""
        return self.weights[:, [self.column[person_of(photo)] for photo in photos]]


def resampling(photos: Sequence[str], *, rounds: int = ROUNDS, seed: int = 0) -> Resampling:
    """Resample all people that these photos show."""
    people = sorted({person_of(photo) for photo in photos})
    return Resampling({name: i for i, name in enumerate(people)}, people_weights(len(people), rounds, seed))


def share_samples(happened: ArrayLike, weights: Ints) -> Floats:
    """Return the share of searches in which ``happened``, (S, …), is true: (rounds, …); ``weights`` is (rounds, S)."""
    total = weights.sum(axis=1).astype(np.float64)
    total[total == 0] = math.nan
    shares: Floats = ((weights @ np.asarray(happened, np.float64)).T / total).T
    return shares


def found_samples(
    ranking: metrics.Ranking, nonmated_best: ArrayLike, fpirs: Sequence[float], mates: Ints, strangers: Ints
) -> Floats:
    """Return 1 − FNIR, (rounds, len(fpirs)), with the threshold at each FPIR found again from the drawn strangers.

    ``mates`` (rounds, P) and ``strangers`` (rounds, S): how often each search is drawn, not who is enrolled.
    """
    scores = np.concatenate([ranking.first_score, np.asarray(nonmated_best, np.float64)])
    order = np.argsort(-scores, kind="stable")
    descending, is_mated = scores[order], order < len(ranking.rank)
    samples = np.empty((len(mates), len(fpirs)))
    for i, counts in enumerate(np.concatenate([mates, strangers], axis=1)):
        drawn = counts[order]
        samples[i] = [metrics.weighted_match_rate(descending, is_mated, drawn, fpir) for fpir in fpirs]
    return samples


def share_interval(value: float, samples: ArrayLike, trials: int) -> Interval:
    """Return the interval of a share of ``trials`` people. If the share is 0 or 1, all rounds are the same although
    other people might differ, so the interval's other end is Wilson's. Without trials the value is NaN, and the
    interval 0 to 1."""
    if trials == 0:
        return wilson(0, 0)
    interval = percentile_interval(value, samples)
    if 0 < value < 1:
        return interval
    counted = wilson(round(value * trials), trials)
    return Interval(value, min(interval.low, counted.low), max(interval.high, counted.high))
