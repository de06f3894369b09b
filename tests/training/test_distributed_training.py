"""Two and four processes train what one process trains, and a checkpoint goes on with any number of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch
import torch.distributed as dist

from app.errors import InvalidInput
from tests.conftest import PROJECT
from tests.support.ranks import on_ranks
from tests.support.runs import TINY, all_tensors, flat_people, logged, small_recipe, small_trainer
from training import checkpoint
from training.model import build_model
from training.recipe import Recipe
from training.run.distributed import World, joined, synchronise_batchnorm

pytestmark = pytest.mark.long

TOLERANCE = 1e-9
"""Everything runs in float64, where only a wrong formula makes a difference; rounding stays near 1e-13."""
PATIENCE = 900
"""Seconds after which a rank that waits for another is ended."""
CASES: dict[str, dict[str, Any]] = {
    "class weights on every rank, and mined pairs over both": {
        "losses": [{"name": "arcface", "s": 16.0, "m": 0.2}, {"name": "triplet", "miner": "semihard"}],
        "sampler": {"name": "pk", "images": 2},
        "partial_fc": {"enabled": False},
    },
    "class weights sharded over the ranks by default": {},
}
HELD = {"frozen_statistics": True}
"""Without statistics of each rank's own share of a batch."""


class Training:
    """What each rank does: goes on from the folder's newest checkpoint up to a step."""

    def __init__(self, recipe: Recipe, out: Path, until: int, *, measured: bool) -> None:
        self.recipe, self.out, self.until, self.measured = recipe.model_dump_json(), str(out), until, measured

    def __call__(self, _rank: int, _ranks: int) -> dict[str, Any]:
        """The run's progress, as this rank has it."""
        signal.alarm(PATIENCE)  # ends this process
        torch.set_default_dtype(torch.float64)
        out = Path(self.out)
        with joined("cpu") as world:
            held_out = flat_people(60, 3, seed=7) if self.measured else None
            trainer = small_trainer(Recipe.model_validate_json(self.recipe), out, world, held_out=held_out)
            last = checkpoint.latest(out)
            if last is not None:
                trainer.restore(last)
            return asdict(trainer.train(self.until))


def run_ranks(
    recipe: Recipe, out: Path, until: int, ranks: int, results: Path, *, measured: bool = False
) -> list[dict[str, Any]]:
    """Trains up to a step on some ranks, as torchrun would start them (it adds seconds for its own server)."""
    results.mkdir()
    out.mkdir(exist_ok=True)
    return on_ranks(ranks, Training(recipe, out, until, measured=measured), results)


def differences(first_state: dict[str, Any], second_state: dict[str, Any]) -> dict[str, float]:
    first, second = all_tensors(first_state), all_tensors(second_state)
    assert first.keys() == second.keys()
    return {
        name: float((value.double() - second[name].double()).abs().max())
        for name, value in first.items()
        if value.numel()
    }


@pytest.fixture
def in_float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("sections", CASES.values(), ids=CASES)
def test_two_ranks_take_the_step_of_one_and_go_on_with_one_or_four(tmp_path: Path, sections: dict[str, Any]) -> None:
    recipe = small_recipe(
        **sections, model=HELD, schedule={"warmup": 0}, optimizer={"lr": 0.02}, train={"ema": 0.0, "steps": 4}
    )
    alone = small_trainer(recipe, tmp_path / "alone")
    alone.train(until=1)
    run_ranks(recipe, tmp_path / "two", 1, 2, tmp_path / "of 2")
    two = checkpoint.load(checkpoint.step_path(tmp_path / "two", 1)).state
    # SGD's momentum after the first step is the gradient itself, of the net and of the class weights.
    gradients = differences(alone.state()["optimizer"], two["optimizer"])
    assert any(name.startswith("/state/") for name in gradients)
    assert max(gradients.values()) < TOLERANCE
    assert max(differences(alone.state()["model"], two["model"]).values()) < TOLERANCE
    assert max(differences(alone.state()["objective"], two["objective"]).values()) < TOLERANCE

    states = {}
    for ranks in (1, 4):
        folder = tmp_path / f"on {ranks}"
        folder.mkdir()
        for suffix in (".pt", ".json"):
            source = checkpoint.step_path(tmp_path / "two", 1).with_suffix(suffix)
            (folder / source.name).write_bytes(source.read_bytes())
        if ranks == 1:
            resumed = small_trainer(recipe, folder)
            resumed.restore(checkpoint.step_path(folder, 1))
            resumed.train(until=3)
        else:
            run_ranks(recipe, folder, 3, ranks, tmp_path / f"of {ranks}")
        states[ranks] = checkpoint.load(checkpoint.step_path(folder, 3)).state
    assert max(differences(states[1]["model"], states[4]["model"]).values()) < TOLERANCE
    assert max(differences(states[1]["objective"], states[4]["objective"]).values()) < TOLERANCE


@pytest.mark.usefixtures("in_float64")
def test_ranks_share_the_templates_that_imprint_their_classes(tmp_path: Path) -> None:
    small_trainer(small_recipe(), tmp_path / "first").train(until=1)
    model = {"start": str(tmp_path / "first"), "imprint": True} | HELD
    recipe = small_recipe(model=model, schedule={"warmup": 0}, optimizer={"lr": 1e-6}, train={"ema": 0.0})
    alone = small_trainer(recipe, tmp_path / "alone")
    alone.train(until=1)
    run_ranks(recipe, tmp_path / "two", 1, 2, tmp_path / "of 2")
    two = checkpoint.load(checkpoint.step_path(tmp_path / "two", 1)).state
    assert max(differences(alone.state()["objective"], two["objective"]).values()) < 1e-5


def first_statistics(ranks: int, tmp_path: Path) -> torch.Tensor:
    """The running mean of the net's first batch normalisation after one step."""
    run_ranks(small_recipe(), tmp_path / f"run of {ranks}", 1, ranks, tmp_path / f"of {ranks}")
    state = checkpoint.load(checkpoint.step_path(tmp_path / f"run of {ranks}", 1)).state["model"]
    found: torch.Tensor = next(value for name, value in state.items() if name.endswith("running_mean"))
    return found


@pytest.mark.usefixtures("in_float64")
def test_each_rank_normalises_its_own_share_of_a_batch(tmp_path: Path) -> None:
    """The first rank's statistics are kept: those of the first half and quarter of the batch."""
    trainer = small_trainer(small_recipe(), tmp_path / "alone")
    images = next(trainer._source(0)[0][key] for key in trainer._source(0)[1]).images
    for ranks in (2, 4):
        net = small_trainer(small_recipe(), tmp_path / f"like {ranks}").model
        net.train()(images[: len(images) // ranks])
        expected = next(value for name, value in net.state_dict().items() if name.endswith("running_mean"))
        torch.testing.assert_close(first_statistics(ranks, tmp_path), expected)


def test_statistics_over_all_ranks_are_torchs_and_need_gpus() -> None:
    net = build_model(small_recipe().model, channels_last=False)
    with pytest.raises(InvalidInput, match="GPUs"):
        synchronise_batchnorm(net, World(0, 2, torch.device("cpu")))
    names = list(net.state_dict())
    changed = synchronise_batchnorm(net, World(0, 2, torch.device("cuda")))
    assert list(changed.state_dict()) == names
    assert not any(type(layer) in (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d) for layer in changed.modules())


def group_after(rank: int, ranks: int) -> bool:
    """Whether somebody still holds it when the world is left."""
    del rank, ranks
    with joined("cpu"):
        group = weakref.ref(dist.group.WORLD)
    return group() is not None


def test_the_group_outlives_what_trained_in_it(tmp_path: Path) -> None:
    """A rank whose reducer was the last to hold it could wait for ever."""
    assert on_ranks(2, group_after, tmp_path) == [True, True]


def test_all_ranks_agree_on_which_checkpoint_is_the_best(tmp_path: Path) -> None:
    """Saving a sharded head takes all ranks: one that thinks otherwise would leave the others waiting for ever."""
    recipe = small_recipe(
        seed=4,
        partial_fc={"enabled": True, "sample_rate": 0.5},
        evaluate={"every": 1},
        train={"steps": 4, "accumulate": 2},
    )
    ranks = run_ranks(recipe, tmp_path / "run", 2, 2, tmp_path / "first", measured=True)
    ranks += run_ranks(recipe, tmp_path / "run", 4, 2, tmp_path / "resumed", measured=True)
    assert ranks[0] == ranks[1]
    assert ranks[2] == ranks[3]
    scores = [line["fnmr"] + 1e-3 * line["eer"] for line in logged(tmp_path / "run", "evaluation")]
    assert len(scores) == 4
    assert min(scores) < scores[0]  # not only the first time is there something to save,
    assert min(scores) < scores[-1]  # and not the last time
    assert ranks[3]["best_step"] == 1 + scores.index(min(scores))
    assert json.loads((tmp_path / "run" / "best.json").read_text())["step"] == ranks[3]["best_step"]


def test_torchrun_starts_the_ranks(tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("three interpreters load torch; --full runs it")
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY, encoding="utf-8")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "training", "train"]
    for steps, more in ((2, []), (3, ["--resume"])):
        command = [sys.executable, *torchrun, str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu", *more]
        done = subprocess.run(
            [*command, "--set", f"train.steps={steps}"], cwd=PROJECT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert f"to {steps} on 2 × cpu" in done.stderr
        assert (tmp_path / "run" / f"step_{steps:08d}.pt").is_file()
    assert [line["step"] for line in logged(tmp_path / "run", "train")] == [1, 2, 3]  # written by one rank


def test_a_batch_that_ranks_cannot_share_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shared evenly"):
        small_trainer(small_recipe(), tmp_path, World(0, 5, torch.device("cpu")))
