"""The map from cosines to the similarities that other services' clients expect."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.features.rekognition.call import Call
from app.features.similarity import Similarity, fmr_of, of_fmr, probability_of, score_of
from app.package.folders import load_package
from app.package.thresholds import DecidedBy, Thresholds
from app.recognition.decisions import DefaultRates, count_comparisons, verify_point
from tests.conftest import PROJECT
from tests.support.packages import calibration, manifest

COSINES = st.floats(-1, 1)
ROUNDING = 1e-9


@st.composite
def operating_points(draw: st.DrawFn) -> list[tuple[float, float]]:
    """From none to twelve, the rates falling and the thresholds rising as manifests have them."""
    count = draw(st.integers(0, 12))
    rates = draw(st.lists(st.floats(-12, -0.01), min_size=count, max_size=count, unique=True))
    cosines = draw(st.lists(COSINES, min_size=count, max_size=count, unique=True))
    return [(10**rate, cosine) for rate, cosine in zip(sorted(rates, reverse=True), sorted(cosines), strict=True)]


@given(operating_points(), COSINES, COSINES)
def test_more_alike_is_more_similar(points: list[tuple[float, float]], one: float, other: float) -> None:
    similarity = Similarity.through(points)
    low, high = sorted((one, other))
    assert 0 <= similarity.of_cosine(low) <= similarity.of_cosine(high) <= 1
    if high - low > ROUNDING:
        assert similarity.of_cosine(low) < similarity.of_cosine(high)


@given(operating_points(), COSINES)
def test_there_and_back(points: list[tuple[float, float]], cosine: float) -> None:
    similarity = Similarity.through(points)
    assert similarity.cosine_of(similarity.of_cosine(cosine)) == pytest.approx(cosine, abs=ROUNDING)


@given(operating_points(), st.floats(0, 1))
def test_back_and_there(points: list[tuple[float, float]], asked: float) -> None:
    similarity = Similarity.through(points)
    assert similarity.of_cosine(similarity.cosine_of(asked)) == pytest.approx(asked, abs=ROUNDING)


@given(operating_points())
def test_it_goes_from_end_to_end_and_each_anchor_is_met_exactly(points: list[tuple[float, float]]) -> None:
    similarity = Similarity.through(points)
    assert (similarity.of_cosine(-1), similarity.of_cosine(1)) == (0, 1)
    assert (similarity.of_cosine(-1.0000001), similarity.of_cosine(1.0000001)) == (0, 1)
    for cosine, level in zip(similarity.cosines, similarity.similarities, strict=True):
        assert (similarity.of_cosine(cosine), similarity.cosine_of(level)) == (level, cosine)
    for scale in (similarity.cosines, similarity.similarities):
        assert all(low < high for low, high in pairwise(scale))


def of_package(name: str) -> tuple[Similarity, Thresholds]:
    thresholds = Thresholds(load_package(PROJECT / "models" / name).manifest)
    return Similarity.of(thresholds), thresholds


@pytest.mark.parametrize(("fmr", "level"), [(1e-2, 0.5), (1e-3, 0.8), (1e-4, 0.9), (1e-5, 0.95), (1e-6, 0.99)])
def test_a_similarity_means_its_false_match_rate(fmr: float, level: float) -> None:
    similarity, thresholds = of_package("sface")
    assert similarity.of_cosine(thresholds.threshold(fmr)) == pytest.approx(level, abs=ROUNDING)
    assert fmr_of(level) == pytest.approx(fmr)


@pytest.mark.parametrize(("fmr", "level"), [(1e-2, 0.5), (1e-3, 0.8), (1e-4, 0.9), (1e-5, 0.95)])
@pytest.mark.parametrize("faces", [2, 5, 10])
def test_of_a_subject_of_several_faces_it_means_the_rate_over_all_of_them(fmr: float, level: float, faces: int) -> None:
    """Its score is the best of them: a stranger reached 0.8 with a subject of ten faces seven times as often."""
    _, thresholds = of_package("sface")
    similarity = Similarity.of(thresholds, count_comparisons({faces: 30}, thresholds) / 30)
    assert similarity.cosine_of(level) == pytest.approx(verify_point(thresholds, fmr, fmr, faces).threshold, abs=1e-6)


@given(st.floats(0.5, 0.99))
def test_between_the_levels_too(asked: float) -> None:
    similarity, thresholds = of_package("sface")
    assert similarity.cosine_of(asked) == pytest.approx(thresholds.threshold(fmr_of(asked)), abs=1e-6)


def test_a_package_that_was_not_measured_has_a_straight_line() -> None:
    similarity = Similarity.of(Thresholds(manifest()))
    assert [similarity.of_cosine(cosine) for cosine in (-1, -0.5, 0, 0.5, 1)] == [0, 0.25, 0.5, 0.75, 1]


def test_a_calibration_of_few_people_leaves_lower_rates_to_the_one_of_many() -> None:
    shipped = calibration({1e-2: 0.3, 1e-4: 0.44, 1e-5: 0.49, 1e-6: 0.56})
    shipped = shipped.model_copy(update={"name": "shipped", "comparisons": 1_000, "default": False})
    for strictest, expected in ((0.42, 0.49), (0.6, 0.600001)):
        own = calibration({1e-2: 0.31, 1e-4: strictest})
        thresholds = Thresholds(manifest(calibrations=(own, shipped)))
        assert thresholds.threshold(1e-4) == strictest
        assert Similarity.of(thresholds).cosine_of(0.95) == pytest.approx(expected)
        assert Similarity.of(thresholds).cosine_of(0.99) >= Similarity.of(thresholds).cosine_of(0.95)
        assert thresholds.decided_by(1e-4) == DecidedBy("package", "made-up")
        assert thresholds.decided_by(1e-5) == DecidedBy("package", "shipped", "rate_not_supported")


def test_a_package_that_was_measured_at_two_rates_has_those() -> None:
    similarity = Similarity.of(Thresholds(manifest(calibrations=(calibration({1e-2: 0.25, 1e-4: 0.5}),))))
    assert similarity.of_cosine(0.25) == pytest.approx(0.5)
    assert similarity.of_cosine(0.375) == pytest.approx(0.8), "1e-3 lies halfway between them"
    assert similarity.of_cosine(0.5) == pytest.approx(0.9)
    assert similarity.of_cosine(0.75) == pytest.approx(0.95), "a straight line from there to 1"


def test_a_faces_probability_rises_with_its_score_and_goes_back_to_it() -> None:
    scores = [step / 100 for step in range(101)]
    probabilities = [probability_of(score) for score in scores]
    assert probabilities == sorted(set(probabilities))
    assert (probabilities[0], probabilities[-1]) == (0, 1)
    assert [score_of(one) for one in probabilities] == pytest.approx(scores)
    assert probability_of(0.7) == pytest.approx(0.9), "the least score of a face that is answered"
    assert probability_of(0.87) >= 0.99


@pytest.mark.parametrize(
    ("fmr", "asked", "similarity"), [(1e-4, None, 0.9), (1e-5, None, 0.95), (1e-2, None, 0.8), (1e-4, 80.0, 0.8)]
)
def test_rekognitions_default_threshold_is_never_laxer_than_the_servers(
    fmr: float, asked: float | None, similarity: float
) -> None:
    """What a request asks for is given."""
    server = SimpleNamespace(operations=SimpleNamespace(defaults=DefaultRates(fmr, 0.01)))
    assert Call.similarity_asked(server, asked) == pytest.approx(similarity)  # type: ignore[arg-type]  # all that it reads
    assert of_fmr(fmr_of(similarity)) == pytest.approx(similarity)
