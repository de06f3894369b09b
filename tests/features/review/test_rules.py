"""The rules of a review against slow loops, and on small cases whose answer is plain."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from app.features.review import rules
from app.features.review.examine import Examiner, nearest_of
from app.features.review.rules import STRANGERS_FMR, Points, Within
from app.package.thresholds import Thresholds
from app.recognition.decisions import IdentifyPoint, VerifyPoint, verify_point
from app.search.types import FaceBlock
from app.types import UNKNOWN_QUALITY, Vectors
from tests.support.packages import calibration, manifest

POINTS = Points(VerifyPoint(0.5, 1e-4), IdentifyPoint(0.6, 0.4, 1e-5, 0.01), strangers=lambda _: 0.3, linked=0.4)


def vectors(count: int, seed: int, dimension: int = 8) -> Vectors:
    made = np.random.default_rng(seed).standard_normal((count, dimension)).astype(np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    return made


def within(best: list[float], second: list[float] | None = None, at: list[int] | None = None) -> Within:
    count = len(best)
    return Within(np.array(best), np.array(second or [-np.inf] * count), np.array(at or list(range(count))))


@pytest.mark.parametrize("count", [1, 2, 3, 40])
@pytest.mark.parametrize("rows_at_once", [1, 7, 1024])
def test_scores_with_its_own_subject_are_those_of_a_loop(
    count: int, rows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "ROWS_AT_ONCE", rows_at_once)
    faces = vectors(count, count)
    among = np.random.default_rng(count).random(count) < 0.8
    found = rules.compare_within(faces, among)
    for row in range(count):
        scores = {
            other: float(faces[row].astype(np.float64) @ faces[other].astype(np.float64))
            for other in range(count)
            if other != row and among[other]
        }
        ranked = [*sorted(scores.values(), reverse=True), -np.inf, -np.inf]
        assert found.best[row] == pytest.approx(ranked[0], abs=1e-6)
        assert found.second[row] == pytest.approx(ranked[1], abs=1e-6)
        assert found.at[row] == (max(scores, key=lambda other: scores[other]) if scores else -1)


def test_two_subjects_compare_as_in_a_loop() -> None:
    one, other = vectors(4, 1), vectors(7, 2)
    points = Points(VerifyPoint(0.3, 1e-4), POINTS.identify, POINTS.strangers, POINTS.linked)
    found = rules.compare_subjects(one, other, points)
    scores = {(a, b): float(one[a] @ other[b]) for a in range(4) for b in range(7)}
    best = max(scores, key=lambda pair: scores[pair])
    assert (found.row, found.other_row) == best
    assert found.score == pytest.approx(scores[best], abs=1e-6)
    of_one = [max(scores[a, b] for b in range(7)) for a in range(4)]
    of_other = [max(scores[a, b] for a in range(4)) for b in range(7)]
    assert found.matching == min(np.mean([s >= 0.3 for s in of_one]), np.mean([s >= 0.3 for s in of_other]))
    assert found.typical == pytest.approx((np.mean(of_one) + np.mean(of_other)) / 2, abs=1e-6)


@pytest.mark.parametrize("faces", [2, 5, 10])
def test_as_many_strangers_pass_for_a_face_of_many_as_for_one_of_two(faces: int) -> None:
    """A face's score with its own subject is the best of several: at ten faces, one threshold for all let 9 % of
    strangers pass where 1 % was meant."""
    dimension, draws = 32, 40_000
    scores = vectors(draws, 1, dimension) @ vectors(1, 2, dimension)[0]
    measured = {fmr: float(np.quantile(scores, 1 - fmr)) for fmr in (1e-1, 1e-2, 1e-3, 1e-4)}
    thresholds = Thresholds(manifest(calibrations=(calibration(measured).model_copy(update={"independence": 1.0}),)))
    points = Points(
        POINTS.verify,
        POINTS.identify,
        lambda others: verify_point(thresholds, None, STRANGERS_FMR, others).threshold,
        linked=1.0,
    )
    keys, some = np.arange(faces), vectors(faces, 3, dimension)
    block = FaceBlock(keys, np.zeros(faces, np.int64), np.full(faces, 90, np.float32), some)
    drafts, _ = Examiner(points, lambda _: None, lambda _: {}).examine(block, nearest_of([[]] * faces, 1), {})
    threshold = next(one for one in drafts if one.kind == "outlier").evidence.threshold
    best = np.max([vectors(draws, 10 + seed, dimension) @ some[seed] for seed in range(faces - 1)], axis=0)
    assert 0.5 * STRANGERS_FMR < np.mean(best >= threshold) < 1.5 * STRANGERS_FMR


def test_a_poor_face_that_another_face_of_its_subject_needs_is_kept() -> None:
    qualities = np.array([10, 10, 95], np.float32)
    other = np.array([0.55, 0.55, 0.55])
    free = within([0.7, 0.7, 0.7], second=[0.6, 0.6, 0.6], at=[1, 0, 0])
    assert rules.find_harmful(free, other, qualities, POINTS).tolist() == [True, True, False]
    needed = within([0.7, 0.7, 0.7], second=[0.6, 0.6, 0.1], at=[1, 0, 0])
    assert rules.find_harmful(needed, other, qualities, POINTS).tolist() == [False, True, False]
    far = np.array([0.1, 0.1, 0.1])
    assert not rules.find_harmful(free, far, qualities, POINTS).any()
    assert not rules.find_harmful(within([-np.inf], at=[-1]), np.array([0.9]), qualities[:1], POINTS).any()


@pytest.mark.parametrize("threshold", np.linspace(0.1, 0.9, 9))
def test_a_stricter_operating_point_never_finds_more_pairs(threshold: float) -> None:
    def pairs(at: float) -> NDArray[np.bool_]:
        points = Points(VerifyPoint(at, 1e-4), IdentifyPoint(at + 0.05, at - 0.05, 1e-5, 0.01), POINTS.strangers, at)
        groups = [vectors(3, seed, dimension=3) for seed in range(12)]
        return np.array(
            [[rules.may_be_one(rules.compare_subjects(a, b, points), points) for a in groups] for b in groups]
        )

    assert not (pairs(threshold + 0.1) & ~pairs(threshold)).any()


def test_two_people_in_one_subject_are_two_groups_whoever_is_linked_by_a_chain() -> None:
    """Each person's faces are 40 degrees apart, so that the first and the last of one match only through others; at
    70 degrees the two people are as alike as one pair of strangers in a hundred."""
    angles = np.deg2rad([0, 40, 80, 180, 220, 260, 290])
    faces = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1).astype(np.float32)
    alone = np.array([[0, 0, 1]], np.float32)
    points = Points(POINTS.verify, POINTS.identify, POINTS.strangers, linked=float(np.cos(np.deg2rad(45))))
    found = rules.find_groups(np.concatenate([faces, alone]), points)
    assert [rows.tolist() for rows in found] == [[3, 4, 5, 6], [0, 1, 2], [7]]


@pytest.mark.parametrize(("quality", "told"), [(90, True), (UNKNOWN_QUALITY, True), (10, False)])
def test_a_persons_profiles_are_no_second_person(quality: float, told: bool) -> None:
    """They look like each other and not like the front; pairs of two real people have good faces."""
    front, side = np.eye(4, dtype=np.float32)[:2]
    own_vectors = np.stack([front, front, front, side, side])
    qualities = np.array([90, 90, 90, quality, quality], np.float32)
    block = FaceBlock(np.arange(5), np.zeros(5, np.int64), qualities, own_vectors)
    drafts, _ = Examiner(POINTS, lambda _: None, lambda _: {}).examine(block, nearest_of([[]] * 5, 1), {})
    assert ("two_people" in [draft.kind for draft in drafts]) == told


def test_a_face_of_unknown_quality_is_no_outlier() -> None:
    """It may be turned away, which a quality would tell."""
    qualities = np.array([90, UNKNOWN_QUALITY, 10, 90], np.float32)
    assert rules.find_outliers(within([0.1, 0.1, 0.1, 0.9]), qualities, 0.3).tolist() == [True, False, False, False]
