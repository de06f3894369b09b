"""Fused probes match strangers as often as stated, whatever number of photos they are made of and however alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.models.calibration import operating_points as points
from app.models.calibration.fusion import LEAST_PEOPLE, measure_fusion
from app.models.calibration.operating_points import SamePeople
from app.package.thresholds import Thresholds, fuse_templates
from app.recognition.decisions import DefaultRates, identify_point, verify_point
from tests.support import packages
from tests.support.calibrating import DIMENSION, photographed

PACKAGE = packages.manifest(calibrations=(packages.calibration({1e-2: 0.3, 1e-4: 0.45, 1e-6: 0.6}),))


def with_fusion(fusion: float | None) -> Thresholds:
    (measured,) = PACKAGE.calibrations
    return Thresholds(PACKAGE.model_copy(update={"calibrations": (measured.model_copy(update={"fusion": fusion}),)}))


@pytest.mark.parametrize("photos", [2, *(pytest.param(photos, marks=pytest.mark.long) for photos in (3, 5)), 8])
def test_a_track_of_any_number_of_photos_matches_strangers_as_often_as_asked(photos: int) -> None:
    """The power is measured on some people, and found to hold among others."""
    power = measure_fusion(*photographed(150, 8, 1))
    assert power is not None
    vectors, people = photographed(300, 8, 2)
    found = points.measure(points.compare_all(vectors, people), people, rounds=2)
    threshold = next(point.threshold.value for point in found.points if point.fmr == 1e-3)
    strangers, shown = photographed(1500, photos, 3)
    exceeded = []
    for person in range(1500):
        probe, length = fuse_templates(strangers[shown == person])
        exceeded.append(np.mean(vectors @ probe >= threshold / length**power))
    assert 0.5 < np.mean(exceeded) / 1e-3 < 1.5


@pytest.mark.parametrize(
    ("photos", "others"), [*(pytest.param(each, each, marks=pytest.mark.long) for each in (2, 3, 5)), (2, 8), (8, 8)]
)
def test_two_tracks_match_as_often_as_asked(photos: int, others: int) -> None:
    """Means of several photos show who people are, in which they differ less than photos do: two of them are nearer to
    each other than the lengths of both tell alone."""
    apart = DIMENSION // 2
    power = measure_fusion(*photographed(150, 8, 1, apart=apart))
    vectors, people = photographed(300, 8, 2, apart=apart)
    found = points.measure(points.compare_all(vectors, people), people, rounds=2)
    made = points.calibration(found, name="toys", measured_on="toys", pairs="all", default=True, fusion=power)
    measured, matched = Thresholds(packages.manifest(calibrations=(made,))), 0
    tracks, sides = 600, [photographed(600, n, seed, apart=apart)[0] for n, seed in ((photos, 3), (others, 4))]
    one, other = ([fuse_templates(own) for own in np.split(side, tracks)] for side in sides)
    second = np.stack([vector for vector, _ in other])
    for vector, length in one:
        threshold = verify_point(measured, 1e-3, 0.5, length=length).threshold
        reduced = [each ** measured.power(length) for _, each in other]
        matched += int((second @ vector * reduced >= threshold).sum())
    both = verify_point(measured, 1e-3, 0.5, length=one[0][1], other=other[0][1]).threshold
    swapped = verify_point(measured, 1e-3, 0.5, length=other[0][1], other=one[0][1]).threshold
    assert both == pytest.approx(swapped), "it is the same comparison"
    assert 0.5 < matched / tracks**2 / 1e-3 < 1.5


def test_the_more_alike_the_photos_the_less_changes() -> None:
    """Photos of one moment are as one photo; the mean of different ones is shorter, and its threshold higher."""
    thresholds, one = with_fusion(0.3), photographed(1, 1, 1)[0]
    vector, length = fuse_templates(np.repeat(one, 4, axis=0))
    assert length == pytest.approx(1, abs=1e-6)
    assert np.allclose(vector, one[0], atol=1e-6)
    at = [verify_point(thresholds, None, 1e-4, length=length).threshold for length in (1.0, 0.9, 0.7)]
    assert at == sorted(at)
    assert at[0] == pytest.approx(0.45)
    assert at[2] == pytest.approx(0.45 / 0.7**0.3)


@given(length=st.floats(0.05, 1), fpir=st.floats(1e-4, 0.01), fusion=st.floats(0, 1))
def test_a_track_is_never_decided_laxer_than_a_photo(length: float, fpir: float, fusion: float) -> None:
    thresholds, defaults = with_fusion(fusion), DefaultRates(1e-4, 0.01)
    track, photo = (identify_point(thresholds, None, fpir, defaults, {2: 50}, length=each) for each in (length, 1.0))
    assert photo.threshold <= track.threshold <= 1
    assert track.uncertain <= track.threshold
    assert (track.fmr, track.fpir) == (photo.fmr, photo.fpir)


def test_where_nobody_measured_the_mean_score_of_the_photos_decides() -> None:
    assert with_fusion(None).threshold(1e-4, 0.9) == pytest.approx(0.45 / 0.9)


def test_few_people_and_those_under_two_names_say_nothing() -> None:
    vectors, people = photographed(LEAST_PEOPLE, 4, 1)
    assert measure_fusion(vectors, people) is not None
    assert measure_fusion(vectors[4:], people[4:] - 1) is None
    one_person_twice = SamePeople(points.pair_keys(np.arange(4), np.arange(4, 8), len(people)), 1, 0, 0)
    assert measure_fusion(vectors, people, same=one_person_twice) is None, "two of them are left out"


def test_templates_that_cancel_each_other_out_show_nobody() -> None:
    one = photographed(1, 1, 1)[0]
    with pytest.raises(ValueError, match="cancel"):
        fuse_templates(np.concatenate([one, -one]))
