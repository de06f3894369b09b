"""Parts of somebody else in a recipe, from networks to trackers: `module:Class`, timm's names, clear errors."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import numpy as np
import torch
from torch import nn

from app.errors import InvalidInput, Unusable
from tests.support.runs import small_recipe, small_trainer
from training import backbones, losses
from training.data import sampler
from training.data.augment import Augment
from training.run.log import open_tracker

OWN = '''
import numpy as np
import torch
from torch import nn
from training.data.sampler import BatchSampler
from training.losses.base import CosineLoss

class Net(nn.Module):
    def __init__(self, dim, *, hidden=4):
        super().__init__()
        self.layers = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, dim))

    def forward(self, x):
        return self.layers(x)

class Cosine(CosineLoss):
    def __init__(self, table, *, s=8.0):
        super().__init__(table, s=s)

class Apart(nn.Module):
    """Knows no classes, no dimension and no triplets."""

    def __init__(self, m=1.0):
        super().__init__()
        self.m = m

    def forward(self, embeddings, labels):
        unlike = labels[:, None] != labels[None, :]
        return ((embeddings @ embeddings.T)[unlike] + self.m).clamp(min=0).mean()

class Broken(Apart):
    """Has no finite loss once it is `broken`."""

    broken = False

    def forward(self, embeddings, labels):
        return super().forward(embeddings, labels) * (float("nan") if Broken.broken else 1.0)

class Signs(torch.optim.Optimizer):
    """Moves every weight by the same step; knows nothing of void steps."""

    def __init__(self, groups, lr, *, share=1.0):
        super().__init__(groups, {"lr": lr, "share": share})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight -= group["lr"] * group["share"] * weight.grad.sign()

class First(BatchSampler):
    """Every batch is the first images."""

    def __init__(self, labels, *, batch_size, seed):
        super().__init__(batch_size, seed=seed)
        self.size = len(labels)

    def __len__(self):
        return self.size // self.batch_size

    def batch(self, index):
        return np.arange(self.batch_size)

def darker(crop, random):
    return crop // 2

seen = []

def tracker(out):
    return lambda figures, step: seen.append((step, sorted(figures))), lambda: seen.append("closed")
'''


@pytest.fixture(autouse=True)
def _own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_classes.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_classes", raising=False)


@pytest.mark.parametrize(
    "loss",
    [
        pytest.param({"name": "own_classes:Cosine", "s": 4.0}, marks=pytest.mark.long),
        pytest.param({"name": "own_classes:Apart", "m": 0.5}, marks=pytest.mark.long),
        {"name": "pytorch_metric_learning.losses:TripletMarginLoss", "margin": 0.1, "miner": "semihard"},
    ],
)
def test_a_recipe_trains_a_net_and_losses_of_ones_own(loss: dict[str, object], tmp_path: Path) -> None:
    recipe = small_recipe(
        model={"backbone": "own_classes:Net", "options": {"hidden": 6}},
        losses=[loss],
        train={"steps": 2, "log_every": 1, "trackers": ["own_classes:tracker"]},
    )
    trainer = small_trainer(recipe, tmp_path / "run")
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    assert any(not torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())
    assert losses.is_class_level(str(loss["name"])) == ("Cosine" in str(loss["name"]))
    seen = sys.modules["own_classes"].seen
    assert seen[-1] == "closed"
    assert [step for step, _ in seen[:-1] if "train/loss" in _] == [1, 2]


def test_a_void_step_changes_nothing_with_an_optimiser_of_ones_own(tmp_path: Path) -> None:
    optimizer = {"name": "own_classes:Signs", "lr": 0.01, "options": {"share": 0.5}}
    recipe = small_recipe(losses=[{"name": "own_classes:Broken"}], optimizer=optimizer)
    trainer = small_trainer(recipe, tmp_path / "run")

    def weights() -> list[torch.Tensor]:
        return [value.clone() for value in trainer.model.state_dict().values()]

    before = weights()
    assert not trainer.train_step().void
    stepped = weights()
    assert any(not torch.equal(new, old) for new, old in zip(stepped, before, strict=True))
    sys.modules["own_classes"].Broken.broken = True
    assert trainer.train_step().void
    assert all(torch.equal(new, old) for new, old in zip(weights(), stepped, strict=True))


def test_batches_are_drawn_by_a_sampler_and_changed_by_an_augmentation_of_ones_own() -> None:
    recipe = small_recipe(sampler={"name": "own_classes:First", "batch_size": 4}, augment={"own": "own_classes:darker"})
    made = sampler.build(recipe.sampler.name, [0, 0, 1, 1, 2, 2], batch_size=4, seed=1)
    assert next(iter(made)) == [0, 1, 2, 3]
    crop = np.full((112, 112, 3), 200, np.uint8)
    assert (Augment(recipe.augment)(crop, np.random.default_rng(0)) == 100).all()


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"optimizer": {"name": "adam"}}, "did you mean 'adamw'"),
        ({"sampler": {"name": "plane"}}, "did you mean 'plain'"),
        ({"optimizer": {"name": "own_classes:Net"}}, "no torch.optim.Optimizer"),
        ({"sampler": {"name": "own_classes:Net"}}, "no BatchSampler"),
    ],
)
def test_a_name_of_no_sampler_or_optimiser_is_refused(
    section: dict[str, dict[str, object]], says: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=says):
        small_trainer(small_recipe(**section), tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("own_classes:Nothing", "Nothing"),
        ("no_such_module:Net", "no_such_module"),
        (":Net", "can't be imported"),
        (".own_classes:Net", "can't be imported"),
        ("own_classes:tracker", "no class of nn"),
        ("pathlib:Path", "no class of nn"),
        ("own_classes:seen", "no class of nn"),
    ],
)
def test_a_loss_that_is_none_is_refused(name: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        losses.build(name, num_classes=2, dim=4)


def test_a_net_or_an_option_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidInput, match="Nothing") as told:
        backbones.build("own_classes:Nothing", dim=4, size=32)
    assert told.value.code == "invalid_recipe"
    with pytest.raises(Unusable, match="hidden"):
        backbones.build("own_classes:Net", dim=4, size=32, hiden=3)


def test_names_of_timm_go_to_timm_and_without_it_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(InvalidInput, match="timm"):
        backbones.build("timm:resnet18", dim=4, size=32, drop_rate=0.1)
    asked: list[object] = []

    def create_model(name: str, **options: object) -> nn.Module:
        asked.append((name, options))
        return nn.Identity()

    timm = ModuleType("timm")
    timm.create_model = create_model  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "timm", timm)
    backbones.build("timm:resnet18", dim=4, size=32, drop_rate=0.1)
    assert asked == [("resnet18", {"num_classes": 4, "drop_rate": 0.1})]


def test_trackers_that_are_not_installed_are_named_and_those_that_are_get_every_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InvalidInput, match=f"{name} is not installed"):
            open_tracker(name, tmp_path)
    calls: list[tuple[object, ...]] = []

    def noting(name: str) -> Callable[..., object]:
        return lambda *given, **more: calls.append((name, *given, *more.items()))

    functions = {name: noting(name) for name in ("start_run", "log_metrics", "end_run")}
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(**functions))
    run = SimpleNamespace(log=noting("log"), finish=noting("finish"))
    wandb = SimpleNamespace(init=lambda **more: (noting("init")(**more), run)[1])
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    out, figures = tmp_path / "mine", {"train/loss": 0.5}
    for name in ("mlflow", "wandb"):
        opened = open_tracker(name, out)
        assert opened is not None
        opened[0](figures, 3)
        opened[1]()
    assert calls[:3] == [("start_run", ("run_name", "mine")), ("log_metrics", figures, 3), ("end_run",)]
    started = ("init", ("name", "mine"), ("dir", str(out)))
    assert calls[3:] == [started, ("log", figures, ("step", 3)), ("finish",)]
