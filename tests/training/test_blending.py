"""Blends of two crops: faces of nobody, for a teacher to judge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from app.package.manifest import CROP_SIDE
from app.types import Pixels
from training.commands.data import app
from training.data import open_dataset
from training.data.crops import all_crops, open_pixels
from training.data.drawn import ProceduralFaces
from training.data.preparation.blending import BLENDS, WARP_PIXELS, blend, pick_two, write_blends

FACES = ProceduralFaces(people=3, images_per_person=2, seed=5)


def plain(colour: tuple[int, int, int]) -> Pixels:
    return np.full((CROP_SIDE, CROP_SIDE, 3), colour, np.uint8)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.tuples(*[st.integers(0, 255)] * 3), st.tuples(*[st.integers(0, 255)] * 3))
def test_one_colour_stays_the_first_ones_whatever_the_mask_and_the_warp(
    seed: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    made = blend(plain(first), plain(second), np.random.default_rng(seed))
    assert made.dtype == np.uint8
    assert np.abs(made.astype(int) - plain(first)).max() <= 1


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_a_crop_and_itself_is_only_warped(seed: int) -> None:
    """A ramp says by its values where each place came from."""
    ramp = np.repeat(np.arange(CROP_SIDE, dtype=np.uint8)[None, :, None], CROP_SIDE, axis=0).repeat(3, axis=2) * 2
    made = blend(ramp, ramp, np.random.default_rng(seed))
    moved = np.abs(made.astype(int) - ramp)[:, 20:-20] / 2
    assert moved.max() < 6 * WARP_PIXELS


def test_a_blend_is_between_the_two_and_neither() -> None:
    first, other = FACES[0][0], FACES[4][0]
    apart = np.abs(first.astype(int) - other).mean()
    shares = []
    for seed in range(40):
        made = blend(first, other, np.random.default_rng(seed)).astype(int)
        shares.append(np.abs(made - first).mean() / apart)
    assert min(shares) > 0.05
    assert np.median(shares) < 0.9


@settings(max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_two_people_are_picked_wherever_there_are_two(labels: list[int], seed: int) -> None:
    first, second = pick_two(np.array(labels), np.random.default_rng(seed))
    assert (labels[first] != labels[second]) == (len(set(labels)) > 1)


def test_the_set_and_its_blends_are_read_back_and_dropped_people_are_in_neither(tmp_path: Path) -> None:
    drop = tmp_path / "drop.txt"
    drop.write_text(f"{FACES.people[0]}\n")
    spec = "procedural:people=3,images=2,seed=5"
    for name in ("a.tar", "b.tar"):
        asked = ["blend", spec, str(tmp_path / name), "--count", "5", "--seed", "7", "--drop", str(drop)]
        answer = CliRunner().invoke(app, asked)
        assert answer.exit_code == 0, answer.output
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"a.tar", "b.tar", "drop.txt"}
    made = open_dataset(tmp_path / "a.tar")
    assert sorted(made.people) == sorted([*FACES.people[1:], BLENDS])
    assert np.bincount(made.labels)[made.people.index(BLENDS)] == 5
    kept = [made[i][0] for i in range(len(made)) if made.people[made.labels[i]] != BLENDS]
    for crop, original in zip(kept, (FACES[i][0] for i in range(2, 6)), strict=True):
        assert np.abs(crop.astype(int) - original).mean() < 4, "but for JPEG"


def test_what_ends_halfway_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(more: int, _total: int | None = None) -> None:
        if more and list(tmp_path.iterdir()):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_blends(all_crops(FACES, open_pixels(FACES, None)), tmp_path / "a.tar", 5, 1, interrupted)
    assert not list(tmp_path.iterdir())


def test_where_nobody_is_left_it_is_said(tmp_path: Path) -> None:
    drop = tmp_path / "drop.txt"
    drop.write_text("\n".join(FACES.people))
    target = tmp_path / "c.tar"
    spec = "procedural:people=3,images=2,seed=5"
    answer = CliRunner().invoke(app, ["blend", spec, str(target), "--count", "1", "--drop", str(drop)])
    assert answer.exit_code == 1
    assert not target.exists()
