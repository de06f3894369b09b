"""The cut around a face is the models' own, whatever the box."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.face.align import Cut, cut_face
from app.package.manifest import LivenessCut
from app.types import Box, Pixels

FACENOX = Cut(128, LivenessCut(scale=1.5))
MINIVISION = Cut(80, LivenessCut(scale=2.7, shape="box", edge="move", resize="linear"))


def photo(rows: int = 240, columns: int = 320, seed: int = 0) -> Pixels:
    """A picture with gradients and noise: neighbouring pixels are alike, as in photos."""
    noise = np.random.default_rng(seed).normal(0, 40, (rows // 24 + 2, columns // 24 + 2, 3)).astype(np.float32)
    smooth = cv2.resize(noise, (columns, rows), interpolation=cv2.INTER_CUBIC) + np.linspace(60, 190, columns)[:, None]
    return np.asarray(np.clip(smooth, 0, 255), np.uint8)


def minivision(pixels: Pixels, box: Box, scale: float, side: int) -> Pixels:
    """The published `CropImage`, step by step: the slow oracle."""
    rows, columns = pixels.shape[:2]
    scale = min((rows - 1) / box.height, (columns - 1) / box.width, scale)
    width, height = box.width * scale, box.height * scale
    left, top = box.x + box.width / 2 - width / 2, box.y + box.height / 2 - height / 2
    right, bottom = left + width, top + height
    if left < 0:
        right, left = right - left, 0.0
    if top < 0:
        bottom, top = bottom - top, 0.0
    if right > columns - 1:
        left, right = left - (right - columns + 1), columns - 1.0
    if bottom > rows - 1:
        top, bottom = top - (bottom - rows + 1), rows - 1.0
    part = pixels[int(top) : int(bottom) + 1, int(left) : int(right) + 1]
    return np.asarray(cv2.resize(part, (side, side)), np.uint8)


def facenox(pixels: Pixels, box: Box, scale: float, side: int) -> Pixels:
    """The published crop: padded by reflection first, then resized by area."""
    rows, columns = pixels.shape[:2]
    size = int(max(box.width, box.height) * scale)
    left, top = int(box.x + box.width / 2 - size / 2), int(box.y + box.height / 2 - size / 2)
    part = pixels[max(0, top) : min(rows, top + size), max(0, left) : min(columns, left + size)]
    padding = max(0, -top), max(0, top + size - rows), max(0, -left), max(0, left + size - columns)
    padded = cv2.copyMakeBorder(part, *padding, cv2.BORDER_REFLECT_101)
    return np.asarray(cv2.resize(padded, (side, side), interpolation=cv2.INTER_AREA), np.uint8)


BOXES = [Box(100, 60, 110, 130), Box(5.5, 8, 120, 140), Box(230, 130, 85, 105), Box(90, 30, 150, 190)]


@pytest.mark.parametrize("box", BOXES)
def test_a_moved_cut_is_minivisions_own(box: Box) -> None:
    assert np.array_equal(cut_face(photo(), box, MINIVISION), minivision(photo(), box, 2.7, 80))


@pytest.mark.parametrize("box", BOXES)
def test_a_reflected_cut_is_facenoxs_but_for_rounding(box: Box) -> None:
    picture, expected = cut_face(photo(), box, FACENOX), facenox(photo(), box, 1.5, 128)
    assert np.abs(picture.astype(int) - expected).mean() < 4
    shifted = facenox(photo(), Box(box.x + 20, box.y, box.width, box.height), 1.5, 128)
    assert np.abs(shifted.astype(int) - expected).mean() > 8, "the oracle tells cuts apart"


numbers = st.floats(-1e5, 1e5)
sizes = st.floats(0, 1e5)


@given(
    box=st.builds(Box, numbers, numbers, sizes, sizes),
    rows=st.integers(1, 60),
    columns=st.integers(1, 60),
    turned=st.sampled_from([0, 90, 180, 270]),
    how=st.builds(
        LivenessCut,
        scale=st.floats(1, 8),
        shape=st.sampled_from(["square", "box"]),
        edge=st.sampled_from(["reflect", "move"]),
        resize=st.sampled_from(["area", "linear"]),
    ),
)
@settings(max_examples=200, deadline=None)
def test_any_box_in_any_photo_gives_a_picture(box: Box, rows: int, columns: int, turned: int, how: LivenessCut) -> None:
    picture = cut_face(photo(rows, columns), box, Cut(24, how), turned=turned)
    assert picture.shape == (24, 24, 3)
    assert picture.dtype == np.uint8


@pytest.mark.parametrize("cut", [FACENOX, MINIVISION])
def test_a_photo_on_its_side_gives_an_upright_picture(cut: Cut) -> None:
    upright, box = photo(), BOXES[0]
    expected = cut_face(upright, box, cut)
    lying = np.ascontiguousarray(np.rot90(upright))  # counter-clockwise: turned back by 90 degrees
    on_side = Box(box.y, upright.shape[1] - box.x - box.width, box.height, box.width)
    picture = cut_face(lying, on_side, cut, turned=90)
    assert np.abs(picture.astype(int) - expected).mean() < 5


def test_a_large_cut_makes_no_large_copy() -> None:
    how = LivenessCut(scale=8)
    picture = cut_face(np.full((2000, 2000, 3), 77, np.uint8), Box(-1e5, -1e5, 2e5, 2e5), Cut(32, how))
    assert (picture == 77).all()
