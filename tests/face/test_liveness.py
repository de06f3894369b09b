"""The cut around a face is the models' own, whatever the box; scores are means over packages, in batches."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import LivenessUnavailable, Overloaded
from app.face.liveness import Cut, LivenessPackages, Scorer, cut_face
from app.inference.manifest import LivenessCut
from app.inference.package import find_packages
from app.inference.session import open_liveness
from app.types import Box, Pixels
from tests.support import liveness
from tests.support.packages import install as install_embedder

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
    found, expected = cut_face(photo(), box, FACENOX), facenox(photo(), box, 1.5, 128)
    assert np.abs(found.astype(int) - expected).mean() < 4
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
    found = cut_face(photo(rows, columns), box, Cut(24, how), turned=turned)
    assert found.shape == (24, 24, 3)
    assert found.dtype == np.uint8


@pytest.mark.parametrize("cut", [FACENOX, MINIVISION])
def test_a_photo_on_its_side_gives_an_upright_picture(cut: Cut) -> None:
    upright, box = photo(), BOXES[0]
    expected = cut_face(upright, box, cut)
    lying = np.ascontiguousarray(np.rot90(upright))  # counter-clockwise: turned back by 90 degrees
    on_side = Box(box.y, upright.shape[1] - box.x - box.width, box.height, box.width)
    found = cut_face(lying, on_side, cut, turned=90)
    assert np.abs(found.astype(int) - expected).mean() < 5


def test_a_large_cut_makes_no_large_copy() -> None:
    how = LivenessCut(scale=8)
    found = cut_face(np.full((2000, 2000, 3), 77, np.uint8), Box(-1e5, -1e5, 2e5, 2e5), Cut(32, how))
    assert (found == 77).all()


# --- Scores ----------------------------------------------------------------------------------------------------------


def cuts(count: int, seed: int = 0) -> list[Pixels]:
    levels = np.random.default_rng(seed).integers(0, 256, count)
    return [np.full((liveness.SIDE, liveness.SIDE, 3), level, np.uint8) for level in levels]


def scorer(folder: Path, *names: str) -> Scorer:
    packages = [
        liveness.install(folder / "models", liveness.brightness_model(middle=0.3 + 0.2 * place), name=name)
        for place, name in enumerate(names)
    ]
    return Scorer([(package, open_liveness(package, folder / "cache", "cpu")) for package in packages])


def test_scores_are_the_models_own_in_the_callers_order(tmp_path: Path) -> None:
    with_one = scorer(tmp_path, "one")
    pictures = cuts(20)
    expected = [1 / (1 + np.exp(-12 * (each[0, 0, 0] / 255 - 0.3))) for each in pictures]
    assert with_one.score([[each] for each in pictures]) == pytest.approx(expected, abs=1e-4)
    assert with_one.score([]) == []
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda each: with_one.score([[each]])[0], pictures))
    assert together == pytest.approx(expected, abs=1e-4)
    with_one.close()
    with pytest.raises(Overloaded):
        with_one.score([[pictures[0]]])


def test_several_packages_are_averaged(tmp_path: Path) -> None:
    both, first = scorer(tmp_path / "both", "one", "two"), scorer(tmp_path / "first", "one")
    picture = cuts(1)[0]
    second = 1 / (1 + np.exp(-12 * (picture[0, 0, 0] / 255 - 0.5)))
    assert len(both.cuts) == 2
    (mean,) = both.score([[picture, picture]])
    assert mean == pytest.approx((first.score([[picture]])[0] + second) / 2, abs=1e-4)
    both.close()
    first.close()


# --- The packages of a server ----------------------------------------------------------------------------------------


def packages(folder: Path, *names: str) -> LivenessPackages:
    return LivenessPackages(
        lambda: find_packages(folder / "models"), lambda one: open_liveness(one, folder / "cache", "cpu"), names
    )


def test_without_a_package_the_error_says_what_to_do_and_one_that_is_added_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    install_embedder(tmp_path / "models", "tiny")
    found = packages(tmp_path)
    with pytest.raises(LivenessUnavailable, match="models add") as caught:
        found.open()
    assert caught.value.details["reason"] == "none_installed"
    liveness.install(tmp_path / "models")
    with pytest.raises(LivenessUnavailable):  # not tried again at once
        found.open()
    monkeypatch.setattr("app.face.liveness.RETRY_S", 0.0)
    assert found.open().calibration is None
    found.close()
    with pytest.raises(Overloaded):
        found.open()


def test_of_several_packages_those_to_average_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        liveness.install(tmp_path / "models", name=name)
    with pytest.raises(LivenessUnavailable, match="LIKENESS_LIVENESS") as caught:
        packages(tmp_path).open()
    assert caught.value.details["reason"] == "not_named"
    named = packages(tmp_path, "two", "one", "two")
    assert [each.id for each in named.open().scorer.packages] == ["two@1", "one@1"]
    named.close()
    with pytest.raises(LivenessUnavailable, match="no model package 'three'"):
        packages(tmp_path, "three").open()


def test_a_damaged_file_is_an_error_not_a_silent_pass(tmp_path: Path) -> None:
    made = liveness.install(tmp_path / "models")
    (made.folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(LivenessUnavailable) as caught:
        packages(tmp_path).open()
    assert caught.value.details["reason"] == "package_hash_mismatch"


def test_operating_points_hold_for_the_packages_they_were_measured_with(tmp_path: Path) -> None:
    one, two = (liveness.install(tmp_path / "models", name=name) for name in ("one", "two"))
    liveness.install(tmp_path / "models", liveness.random_model(classes=2), name="three")
    alone, both = packages(tmp_path, "one"), packages(tmp_path, "two", "one")
    assert alone.open().calibration is None
    liveness.calibrate(one, live_from=0.6, spoof_below=0.4)
    found = alone.open().calibration  # written while the packages are in use
    assert found is not None
    assert found.points[-1].threshold == 0.6
    assert both.open().calibration is None
    liveness.calibrate(two, one, live_from=0.7, spoof_below=0.3)
    found = both.open().calibration
    assert found is not None
    assert found.points[-1].threshold == 0.7
    other = packages(tmp_path, "one", "three")
    assert other.open().calibration is None
    for each in (alone, both, other):
        each.close()
