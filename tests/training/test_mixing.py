"""Several sources in one run: each batch has its shares, each image its turn, and its number alone decides it."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")

from app.errors import InvalidInput
from tests.support.runs import small_recipe
from training.data import sampler
from training.data.crops import StreamedPixels
from training.data.dataset import Joined
from training.data.drawn import ProceduralFaces
from training.data.loader import batch_keys
from training.recipe import parse_recipe
from training.run.inputs import prepare_material

GROUPS = np.array([0] * 50 + [1] * 7 + [2] * 20)
SHARES = (0.6, 0.3, 0.1)


def mixed() -> sampler.MixedSampler:
    return sampler.MixedSampler(GROUPS, shares=SHARES, batch_size=16, seed=3)


def test_every_group_gets_its_share_and_each_of_its_images_before_any_again() -> None:
    sampler = mixed()
    drawn = []
    for epoch in range(8):
        sampler.set_epoch(epoch)
        drawn += [sampler.batch(number) for number in range(len(sampler))]
    assert all(len(batch) == 16 for batch in drawn)
    images = np.concatenate(drawn)
    found = np.bincount(GROUPS[images], minlength=3) / len(images)
    np.testing.assert_allclose(found, SHARES, atol=1 / len(images) * 3)
    for group, count in enumerate(np.bincount(GROUPS)):
        times = np.bincount(images[GROUPS[images] == group], minlength=len(GROUPS))[group == GROUPS]
        assert times.max() - times.min() <= 1, (group, count)


def test_a_mixed_run_goes_on_where_it_stopped_on_any_number_of_ranks() -> None:
    whole = list(itertools.islice(batch_keys(mixed(), 0, 0, 1), 12))
    assert list(itertools.islice(batch_keys(mixed(), 7, 0, 1), 5)) == whole[7:]
    halves = [next(batch_keys(mixed(), 9, rank, 2)).indices for rank in range(2)]
    assert halves[0] + halves[1] == whole[9].indices


def test_joined_sets_keep_their_people_apart() -> None:
    first, second = ProceduralFaces(2, 2), ProceduralFaces(3, 1)
    both = Joined([first, second])
    assert both.labels.tolist() == [0, 0, 1, 1, 2, 3, 4]
    assert both.people == ["drawn-0", "drawn-1", "drawn-0", "drawn-1", "drawn-2"]
    np.testing.assert_array_equal(both[5][0], second[1][0])
    assert both.describe(5) == second.describe(1)
    assert both.stamp() != Joined([second, first]).stamp()
    with pytest.raises(IndexError):
        both[7]


def test_damaged_images_of_every_source_count() -> None:
    first, second = ProceduralFaces(2, 2), ProceduralFaces(3, 1)
    second.skipped = {0, 2}  # type: ignore[attr-defined]  # as a stored set's
    both = Joined([first, second])
    assert (both.skipped, StreamedPixels(both).damaged) == ([4, 6], 2)


def test_a_recipe_mixes_sources_and_refuses_shares_that_leave_nothing(tmp_path: Path) -> None:
    table = small_recipe().model_dump(mode="json")
    first, second = "procedural:people=8,images=4", "procedural:people=4,images=3,first=100"
    table["data"] |= {"source": first, "mix": {second: 0.25}, "indexes": str(tmp_path), "held_out": 0.0}
    table["sampler"] |= {"name": "plain", "batch_size": 8}
    material = prepare_material(parse_recipe(table), Path("models"))
    assert len(material.crops.people) == 12
    batch = material.sampler.batch(0)
    assert (material.crops.rows[batch] >= 32).sum() == 2
    with pytest.raises(InvalidInput, match=r"data\.mix"):
        parse_recipe(table | {"data": table["data"] | {"mix": {second: 0.6, first: 0.4}}})
