"""Several photos of a person are several comparisons, not all independent: stated rates hold for any number."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from app.models.calibration import operating_points as points
from app.models.calibration.pairs import LEAST_MATCHES, Pairs, measure_independence
from app.package.manifest import Calibration
from app.package.thresholds import Thresholds
from app.recognition.decisions import DefaultRates, count_comparisons, fpir_of, identify_point, verify_point
from app.types import Vectors
from tests.support import packages
from tests.support.calibrating import NOISE, photographed


def calibration(noise: float = NOISE) -> Calibration:
    vectors, who = photographed(300, 5, 1, noise)
    measured = points.measure(points.compare_all(vectors, who), who, rounds=2)
    return points.calibration(measured, name="toys", measured_on="toys", pairs="all", default=True)


@pytest.fixture(scope="module")
def measured() -> Thresholds:
    return Thresholds(packages.manifest(calibrations=(calibration(),)))


def best_scores(gallery: Vectors, who: NDArray[np.int64], probes: Vectors) -> NDArray[np.float32]:
    """The best score of each probe, (Q,), with each subject, (S,)."""
    _, starts = np.unique(who, return_index=True)
    best: NDArray[np.float32] = np.maximum.reduceat(probes @ gallery.T, starts, axis=1)
    return best


@pytest.mark.parametrize("photos", [(1,), (2,), (3,), (5,), (10,), (1, 1, 1, 2, 10)])
def test_stated_rates_are_found_whatever_number_of_photos_subjects_have(
    measured: Thresholds, photos: tuple[int, ...]
) -> None:
    every, people = photographed(60, 10, 2)
    kept = np.concatenate([np.flatnonzero(people == one)[: photos[one % len(photos)]] for one in range(60)])
    gallery, who = every[kept], people[kept]
    strangers, _ = photographed(10_000, 1, 3)
    best = best_scores(gallery, who, strangers)
    sizes = Counter(Counter(who.tolist()).values())
    for asked in (0.01, 0.1):
        point = identify_point(measured, None, asked, DefaultRates(1.0, 0.5), sizes)
        assert 0.5 < np.mean(best.max(axis=1) >= point.threshold) / asked < 1.5
        assert point.fpir == pytest.approx(asked)
    thresholds = [verify_point(measured, 1e-3, 0.5, faces).threshold for faces in np.bincount(who).tolist()]
    assert 0.5 < np.mean(best >= thresholds) / 1e-3 < 1.5


def test_the_more_alike_the_photos_of_a_person_the_fewer_comparisons_they_count_as() -> None:
    found = [calibration(noise).independence for noise in (0.05, 0.5, 1.0, 5.0)]
    powers = [power for power in found if power is not None]
    assert powers == sorted(powers)
    assert len(powers) == len(found)
    assert powers[0] < 0.2
    assert powers[-1] > 0.95


def test_the_power_expects_as_many_matching_persons_as_there_are() -> None:
    people = np.repeat(np.arange(1_000), 2)
    probes = np.arange(0, 1_000, 2)  # each matches both photos of one person, or one photo of another
    both = np.stack([np.repeat(probes, 2), np.repeat(probes + 1_000, 2) + np.tile([0, 1], len(probes))])
    one = np.stack([probes, (probes + 500) % 1_000 + 1_000])
    first, second = np.concatenate([both, one], axis=1)
    score = np.full(len(first), 0.9, np.float32)
    power = measure_independence(Pairs(score, first, second), people, 0.5)
    directed = {(a, people[b]) for a, b in zip([*first, *second], [*second, *first], strict=True)}
    assert power == pytest.approx(np.log2(2 * len(directed) / (2 * len(first))), abs=1e-3)
    assert measure_independence(Pairs(score, first, second), people, 0.95) is None
    few = LEAST_MATCHES // 4
    assert measure_independence(Pairs(score[:few], first[:few], second[:few]), people, 0.5) is None


def test_subjects_count_by_their_faces_and_all_of_them_where_nobody_measured() -> None:
    made = packages.calibration({1e-2: 0.2, 1e-6: 0.6}).model_copy(update={"independence": 0.5})
    by_root = Thresholds(packages.manifest(calibrations=(made,)))
    assert count_comparisons({1: 100, 9: 10}, by_root) == pytest.approx(100 + 10 * 3)
    assert count_comparisons({}, by_root) == 1
    unmeasured = packages.thresholds({1e-2: 0.2, 1e-6: 0.6})
    point = identify_point(unmeasured, None, 0.01, DefaultRates(1.0, 0.5), {10: 20})
    assert point.comparisons == 200
    assert point.fmr == pytest.approx(1 - 0.99 ** (1 / 200))
    verified = verify_point(unmeasured, None, 1e-6, 10)
    assert verified.fmr == pytest.approx(fpir_of(1e-6, 10)), "what nobody measured is not stated"
