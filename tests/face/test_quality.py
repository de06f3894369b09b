"""Quality falls with everything that makes a face harder to compare, and says with what."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.face.align import align
from app.face.detect import Detector
from app.face.formats import Limits
from app.face.quality import Measures, QualityLevel, grade, measure
from app.pipeline import Pipeline
from app.types import CANONICAL_LANDMARKS, Box, Detection, Face, Pixels, Quality, Reason
from tests.support import degraded
from tests.support.images import encoded

BEST = Measures(size=200.0, sharpness=1.0, brightness=128.0, overexposed=0.0, pose=0.0, cut_off=0.0, score=0.95)
WORSE = {
    "size": (200.0, 10.0),
    "sharpness": (1.0, 0.0),
    "brightness": (128.0, 0.0),
    "overexposed": (0.0, 1.0),
    "pose": (0.0, 1.0),
    "cut_off": (0.0, 1.0),
    "score": (0.95, 0.0),
}
REASON_OF = {
    "size": Reason.SMALL_FACE,
    "sharpness": Reason.LOW_SHARPNESS,
    "brightness": Reason.LOW_BRIGHTNESS,
    "overexposed": Reason.OVEREXPOSED,
    "pose": Reason.EXTREME_POSE,
    "cut_off": Reason.CUT_OFF,
    "score": Reason.LOW_SCORE,
}
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def pipeline(yunet: Path) -> Pipeline:
    return Pipeline(Detector(yunet), Limits())


def face_of(pipeline: Pipeline, photo: Pixels) -> Face:
    return pipeline.detect(encoded(photo)).faces[0]


def test_the_best_measures_give_100_and_no_reason() -> None:
    assert grade(BEST) == Quality(100.0, ())


@pytest.mark.parametrize("name", WORSE)
def test_each_measure_lowers_the_score_all_the_way_down_and_is_named(name: str) -> None:
    best, worst = WORSE[name]
    scores = [grade(dataclasses.replace(BEST, **{name: value})) for value in np.linspace(best, worst, 50).tolist()]
    values = [quality.score for quality in scores]
    assert values == sorted(values, reverse=True)
    assert values[-1] < QualityLevel.MEDIUM.minimum
    assert scores[-1].reasons == (REASON_OF[name],)
    assert all(set(quality.reasons) <= {REASON_OF[name]} for quality in scores)


@given(st.builds(Measures, *[st.floats(-10, 1000) for _ in dataclasses.fields(Measures)]))
def test_scores_stay_within_0_and_100(measures: Measures) -> None:
    graded = grade(measures)
    assert 0 <= graded.score <= 100
    assert list(graded.reasons) == [reason for reason in Reason if reason in graded.reasons]


@given(st.sampled_from(sorted(WORSE)), st.sampled_from(sorted(WORSE)), st.floats(0, 1), st.floats(0, 1))
def test_a_second_flaw_never_helps(flaw: str, other: str, much: float, more: float) -> None:
    def at(name: str, share: float) -> float:
        best, worst = WORSE[name]
        return best + share * (worst - best)

    first = dataclasses.replace(BEST, **{flaw: at(flaw, much)})
    worse = max(at(other, more), at(flaw, much), key=lambda value: badness(other, value))
    second = dataclasses.replace(first, **{other: worse})
    assert grade(second).score <= grade(first).score


def badness(name: str, value: float) -> float:
    best, worst = WORSE[name]
    return (value - best) / (worst - best)


def test_levels_rise() -> None:
    minimums = [level.minimum for level in QualityLevel]
    assert minimums == sorted(minimums)
    assert minimums[0] == 0
    assert len(set(minimums)) == len(minimums)


def test_a_studio_portrait_passes_the_highest_gate(pipeline: Pipeline, astronaut: Pixels) -> None:
    graded = face_of(pipeline, astronaut).quality
    assert graded.score >= QualityLevel.HIGH.minimum
    assert graded.reasons == ()


@pytest.mark.parametrize(
    ("worse", "reason"),
    [
        (lambda photo: np.asarray(cv2.GaussianBlur(photo, (0, 0), 4), np.uint8), Reason.LOW_SHARPNESS),
        (lambda photo: degraded.smeared(photo, 27, RNG), Reason.UNALIGNABLE),
        (lambda photo: degraded.shrunk(photo, 0.2), Reason.SMALL_FACE),
        (lambda photo: (photo * 0.06).astype(np.uint8), Reason.LOW_BRIGHTNESS),
        (lambda photo: np.clip(photo.astype(np.int16) + 110, 0, 255).astype(np.uint8), Reason.OVEREXPOSED),
        (lambda photo: degraded.nodded(photo, 60), Reason.EXTREME_POSE),
        (lambda photo: photo[100:], Reason.CUT_OFF),
    ],
)
def test_a_photo_made_worse_scores_lower_and_says_why(
    pipeline: Pipeline, astronaut: Pixels, worse: Callable[[Pixels], Pixels], reason: Reason
) -> None:
    before = face_of(pipeline, astronaut).quality
    after = face_of(pipeline, worse(astronaut)).quality
    assert after.score < before.score - 10
    assert reason in after.reasons


def test_tilting_the_head_is_no_flaw(astronaut: Pixels) -> None:
    """The crop is upright whatever the tilt: pose is what remains after shift, scale and turn."""
    for degrees in (0, 33, 180):
        angle = math.radians(degrees)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        landmarks = ((CANONICAL_LANDMARKS - 56) @ turn.T * 1.5 + 256).astype(np.float32)
        detection = Detection(Box(180, 160, 150, 190), landmarks, 0.9)
        measured = measure(align(astronaut, landmarks), detection, 512, 512)
        frontal = measure(align(astronaut, CANONICAL_LANDMARKS), dataclasses.replace(
            detection, landmarks=CANONICAL_LANDMARKS.astype(np.float32)), 512, 512)  # fmt: skip
        assert measured.pose == pytest.approx(frontal.pose, abs=1e-3)


@pytest.mark.parametrize(("dx", "dy"), [(-80, 0), (0, -80), (456, 300), (300, 456)])
def test_a_face_half_outside_of_the_photo_is_cut_off(astronaut: Pixels, dx: float, dy: float) -> None:
    landmarks = (CANONICAL_LANDMARKS + np.array([dx, dy])).astype(np.float32)
    detection = Detection(Box(20.0 + dx, 20.0 + dy, 80, 100), landmarks, 0.9)
    graded = grade(measure(align(astronaut, landmarks), detection, 512, 512))
    assert Reason.CUT_OFF in graded.reasons


def test_flat_and_empty_crops_are_graded_without_a_number_going_wrong() -> None:
    point = np.zeros((5, 2), np.float32)
    for value, box in itertools.product((0, 128, 255), (Box(0, 0, 0, 0), Box(-5, -5, 1, 1))):
        crop = np.full((112, 112, 3), value, np.uint8)
        measures = measure(crop, Detection(box, point, 0.0), 1, 1)
        assert grade(measures).score == 0
        assert measures.sharpness == 0
