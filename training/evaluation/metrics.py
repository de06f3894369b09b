"""Metrics of face recognition: verification, identification, retrieval. NumPy only.

Terms and definitions are those of ISO/IEC 19795-1 and NIST FRTE. Scores are floats; higher means more similar. One
rule holds everywhere: two faces match if their score is **at or above** the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from app.models.calibration.intervals import Bools, Floats, Ints, allowed_errors
from app.models.calibration.pairs import AllPairs

# --- Verification ----------------------------------------------------------------------------------------------------


def fnmr_at(threshold: float, mated: ArrayLike) -> float:
    """Return the false non-match rate: the share of mated scores below ``threshold``."""
    return float(np.mean(np.asarray(mated, np.float64) < threshold))


def threshold_at_fmr(nonmated: ArrayLike, fmr: float) -> float:
    """Return the lowest threshold whose FMR on these non-mated scores does not exceed ``fmr``.

    Equal scores are all rejected or all accepted. The threshold is infinite if even the highest score may not pass.
    Raises ValueError without scores.
    """
    scores = np.asarray(nonmated, np.float64)
    if scores.size == 0:
        raise ValueError("a threshold needs non-mated scores")
    allowed = allowed_errors(fmr, scores.size)
    if allowed >= scores.size:
        return -math.inf
    # The highest score beyond the allowed ones must stay below the threshold.
    refused = np.partition(scores, scores.size - allowed - 1)[scores.size - allowed - 1]
    return float(np.nextafter(refused, math.inf))


@dataclass(frozen=True, slots=True)
class Curve:
    """FMR and FNMR at every threshold that changes one of them, in ascending order; (T,) float64 each."""

    threshold: Floats
    fmr: Floats
    fnmr: Floats


def error_curve(mated: ArrayLike, nonmated: ArrayLike) -> Curve:
    """Return the DET curve (1 − FNMR over FMR is the ROC), from "all match" (FMR 1, FNMR 0) to "none does" (0, 1).
    Raises ValueError without mated or non-mated scores."""
    mated = np.sort(np.asarray(mated, np.float64))
    nonmated = np.sort(np.asarray(nonmated, np.float64))
    if mated.size == 0 or nonmated.size == 0:
        raise ValueError("error rates need mated and non-mated scores")
    threshold = np.append(np.unique(np.concatenate([mated, nonmated])), math.inf)
    fnmr = np.searchsorted(mated, threshold, side="left") / mated.size
    fmr = 1 - np.searchsorted(nonmated, threshold, side="left") / nonmated.size
    return Curve(threshold, fmr, fnmr)


def equal_error_rate(mated: ArrayLike, nonmated: ArrayLike) -> float:
    """Return the rate where the DET curve, with straight lines between its points, crosses FMR = FNMR."""
    curve = error_curve(mated, nonmated)
    return crossing(curve.fmr, curve.fnmr)


def crossing(fmr: Floats, fnmr: Floats) -> float:
    """Return the rate where FMR = FNMR on the straight lines between the points of a curve from (1, 0) to (0, 1)."""
    gap = fnmr - fmr  # ascending from -1 to 1
    after = int(np.argmax(gap >= 0))
    before = after - 1
    share = -gap[before] / (gap[after] - gap[before])
    return float(fmr[before] + share * (fmr[after] - fmr[before]))


def best_threshold(scores: ArrayLike, mated: ArrayLike) -> float:
    """Return the threshold that decides most pairs correctly: the middle of the gap between two scores; of equally good
    gaps, the median one."""
    scores = np.asarray(scores, np.float64)
    order = np.argsort(scores, kind="stable")
    return best_cut(scores[order], np.where(np.asarray(mated, bool)[order], -1, 1))


def best_cut(ascending: Floats, won: NDArray[np.int64]) -> float:
    """Return `best_threshold` of sorted scores. Rejecting the i-th gains ``won[i]``: 1 for a non-mated pair, -1 for a
    mated pair, multiplied if a pair counts more than once."""
    last = np.flatnonzero(np.append(ascending[1:] > ascending[:-1], True))
    edges = ascending[last]
    cuts = np.concatenate([edges[:1] - 1e-6, (edges[:-1] + edges[1:]) / 2, edges[-1:] + 1e-6])
    right = np.concatenate([[0], np.cumsum(won)[last]])
    best = cuts[right == right.max()]
    return float(best[best.size // 2])


@dataclass(frozen=True, slots=True)
class FoldAccuracy:
    """LFW's figure: the mean and standard deviation (``ddof`` 1) of the folds' accuracies, and these accuracies."""

    mean: float
    deviation: float
    standard_error: float
    folds: tuple[float, ...]
    thresholds: tuple[float, ...]


def fold_accuracy(scores: ArrayLike, mated: ArrayLike, folds: ArrayLike) -> FoldAccuracy:
    """Return accuracy as LFW View 2 defines it (Huang et al., UMass TR 07-49): each fold is decided with the threshold
    that is best on all the other folds. ``folds`` (N,) names each pair's fold. Raises ValueError for fewer than two
    folds."""
    scores = np.asarray(scores, np.float64)
    labels = np.asarray(mated, bool)
    fold_of = np.asarray(folds)
    accuracies, thresholds = [], []
    for fold in np.unique(fold_of):
        test = fold_of == fold
        threshold = best_threshold(scores[~test], labels[~test])
        thresholds.append(threshold)
        accuracies.append(float(np.mean((scores[test] >= threshold) == labels[test])))
    if len(accuracies) < 2:
        raise ValueError("accuracy over folds needs two folds or more")
    deviation = float(np.std(accuracies, ddof=1))
    return FoldAccuracy(
        mean=float(np.mean(accuracies)),
        deviation=deviation,
        standard_error=deviation / math.sqrt(len(accuracies)),
        folds=tuple(accuracies),
        thresholds=tuple(thresholds),
    )


def weighted_match_rate(descending: Floats, is_mated: Bools, counts: Ints, fmr: float) -> float:
    """Return 1 − FNMR at ``fmr`` if the i-th highest score counts ``counts[i]`` times; a score of -inf never matches.
    Returns NaN if no mated or no non-mated score counts."""
    nonmated = np.where(is_mated, 0, counts)
    total_mated = int(counts[is_mated].sum())
    total_nonmated = int(nonmated.sum())
    if total_mated == 0 or total_nonmated == 0:
        return math.nan
    refused = int(np.searchsorted(np.cumsum(nonmated), allowed_errors(fmr, total_nonmated), side="right"))
    floor = -math.inf if refused == descending.size else descending[refused]
    accepted = is_mated & (descending > floor)
    return float(counts[accepted].sum() / total_mated)


# --- Identification --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of each probe's search. ``rank`` is the place of its own subject (1 = first; ties count against
    it), ``mate_score`` that subject's score. Both (P,)."""

    rank: Ints
    mate_score: Floats

    @property
    def first_score(self) -> Floats:
        """Return the score of each probe's own subject if it ranks first, else -inf, which no threshold accepts."""
        return np.where(self.rank == 1, self.mate_score, -math.inf)


def rank_subjects(scores: ArrayLike, mates: ArrayLike) -> Ranking:
    """Rank subjects by ``scores`` (P, S) of each probe with each subject; ``mates`` (P,) is the column of each probe's
    own subject."""
    scores = np.asarray(scores, np.float64)
    mates = np.asarray(mates, np.int64)
    mate_score = np.take_along_axis(scores, mates[:, None], axis=1)[:, 0]
    rank = (scores >= mate_score[:, None]).sum(axis=1)
    return Ranking(rank.astype(np.int64), mate_score)


def fnir_at_fpir(ranking: Ranking, nonmated_best: ArrayLike, fpir: float) -> float:
    """Return the false negative identification rate: the share of enrolled people's probes whose own subject is not
    first, or below the threshold (NIST FRTE 1:N, rank 1). The threshold is the lowest at which at most ``fpir`` of the
    strangers' searches return anybody; ``nonmated_best`` is each such search's highest score."""
    threshold = threshold_at_fmr(nonmated_best, fpir)
    return float(np.mean((ranking.rank > 1) | (ranking.mate_score < threshold)))


# --- Retrieval -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Retrieval:
    """The figures of each searched image, (S,) each; papers print their means.

    Recall@k: is an image with the same label among the k nearest? MAP@R and R-precision: Musgrave et al., "A metric
    learning reality check", ECCV 2020.
    """

    searched: Ints
    """Row numbers of the images that have a mate."""
    recall_of: dict[int, Bools]
    average_precision: Floats
    r_precision_of: Floats


def retrieval(
    templates: NDArray[np.float32], labels: ArrayLike, ks: Sequence[int] = (1, 2, 4, 8), block: int = 1024
) -> Retrieval:
    """Search with each of (N, D) unit ``templates`` among all others. An image whose label no other image has can be
    found, but is not a probe. Equal scores keep the order of the set. Raises ValueError if no image has a mate."""
    who = np.unique(np.asarray(labels), return_inverse=True)[1]
    mates = np.bincount(who)[who] - 1
    depth = min(len(who) - 1, max(int(mates.max(initial=0)), *ks))
    searched = np.flatnonzero(mates > 0)
    if not len(searched):
        raise ValueError("retrieval needs at least two images of one label")
    blocks = [searched[start : start + block] for start in range(0, len(searched), block)]
    hits = np.concatenate([_neighbours_alike(templates, who, rows, depth) for rows in blocks])
    mates = mates[searched]
    within = hits & (np.arange(depth)[None, :] < mates[:, None])
    precision = np.cumsum(within, axis=1) / np.arange(1, depth + 1)
    return Retrieval(
        searched=searched,
        recall_of={k: np.asarray(hits[:, :k].any(axis=1)) for k in ks},
        average_precision=(precision * within).sum(axis=1) / mates,
        r_precision_of=within.sum(axis=1) / mates,
    )


def _neighbours_alike(templates: NDArray[np.float32], who: Ints, rows: Ints, depth: int) -> Bools:
    """Return whether each of the ``depth`` nearest other images has the same label, (rows, depth) bool."""
    scores = templates[rows] @ templates.T
    scores[np.arange(len(rows)), rows] = -np.inf
    nearest = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
    return np.asarray(who[nearest] == who[rows, None])


def clusters(templates: NDArray[np.float32], count: int, seed: int = 0) -> Ints:
    """Return which of ``count`` k-means clusters each template is in, (N,)."""
    from sklearn.cluster import KMeans  # noqa: PLC0415  only this needs scikit-learn

    return np.asarray(KMeans(count, n_init=1, random_state=seed).fit_predict(templates), np.int64)


def normalised_mutual_information(labels: ArrayLike, assigned: ArrayLike) -> float:
    """Return 2 I(L; C) / (H(L) + H(C)) of (N,) labels and clusters: 1 if each determines the other, 0 if they are
    independent."""
    from sklearn.metrics import normalized_mutual_info_score  # noqa: PLC0415  only this needs scikit-learn

    return float(normalized_mutual_info_score(np.asarray(labels), np.asarray(assigned)))


# --- Error versus discard --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Discard:
    """The result after dropping the worst ``share`` of mated pairs."""

    share: float
    fnmr: float
    errors: int
    pairs: int


def error_versus_discard(
    mated: ArrayLike, pair_quality: ArrayLike, threshold: float, shares: Sequence[float]
) -> list[Discard]:
    """Return the FNMR of the rest when the worst share of mated pairs by quality is dropped (Grother and Tabassi,
    "Performance of biometric quality measures", TPAMI 29(4), 2007). A pair's quality is the lower one of its two faces.

    The threshold stays the same. Among equal qualities, the first pairs are dropped first.
    """
    scores = np.asarray(mated, np.float64)[np.argsort(np.asarray(pair_quality, np.float64), kind="stable")]
    rows = []
    for share in shares:
        left = scores[round(share * scores.size) :]
        errors = int((left < threshold).sum())
        rows.append(Discard(share, errors / left.size if left.size else math.nan, errors, int(left.size)))
    return rows


SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
"""Shares of mated pairs dropped, worst quality first."""


@dataclass(frozen=True, slots=True)
class Discarding:
    """FNMR over the dropped share: by quality, and by the scores themselves (the best possible quality)."""

    threshold: float
    by_quality: tuple[Discard, ...]
    at_best: tuple[Discard, ...]
    qualities: tuple[float, ...]
    """The pair quality at which each share ends."""


def discarding_of(pairs: AllPairs, quality: Floats, threshold: float) -> Discarding:
    """Measure error versus discard of all mated pairs of a set; ``quality`` (N,) is that of its faces. A pair's quality
    is that of its poorer face."""
    lower = np.minimum(quality[pairs.mated_first], quality[pairs.mated_second])
    return Discarding(
        threshold=threshold,
        by_quality=tuple(error_versus_discard(pairs.mated, lower, threshold, SHARES)),
        at_best=tuple(error_versus_discard(pairs.mated, pairs.mated, threshold, SHARES)),
        qualities=tuple(float(np.quantile(lower, share)) for share in SHARES),
    )


def verification_figures(vectors: NDArray[np.floating[Any]], labels: Ints, fmr: float) -> dict[str, float]:
    """Compare all pairs of (N, D) unit vectors. Return `fnmr` at `fmr`, its `threshold`, `eer`, and the numbers of
    pairs."""
    scores = vectors @ vectors.T
    rows, columns = np.triu_indices(len(labels), 1)
    alike = labels[rows] == labels[columns]
    mated, nonmated = scores[rows, columns][alike], scores[rows, columns][~alike]
    threshold = threshold_at_fmr(nonmated, fmr)
    return {
        "fnmr": fnmr_at(threshold, mated),
        "threshold": float(threshold),
        "eer": equal_error_rate(mated, nonmated),
        "mated": float(len(mated)),
        "nonmated": float(len(nonmated)),
    }
