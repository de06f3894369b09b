"""A run starts from another run's weights, a file's, or a package's network, and trains only what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from app.errors import InvalidInput, NotFound, Unusable
from app.models.opening import open_embedder
from app.package.folders import load_package
from tests.conftest import PROJECT
from tests.support.crops import some_crops
from tests.support.runs import flat_people, small_recipe, small_trainer
from training import checkpoint
from training.backbones.vit import FaceViT
from training.model import LowRank, embed, tower
from training.recipe import Optimizer
from training.run.optimiser import parameter_groups
from training.run.trainer import Trainer

pytestmark = pytest.mark.long


def started(tmp_path: Path, start: Path | str, name: str = "second", **sections: Any) -> Trainer:
    model = {"start": str(start), **sections.pop("model", {})}
    return small_trainer(small_recipe(model=model, **sections), tmp_path / name)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """A run that has come to an end."""
    trainer = small_trainer(small_recipe(), tmp_path_factory.mktemp("first"))
    trainer.train(until=3)
    return trainer


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in tower(trainer.model).state_dict().items()}


def test_a_run_starts_from_another_runs_averaged_weights(tmp_path: Path, first: Trainer) -> None:
    second = started(tmp_path, first.out, losses=[{"name": "cosface"}])
    assert second.fresh == []
    saved = tower(first.averaged()).state_dict()
    assert all(torch.equal(value, saved[name]) for name, value in weights(second).items())
    assert second.progress.step == 0
    second.train(until=1)


def test_what_has_another_size_starts_fresh_and_is_said(tmp_path: Path, first: Trainer) -> None:
    with pytest.raises(InvalidInput, match=r"backbone\.head\.linear\.weight") as refused:
        started(tmp_path, first.out, model={"dim": 16})
    assert refused.value.code == "start_does_not_fit"
    second = started(tmp_path, first.out, model={"dim": 16, "fresh": ("backbone.head.*",)})
    assert second.fresh
    assert all("layers.0." not in name for name in second.fresh)
    second.train(until=1)
    assert "start fresh" in (tmp_path / "second" / "metrics.jsonl").read_text()


def test_weights_of_another_codebase_are_taken_in_their_order(tmp_path: Path, first: Trainer) -> None:
    theirs = {f"module.theirs{place}": value for place, value in enumerate(weights(first).values())}
    torch.save({"state_dict": theirs}, tmp_path / "backbone.pt")
    second = started(tmp_path, tmp_path / "backbone.pt")
    assert second.fresh == []
    assert all(torch.equal(value, weights(first)[name]) for name, value in weights(second).items() if value.ndim)


def test_weights_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    torch.save({"other": torch.zeros(3)}, tmp_path / "other.pt")
    with pytest.raises(InvalidInput) as unfit:
        started(tmp_path, tmp_path / "other.pt")
    assert unfit.value.code == "start_does_not_fit"
    (tmp_path / "broken.pt").write_bytes(b"no checkpoint")
    with pytest.raises(Unusable):
        started(tmp_path, tmp_path / "broken.pt")
    for missing in ("nowhere.pt", "no-such-package", "nowhere.onnx"):
        with pytest.raises((NotFound, Unusable)):
            started(tmp_path, missing)


def test_a_package_is_a_network_to_start_from(tmp_path: Path) -> None:
    folder = PROJECT / "models" / "sface-slim"
    recipe = small_recipe(model={"start": str(folder), "dim": 128}, optimizer={"lr": 1e-4}, train={"ema": 0.0})
    trainer = small_trainer(recipe, tmp_path / "run")
    crops = some_crops(4)
    session = open_embedder(load_package(folder), tmp_path / "cache", device="cpu", threads=1)
    before = embed(tower(trainer.model), torch.from_numpy(crops)).numpy()
    np.testing.assert_allclose((before * session.run(crops)).sum(axis=1), 1, atol=1e-5)
    trainer.train(until=2)
    after = embed(tower(trainer.model), torch.from_numpy(crops)).numpy()
    assert (after * before).sum(axis=1).max() < 1 - 1e-7
    saved = checkpoint.load(checkpoint.resolve(tmp_path / "run"))
    saved.state["recipe"]["data"]["unlabelled"] = []  # as checkpoints of earlier versions have it
    exported = checkpoint.trained_embedder(saved)
    np.testing.assert_allclose((exported(torch.from_numpy(crops)).detach().numpy() * after).sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize(("loss", "centers"), [("arcface", 0), ("softmax", 0), ("subcenter_arcface", 2)])
def test_classes_start_as_their_peoples_mean_templates(tmp_path: Path, first: Trainer, loss: str, centers: int) -> None:
    people = flat_people(4, 5)
    shown = people.take(np.flatnonzero(np.arange(len(people)) % 4 > 0))  # not as many of everybody
    options = {"centers": centers} if centers else {}
    recipe = small_recipe(
        model={"start": str(first.out), "imprint": True},
        losses=[{"name": loss, **options}],
        optimizer={"lr": 1e-12},
    )
    trainer = small_trainer(recipe, tmp_path / "second", crops=shown)
    network = tower(trainer.model)
    expected = [
        torch.stack(
            [embed(network, torch.from_numpy(shown.images([int(i)])))[0] for i in np.flatnonzero(shown.labels == p)]
        )
        for p in range(4)
    ]
    trainer.train(until=1)
    found = trainer.objective.whole_state()["terms"][0]["weight"]
    for vectors, row in zip(expected, found, strict=True):
        mean = vectors.mean(dim=0)
        for centre in row.reshape(-1, mean.shape[0]):
            np.testing.assert_allclose(centre, mean / mean.norm(), atol=0.05 if centers else 1e-6)
        if centers:
            assert not torch.equal(row[0], row[1])


def test_a_resumed_run_keeps_the_classes_it_learnt(tmp_path: Path, first: Trainer) -> None:
    trainers = [started(tmp_path, first.out, name, model={"imprint": True}) for name in ("whole", "halves")]
    trainers[0].train(until=4)
    trainers[1].train(until=2)
    resumed = started(tmp_path, first.out, "halves", model={"imprint": True})
    resumed.restore(checkpoint.resolve(tmp_path / "halves"))
    resumed.train(until=4)
    whole, halves = (t.objective.whole_state()["terms"][0]["weight"] for t in (trainers[0], resumed))
    assert torch.equal(whole, halves)


def test_only_class_weights_of_a_network_with_weights_are_imprinted(tmp_path: Path, first: Trainer) -> None:
    with pytest.raises(InvalidInput, match=r"needs model\.start"):
        small_recipe(model={"imprint": True})
    pairs = started(tmp_path, first.out, model={"imprint": True}, losses=[{"name": "contrastive"}])
    with pytest.raises(InvalidInput, match="class weights"):
        pairs.train(until=1)


def test_a_network_of_another_dimension_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"128.*model\.dim"):
        started(tmp_path, PROJECT / "models" / "sface-slim")


def test_frozen_weights_and_statistics_stay(tmp_path: Path) -> None:
    frozen = {"freeze": ("backbone.layers.0.*",), "frozen_statistics": True}
    trainer = small_trainer(small_recipe(model=frozen), tmp_path)
    before = weights(trainer)
    trainer.train(until=3)
    after = weights(trainer)
    moved = {name for name, value in before.items() if not torch.equal(value, after[name])}
    assert moved
    assert not any(name.startswith("backbone.layers.0.") or "running_" in name for name in moved)


@pytest.mark.parametrize(
    ("pattern", "says"), [("backbone.nothing*", "no weight is named"), ("*", "no weight to learn")]
)
def test_patterns_that_make_no_sense_are_refused(pattern: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=says):
        small_trainer(small_recipe(model={"freeze": (pattern,)}), tmp_path)


def test_rates_rise_with_depth(tmp_path: Path) -> None:
    trainer = small_trainer(small_recipe(optimizer={"first_layer": 0.01}), tmp_path)
    groups = parameter_groups(trainer.model, trainer.objective, trainer.recipe.optimizer)
    decayed = (group for group in groups if str(group["name"]).rpartition("_")[0] == "backbone")
    rates = [float(str(group["lr"])) for group in decayed]
    assert rates[0] == pytest.approx(0.05)
    assert rates[-1] == pytest.approx(0.0005)
    assert rates == sorted(rates, reverse=True)
    trainer.train(until=2)


def test_positions_of_a_transformer_are_not_decayed() -> None:
    net = FaceViT(16, channels=16, depth=1, heads=2)
    groups = parameter_groups(net, torch.nn.Module(), Optimizer(weight_decay=0.1))
    decays = {id(value): group["weight_decay"] for group in groups for value in cast(list[Any], group["params"])}
    assert decays[id(net.positions)] == 0
    assert decays[id(net.patches.weight)] == 0.1


def test_adapters_come_after_the_weights_of_a_run_and_nothing_else_learns(tmp_path: Path, first: Trainer) -> None:
    images = torch.from_numpy(flat_people().images(range(3)))
    plain = embed(tower(started(tmp_path, first.out).model), images)
    adapted = started(tmp_path, first.out, "adapted", model={"lora": 1}, train={"ema": 0.0})
    torch.testing.assert_close(embed(tower(adapted.model), images), plain)
    learning = [name for name, value in adapted.model.named_parameters() if value.requires_grad]
    assert learning
    assert all("parametrizations.weight.0" in name for name in learning)
    assert any("layers" in name for name in learning)  # convolutions too
    statistics = {name: value.clone() for name, value in adapted.model.named_buffers() if "running" in name}
    assert statistics
    adapted.train(until=2)
    assert all(
        torch.equal(value, statistics[name]) for name, value in adapted.model.named_buffers() if "running" in name
    )
    again = started(tmp_path, tmp_path / "adapted", "again")
    merged = embed(tower(again.model), images)
    torch.testing.assert_close(merged, embed(tower(adapted.model), images), atol=1e-5, rtol=0)
    assert float((merged * plain).sum(dim=1).min()) < 1 - 1e-6


def test_adapters_learn_in_place_of_linear_weights_and_are_merged_at_export(tmp_path: Path) -> None:
    recipe = small_recipe(
        model={
            "backbone": "vit_tiny",
            "dim": 8,
            "input_size": 112,
            "lora": 2,
            "options": {"depth": 1, "channels": 16, "heads": 2, "patch": 28},
        },
        train={"ema": 0.0},
    )
    trainer = small_trainer(recipe, tmp_path)
    images = torch.from_numpy(flat_people().images(range(3)))
    before = {name: value.detach().clone() for name, value in trainer.model.named_parameters()}
    trainer.train(until=3)
    after = dict(trainer.model.named_parameters())
    originals = [name for name in before if name.endswith("weight.original")]
    assert originals
    assert all(torch.equal(before[name], after[name]) for name in originals)
    adapters = [module for module in trainer.model.modules() if isinstance(module, LowRank)]
    assert len(adapters) == len(originals)
    assert any(bool(adapter.b.any()) for adapter in adapters)
    expected = embed(tower(trainer.model), images)
    saved = checkpoint.load(checkpoint.resolve(tmp_path))
    exported = checkpoint.trained_embedder(saved)
    assert not any("parametrizations" in name for name, _ in exported.named_parameters())
    torch.testing.assert_close(exported(images), expected, atol=1e-5, rtol=0)
