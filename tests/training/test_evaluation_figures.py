"""Each figure equals what a slow reading of its definition gives, ties included."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import scipy
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.models.calibration.intervals import allowed_errors, wilson
from app.models.calibration.pairs import HISTOGRAM_BINS, all_pairs
from training.evaluation import metrics

# Few distinct values, so that ties are the rule.
SCORES = st.lists(st.integers(-6, 6).map(lambda n: n / 6), min_size=1, max_size=30)
RATES = st.sampled_from([0.0, 1e-3, 0.1, 0.25, 0.5, 1.0])


def unit(rng: np.random.Generator, n: int, d: int) -> NDArray[np.float32]:
    x = rng.normal(size=(n, d))
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True), np.float32)


def fmr_at(threshold: float, nonmated: list[float]) -> float:
    return float(np.mean(np.asarray(nonmated) >= threshold))


@given(SCORES, RATES)
def test_threshold_is_the_lowest_that_keeps_the_fmr(scores: list[float], fmr: float) -> None:
    threshold = metrics.threshold_at_fmr(scores, fmr)
    assert fmr_at(threshold, scores) <= fmr
    allowed = [c for c in (*scores, -math.inf) if np.mean([s >= c for s in scores]) <= fmr]
    # No score may serve as a threshold below ours.
    assert all(c >= threshold or fmr_at(threshold, scores) == fmr_at(c, scores) for c in allowed)


@given(SCORES, SCORES)
def test_a_higher_threshold_never_raises_fmr_nor_lowers_fnmr(mated: list[float], nonmated: list[float]) -> None:
    curve = metrics.error_curve(mated, nonmated)
    assert (np.diff(curve.fmr) <= 0).all()
    assert (np.diff(curve.fnmr) >= 0).all()
    assert (curve.fmr[0], curve.fnmr[0]) == (1, 0)
    assert (curve.fmr[-1], curve.fnmr[-1]) == (0, 1)
    for threshold, fmr, fnmr in zip(curve.threshold, curve.fmr, curve.fnmr, strict=True):
        assert fmr == pytest.approx(fmr_at(threshold, nonmated))
        assert fnmr == pytest.approx(metrics.fnmr_at(threshold, mated))


@given(SCORES, SCORES)
def test_equal_error_rate_lies_where_the_curve_crosses(mated: list[float], nonmated: list[float]) -> None:
    rate = metrics.equal_error_rate(mated, nonmated)
    curve = metrics.error_curve(mated, nonmated)
    crossings = []
    for i in range(len(curve.fmr) - 1):
        x0, x1, y0, y1 = curve.fmr[i], curve.fmr[i + 1], curve.fnmr[i], curve.fnmr[i + 1]
        if (y0 - x0) <= 0 <= (y1 - x1):
            share = (x0 - y0) / ((x0 - y0) - (x1 - y1)) if (x0 - y0) != (x1 - y1) else 0.0
            crossings.append(x0 + share * (x1 - x0))
    assert any(rate == pytest.approx(c) for c in crossings)


@given(st.lists(st.tuples(st.integers(-5, 5).map(float), st.booleans()), min_size=1, max_size=25))
def test_best_threshold_beats_every_other(pairs: list[tuple[float, bool]]) -> None:
    scores, labels = np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])
    ours = np.mean((scores >= metrics.best_threshold(scores, labels)) == labels)
    assert ours == max(np.mean((scores >= c) == labels) for c in np.arange(-6, 7) + 0.5)


def test_fold_accuracy_decides_each_fold_by_the_others() -> None:
    rng = np.random.default_rng(2)
    labels = np.tile([True, False], 150)
    scores = rng.normal(labels * 1.5, 1)
    folds = np.repeat(np.arange(10), 30)
    result = metrics.fold_accuracy(scores, labels, folds)
    expected = []
    for fold in range(10):
        best, threshold = -1.0, 0.0
        train = [(s, y) for s, y, f in zip(scores, labels, folds, strict=True) if f != fold]
        for candidate in result.thresholds[fold], *(s for s, _ in train):
            right = sum((s >= candidate) == y for s, y in train)
            if right > best:
                best, threshold = right, candidate
        # The threshold is one of the best on the other nine.
        assert threshold == result.thresholds[fold]
        test = folds == fold
        expected.append(np.mean((scores[test] >= threshold) == labels[test]))
    assert result.folds == pytest.approx(expected)
    assert result.mean == pytest.approx(np.mean(expected))
    assert result.deviation == pytest.approx(np.std(expected, ddof=1))
    assert result.standard_error == pytest.approx(np.std(expected, ddof=1) / math.sqrt(10))


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_scipys(counts: tuple[int, int]) -> None:
    ours = wilson(*counts)
    theirs = scipy.stats.binomtest(*counts).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@pytest.mark.parametrize("block", [1, 7, 64])
def test_all_pairs_in_blocks_equals_a_loop_over_pairs(block: int) -> None:
    rng = np.random.default_rng(6)
    templates, people = unit(rng, 40, 4), rng.integers(0, 9, 40)
    result = all_pairs(templates, people, floor=0.2, block=block)
    nonmated, top, mated = [], set(), set()
    for i, j in combinations(range(40), 2):
        score = float(templates[i] @ templates[j])
        if people[i] == people[j]:
            mated.add((i, j))
        else:
            nonmated.append(score)
            if score >= 0.2:
                top.add((i, j))
    assert result.nonmated_count == len(nonmated) == result.histogram.sum()
    edges = np.linspace(-1, 1, HISTOGRAM_BINS + 1)
    # A score on a bin's edge may fall to either side by rounding.
    assert np.abs(np.cumsum(result.histogram) - np.cumsum(np.histogram(nonmated, edges)[0])).max() <= 1
    assert set(zip(result.top.first.tolist(), result.top.second.tolist(), strict=True)) == top
    assert set(zip(result.mated_first.tolist(), result.mated_second.tolist(), strict=True)) == mated
    assert (np.diff(result.top.score) <= 0).all()
    fmr = 0.1
    assert result.threshold(fmr) == pytest.approx(metrics.threshold_at_fmr(nonmated, fmr), abs=1e-6)
    with pytest.raises(ValueError, match="floor"):
        result.threshold(0.99)


def test_ranks_count_ties_against_the_mate() -> None:
    scores = [[0.9, 0.5, 0.1], [0.5, 0.5, 0.1], [0.1, 0.2, 0.9]]
    ranking = metrics.rank_subjects(scores, [0, 0, 1])
    assert ranking.rank.tolist() == [1, 2, 2]


def test_fnir_equals_a_loop_over_searches() -> None:
    rng = np.random.default_rng(7)
    scores = rng.integers(0, 20, size=(60, 15)) / 20
    mates = rng.integers(0, 15, 60)
    scores[np.arange(60), mates] += 0.5
    strangers = rng.integers(0, 20, size=(80, 15)).max(axis=1) / 20
    threshold = metrics.threshold_at_fmr(strangers, 0.1)
    assert np.mean(strangers >= threshold) <= 0.1
    missed = 0
    for row, mate in zip(scores, mates, strict=True):
        first = all(row[mate] > row[j] for j in range(15) if j != mate)
        missed += not (first and row[mate] >= threshold)
    assert metrics.fnir_at_fpir(metrics.rank_subjects(scores, mates), strangers, 0.1) == pytest.approx(missed / 60)


@pytest.mark.parametrize("block", [5, 100])
def test_retrieval_equals_a_loop_over_images(block: int) -> None:
    rng = np.random.default_rng(8)
    templates, labels = unit(rng, 50, 3), rng.integers(0, 12, 50)
    labels[0] = 99  # alone of its kind
    ours = metrics.retrieval(templates, labels, ks=(1, 4), block=block)
    recall: dict[int, list[bool]] = {1: [], 4: []}
    precision: list[float] = []
    at_r: list[float] = []
    for i in range(50):
        r = int((labels == labels[i]).sum()) - 1
        if r == 0:
            continue
        order = sorted((j for j in range(50) if j != i), key=lambda j: -float(templates[i] @ templates[j]))
        alike = [labels[j] == labels[i] for j in order]
        for k, row in recall.items():
            row.append(any(alike[:k]))
        precision.append(sum(alike[:r]) / r)
        at_r.append(sum(sum(alike[: n + 1]) / (n + 1) for n in range(r) if alike[n]) / r)
    assert len(ours.searched) == len(at_r)
    for k, row in recall.items():
        assert ours.recall_of[k].tolist() == row
    assert ours.r_precision_of.tolist() == pytest.approx(precision)
    assert ours.average_precision.tolist() == pytest.approx(at_r)


@pytest.mark.parametrize("wrong", [0, 4, 40])
def test_nmi_of_imperfect_clusters_equals_counting(wrong: int) -> None:
    rng = np.random.default_rng(11)
    labels = rng.integers(0, 5, 60)
    assigned = np.where(np.arange(60) < wrong, rng.integers(0, 4, 60), labels)
    shared: dict[tuple[int, int], int] = {}
    for label, cluster in zip(labels.tolist(), assigned.tolist(), strict=True):
        shared[label, cluster] = shared.get((label, cluster), 0) + 1
    information = sum(
        n / 60 * math.log(60 * n / ((labels == label).sum() * (assigned == cluster).sum()))
        for (label, cluster), n in shared.items()
    )
    entropies = [-sum((v == x).mean() * math.log((v == x).mean()) for x in set(v.tolist())) for v in (labels, assigned)]
    ours = metrics.normalised_mutual_information(labels, assigned)
    assert ours == pytest.approx(2 * information / sum(entropies))
    assert (ours == pytest.approx(1)) == (wrong == 0)


def test_clustering_of_well_parted_people_is_perfect() -> None:
    centres = np.eye(4, 6, dtype=np.float32)
    labels = np.repeat(np.arange(4), 5)
    templates = centres[labels] + 0.01 * np.random.default_rng(9).normal(size=(20, 6)).astype(np.float32)
    assert metrics.normalised_mutual_information(labels, metrics.clusters(templates, 4)) == pytest.approx(1)


def test_dropping_the_worst_pairs_by_a_perfect_quality_drops_the_errors_first() -> None:
    mated = np.array([0.1, 0.9, 0.2, 0.8, 0.7])
    rows = metrics.error_versus_discard(mated, mated, 0.5, [0, 0.2, 0.4])
    assert [(r.errors, r.pairs) for r in rows] == [(2, 5), (1, 4), (0, 3)]


def test_allowed_errors_are_not_lost_to_rounding() -> None:
    assert allowed_errors(1e-3, 1000) == 1
    assert allowed_errors(1e-6, 3_000_000) == 3
