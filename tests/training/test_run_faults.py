"""What can go wrong with a run: damaged images, missing files, signals, losses that are not finite."""

from __future__ import annotations

import math
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from app.errors import LikenessError, Unusable
from tests.conftest import PROJECT
from tests.support.crops import png_of
from tests.support.runs import TINY, differing, flat_people, logged, small_recipe, small_trainer
from training import checkpoint
from training.__main__ import app
from training.recipe import Recipe, load_recipe
from training.run.distributed import joined
from training.run.inputs import prepare_material
from training.run.trainer import StepResult, Trainer


def test_accuracy_is_that_of_the_classes_before_the_step_pulls_them(tmp_path: Path) -> None:
    """With 40 classes of one crop each and a rate that throws every class onto its crop, it is chance, not 1."""
    crops = flat_people(people=40, images=1)
    recipe = small_recipe(
        sampler={"batch_size": 40},
        losses=[{"name": "norm_softmax", "s": 64.0}],
        optimizer={"lr": 1e-6, "head_lr": 1e4, "momentum": 0.0},
        schedule={"name": "constant", "warmup": 0, "margin_warmup": 0},
        train={"steps": 1, "log_every": 1, "clip_norm": 0.0},
    )
    trainer = small_trainer(recipe, tmp_path, crops=crops)
    trainer.train()
    assert logged(tmp_path, "train")[0]["accuracy"] < 0.3


def test_a_loss_that_is_not_finite_voids_its_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = small_trainer(small_recipe(), tmp_path)
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    forward = trainer.objective.forward

    def endless(*args: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss, parts = forward(*args)
        return loss + math.inf, parts  # the gradient stays finite

    monkeypatch.setattr(trainer.objective, "forward", endless)
    assert bool(trainer.train_step().void)
    assert all(torch.equal(before[name], value) for name, value in trainer.model.named_parameters())


def test_a_pack_that_is_missing_ends_the_run_before_its_first_step(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        small_trainer(small_recipe(evaluate={"packs": [str(tmp_path / "nowhere.bin")]}), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_a_checkpoint_of_the_step_and_the_run_goes_on_from_it(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)
    trainer = small_trainer(small_recipe(), tmp_path / "stopped")
    step = trainer.train_step

    def signalled(*, measured: bool = False) -> StepResult:
        result = step(measured=measured)
        if trainer.progress.step == 3:
            signal.raise_signal(number)
        return result

    monkeypatch.setattr(trainer, "train_step", signalled)
    with pytest.raises(Unusable, match=f"{number.name} at step 3") as stopped:
        trainer.train()
    assert stopped.value.code == "training_stopped"
    assert signal.getsignal(number) is before
    resumed = small_trainer(small_recipe(), tmp_path / "stopped")
    resumed.restore(checkpoint.resolve(tmp_path / "stopped"))
    resumed.train()
    whole = small_trainer(small_recipe(), tmp_path / "whole")
    whole.train()
    assert differing(whole.model.state_dict(), resumed.model.state_dict()) == []


@pytest.mark.long
def test_an_evaluation_that_fails_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(train={"steps": 4}, evaluate={"every": 2})
    held = flat_people(people=3, seed=9)
    trainer = small_trainer(recipe, tmp_path, held_out=held)
    monkeypatch.setattr(trainer, "evaluate", lambda: (_ for _ in ()).throw(RuntimeError("no memory")))
    with pytest.raises(RuntimeError):
        trainer.train()
    resumed = small_trainer(recipe, tmp_path, held_out=held)
    resumed.restore(checkpoint.resolve(tmp_path))
    assert resumed.progress.step == 2
    resumed.train()
    assert [line["step"] for line in logged(tmp_path, "evaluation")] == [2, 4]


@pytest.mark.long
def test_a_damaged_image_has_a_stand_in_and_is_counted(tmp_path: Path) -> None:
    crops = flat_people(people=20, images=6)
    for place, label in enumerate(crops.labels):
        folder = tmp_path / "people" / f"person {label:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{place}.png").write_bytes(png_of(crops.images([place])[0]))
    (tmp_path / "people" / "person 03" / "18.png").write_bytes(b"cut off")
    source = {"source": str(tmp_path / "people"), "indexes": str(tmp_path / "indexes"), "held_out": 0.0}
    recipe = small_recipe(data=source, train={"steps": 12, "log_every": 6})
    with pytest.raises(LikenessError, match=r"18\.png"):
        _train_on(recipe, tmp_path / "first")
    skipping = small_recipe(data=source | {"on_error": "skip"}, train={"steps": 12, "log_every": 6})
    _train_on(skipping, tmp_path / "second")
    assert "1 images are damaged" in (tmp_path / "second" / "metrics.jsonl").read_text()
    (tmp_path / "people" / "person 04" / "24.png").write_bytes(b"cut off")
    (tmp_path / "people" / "person 05" / "30.png").write_bytes(b"cut off")
    with pytest.raises(LikenessError) as too_many:  # three of 120: more than a hundredth
        _train_on(skipping, tmp_path / "third")
    assert too_many.value.code == "data_damaged"


def _train_on(recipe: Recipe, out: Path) -> None:
    with joined("cpu") as world:
        Trainer(recipe, prepare_material(recipe, PROJECT / "models"), out, world).train()


def test_by_default_some_people_are_held_out(tmp_path: Path) -> None:
    data = {"source": "procedural:people=12,images=3", "indexes": str(tmp_path)}
    held = prepare_material(small_recipe(data=data), PROJECT / "models").held_out
    assert held is not None
    assert len(held.people) >= 2
    few = small_recipe(data=data, evaluate={"source": "procedural:people=3,images=3,first=50"})
    assert len(prepare_material(few, PROJECT / "models").crops.people) == 12


def test_a_run_draws_itself(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="drawing needs the train extra")
    small_trainer(small_recipe(), tmp_path, held_out=flat_people(people=3, seed=9)).train(until=4)
    picture = (tmp_path / "run.svg").read_text()
    assert all(word in picture for word in ("<svg", "evaluation fnmr", "learning rate"))


@pytest.mark.parametrize(
    "setting",
    [
        "losses=3",
        "augment=1",
        "model.options.width='wide'",
        "losses.0.s='much'",
        "data.drop='nowhere.txt'",
        "data.source='nowhere'",
    ],
)
def test_wrong_settings_and_missing_files_are_one_line(tmp_path: Path, setting: str) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY, encoding="utf-8")
    start = ["train", str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu"]
    run = CliRunner().invoke(
        app, [*start, "--set", "train.steps=1", "--set", f"data.indexes='{tmp_path}'", "--set", setting]
    )
    assert run.exit_code == 2, run.exception
    assert "error: " in run.output


def test_steps_on_the_command_line_take_the_place_of_epochs(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY.replace("[train]", "[train]\nepochs = 3"), encoding="utf-8")
    assert load_recipe(recipe, ["train.steps=5"]).train.length(100) == 5
    assert load_recipe(recipe, ["train.epochs=2"]).train.length(100) == 200
