"""A step of training: fused, without waiting for the device, in the precision and with the memory that were chosen."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="training needs the train extra")

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from app.errors import InvalidInput
from tests.conftest import PROJECT
from tests.support.runs import ALONE, differing, small_recipe, small_trainer
from training import backbones, losses
from training.model import recompute_blocks
from training.recipe import parse_recipe
from training.run import precision
from training.run.inputs import prepare_material
from training.run.objective import build_objective
from training.run.precision import LossScale
from training.run.trainer import Trainer

WAITS = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "equal",
    "is_nonzero",
    "unique",
    "_unique2",
    "repeat_interleave",
}
"""Operations whose result the host, or the next shape, depends on: on a GPU each waits until all work is done."""
CLASS_LEVEL = list(losses.CLASS_LEVEL)
RESIDUAL = {"backbone": "iresnet18", "options": {"width": 0.125}, "dim": 8, "input_size": 32}
TRANSFORMER = {
    "backbone": "vit_tiny",
    "options": {"channels": 16, "depth": 2, "heads": 2, "patch": 16, "drop_path": 0.5},
    "dim": 8,
    "input_size": 32,
}


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Notes every operation that would wait for a GPU, also one whose index is a mask."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        masks = name in ("index", "index_put", "index_put_") and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if name in WAITS or masks:
            self.found.append(name)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize(
    "sections",
    [
        *(
            pytest.param({"losses": [{"name": name}]}, marks=[] if name == "arcface" else [pytest.mark.long])
            for name in CLASS_LEVEL
        ),
        {"train": {"precision": "fp16", "accumulate": 2}, "optimizer": {"name": "adamw"}},
        {"partial_fc": {"enabled": True, "sample_rate": 0.5}},
        {"partial_fc": {"enabled": True}, "losses": [{"name": "curricularface"}]},
    ],
    ids=[*CLASS_LEVEL, "fp16, two batches", "sampled classes", "sharded classes"],
)
def test_no_step_waits_for_the_device(
    tmp_path: Path, sections: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Labels are only read where they lie on the host.
    monkeypatch.setattr("training.losses.base.check_batch", lambda *_: None)
    monkeypatch.setattr("training.losses.partial_fc.check_batch", lambda *_: None)
    trainer = small_trainer(small_recipe(**sections), tmp_path)
    trainer.train_step()  # optimisers make their state
    with Waits() as waits:
        trainer.train_step()
    assert waits.found == []
    with Waits() as waits:
        float(trainer.train_step().loss)
    assert waits.found == ["_local_scalar_dense"]  # it does notice


def test_the_loss_scale_is_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "GROWTH_STEPS", 30)
    device, parameter = torch.device("cpu"), nn.Parameter(torch.zeros(1))
    theirs = torch.amp.GradScaler("cpu", growth_interval=precision.GROWTH_STEPS)
    ours, optimizer = LossScale(device, used=True), torch.optim.SGD([parameter])
    for step in range(2 * precision.GROWTH_STEPS + 10):
        bad = step in (0, 1, 5, precision.GROWTH_STEPS + 10)
        parameter.grad = torch.tensor([float("inf") if bad else 1.0])
        theirs.scale(torch.ones(()))
        theirs.unscale_(optimizer)
        theirs.step(optimizer)
        theirs.update()
        ours.update(torch.tensor(float(bad)))
        assert float(ours.value) == theirs.get_scale()
    again = LossScale(device, used=True)
    again.restore(ours.state())
    assert again.state() == ours.state()
    unused = LossScale(device, used=False)
    unused.update(torch.ones(()))
    assert float(unused.value) == 1


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_optimisers_are_fused_and_a_void_first_step_leaves_no_trace(tmp_path: Path, name: str) -> None:
    recipe = small_recipe(optimizer={"name": name}, train={"ema": 0.0})
    spoilt, clean = small_trainer(recipe, tmp_path / "spoilt"), small_trainer(recipe, tmp_path / "clean")
    assert all(group["fused"] for group in spoilt.optimizer.param_groups)
    hook = spoilt.model.get_submodule("backbone").register_forward_pre_hook(lambda _net, x: (x[0] * float("nan"),))
    assert spoilt.train_step().void == 1
    hook.remove()
    spoilt.progress.step, spoilt._batches = 0, None
    spoilt.train_step()
    clean.train_step()
    assert differing(spoilt.state(), clean.state()) == []


@contextmanager
def kept_bytes() -> Iterator[list[int]]:
    """Count what the forward pass keeps for the backward pass."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.nbytes)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


@pytest.mark.long
@pytest.mark.parametrize("model", [RESIDUAL, TRANSFORMER], ids=["iresnet", "transformer with drop_path"])
def test_blocks_computed_again_take_the_same_step_with_less_memory(tmp_path: Path, model: dict[str, Any]) -> None:
    states, kept = [], []
    for again in (False, True):
        recipe = small_recipe(model=model, train={"gradient_checkpointing": again, "precision": "fp32"})
        trainer = small_trainer(recipe, tmp_path / str(again))
        trainer.train(until=1)
        states.append(trainer.state())
        with kept_bytes() as sizes:
            trainer.model(torch.zeros(4, 112, 112, 3, dtype=torch.uint8))
        kept.append(sum(sizes))
    assert differing(*states) == []
    assert kept[1] < 0.7 * kept[0]


def test_a_net_without_blocks_cannot_compute_them_again(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="IResNet"):
        small_trainer(small_recipe(train={"gradient_checkpointing": True}), tmp_path)
    with pytest.raises(InvalidInput):
        recompute_blocks(nn.Sequential(nn.Linear(2, 2)))


@pytest.mark.parametrize(
    ("case", "chosen", "warned"),
    [
        (("iresnet18", "cuda", 9), "bf16", None),
        (("iresnet18", "cuda", 7), "fp16", None),
        (("iresnet18", "cuda", 6), "fp32", None),
        (("mobilefacenet", "cuda", 9), "fp16", "depthwise"),
        (("iresnet18", "cpu", True), "bf16", None),
        (("iresnet18", "cpu", False), "fp32", "AMX"),
        (("mobilefacenet", "cpu", True), "fp32", None),
        (("mobilefacenet", "cpu", False), "fp32", "AMX"),
    ],
)
def test_precision_is_what_the_device_does_well(
    monkeypatch: pytest.MonkeyPatch, case: tuple[str, str, int], chosen: str, warned: str | None
) -> None:
    net, device, power = case
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (power, 0))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: power)
    model, where = backbones.build(net, dim=8, size=32, width=0.125), torch.device(device)
    assert precision.choose("auto", where, model) == chosen
    assert precision.choose("fp32", where, model) == "fp32"
    assert precision.warning(precision.choose("auto", where, model), where, model) is None
    message = precision.warning("bf16", where, model)
    assert warned in str(message) if warned else message is None


@pytest.mark.parametrize(
    ("ranks", "people", "sections", "expected"),
    [
        (1, 99_999, {}, None),
        (1, 100_000, {}, 0.1),
        (2, 100, {}, 1.0),
        (2, 100, {"partial_fc": {"sample_rate": 0.3}}, 0.3),
        (2, 100, {"partial_fc": {"enabled": False}}, None),
        (1, 100, {"partial_fc": {"enabled": True}}, 1.0),
        (2, 100, {"losses": [{"name": "arcface"}, {"name": "cosface"}]}, None),
        (2, 100, {"losses": [{"name": "triplet"}]}, None),
        (4, 3, {}, None),
    ],
)
def test_ranks_share_the_class_weights_on_their_own(
    monkeypatch: pytest.MonkeyPatch, ranks: int, people: int, sections: dict[str, Any], expected: float | None
) -> None:
    for module in ("training.collectives", "training.run.objective"):
        monkeypatch.setattr(f"{module}.ranks", lambda: ranks)
    objective = build_objective(small_recipe(**sections), people, people, None)
    sharded = objective._partial_fc()
    assert (None if sharded is None else sharded.sample_rate) == expected
    assert objective.sampled == (expected is not None and expected < 1)


def test_accuracy_of_sharded_classes_is_that_of_the_loss_itself() -> None:
    torch.manual_seed(0)
    recipe = small_recipe(partial_fc={"enabled": True})
    objective = build_objective(recipe, 5, 50, None)
    plain = build_objective(small_recipe(), 5, 50, None)
    plain.load_whole_state(objective.whole_state())  # the same whether sharded or not
    x, labels = torch.randn(40, 8), torch.randint(5, (40,))
    assert objective.accuracy(x, labels) == pytest.approx(plain.accuracy(x, labels))


LARGE: dict[str, dict[str, object]] = {
    "casia_r50": {"options": {"width": 0.125}},
    "ms1mv3_r50": {"options": {"width": 0.125}},
    "glint360k_r100": {"options": {"width": 0.125}},
    "webface4m_vit": {"options": {"channels": 16, "depth": 2, "heads": 2, "patch": 8}},
}
"""The recipes of large sets, and their nets at a size for two steps on a processor."""


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_recipes_of_large_sets_train_at_small_size(tmp_path: Path, name: str) -> None:
    path = PROJECT / "training" / "recipes" / f"{name}.toml"
    table = tomllib.loads(path.read_text("utf-8"))
    assert table["train"]["epochs"] >= 20
    table["data"] = {
        "source": "procedural:people=6,images=3,seed=1",
        "indexes": str(tmp_path / "indexes"),
        "held_out": 0.0,
    }
    table["sampler"]["batch_size"] = 6
    table["model"] |= LARGE[name] | {"input_size": 32}
    table["train"] |= {"epochs": 1, "log_every": 1}
    table["evaluate"] = {}
    recipe = parse_recipe(table)
    trainer = Trainer(recipe, prepare_material(recipe, PROJECT / "models"), tmp_path / "run", ALONE)
    assert trainer.steps == 3  # an epoch: 18 crops in batches of 6
    progress = trainer.train()
    assert (progress.step, progress.skipped) == (3, 0)
