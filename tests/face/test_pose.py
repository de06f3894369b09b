"""Head pose from five landmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.face.detect import Detector
from app.features.pose import MEAN_FACE, pose_of
from app.types import Landmarks


def seen(yaw: float, pitch: float, roll: float, scale: float = 1.0) -> Landmarks:
    """The mean face turned by degrees, in the same words as `Pose`, as a far camera sees it."""
    y, p, r = np.radians([yaw, -pitch, -roll])
    about_y = np.array([[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]])
    about_x = np.array([[1, 0, 0], [0, np.cos(p), -np.sin(p)], [0, np.sin(p), np.cos(p)]])
    about_z = np.array([[np.cos(r), -np.sin(r), 0], [np.sin(r), np.cos(r), 0], [0, 0, 1]])
    face = np.array(MEAN_FACE) * 40
    turned = face @ (about_z @ about_x @ about_y).T
    return np.asarray(turned[:, :2] * scale + 300, np.float32)


@given(st.floats(-75, 75), st.floats(-75, 75), st.floats(-170, 170), st.floats(0.2, 20))
def test_a_turned_mean_face_is_turned_by_as_much(yaw: float, pitch: float, roll: float, scale: float) -> None:
    pose = pose_of(seen(yaw, pitch, roll, scale))
    assert pose is not None
    assert (pose.yaw, pose.pitch, pose.roll) == pytest.approx((yaw, pitch, roll), abs=0.1)


def test_the_words_mean_what_they_say() -> None:
    """The nose of a face that looks to the photo's left lies left of the eyes' middle, and so on."""
    straight = seen(0, 0, 0)
    assert seen(30, 0, 0)[2, 0] < straight[2, 0]
    assert seen(0, 30, 0)[2, 1] - seen(0, 30, 0)[0, 1] < straight[2, 1] - straight[0, 1]
    assert seen(0, 0, 30)[0, 1] > seen(0, 0, 30)[1, 1], "leaning left, the eye on the left is the lower one"


@pytest.mark.parametrize("points", [np.zeros((5, 2)), np.full((5, 2), 7.0), np.tile(np.arange(5.0)[:, None], 2)])
def test_points_that_are_no_face_have_no_pose(points: NDArray[np.float64]) -> None:
    assert pose_of(points.astype(np.float32)) is None


def test_a_real_face_mirrored(yunet: Path, astronaut: NDArray[np.uint8]) -> None:
    detector = Detector(yunet)

    def of(pixels: NDArray[np.uint8]) -> tuple[float, float, float]:
        pose = pose_of(detector.detect(np.ascontiguousarray(pixels))[0].landmarks)
        assert pose is not None
        return pose.yaw, pose.pitch, pose.roll

    yaw, pitch, roll = of(astronaut)
    mirrored = of(astronaut[:, ::-1])
    assert mirrored == pytest.approx((-yaw, pitch, -roll), abs=6)
    assert max(abs(yaw), abs(pitch), abs(roll)) < 30, "she looks nearly into the camera"
