"""A population's own operating points equal counting over its pairs; which of them decide."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.errors import OperatingPointUnavailable
from app.features.calibration.population import (
    FLOOR_FACTOR,
    LEAST_SUBJECTS,
    MOST_FACES,
    MOST_OF_SUBJECT,
    deciding,
    floor_of,
    measure_population,
    sample_rows,
    sample_share,
    sampled,
)
from app.models.calibration.intervals import wilson
from app.package.manifest import Calibration
from app.package.thresholds import DecidedBy, Thresholds
from app.types import Vectors
from tests.support import packages

DIMENSION = 64
PACKAGE = {1e-2: 0.29, 1e-3: 0.38, 1e-4: 0.45, 1e-6: 0.58}
"""About what random vectors of 64 numbers have."""


def thresholds(points: dict[float, float] | None = None) -> Thresholds:
    points = PACKAGE if points is None else points
    return Thresholds(packages.manifest(calibrations=(packages.calibration(points),) if points else ()))


def enrolled(subjects: int, faces: int, seed: int = 0) -> tuple[Vectors, NDArray[np.int64]]:
    """Random people with noisy faces; subjects' keys are no row numbers."""
    rng = np.random.default_rng(seed)
    who = np.repeat(np.arange(subjects), faces)
    vectors = rng.standard_normal((subjects, DIMENSION))[who] + 0.6 * rng.standard_normal((len(who), DIMENSION))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), who * 7 + 1000


def measured(thresholds_of: dict[float, float]) -> Calibration:
    return packages.calibration(thresholds_of).model_copy(update={"name": "gallery"})


def test_thresholds_equal_counting_over_all_pairs() -> None:
    vectors, subjects = enrolled(120, 2)
    found = measure_population(vectors, subjects, thresholds(), measured_on="toys")
    assert found.calibration is not None
    assert (found.figures.compared_subjects, found.figures.compared_faces) == (120, 240)
    assert (found.suspicions, found.figures.left_out) == ((), 0)
    scores = np.array([a @ b for (a, i), (b, j) in combinations(zip(vectors, subjects, strict=True), 2) if i != j])
    assert found.calibration.comparisons == len(scores)
    assert found.calibration.mated == 120
    for point in found.calibration.points:
        assert np.mean(scores >= point.threshold) <= point.fmr
        assert np.mean(scores >= point.threshold - 0.005) > point.fmr or point.fmr * len(scores) < 30
        assert point.threshold_low <= point.threshold <= point.threshold_high
    for one in found.figures.differences:
        assert one.found is not None
        assert one.found.value == pytest.approx(np.mean(scores >= one.threshold), abs=2 / len(scores))
        assert one.found.low <= one.found.value <= one.found.high


def test_a_person_under_two_names_is_listed_and_left_out() -> None:
    vectors, subjects = enrolled(200, 4, seed=1)
    names = subjects.copy()
    names[:2] = 5  # the first person's first two faces under another name
    apart = measure_population(vectors, names, thresholds({1e-2: 0.29, 1e-3: 0.999}), measured_on="toys")
    assert apart.suspicions == (), "the package's strictest threshold decides what is suspicious"
    found = measure_population(vectors, names, thresholds(), measured_on="toys")
    [pair] = found.suspicions
    assert {names[pair.first], names[pair.second]} == {5, subjects[0]}
    assert pair.score == pytest.approx(max(float(a @ b) for a in vectors[:2] for b in vectors[2:4]), abs=1e-6)
    assert found.figures.left_out == 4
    assert found.calibration is not None
    assert apart.calibration is not None
    assert found.figures.missed == 4 / found.calibration.comparisons
    assert found.calibration.comparisons == apart.calibration.comparisons - 4
    assert found.figures.expected == pytest.approx(1e-6 * 201 * 200 / 2)
    assert found.calibration.points[-1].threshold < apart.calibration.points[-1].threshold


def test_a_rate_below_what_was_left_out_is_not_supported() -> None:
    vectors, subjects = enrolled(150, 3, seed=2)
    names = subjects.copy()
    for person in range(40):  # 40 people under two names, 2 pairs of faces each
        names[3 * person] = person
    found = measure_population(vectors, names, thresholds(), measured_on="toys")
    assert len(found.suspicions) > 30
    assert found.calibration is not None
    assert found.figures.missed > 3e-4
    assert found.calibration.points[-1].fmr == 1e-3


def test_few_subjects_support_nothing() -> None:
    vectors, subjects = enrolled(LEAST_SUBJECTS - 1, 3)
    assert measure_population(vectors, subjects, thresholds(), measured_on="toys").calibration is None
    vectors, subjects = enrolled(LEAST_SUBJECTS, 1)
    small = measure_population(vectors, subjects, thresholds(), measured_on="toys")
    assert (small.figures.compared_subjects, small.calibration) == (LEAST_SUBJECTS, None), (
        "435 pairs show no rate of ten errors twice"
    )
    assert measure_population(vectors[:0], subjects[:0], thresholds(), measured_on="toys").figures.subjects == 0


def test_a_sample_takes_whole_subjects_and_few_faces_of_each() -> None:
    keys = np.arange(1, 200_001)
    for share in (0.01, 0.3, 0.9):
        assert np.mean(sampled(keys, share)) == pytest.approx(share, abs=0.01)
    assert sampled(keys, 1.5).all()
    subjects = np.concatenate([np.repeat(keys, 2), np.repeat(keys[:1], 5_000)])
    taken = Counter[int]()
    rows = [
        start + int(row)
        for start in range(0, len(subjects), 1_000)
        for row in sample_rows(subjects[start : start + 1_000], sample_share({2: len(keys) - 1, 5_002: 1}), taken)
    ]
    assert len(rows) == pytest.approx(MOST_FACES, rel=0.1)
    counts = np.unique(subjects[rows], return_counts=True)[1]
    assert set(counts) <= {2, MOST_OF_SUBJECT}
    assert sample_share({3: 100}) > 1
    assert sample_share({}) > 1


def test_the_gallerys_points_decide_where_its_pairs_support_the_rate() -> None:
    package = thresholds()
    own = measured({1e-2: 0.3, 1e-3: 0.4, 1e-4: 0.44})
    found = deciding(package, own, allow_laxer=False)
    assert [found.threshold(fmr) for fmr in (1e-2, 1e-3, 1e-4)] == pytest.approx([0.3, 0.4, 0.44])
    assert found.decided_by(1e-4) == DecidedBy("gallery", "gallery")
    below = found.decided_by(9e-5)
    assert (below.source, below.name, below.fallback) == ("package", "made-up", "rate_not_supported")
    assert package.decided_by(1e-4) == DecidedBy("package", "made-up")
    assert package.without_gallery("not_measured").decided_by(1e-4) == DecidedBy("package", "made-up", "not_measured")
    with pytest.raises(OperatingPointUnavailable):
        found.threshold(1e-7)


@pytest.mark.parametrize("ratio", [0.35, 0.7, 1.0, 1.6])
def test_below_the_gallerys_rates_the_packages_are_carried_down_by_the_ratio_that_was_measured(ratio: float) -> None:
    """Strangers here reach each of the package's thresholds ``ratio`` times as often as it states."""
    package = thresholds()
    own = measured(
        {1e-2: package.threshold(1e-2 / max(ratio, 1)) - 1e-3 * (ratio < 1), 1e-3: package.threshold(1e-3 / ratio)}
    )
    found = deciding(package, own, allow_laxer=False)
    assert found.decided_by(1e-4).ratio == pytest.approx(ratio)
    for fmr in (9e-4, 1e-4, 1e-5):
        assert found.threshold(fmr) == pytest.approx(package.threshold(fmr / ratio), abs=1e-5)
    assert found.lowest == pytest.approx(ratio * 1e-6)
    with pytest.raises(OperatingPointUnavailable):
        found.threshold(ratio * 0.9e-6)


def test_a_laxer_gallery_is_held_by_the_floor_unless_an_admin_says_so() -> None:
    package = thresholds()
    own = measured({1e-2: 0.1, 1e-3: 0.2, 1e-4: 0.3})
    held = deciding(package, own, allow_laxer=False)
    assert held.threshold(1e-3) == pytest.approx(package.threshold(1e-3 * FLOOR_FACTOR))
    assert held.threshold(1e-2) == pytest.approx(0.29), "no higher rate was measured"
    lax = deciding(package, measured({1e-2: 0.1, 1e-3: 0.31, 1e-4: 0.32}), allow_laxer=True)
    assert lax.threshold(1e-3) == pytest.approx(0.31)
    assert lax.threshold(1e-2) == pytest.approx(0.29), "below the package's most lenient point no score is answered"
    assert held.threshold(1e-5) == pytest.approx(package.threshold(1e-5 * FLOOR_FACTOR)), "below its rates too"


def test_a_raised_threshold_has_no_fnmr_that_was_measured_at_a_lower_one() -> None:
    own = measured({1e-2: 0.1, 1e-3: 0.45})
    rates = {"fnmr": 0.1, "fnmr_low": 0.05, "fnmr_high": 0.2}
    own = own.model_copy(update={"points": tuple(point.model_copy(update=rates) for point in own.points)})
    found = deciding(thresholds(), own, allow_laxer=False)
    assert [point.fnmr for point in found.points][:2] == [None, 0.1]


def test_an_fnmr_of_nothing_that_failed_has_an_interval() -> None:
    vectors, subjects = enrolled(200, 2)
    vectors[1::2] = vectors[::2]
    found = measure_population(vectors, subjects, thresholds({1e-2: 0.3, 1e-6: 0.999}), measured_on="toys")
    assert found.calibration is not None
    point = found.calibration.points[0]
    assert point.fnmr == point.fnmr_low == 0
    assert point.fnmr_high == pytest.approx(wilson(0, 200).high, abs=1e-6)


def test_a_gallery_harder_than_all_of_the_packages_points_supports_no_lower_rate() -> None:
    found = deciding(thresholds(), measured({1e-2: 0.5, 1e-3: 0.7}), allow_laxer=False)
    assert found.threshold(1e-3) == pytest.approx(0.7)
    with pytest.raises(OperatingPointUnavailable, match=r"0\.001 to 0\.01"):
        found.threshold(1e-4)


def test_a_package_without_points_leaves_the_gallery_its_own() -> None:
    package = thresholds({})
    assert floor_of(package, 1e-3) is None
    found = deciding(package, measured({1e-2: 0.3, 1e-3: 0.4}), allow_laxer=False)
    assert found.threshold(1e-3) == pytest.approx(0.4)
    with pytest.raises(OperatingPointUnavailable):
        found.threshold(1e-4)


@settings(max_examples=60)
@given(
    own=st.lists(st.floats(-0.5, 0.95), min_size=2, max_size=6, unique=True),
    package=st.lists(st.floats(-0.5, 0.95), min_size=2, max_size=6, unique=True),
    laxer=st.booleans(),
)
def test_a_lower_rate_never_has_a_laxer_threshold(own: list[float], package: list[float], *, laxer: bool) -> None:
    rates = (1e-2, 3e-3, 1e-3, 1e-4, 1e-5, 1e-6)
    stated = thresholds(dict(zip(rates, sorted(package), strict=False)))
    found = deciding(stated, measured(dict(zip(rates, sorted(own), strict=False))), allow_laxer=laxer)
    assert all(one.threshold < other.threshold for one, other in pairwise(found.points))
    assert all(point.threshold_low <= point.threshold <= point.threshold_high for point in found.points)
    if not laxer:
        floors = [(point, floor_of(stated, point.fmr)) for point in found.points]
        assert all(floor is not None and point.threshold >= floor - 1e-9 for point, floor in floors)
