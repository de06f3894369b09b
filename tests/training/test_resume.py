"""A run that is stopped and resumed makes, bit for bit, the steps of one that was not."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from app.errors import InvalidInput, NotFound, Unusable
from tests.support.runs import differing, flat_people, logged, small_recipe, small_trainer
from training import checkpoint
from training.data.augment import Augment
from training.recipe import Augmentation

pytestmark = pytest.mark.long

CASES: dict[str, dict[str, Any]] = {
    "arcface, averaged weights, augmentation, on two threads": {},
    "adaptive statistics and chance in the loss": {
        "losses": [{"name": "adaface"}, {"name": "elasticface", "weight": 0.5}],
        "optimizer": {"name": "adamw", "lr": 0.01},
    },
    "mined pairs with β beside class weights": {
        "losses": [
            {"name": "margin", "miner": "distance_weighted", "image_beta": True},
            {"name": "cosface", "s": 16.0},
        ],
        "sampler": {"name": "pk", "images": 4},
    },
    "half precision with its loss scale, two batches a step": {"train": {"precision": "fp16", "accumulate": 2}},
    "sampled classes": {"partial_fc": {"enabled": True, "sample_rate": 0.5}},
    "two towers": {
        "losses": [{"name": "triplet", "miner": "semihard"}],
        "sampler": {"name": "pk", "images": 4},
        "model": {"towers": "pseudo_siamese"},
    },
}


@pytest.fixture
def threads(sections: dict[str, Any]) -> Iterator[None]:
    """Two in the plainest case: who of them is first must make no difference."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if sections else 2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("sections", CASES.values(), ids=CASES)
def test_n_steps_equal_k_then_resume_then_the_rest_bit_for_bit(tmp_path: Path, sections: dict[str, Any]) -> None:
    recipe = small_recipe(**sections)
    augment = Augment(Augmentation(colour=0.5, low_resolution=0.5))
    whole = small_trainer(recipe, tmp_path / "whole", augment=augment)
    whole.train()
    first = small_trainer(recipe, tmp_path / "parts", augment=augment)
    first.train(until=5)  # in the middle of the sampler's second epoch
    torch.manual_seed(99)  # whatever the process does in between
    np.random.seed(99)  # noqa: NPY002  the global generator is what is meant
    second = small_trainer(recipe, tmp_path / "parts", augment=augment)
    last = checkpoint.latest(tmp_path / "parts")
    assert last is not None
    second.restore(last)
    assert second.progress.step == 5
    second.train()
    assert differing(whole.state(), second.state()) == []
    assert second.guard.state() == whole.guard.state()


def test_different_seeds_train_different_nets(tmp_path: Path) -> None:
    first, second = (small_trainer(small_recipe(seed=seed), tmp_path / str(seed)) for seed in (1, 2))
    first.train(until=1)
    second.train(until=1)
    assert differing(first.model.state_dict(), second.model.state_dict())


def test_loader_processes_change_nothing(tmp_path: Path) -> None:
    augment = Augment(Augmentation(colour=0.5, noise=0.5))
    results = []
    for workers in (0, 2):
        trainer = small_trainer(small_recipe(data={"workers": workers}), tmp_path / str(workers), augment=augment)
        trainer.train(until=4)
        results.append(trainer.model.state_dict())
    assert differing(*results) == []


def test_a_checkpoint_is_weights_and_readable_json(tmp_path: Path) -> None:
    small_trainer(small_recipe(), tmp_path).train(until=4)
    facts = json.loads((tmp_path / "step_00000004.json").read_text())
    assert (facts["step"], facts["recipe"], facts["people"]) == (4, "small", 6)
    state = checkpoint.load(tmp_path / "step_00000004.pt").state
    assert set(state) >= {"model", "objective", "optimizer", "loss_scale"}
    assert [line["step"] for line in logged(tmp_path, "train")] == [4]
    assert not list(tmp_path.glob("*.tmp"))


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    recipe = small_recipe(train={"checkpoint_every": 2, "keep": 2})
    small_trainer(recipe, tmp_path).train()
    assert [path.name for path in sorted(tmp_path.glob("step_*.pt"))] == ["step_00000006.pt", "step_00000008.pt"]


def test_a_checkpoint_of_another_recipe_or_people_is_refused_and_where_they_are_kept_is_free(tmp_path: Path) -> None:
    path = small_trainer(small_recipe(), tmp_path).save()
    others: dict[str, dict[str, Any]] = {
        "model": {"model": {"dim": 16}},
        "data": {"data": {"min_images": 2}},
        "distill": {"distill": {"relation": 1.0}},
        "train.accumulate": {"train": {"accumulate": 2}},
    }
    for section, other in others.items():
        with pytest.raises(InvalidInput, match=re.escape(f"[{section}]")) as caught:
            small_trainer(small_recipe(**other), tmp_path).restore(path)
        assert caught.value.code == "recipe_mismatch"
    small_trainer(small_recipe(data={"cache": "elsewhere", "workers": 1}), tmp_path).restore(path)
    with pytest.raises(InvalidInput, match=re.escape("[data]")):
        small_trainer(small_recipe(), tmp_path, crops=flat_people(people=7)).restore(path)


def test_a_trainer_that_has_gone_further_goes_back(tmp_path: Path) -> None:
    trainer = small_trainer(small_recipe(), tmp_path)
    trainer.train(until=1)
    trainer.train(until=3)  # in the same epoch
    expected = copy.deepcopy(trainer.state())
    trainer.restore(checkpoint.step_path(tmp_path, 1))
    trainer.train(until=3)
    assert differing(expected, trainer.state()) == []


def test_a_damaged_or_missing_checkpoint_is_an_error_of_ours(tmp_path: Path) -> None:
    path = small_trainer(small_recipe(), tmp_path).save()
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(Unusable) as caught:
        checkpoint.load(path)
    assert caught.value.code == "checkpoint_damaged"
    with pytest.raises(NotFound):
        checkpoint.resolve(tmp_path / "nothing")


def test_a_checkpoint_cannot_run_code(tmp_path: Path) -> None:
    path = tmp_path / "step_00000001.pt"
    torch.save({"model": print}, path)  # any callable stands for a hostile one
    path.with_suffix(".json").write_text("{}")
    with pytest.raises(Unusable):
        checkpoint.load(path)
