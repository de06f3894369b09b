"""Augmentation: each change is what its name says, seeded, never in place, as often as asked."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from app.errors import InvalidInput
from app.types import CANONICAL_LANDMARKS, Pixels
from training.data.augment import (
    CHANGES,
    Augment,
    blur,
    colour,
    crop_and_paste,
    dark_glasses,
    flip,
    grey,
    jpeg,
    low_resolution,
    mask,
    noise,
    occlusion,
    rectangle,
)
from training.recipe import Augmentation, parse_recipe


@pytest.fixture(scope="module")
def crop(astronaut: NDArray[np.uint8]) -> Pixels:
    face = np.asarray(cv2.resize(astronaut[40:200, 140:300], (112, 112), interpolation=cv2.INTER_AREA), np.uint8)
    face.flags.writeable = False  # a change in place would raise
    return face


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", CHANGES)
def test_every_change_gives_a_crop_from_its_seed_alone(name: str, crop: Pixels) -> None:
    outcomes = [CHANGES[name](crop, _rng(seed)) for seed in range(8)]
    for seed, out in enumerate(outcomes):
        assert out.shape == crop.shape
        assert out.dtype == np.uint8
        assert out.flags.c_contiguous
        np.testing.assert_array_equal(out, CHANGES[name](crop, _rng(seed)))
    assert any((out != crop).any() for out in outcomes)


@given(
    seed=st.integers(0, 2**32),
    height=st.integers(8, 40),
    width=st.integers(8, 40),
    value=st.sampled_from([0, 127, 255]),
)
def test_all_changes_together_survive_any_size_and_flat_images(seed: int, height: int, width: int, value: int) -> None:
    flat = np.full((height, width, 3), value, np.uint8)
    out = Augment(Augmentation.model_validate(dict.fromkeys(CHANGES, 1.0)))(flat, _rng(seed))
    assert out.shape == flat.shape
    assert out.dtype == np.uint8
    assert (flat == value).all()


def test_nothing_named_nothing_changed(crop: Pixels) -> None:
    np.testing.assert_array_equal(Augment(Augmentation())(crop, _rng(0)), crop)


def test_a_change_comes_as_often_as_asked(crop: Pixels) -> None:
    """300 draws at 0.3: within four standard deviations (0.1) of it."""
    augment = Augment(Augmentation(flip=0.3))
    changed = np.mean([(augment(crop, _rng(seed)) != crop).any() for seed in range(300)])
    assert abs(changed - 0.3) < 0.11


def test_one_changes_lot_never_moves_anothers(crop: Pixels) -> None:
    """Whether a crop is flipped is the same with and without another change."""
    alone = Augment(Augmentation(flip=0.5))
    both = Augment(Augmentation(flip=0.5, grey=1.0))
    for seed in range(20):
        np.testing.assert_array_equal(both(crop, _rng(seed)), grey(alone(crop, _rng(seed)), _rng(0)))


def test_flipping_twice_gives_the_crop_back(crop: Pixels) -> None:
    np.testing.assert_array_equal(flip(flip(crop, _rng(0)), _rng(0)), crop)
    np.testing.assert_array_equal(flip(crop, _rng(0))[:, 0], crop[:, -1])


def test_crop_and_paste_leaves_one_rectangle_in_its_place(crop: Pixels) -> None:
    bright = np.maximum(crop, 1)
    for seed in range(20):
        out = crop_and_paste(bright, _rng(seed))
        kept = (out != 0).all(axis=2)
        rows, columns = np.flatnonzero(kept.any(axis=1)), np.flatnonzero(kept.any(axis=0))
        assert kept.sum() == len(rows) * len(columns)
        np.testing.assert_array_equal(out[kept], bright[kept])
        assert 0.15 < kept.mean() <= 1


def test_a_rectangle_covers_a_part_and_leaves_the_rest(crop: Pixels) -> None:
    for seed in range(20):
        changed = (rectangle(crop, _rng(seed)) != crop).any(axis=2)
        assert 0.01 < changed.mean() < 0.3


def test_a_mask_hides_the_mouth_and_leaves_the_eyes(crop: Pixels) -> None:
    eyes, mouth = (np.rint(CANONICAL_LANDMARKS[rows]).astype(int) for rows in (slice(2), slice(3, 5)))
    for seed in range(20):
        changed = (mask(crop, _rng(seed)) != crop).any(axis=2)
        assert changed[mouth[:, 1], mouth[:, 0]].all()
        assert not changed[eyes[:, 1], eyes[:, 0]].any()


def test_dark_glasses_hide_the_eyes_and_leave_the_mouth(crop: Pixels) -> None:
    eyes, mouth = (np.rint(CANONICAL_LANDMARKS[rows]).astype(int) for rows in (slice(2), slice(3, 5)))
    for seed in range(20):
        out = dark_glasses(crop, _rng(seed))
        assert (out[eyes[:, 1], eyes[:, 0]] < 64).all()
        np.testing.assert_array_equal(out[mouth[:, 1], mouth[:, 0]], crop[mouth[:, 1], mouth[:, 0]])


def test_occlusion_is_now_one_thing_now_another(crop: Pixels) -> None:
    assert len({occlusion(crop, _rng(seed)).tobytes() for seed in range(12)}) > 6


def test_grey_is_luma_in_all_channels(crop: Pixels) -> None:
    out = grey(crop, _rng(0))
    assert (out == out[:, :, :1]).all()
    np.testing.assert_allclose(out[:, :, 0], cv2.cvtColor(crop, cv2.COLOR_RGB2GRAY), atol=1)


def test_colour_keeps_the_face_recognisable(crop: Pixels) -> None:
    """Brightness, contrast and saturation leave the picture strongly correlated with itself."""
    for seed in range(20):
        out = colour(crop, _rng(seed))
        assert np.corrcoef(out.ravel(), crop.ravel())[0, 1] > 0.8


def _detail(image: Pixels) -> float:
    return float(cv2.Laplacian(image, cv2.CV_32F).std())


def test_blur_takes_detail_away_and_keeps_the_mean(crop: Pixels) -> None:
    for seed in range(20):
        out = blur(crop, _rng(seed))
        assert _detail(out) < _detail(crop)
        assert abs(out.mean() - crop.mean()) < 2


def test_low_resolution_takes_detail_away(crop: Pixels) -> None:
    assert np.mean([_detail(low_resolution(crop, _rng(seed))) for seed in range(20)]) < 0.8 * _detail(crop)


def test_noise_is_of_the_size_that_it_says(crop: Pixels) -> None:
    grey_crop = np.full_like(crop, 128)
    deviations = [noise(grey_crop, _rng(seed)).std() for seed in range(40)]
    assert min(deviations) > 1.9
    assert max(deviations) < 16.2


def test_jpeg_keeps_channels_in_order_and_costs_a_little(crop: Pixels) -> None:
    red = np.zeros_like(crop)
    red[:, :, 0] = 200
    assert jpeg(red, _rng(0))[:, :, 0].mean() > 150
    errors = [np.abs(jpeg(crop, _rng(seed)).astype(int) - crop).mean() for seed in range(20)]
    assert min(errors) > 0
    assert max(errors) < 20


def test_settings_come_from_a_recipe_and_unknown_ones_are_answered_with_the_nearest() -> None:
    recipe = {"name": "mine", "losses": [{"name": "arcface"}]}
    assert parse_recipe(recipe | {"augment": {"jpeg": 0.5, "blur": 1}}).augment == Augmentation(jpeg=0.5, blur=1.0)
    with pytest.raises(InvalidInput, match=r"'augment\.occlusion'"):
        parse_recipe(recipe | {"augment": {"oclusion": 0.1}})
    for value in (1.5, -0.1, float("nan"), "0.5", True):
        with pytest.raises(InvalidInput, match=r"augment\.jpeg"):
            parse_recipe(recipe | {"augment": {"jpeg": value}})
    assert [*CHANGES, "own"] == list(Augmentation.model_fields)
