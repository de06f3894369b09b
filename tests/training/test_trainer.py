"""The loop learns, guards itself, distils, and measures on people it has not seen."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("torch", reason="training needs the train extra")

import torch

from app.errors import Unusable
from app.models.opening import open_embedder
from app.package.folders import load_package
from tests.conftest import PROJECT
from tests.support.crops import png_of, write_pack
from tests.support.runs import TINY, count_centers, differing, flat_people, logged, small_recipe, small_trainer
from training.__main__ import app
from training.data.crops import split_people, whole_people
from training.data.formats.bins import VerificationPack
from training.data.loader import BatchKey, BatchSource
from training.evaluation import metrics
from training.losses.pairwise import Triplets
from training.model import Averaged, FaceModel, build_model, embed, tower
from training.packages import CACHE
from training.run.distillation import embedding_loss, open_teacher, relation_loss, run_teacher
from training.run.faults import PATIENCE, CollapseAlarm
from training.run.objective import between_towers
from training.run.optimiser import parameter_groups
from training.run.trainer import pack_accuracy

LONG = {"steps": 60, "log_every": 60, "ema": 0.8}


@pytest.mark.long
@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"losses": [{"name": "triplet", "miner": "hard"}], "sampler": {"name": "pk", "images": 4}},
        {"train": LONG | {"precision": "bf16"}, "optimizer": {"name": "adamw", "lr": 0.01}},
    ],
    ids=["class level", "pair level, mined", "bf16 with AdamW"],
)
def test_a_run_learns_to_tell_unseen_people_apart(tmp_path: Path, sections: dict[str, Any]) -> None:
    recipe = small_recipe(**({"train": LONG, "evaluate": {"fmr": 0.1}} | sections))
    trainer = small_trainer(recipe, tmp_path, held_out=flat_people(30, seed=8))
    before = trainer.evaluate()["eer"]
    trainer.train()
    assert trainer.evaluate()["eer"] < before / 2
    assert (tmp_path / "best.pt").is_file()


def test_a_gradient_that_is_not_finite_voids_the_step_and_keeps_the_batch(tmp_path: Path) -> None:
    trainer = small_trainer(small_recipe(train={"max_skipped": 2, "log_every": 1}), tmp_path)
    weights = [p.detach().clone() for p in trainer.model.parameters()]
    with torch.no_grad():
        next(trainer.objective.parameters())[0, 0] = float("nan")
    batch = next(iter(trainer._source(0)[0][key] for key in trainer._source(0)[1]))
    trainer.train(until=1)
    assert all(torch.equal(a, b) for a, b in zip(weights, trainer.model.parameters(), strict=True))
    dump = torch.load(tmp_path / "skipped_00000000_rank0.pt", weights_only=True)
    assert torch.equal(dump["images"], batch.images)
    assert dump["images"].shape == (12, 112, 112, 3)
    with pytest.raises(Unusable) as caught:
        trainer.train()
    assert caught.value.code == "training_diverged"
    assert trainer.progress.step == 3
    assert trainer.progress.skipped == 3


def test_a_step_that_is_void_moves_no_running_statistics_either(tmp_path: Path) -> None:
    trainer = small_trainer(small_recipe(losses=[{"name": "curricularface"}]), tmp_path)
    trainer.train_step()
    before = copy.deepcopy(trainer.state())
    net = trainer.model.get_submodule("backbone")
    spoiling = net.register_forward_pre_hook(lambda _net, pixels: (pixels[0] * float("nan"),))
    assert trainer.train_step().void == 1
    spoiling.remove()
    assert differing(before, trainer.state()) == []
    assert "t" in before["objective"]["terms"][0]
    assert any(name.endswith("running_mean") for name in before["model"])
    assert trainer.train_step().void == 0
    assert embed(tower(trainer.averaged()), torch.from_numpy(flat_people().images(range(2)))).isfinite().all()


def test_what_losses_count_and_average_moves_once_a_step_of_several_batches(tmp_path: Path) -> None:
    recipe = small_recipe(losses=[{"name": "sphereface"}, {"name": "adaface"}], train={"accumulate": 3})
    trainer = small_trainer(recipe, tmp_path / "sums")
    norms = [trainer.train_step().embeddings.norm(dim=1) for _ in range(2)]
    assert trainer.objective.get_buffer("terms.0.loss.iteration") == 2
    mean = 20.0
    for norm in norms:
        mean += 0.01 * (float(norm.mean()) - mean)
    assert float(trainer.objective.get_buffer("terms.1.loss.norm_mean")) == pytest.approx(mean)


@pytest.mark.long
@pytest.mark.parametrize("sharded", [False, True])
def test_centres_are_merged_at_the_end_of_a_run_alone(tmp_path: Path, sharded: bool) -> None:
    losses = [{"name": "softtriple", "centers": 3, "merge": 1.9}]
    trainer = small_trainer(small_recipe(losses=losses, partial_fc={"enabled": sharded}), tmp_path)
    name = "terms.0.loss.loss.weight" if sharded else "terms.0.loss.weight"

    def kept() -> list[int]:
        return count_centers(trainer.objective.get_parameter(name)).tolist()

    trainer.train(until=7)
    assert max(kept()) > 1
    trainer.train()
    assert kept() == [1] * 6


def without_batch_statistics(module: torch.nn.Module) -> None:
    for name, child in module.named_children():
        if isinstance(child, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            module.add_module(name, torch.nn.Identity())
        without_batch_statistics(child)


def test_accumulated_batches_step_once_with_the_mean_gradient(tmp_path: Path) -> None:
    """With batch statistics out of the way, two batches of 6 are one of 12."""
    steps = []
    for accumulate, size in ((1, 12), (2, 6)):
        recipe = small_recipe(
            sampler={"batch_size": size},
            train={"accumulate": accumulate, "clip_norm": 0.0, "ema": 0.0},
            schedule={"warmup": 0, "margin_warmup": 0},
        )
        trainer = small_trainer(recipe, tmp_path / str(accumulate))
        without_batch_statistics(trainer.model)
        trainer.train(until=1)
        steps.append(list(trainer.model.parameters()))
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*steps, strict=True))


def test_clipping_keeps_the_direction_and_cuts_the_length(tmp_path: Path) -> None:
    norms = {}
    for limit in (0.0, 0.5):
        trainer = small_trainer(small_recipe(train={"clip_norm": limit}), tmp_path / str(limit))
        trainer._backward(0)
        norms[limit] = float(trainer._clip())
        gradients = [p.grad for group in trainer.optimizer.param_groups for p in group["params"]]
        length = float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients])))
        assert length == pytest.approx(limit or norms[limit], rel=1e-4)
    assert norms[0.0] == pytest.approx(norms[0.5])


def test_only_kernels_and_matrices_decay_and_beta_has_its_own_rate(tmp_path: Path) -> None:
    recipe = small_recipe(
        losses=[{"name": "margin"}, {"name": "cosface"}],
        optimizer={"lr": 0.1, "head_lr": 0.3, "beta_lr": 0.7, "weight_decay": 0.01},
    )
    trainer = small_trainer(recipe, tmp_path)
    made = parameter_groups(trainer.model, trainer.objective, recipe.optimizer)
    groups: dict[Any, dict[str, Any]] = {group["name"]: group for group in made}
    assert all(p.ndim > 1 for p in groups["backbone"]["params"])
    assert all(p.ndim <= 1 for p in groups["backbone_undecayed"]["params"])
    assert [groups[n]["lr"] for n in ("backbone", "head", "beta")] == [0.1, 0.3, 0.7]
    assert [groups[n]["weight_decay"] for n in ("backbone", "backbone_undecayed", "head", "beta")] == [0.01, 0, 0, 0]
    counted = sum(len(g["params"]) for g in groups.values())
    assert counted == len([*trainer.model.parameters(), *trainer.objective.parameters()])


def test_a_boundary_for_each_crop_is_learned_for_the_crops_that_were_seen(tmp_path: Path) -> None:
    recipe = small_recipe(
        losses=[{"name": "margin", "image_beta": True}],
        sampler={"name": "pk", "images": 4, "batch_size": 8},
        optimizer={"beta_lr": 0.1},
        schedule={"warmup": 0},
    )
    trainer = small_trainer(recipe, tmp_path)
    seen = set(trainer._backward(0)[0].indices.tolist())
    trainer.optimizer.step()
    betas = trainer.objective.get_parameter("terms.0.loss.beta_image").detach()
    assert len(betas) == len(trainer.material.crops)
    moved = set(torch.nonzero(betas).flatten().tolist())
    assert moved
    assert moved <= seen


def test_the_average_follows_its_formula() -> None:
    weight = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(weight.weight, 0.0)
    average = Averaged(weight, 0.5)
    torch.nn.init.constant_(weight.weight, 1.0)
    average.update(weight, 0)
    assert next(average.model.parameters()).item() == pytest.approx(0.9)  # early decay (1 + 0) / (10 + 0)
    average.update(weight, 100)
    assert next(average.model.parameters()).item() == pytest.approx(0.5 * 0.9 + 0.5)


def test_the_model_sees_pixels_between_minus_one_and_one() -> None:
    images = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 112, 112, 3)
    out = FaceModel(torch.nn.Flatten(), 64)(images)
    assert torch.allclose(out[0], torch.tensor(-1.0))
    assert torch.allclose(out[1], torch.tensor(1.0), atol=1e-5)


def test_siamese_towers_share_weights_and_pseudo_siamese_ones_do_not() -> None:
    sections: dict[str, Any] = {"sampler": {"name": "pk", "images": 2}}
    shared = build_model(small_recipe(**sections, model={"towers": "siamese"}).model, channels_last=False)
    apart = build_model(small_recipe(**sections, model={"towers": "pseudo_siamese"}).model, channels_last=False)
    assert len(list(apart.parameters())) == 2 * len(list(shared.parameters()))
    images = torch.from_numpy(flat_people().images(range(4)))
    apart.eval()
    assert torch.allclose(apart(images)[1::2], tower(apart, 1)(images[1::2]))


def test_only_pairs_between_the_towers_count() -> None:
    triplets = Triplets(torch.tensor([0, 0, 0, 1]), torch.tensor([1, 1, 2, 0]), torch.tensor([3, 4, 3, 2]))
    kept = between_towers(triplets)
    assert [part.tolist() for part in kept] == [[0, 1], [1, 0], [3, 2]]


def test_distillation_losses_are_zero_at_the_teacher_and_match_a_loop() -> None:
    torch.manual_seed(0)
    student, teacher = torch.randn(5, 8), torch.nn.functional.normalize(torch.randn(5, 8))
    assert float(embedding_loss(3 * teacher, teacher)) == pytest.approx(0, abs=1e-6)
    assert float(relation_loss(3 * teacher, teacher)) == pytest.approx(0, abs=1e-6)
    unit = student / student.norm(dim=1, keepdim=True)
    pairs = [(i, j) for i in range(5) for j in range(5) if i != j]
    slow = np.mean([float(unit[i] @ unit[j] - teacher[i] @ teacher[j]) ** 2 for i, j in pairs])
    assert float(relation_loss(student, teacher)) == pytest.approx(slow, rel=1e-5)


@pytest.mark.long
def test_a_student_comes_closer_to_its_teacher_package(tmp_path: Path) -> None:
    crops = flat_people()
    teacher = open_teacher(
        load_package(PROJECT / "models" / "sface"), crops, cache=tmp_path, mirror_mean=True, progress=lambda _n: None
    )
    recipe = small_recipe(
        losses=[],
        distill={"teacher": "sface", "relation": 1.0},
        train={"steps": 30, "log_every": 1},
        optimizer={"lr": 0.1},
    )
    trainer = small_trainer(recipe, tmp_path / "run", teacher=teacher)
    losses = [float(trainer.train_step().loss) for _ in range(30)]
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:5])
    assert list(tmp_path.glob("teacher-*.npy"))


@pytest.mark.long
def test_a_teacher_answers_for_what_the_student_sees(tmp_path: Path) -> None:
    crops = flat_people(2, 2)
    package = load_package(PROJECT / "models" / "sface")
    batch = BatchSource(crops, seed=2, augment=None)[BatchKey(0, 0, (0, 1, 2, 3))]
    assert 0 < batch.mirrored.sum() < 4
    session = open_embedder(package, CACHE, device="auto", threads=1)
    seen, other = (run_teacher(session, images) for images in (batch.images.numpy(), batch.images.numpy()[:, :, ::-1]))
    kept: dict[str, Any] = {"cache": tmp_path, "progress": lambda _n: None}
    for settings in (kept, kept | {"cache": None}):
        alone = open_teacher(package, crops, mirror_mean=False, **settings).targets(batch)
        assert torch.allclose(alone, torch.nn.functional.normalize(torch.from_numpy(seen)), atol=1e-5)
        both = open_teacher(package, crops, mirror_mean=True, **settings).targets(batch)
        assert torch.allclose(both, torch.nn.functional.normalize(torch.from_numpy(seen + other)), atol=1e-5)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of a package that torch.compile loads
def test_a_compiled_backbone_takes_the_same_step(tmp_path: Path, full: bool) -> None:
    if not full:
        pytest.skip("torch.compile takes a minute and a half; --full runs it")
    weights = []
    for compiled in (False, True):
        trainer = small_trainer(small_recipe(train={"compile": compiled}), tmp_path / str(compiled))
        trainer.train(until=2)
        weights.append(trainer.model.state_dict())
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.allclose(value, weights[1][name], atol=1e-4) for name, value in weights[0].items())


def test_the_alarm_tells_a_collapse_from_a_slow_start() -> None:
    spread = torch.eye(8)
    alarm = CollapseAlarm(people=100)
    assert not any(alarm.observe(10.0, 0.0, spread) for _ in range(20))  # no progress, no alarm
    heard = [alarm.observe(5.0, 0.0, spread) for _ in range(PATIENCE)]
    assert heard[:-1] == [None] * (PATIENCE - 1)
    assert "accuracy" in str(heard[-1])
    assert alarm.observe(5.0, 0.5, spread[:1]) is None  # a rank whose share is one crop
    alarm_of_many = CollapseAlarm(people=100)
    assert "same way" in str([alarm_of_many.observe(1.0, None, torch.ones(4, 3)) for _ in range(PATIENCE)][-1])


def test_the_alarm_names_embeddings_of_length_zero_once_in_an_episode() -> None:
    partly_zero, all_long = torch.eye(4), torch.eye(4)
    partly_zero[2] = 0
    alarm = CollapseAlarm(people=100)
    for found in (partly_zero, all_long, partly_zero):  # two episodes
        heard = [alarm.observe(1.0, None, found) for _ in range(PATIENCE + 1)]
        assert [place for place, message in enumerate(heard) if message] == (
            [PATIENCE - 1] if found is partly_zero else []
        )
    before, after = CollapseAlarm(people=100), CollapseAlarm(people=100)
    assert not any(before.observe(1.0, None, partly_zero) for _ in range(PATIENCE - 1))
    after.restore(before.state())
    assert "1 of 4 embeddings are zero" in str(after.observe(1.0, None, partly_zero))


def test_people_are_split_whole_and_by_the_seed_alone() -> None:
    labels = np.repeat(np.arange(20), np.r_[np.full(10, 1), np.full(10, 3)])
    train, held = split_people(labels, 0.25, seed=3)
    assert not set(labels[train]) & set(labels[held])
    assert len(set(labels[held])) == 5
    assert all((labels == person).sum() > 1 for person in set(labels[held]))
    assert np.array_equal(held, split_people(labels, 0.25, seed=3)[1])
    limited = whole_people(labels, 9, seed=0)
    assert len(limited) == 9
    assert np.array_equal(np.unique(labels[limited], return_counts=True)[1], [3, 3, 3])


def test_figures_of_an_evaluation_match_a_loop_over_pairs() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(5), 4)
    vectors = rng.normal(size=(20, 6)) + 2 * rng.normal(size=(5, 6))[labels]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    figures = metrics.verification_figures(vectors, labels, 0.1)
    pairs = [(vectors[i] @ vectors[j], labels[i] == labels[j]) for i in range(20) for j in range(i)]
    mated = [score for score, same in pairs if same]
    nonmated = [score for score, same in pairs if not same]
    assert (figures["mated"], figures["nonmated"]) == (len(mated), len(nonmated))
    assert figures["fnmr"] == pytest.approx(np.mean(np.array(mated) < figures["threshold"]))
    assert np.mean(np.array(nonmated) >= figures["threshold"]) <= 0.1
    assert figures["eer"] == pytest.approx(metrics.equal_error_rate(mated, nonmated))


@pytest.mark.long
def test_the_command_line_trains_resumes_and_refuses_to_overwrite(tmp_path: Path) -> None:
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY, encoding="utf-8")
    start = ["train", str(recipe), "--out", str(tmp_path / "run"), "--device", "cpu", "--set", "train.steps=3"]
    assert CliRunner().invoke(app, start).exit_code == 0
    assert CliRunner().invoke(app, start).exit_code == 2
    longer = [*start[:-1], "train.steps=5", "--resume"]
    assert CliRunner().invoke(app, longer).exit_code == 0
    assert (tmp_path / "run" / "step_00000005.pt").is_file()
    assert CliRunner().invoke(app, ["train", str(recipe), "--set", "train.stepz=5"]).exit_code == 2


@pytest.mark.long
def test_packs_are_measured_while_training_and_choose_the_best_checkpoint(tmp_path: Path) -> None:
    crops = flat_people(people=10, images=4, seed=5)
    pairs = [(4 * p, 4 * p + 1, True) for p in range(10)] + [(4 * p, (4 * p + 6) % 40, False) for p in range(10)]
    order = np.random.default_rng(0).permutation(len(pairs))
    images = [png_of(crops.images([place])[0]) for pair in order for place in pairs[pair][:2]]
    write_pack(tmp_path / "faces.bin", images, [pairs[pair][2] for pair in order])
    recipe = small_recipe(train={"steps": 30}, evaluate={"packs": [str(tmp_path / "faces.bin")], "every": 15})
    trainer = small_trainer(recipe, tmp_path / "run")
    progress = trainer.train()
    assert progress.figures["accuracy"] == progress.figures["accuracy_faces"] > 0.8
    accuracies = [line["accuracy"] for line in logged(tmp_path / "run", "evaluation")]
    assert progress.best == pytest.approx(1 - max(accuracies))
    assert (tmp_path / "run" / "best.pt").is_file()


class LeftHalf(torch.nn.Module):
    """Embeds the mean colour of the left half alone."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = torch.nn.Parameter(torch.tensor(127.5))

    def forward(self, crops: torch.Tensor) -> torch.Tensor:
        return crops[:, :, :56].float().mean((1, 2)) - self.middle


def test_packs_tell_mirrored_photos_of_a_person_only_with_flip() -> None:
    halves = np.random.default_rng(1).integers(0, 256, (40, 1, 2, 1, 3)).astype(np.uint8)
    crops = np.broadcast_to(halves, (40, 112, 2, 56, 3)).reshape(40, 112, 112, 3)
    crops[0::4] = crops[1::4, :, ::-1]  # every second pair is a crop and its mirror image
    pack = VerificationPack(tuple(map(png_of, crops)), np.arange(20) % 2 == 0)
    assert pack_accuracy(LeftHalf(), pack, flip=True) >= 0.9
    assert pack_accuracy(LeftHalf(), pack, flip=False) < 0.8
