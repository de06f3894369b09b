"""Decisions: operating points, unmeasured error rates, and the assignment of subjects to faces."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Conflict, OperatingPointUnavailable
from app.face.quality import QualityLevel
from app.features.photos import of_photo
from app.gallery.records import Candidate
from app.package.folders import find_packages, select
from app.package.thresholds import DecidedBy, Thresholds, fmr_for
from app.recognition.decisions import (
    AnsweredCandidate,
    AnsweredScores,
    DefaultRates,
    IdentifyPoint,
    VerifyPoint,
    assign,
    cosine,
    decide,
    fpir_of,
    identify_point,
    population_warnings,
    verify_point,
)
from app.types import Template
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.packages import STATED, card

MEASURED = {1e-2: 0.2, 1e-3: 0.3, 1e-4: 0.4, 1e-5: 0.5, 1e-6: 0.6}
rates = st.floats(min_value=1e-9, max_value=0.99)
counts = st.integers(min_value=1, max_value=1_000_000)


THRESHOLDS = packages.thresholds(MEASURED)
DEFAULTS = DefaultRates(1e-4, 0.01)


def candidate(subject: str, score: float) -> Candidate:
    return Candidate(subject=subject, name=None, face_id=subject, score=score, template_score=score)


def test_verification_decides_at_the_rate_asked_for() -> None:
    point = verify_point(THRESHOLDS, 1e-3, 1e-4)
    assert point.threshold == pytest.approx(0.3)
    assert point.fmr == 1e-3
    assert verify_point(THRESHOLDS, None, 1e-4).threshold == pytest.approx(0.4)


@pytest.mark.parametrize("fmr", [0.5, 1e-7])
def test_a_rate_that_was_never_measured_is_refused_with_the_measured_range(fmr: float) -> None:
    for ask in (
        lambda: verify_point(THRESHOLDS, fmr, 1e-4),
        lambda: identify_point(THRESHOLDS, fmr, None, DefaultRates(1.0, 0.01), {1: 10}),
        lambda: identify_point(THRESHOLDS, None, fmr, DefaultRates(1.0, 0.01), {1: 1}),
    ):
        with pytest.raises(OperatingPointUnavailable) as caught:
            ask()
        assert caught.value.details.items() >= {"lowest": 1e-6, "highest": 1e-2}.items()


def test_a_package_without_operating_points_decides_nothing() -> None:
    nothing = packages.thresholds({})
    for fmr in (None, 1e-4):
        with pytest.raises(OperatingPointUnavailable):
            verify_point(nothing, fmr, 1e-4)
        with pytest.raises(OperatingPointUnavailable):
            identify_point(nothing, fmr, None, DefaultRates(1.0, 0.01), {1: 5})


@given(fpir=rates, subjects=counts)
def test_fmr_and_fpir_are_each_others_inverse(fpir: float, subjects: int) -> None:
    assert fpir_of(fmr_for(fpir, subjects), subjects) == pytest.approx(fpir, rel=1e-9)


@given(fpir=rates, subjects=st.integers(min_value=1, max_value=60))
def test_fpir_is_the_chance_that_any_of_independent_comparisons_errs(fpir: float, subjects: int) -> None:
    none_errs = 1.0
    for _ in range(subjects):
        none_errs *= 1 - fmr_for(fpir, subjects)
    assert 1 - none_errs == pytest.approx(fpir, abs=1e-12)


def test_fpir_is_corrected_for_the_number_of_subjects() -> None:
    small, large = (identify_point(THRESHOLDS, None, 0.01, DEFAULTS, {1: subjects}) for subjects in (10, 1000))
    assert large.threshold > small.threshold
    assert large.fmr == pytest.approx(1e-5, rel=0.01)
    assert small.fpir == large.fpir == pytest.approx(0.01)


def test_the_highest_measured_rate_is_reached_exactly_with_one_subject() -> None:
    assert identify_point(THRESHOLDS, None, 0.01, DefaultRates(1.0, 0.5), {1: 1}).threshold == pytest.approx(0.2)
    assert identify_point(THRESHOLDS, None, None, DefaultRates(1.0, 0.01), {1: 0}).threshold == pytest.approx(0.2)


def test_the_default_falls_back_to_the_strictest_measured_point_and_says_what_to_expect() -> None:
    point = identify_point(THRESHOLDS, None, None, DefaultRates(1.0, 0.01), {1: 100_000})
    assert point.threshold == pytest.approx(0.6)
    assert point.fmr == 1e-6
    assert point.fpir == pytest.approx(1 - (1 - 1e-6) ** 100_000)
    with pytest.raises(OperatingPointUnavailable):
        identify_point(THRESHOLDS, None, 0.01, DefaultRates(1.0, 0.01), {1: 100_000})


@given(
    sizes=st.dictionaries(st.integers(1, 10), st.integers(1, 10_000), min_size=1, max_size=4),
    fmr=st.floats(1e-5, 1e-2),
    fpir=st.floats(1e-4, 0.5),
)
def test_by_default_identification_is_never_laxer_than_verification(
    sizes: dict[int, int], fmr: float, fpir: float
) -> None:
    """However small the gallery. A subject of several faces is looked at for itself in verification, and counts as the
    mean of all subjects here."""
    point = identify_point(THRESHOLDS, None, None, DefaultRates(fmr, fpir), sizes)
    strictest = verify_point(THRESHOLDS, None, fmr, min(sizes)).threshold
    assert point.threshold >= strictest - 1e-9 or point.limited
    assert point.fpir <= fpir + 1e-12 or point.limited
    assert point.uncertain <= point.threshold


def test_a_gallery_of_four_decides_as_verification_does_and_says_so() -> None:
    by_default, asked = (identify_point(THRESHOLDS, None, fpir, DEFAULTS, {1: 4}) for fpir in (None, 0.01))
    assert by_default.threshold == pytest.approx(verify_point(THRESHOLDS, None, 1e-4).threshold)
    assert by_default.fmr == pytest.approx(1e-4)
    assert by_default.fpir == pytest.approx(4e-4, rel=1e-3)
    assert asked.threshold < by_default.threshold, "what is asked for is given"
    assert asked.fpir == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("quality", "level", "decision"), [(16, "low", "uncertain"), (20, "low", "known"), (0, "none", "known")]
)
def test_a_face_below_the_quality_asked_for_is_uncertain_at_most(quality: float, level: str, decision: str) -> None:
    for point in (verify_point(THRESHOLDS, 1e-6, 1e-4), identify_point(THRESHOLDS, 1e-6, None, DEFAULTS, {1: 4})):
        decided, reason = decide(0.99, point, quality, QualityLevel(level))
        assert (decided, reason) == (decision, "low_quality" if decision == "uncertain" else None)
        assert decide(0.55, point, quality, QualityLevel(level)) == ("uncertain", None), "1e-5: by its score"
        assert decide(0.3, point, quality, QualityLevel(level)) == ("unknown", None)


def test_an_fpir_that_no_measured_rate_gives_is_refused_with_the_one_that_is_there() -> None:
    sizes = {5: 2_000}
    with pytest.raises(OperatingPointUnavailable, match=r"ask for fpir=0\.0099") as caught:
        identify_point(THRESHOLDS, None, 0.001, DEFAULTS, sizes)
    least = caught.value.details["lowest_fpir"]
    assert isinstance(least, float)
    assert identify_point(THRESHOLDS, None, least, DEFAULTS, sizes).threshold == pytest.approx(0.6, abs=1e-3)


@given(fmr=st.floats(min_value=1e-6, max_value=1e-2), subjects=counts)
def test_the_uncertain_band_lies_below_the_threshold(fmr: float, subjects: int) -> None:
    point = identify_point(THRESHOLDS, fmr, None, DefaultRates(1.0, 0.01), {1: subjects})
    assert point.uncertain <= point.threshold
    if fmr <= 1e-3:
        assert point.uncertain == pytest.approx(THRESHOLDS.threshold(fmr * 10))
    else:
        assert point.uncertain == pytest.approx(0.2)


def test_a_face_is_known_uncertain_or_unknown_by_its_first_candidate() -> None:
    point = IdentifyPoint(
        threshold=0.4, uncertain=0.3, fmr=1e-4, fpir=0.01, calibration=DecidedBy("package", "made-up")
    )
    decisions = [decide(score, point)[0] for score in (None, -1.0, 0.299, 0.3, 0.399, 0.4, 1.0)]
    assert decisions == ["unknown", "unknown", "unknown", "uncertain", "uncertain", "known", "known"]


scores = st.integers(min_value=-10, max_value=10).map(lambda tenths: tenths / 10)


@st.composite
def rankings_of_photos(draw: st.DrawFn) -> list[list[Candidate]]:
    """Each face's score for each of a few subjects, as a search gives them: best first."""
    subjects = draw(st.integers(min_value=0, max_value=5))
    faces = draw(st.integers(min_value=0, max_value=5))
    table = [[candidate(f"s{i}", draw(scores)) for i in range(subjects)] for _ in range(faces)]
    return [sorted(row, key=lambda ranked: (-ranked.score, ranked.subject)) for row in table]


def slow_assignment(rankings: Sequence[Sequence[Candidate]], floor: float) -> dict[int, str]:
    """Face -> subject: looks for the best pair left, again and again."""
    given_to: dict[int, str] = {}
    while True:
        left = [
            (ranked.score, -face, ranked.subject)
            for face, ranking in enumerate(rankings)
            for ranked in ranking
            if ranked.score >= floor and face not in given_to and ranked.subject not in given_to.values()
        ]
        if not left:
            return given_to
        best = max(score for score, _, _ in left)
        face, subject = min((-face, subject) for score, face, subject in left if score == best)
        given_to[face] = subject


@given(rankings=rankings_of_photos(), floor=scores)
def test_a_subject_is_given_to_one_face_of_a_photo_at_most(rankings: list[list[Candidate]], floor: float) -> None:
    expected = slow_assignment(rankings, floor)
    assigned = assign(rankings, floor)
    remaining = [face.candidates for face in assigned]
    for face, ranking in enumerate(rankings):
        best = ranking[0].subject if ranking and ranking[0].score >= floor else None
        holders = [other for other, subject in expected.items() if subject == best and other != face]
        assert assigned[face].displaced_by == (holders[0] if holders else None)
    decided = {face: row[0].subject for face, row in enumerate(remaining) if row and row[0].score >= floor}
    assert decided == expected
    for face, row in enumerate(remaining):
        taken = {subject for other, subject in expected.items() if other != face}
        assert row == [ranked for ranked in rankings[face] if ranked.subject not in taken]


def test_a_population_is_warned_of_by_the_next_stricter_threshold_that_was_measured() -> None:
    manifest = select(find_packages(PROJECT / "models"), "sface").manifest
    thresholds = Thresholds(manifest.model_copy(update={"bias_card": card(manifest)}))

    def found(threshold: float, fmr: float, *names: str) -> list[tuple[str, float | None]]:
        warnings = population_warnings(thresholds, None, VerifyPoint(threshold, fmr), names or ("children",)) or ()
        for warning in warnings:
            rates = (0.18, 0.2, 0.22) if warning.code == exceeded else (None, None, None)
            assert (warning.fmr_found_low, warning.fmr_found, warning.fmr_found_high) == pytest.approx(rates)
        return [
            (warning.code, next((at for at in STATED.values() if f"the score {at:.3f} " in warning.message), None))
            for warning in warnings
        ]

    low, high = STATED.values()
    exceeded, unmeasured = "population_rate_exceeded", ("population_not_measured", None)
    assert found(low, 1e-2) == [(exceeded, low)]
    assert found(low - 0.1, 0.1) == [(exceeded, low)]
    assert found(low + 0.01, 1e-3) == found(high, 1e-4) == [(exceeded, high)]
    assert found(low, 0.19) == found(high + 0.01, 1e-6) == []
    assert found(high, 1e-4, "adults") == []
    assert found(high, 1e-4, "nobody", "children") == [unmeasured, (exceeded, high)]
    assert population_warnings(THRESHOLDS, None, VerifyPoint(0.4, 1e-4)) is None


def test_templates_of_different_packages_do_not_compare() -> None:
    vector = np.array([0.6, 0.8], np.float32)
    assert cosine(Template(vector, "a@1"), Template(vector, "a@1")) == pytest.approx(1.0)
    with pytest.raises(Conflict) as caught:
        cosine(Template(vector, "a@1"), Template(vector, "b@1"))
    assert caught.value.code == "package_mismatch"


@given(
    gaps=st.lists(st.floats(min_value=0.003, max_value=0.2), min_size=1, max_size=6),
    asked=st.lists(st.floats(min_value=-1, max_value=1), max_size=2),
    found=st.lists(st.floats(min_value=-1, max_value=1), max_size=6),
)
def test_answered_scores_decide_and_order_as_the_exact_ones(
    gaps: list[float], asked: list[float], found: list[float]
) -> None:
    """At every measured operating point, whatever they are, and at the request's own thresholds."""
    points = [min(0.1 + sum(gaps[:n]), 1.0) for n in range(len(gaps) + 1)]
    thresholds = packages.thresholds({10.0 ** -(2 + n): point for n, point in enumerate(sorted(set(points)))})
    scores = AnsweredScores.of(thresholds, *asked, exact=False)
    deciding = [*points, *(threshold for threshold in asked if threshold > points[0])]
    ranking = [candidate(str(n), score) for n, score in enumerate(sorted(found, reverse=True))]
    answered = scores.candidates(ranking)
    assert [ranked.subject for ranked in answered] == [
        ranked.subject for ranked in ranking if ranked.score >= points[0]
    ]
    assert all(earlier.score >= later.score for earlier, later in pairwise(answered) if earlier.score and later.score)
    for shown in answered:
        assert shown.score is not None
        assert shown.score <= shown.exact
        assert all((shown.score >= point) == (shown.exact >= point) for point in deciding)
    assert AnsweredScores.of(thresholds, exact=True).candidates(ranking) == [
        AnsweredCandidate(ranked.subject, None, ranked.subject, ranked.score, ranked.score, ranked.score)
        for ranked in ranking
    ]


def test_without_operating_points_only_exact_scores_are_answered() -> None:
    with pytest.raises(OperatingPointUnavailable):
        AnsweredScores.of(packages.thresholds({}), exact=False)
    assert AnsweredScores.of(packages.thresholds({}), exact=True).answered(-0.2) == -0.2


SCORED = st.lists(st.dictionaries(st.sampled_from("abc"), st.floats(-1, 1), max_size=3), max_size=4)


@given(SCORED)
def test_a_photo_shows_one_score_of_each_subject(photo: list[dict[str, float]]) -> None:
    """Every face keeps its names, their order and what they reach; no score is lifted."""
    scores = AnsweredScores.of(packages.thresholds(STATED), exact=False)
    rankings = [[candidate(*pair) for pair in sorted(face.items(), key=itemgetter(1), reverse=True)] for face in photo]
    answered = of_photo(scores, rankings)
    fine = list[str]()
    for found, alone in zip(answered, map(scores.candidates, rankings), strict=True):
        assert [ranked.subject for ranked in found] == [ranked.subject for ranked in alone]
        shown = [seen.score for seen in found if seen.score is not None]
        assert shown == sorted(shown, reverse=True)
        assert len(shown) == len(found)
        for answer, score in zip(found, shown, strict=True):
            assert score <= answer.exact
            assert [score >= point for point in scores.thresholds] == [
                answer.exact >= point for point in scores.thresholds
            ]
        fine += [seen.subject for seen, score in zip(found, shown, strict=True) if score not in scores.thresholds]
    assert len(fine) == len(set(fine))
