"""The same face gives the same crop, wherever and however large it stands in the photo."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.face.align import align, scale_of, similarity_transform, warp
from app.face.confirm import VIEW_LANDMARKS, VIEW_SIDE, _Faces, find_faces
from app.face.detect import OFFSET, Detector
from app.inference.session import Session
from app.package.manifest import CROP_SIDE
from app.types import CANONICAL_LANDMARKS, Box, Detection, Pixels

ASTRONAUT_LANDMARKS = np.array([[200.1, 101.8], [247.2, 102.6], [220.3, 124.7], [198.9, 143.2], [239.8, 143.9]])
COORDINATES = st.floats(-1000, 1000, width=32)
POINTS = st.lists(st.tuples(COORDINATES, COORDINATES), min_size=5, max_size=5).map(np.array)


def turned(
    points: NDArray[np.float64], degrees: float, scale: float, shift: tuple[float, float]
) -> NDArray[np.float64]:
    angle = math.radians(degrees)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    moved: NDArray[np.float64] = scale * points @ rotation.T + shift
    return moved


def spread(points: NDArray[np.float64]) -> float:
    return float(np.square(points - points.mean(axis=0)).sum())


def warped(photo: Pixels, matrix: NDArray[np.float64], size: tuple[int, int]) -> Pixels:
    return np.asarray(cv2.warpAffine(photo, matrix, size, flags=cv2.INTER_CUBIC), np.uint8)


@given(POINTS.filter(lambda p: spread(p) > 1), POINTS)
def test_transform_is_scikit_images(src: NDArray[np.float64], dst: NDArray[np.float64]) -> None:
    ours = similarity_transform(src, dst)
    # Where the best similarity collapses to a point its turn means nothing, and theirs is undefined.
    if scale_of(ours) > 1e-6 * math.sqrt(spread(dst) + 1):
        np.testing.assert_allclose(ours, reference(src, dst), atol=1e-6 * (1 + np.abs(src).max()), rtol=1e-6)


def reference(src: NDArray[np.float64], dst: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares over the four parameters, solved as plain linear equations."""
    rows, values = [], []
    for (x, y), (u, v) in zip(src, dst, strict=True):
        rows += [[x, -y, 1, 0], [y, x, 0, 1]]
        values += [u, v]
    a, b, tx, ty = np.linalg.lstsq(np.array(rows, float), np.array(values, float), rcond=None)[0]
    return np.array([[a, -b, tx], [b, a, ty]])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_landmarks_that_are_no_numbers_are_refused(value: float) -> None:
    landmarks = ASTRONAUT_LANDMARKS.copy()
    landmarks[2, 0] = value
    with pytest.raises(ValueError, match="finite"):
        similarity_transform(landmarks, CANONICAL_LANDMARKS)


def test_landmarks_all_in_one_place_are_refused() -> None:
    with pytest.raises(ValueError, match="one place"):
        similarity_transform(np.full((5, 2), 7.0), CANONICAL_LANDMARKS)


def test_a_photo_that_is_already_aligned_stays_as_it_is(astronaut: Pixels) -> None:
    crop = align(astronaut, ASTRONAUT_LANDMARKS)
    assert crop.shape == (CROP_SIDE, CROP_SIDE, 3)
    assert crop.dtype == np.uint8
    np.testing.assert_array_equal(align(crop, CANONICAL_LANDMARKS), crop)


@settings(max_examples=25)
@given(dx=st.integers(-60, 200), dy=st.integers(-20, 200))
def test_shifting_the_photo_gives_the_same_crop(dx: int, dy: int) -> None:
    photo = noise_photo()
    landmarks = CANONICAL_LANDMARKS * 1.3 + (90, 60)
    shifted = np.zeros((512, 512, 3), np.uint8)
    left, top = max(0, -dx), max(0, -dy)
    part = photo[top:300, left:300]
    shifted[top + dy : top + dy + part.shape[0], left + dx : left + dx + part.shape[1]] = part
    crop = align(shifted, landmarks + np.array([dx, dy]))
    np.testing.assert_allclose(crop.astype(int), align(photo, landmarks), atol=1)


@settings(max_examples=25)
@given(degrees=st.floats(-180, 180), scale=st.floats(0.9, 8))
def test_turning_and_scaling_the_photo_gives_nearly_the_same_crop(degrees: float, scale: float) -> None:
    photo = np.asarray(cv2.GaussianBlur(noise_photo(), (0, 0), 4), np.uint8)
    landmarks = CANONICAL_LANDMARKS * 1.0 + (90, 90)
    angle = math.radians(degrees)
    linear = scale * np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    size = int(300 * scale * 1.5)
    shift = np.full(2, size / 2) - linear @ (150, 150)
    moved = warped(photo, np.column_stack([linear, shift]), (size, size))
    difference = align(moved, landmarks @ linear.T + shift).astype(int) - align(photo, landmarks).astype(int)
    assert np.abs(difference).mean() < 2


def noise_photo() -> Pixels:
    return np.random.default_rng(0).integers(0, 256, (300, 300, 3), dtype=np.uint8)


def test_fine_detail_of_a_large_face_turns_grey_and_not_into_moire() -> None:
    """A checker of single pixels in a 12-megapixel portrait: only its mean can be shown at 112 pixels."""
    checker = np.zeros((4000, 3000, 3), np.uint8)
    checker[::2, ::2] = checker[1::2, 1::2] = 255
    landmarks = turned(CANONICAL_LANDMARKS - 56, 7.0, 2200 / 112, (1500, 2000))
    crop = align(checker, landmarks)
    assert np.abs(crop.astype(float) - 127.5).max() < 16
    plain = warped(checker, similarity_transform(landmarks, CANONICAL_LANDMARKS), (112, 112))
    assert plain.std() > 5 * crop.std()


@pytest.mark.parametrize("size", [(40_000, 120), (120, 40_000)])
def test_a_photo_longer_than_opencv_warps_is_aligned(size: tuple[int, int]) -> None:
    photo = np.zeros((*size, 3), np.uint8)
    photo[-112:, -112:] = noise_photo()[:112, :112]
    shift = (size[1] - 112, size[0] - 112)
    np.testing.assert_array_equal(align(photo, CANONICAL_LANDMARKS + shift), photo[-112:, -112:])


def test_what_lies_outside_of_the_photo_is_black(astronaut: Pixels) -> None:
    crop = align(astronaut[:, 215:], ASTRONAUT_LANDMARKS - (215, 0))
    assert not crop[40:80, :20].any()
    assert crop[40:80, 80:].any()


@pytest.mark.parametrize("shift", [(5000.0, 5000.0), (-5000.0, 0.0)])
def test_landmarks_far_outside_give_a_black_crop(astronaut: Pixels, shift: tuple[float, float]) -> None:
    assert not align(astronaut, ASTRONAUT_LANDMARKS + shift).any()


# --- The larger view, in which landmarks are measured again ----------------------------------------------------------


def view(photo: Pixels, landmarks: NDArray[np.float64]) -> Pixels:
    return warp(photo, similarity_transform(landmarks, VIEW_LANDMARKS), VIEW_SIDE)


class Agreeing(Detector):
    """Finds the landmarks exactly where they are expected."""

    def landmarks(self, _view: Pixels, expected: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
        return expected, 0.9


@pytest.fixture(scope="module")
def agreeing(yunet: Path) -> Agreeing:
    return Agreeing(yunet)


@given(
    degrees=st.floats(-180, 180),
    scale=st.floats(0.3, 6),
    shift=st.tuples(st.floats(-50, 400), st.floats(-50, 400)),
)
def test_a_views_points_go_back_to_where_they_were(
    agreeing: Agreeing, degrees: float, scale: float, shift: tuple[float, float]
) -> None:
    """Those of the view itself, and their mean with those of its mirror image."""
    landmarks = turned(CANONICAL_LANDMARKS, degrees, scale, shift).astype(np.float32)
    look = _Faces(noise_photo(), agreeing)._look(Detection(Box(0, 0, 1, 1), landmarks, 0.9))
    assert look is not None
    np.testing.assert_allclose(look.face.landmarks, landmarks, atol=1e-2)
    assert look.leans == pytest.approx(0, abs=1e-9)


def test_the_middle_of_a_view_is_the_crop_enlarged(astronaut: Pixels) -> None:
    smooth = np.asarray(cv2.GaussianBlur(astronaut, (0, 0), 2), np.uint8)
    seen = view(smooth, ASTRONAUT_LANDMARKS)
    difference = align(seen, VIEW_LANDMARKS).astype(int) - align(smooth, ASTRONAUT_LANDMARKS)
    assert np.abs(difference[8:]).mean() < 1  # the view begins a little below the crop's upper edge


def test_landmarks_measured_again_do_not_depend_on_where_the_face_stands(yunet: Path, astronaut: Pixels) -> None:
    """The same photo a few pixels further on: the crop moves less than with the first look's landmarks."""
    detector = Detector(yunet)
    corners = np.array([[20, 20], [92, 20], [20, 92], [92, 92]])
    places = []
    for again in (False, True):
        seen = []
        for dx, dy in ((0, 0), (5, 0), (0, 7), (11, 3), (3, 14)):
            part = np.ascontiguousarray(astronaut[dy : dy + 300, 60 + dx : 360 + dx])
            sights = detector.search(part)
            (face,) = find_faces(part, sights, detector, 20).faces if again else sights[:1]
            landmarks = face.landmarks + np.array([dx, dy])
            back = cv2.invertAffineTransform(similarity_transform(landmarks, CANONICAL_LANDMARKS))
            seen.append(corners @ back[:, :2].T + back[:, 2])
        places.append(np.std(seen, axis=0).mean())
    first_look, second_look = places
    assert second_look < 0.7 * first_look


def test_landmarks_are_the_mean_of_the_places_that_see_the_face(yunet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weighted by score; without a neighbour's face, and places that see it half as well as the best or worse."""
    expected = CANONICAL_LANDMARKS * 2

    def row(shift: float, score: float) -> list[float]:
        return [0, 0, 100, 100, *(expected + shift).ravel(), score]

    seen = np.array([row(4, 0.9), row(1, 0.6), row(-20, 0.44), row(150, 0.95)], np.float32)
    monkeypatch.setattr("app.face.yunet.YuNet.places", lambda *_, **__: seen)
    found = Detector(yunet).landmarks(np.zeros((256, 256, 3), np.uint8), expected)
    assert found is not None
    landmarks, score = found
    offset = OFFSET * np.linalg.norm(expected[1] - expected[0])
    np.testing.assert_allclose(landmarks, expected + (0.9 * 4 + 0.6 * 1) / 1.5 + offset, atol=1e-3)
    assert score == pytest.approx(0.9)


@pytest.mark.parametrize(("score", "views"), [(0.95, 1), (0.85, 2)])
def test_the_mirror_image_of_a_sure_upright_face_is_not_looked_at(
    yunet: Path, astronaut: Pixels, monkeypatch: pytest.MonkeyPatch, score: float, views: int
) -> None:
    for look in ("promising", "turned"):
        monkeypatch.setattr(Detector, look, lambda *_: [])
    detector, looked_at = Detector(yunet), list[int]()
    (sight,) = detector.detect(astronaut)[:1]
    run = Session.run

    def counted(session: Session, *inputs: NDArray[Any], **more: Any) -> Any:
        looked_at.append(inputs[0].size // 3)
        return run(session, *inputs, **more)

    monkeypatch.setattr(Session, "run", counted)
    (face,) = find_faces(astronaut, [replace(sight, score=score)], detector, 20).faces[:1]
    assert face.landmarks is not None
    assert sum(looked_at) == views * VIEW_SIDE**2


def test_no_landmarks_are_made_up_where_there_is_no_face(yunet: Path, astronaut: Pixels) -> None:
    detector = Detector(yunet)
    seen = view(astronaut, ASTRONAUT_LANDMARKS + np.array([100, 250]))
    assert detector.landmarks(seen, VIEW_LANDMARKS) is None
