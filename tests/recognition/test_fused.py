"""A subject's faces are fused: stated rates hold for any number of photos, and a subject's score follows its faces."""

from __future__ import annotations

import numpy as np
import pytest

from app.gallery.records import Candidate
from app.models.calibration import operating_points as points
from app.models.calibration.fusion import measure_fusion
from app.package.thresholds import Thresholds, fuse_templates
from app.recognition.decisions import DefaultRates, by_fused_score, count_comparisons, identify_point, verify_point
from tests.support import packages
from tests.support.calibrating import photographed


@pytest.fixture(scope="module")
def measured() -> Thresholds:
    vectors, who = photographed(300, 5, 1)
    found = points.measure(points.compare_all(vectors, who), who, rounds=2)
    fusion = measure_fusion(vectors, who)
    made = points.calibration(found, name="toys", measured_on="toys", pairs="all", default=True, fusion=fusion)
    return Thresholds(packages.manifest(calibrations=(made,)))


def candidate(subject: str, best: float, mean: float, length: float) -> Candidate:
    return Candidate(subject, None, subject, best, mean, 2, length)


@pytest.mark.long
@pytest.mark.parametrize("photos", [(1,), (2,), (3,), (5,), (10,), (1, 1, 1, 2, 10)])
def test_stated_rates_are_found_whatever_number_of_photos_subjects_have(
    measured: Thresholds, photos: tuple[int, ...]
) -> None:
    every, people = photographed(60, 10, 2)
    faces = [every[people == person][: photos[person % len(photos)]] for person in range(60)]
    means, lengths = zip(*(fuse_templates(photos_of) for photos_of in faces), strict=True)
    strangers, _ = photographed(10_000, 1, 3)
    scores = strangers @ np.stack(means).T  # (strangers, subjects)
    ranked = [
        by_fused_score(
            (candidate(str(person), 0.0, float(row[person]), lengths[person]) for person in range(60)), measured
        )
        for row in scores
    ]
    best = np.array([ranking[0].score for ranking in ranked])
    sizes = {len(photos_of): sum(len(other) == len(photos_of) for other in faces) for photos_of in faces}
    for asked in (0.01, 0.1):
        point = identify_point(measured, None, asked, DefaultRates(1.0, 0.5), sizes, fused_scores=True)
        assert 0.5 < np.mean(best >= point.threshold) / asked < 1.5
        assert point.comparisons == 60
    threshold = verify_point(measured, 1e-3, 0.5).threshold
    reached = np.mean([[match.score >= threshold for match in ranking] for ranking in ranked])
    assert 0.5 < reached / 1e-3 < 1.5


def test_subjects_are_ordered_by_their_fused_scores(measured: Thresholds) -> None:
    """One face that happens to be alike counts less than several that are."""
    power = measured.fusion
    assert power is not None
    odd, alike = candidate("odd", 0.7, 0.5, 0.6), candidate("alike", 0.6, 0.65, 0.9)
    ranking = by_fused_score([odd, alike], measured)
    assert [match.subject for match in ranking] == ["alike", "odd"]
    assert [match.score for match in ranking] == pytest.approx([0.65 * 0.9**power, 0.5 * 0.6**power])
    alone = candidate("one photo", 0.55, 0.55, 1.0)
    assert by_fused_score([alone], measured) == [alone], "one photo's score stays as it is"


def test_where_nobody_measured_the_best_face_decides() -> None:
    unmeasured = packages.thresholds({1e-2: 0.2, 1e-6: 0.6})
    ranking = [candidate("odd", 0.7, 0.5, 0.6), candidate("alike", 0.6, 0.65, 0.9)]
    assert by_fused_score(ranking, unmeasured) == ranking
    assert count_comparisons({2: 7, 1: 3}, unmeasured, fused_scores=True) == 2 * 7 + 3, "each face is one"
