"""Partial FC: shards in two processes equal one process, sampling touches only sampled rows, checkpoints re-shard."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.ranks import OverGloo, on_ranks
from training import losses
from training.collectives import gather, scaled
from training.losses import ClassLoss
from training.losses.partial_fc import PartialFC, select_rows
from training.losses.row_optimizer import RowAdamW, RowSGD

C, D, B = 23, 6, 6
"""23 classes: neither 2 nor 3 ranks divide them."""
MULTI_CENTRE: dict[str, dict[str, Any]] = {
    "subcenter_arcface": {"centers": 2},
    "softtriple": {"centers": 3},
    "hardtriple": {"centers": 2},
    "elasticface": {"plus": True, "kind": "cos"},
}


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    lengths = torch.linspace(1, 30, B, dtype=torch.float64)[:, None]
    x = torch.randn(B, D, generator=generator, dtype=torch.float64) * lengths
    return x, torch.randint(C, (B,), generator=generator)


def mine(rank: int, ranks: int) -> slice:
    """The samples of one rank."""
    return slice(rank * B // ranks, (rank + 1) * B // ranks)


def partial(name: str, **arguments: Any) -> PartialFC:
    torch.manual_seed(11)
    return PartialFC(name, num_classes=C, dim=D, **MULTI_CENTRE.get(name, {}) | arguments).double()


# ------------------------------------------------------------------------------ two processes equal one


def one_step(name: str, rank: int, ranks: int) -> dict[str, Any]:
    """Loss, gradients and state after a training step."""
    torch.manual_seed(rank)  # ElasticFace's draw must come from one rank
    head = partial(name)
    torch.manual_seed(100 + rank)
    x, labels = (part[mine(rank, ranks)] for part in data())
    x.requires_grad_()
    loss = head(x, labels)
    loss.backward()
    gradients = {key: value.grad for key, value in head.loss.named_parameters()}
    return {"loss": loss.detach(), "x": x.grad, "gradients": gradients, "state": head.full_state_dict()}


def every_class_loss(rank: int, ranks: int) -> dict[str, Any]:
    return {name: one_step(name, rank, ranks) for name in list(losses.CLASS_LEVEL)}


def replicated_pair_loss(rank: int, ranks: int) -> Any:
    """A pair-level loss on all ranks' embeddings: each computes all of it, so the gathered gradient is shared."""
    x, labels = (part[mine(rank, ranks)] for part in data())
    x.requires_grad_()
    labels = labels % 4
    loss = losses.build("triplet")(scaled(gather(x), 1 / ranks), gather(labels))
    loss.backward()
    return loss.detach(), x.grad


def sampled_steps(rank: int, ranks: int) -> Any:
    """Three steps at a third of the classes: what was drawn, what moved, on this rank."""
    head = partial("cosface", sample_rate=0.3)
    optimizer = RowSGD(head.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
    x, labels = (part[mine(rank, ranks)] for part in data())
    faults = []
    for step in range(3):
        head.seed = step
        before = head.loss.weight.detach().clone()
        optimizer.zero_grad()
        head(x, labels).backward()
        gradient = head.loss.weight.grad
        assert gradient is not None
        drawn = gradient.coalesce().indices()[0]
        optimizer.step()
        moved = (head.loss.weight.detach() != before).any(dim=1).nonzero().flatten()
        everyones = gather(labels)
        batch_rows = everyones[(everyones >= head.table.first) & (everyones < head.table.end)] - head.table.first
        if not torch.isin(batch_rows, drawn).all():
            faults.append("a class of the batch was not drawn")
        if not moved.equal(drawn):
            faults.append("moved is not drawn")
        if len(drawn) >= head.table.rows:
            faults.append("all were drawn")
    return faults


def two_ranks(rank: int, ranks: int) -> dict[str, Any]:
    return {
        "losses": every_class_loss(rank, ranks),
        "pairs": replicated_pair_loss(rank, ranks),
        "faults": sampled_steps(rank, ranks),
        "averaged": averaged_gradient(rank, ranks),
        "trained": train(rank, ranks, "", 3),
    }


def averaged_gradient(rank: int, ranks: int) -> Tensor | None:
    head = partial("arcface", averaged=True)
    x, labels = (part[mine(rank, ranks)] for part in data())
    x.requires_grad_()
    head(x, labels).backward()
    return x.grad


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "RowSGD": lambda parameters: RowSGD(parameters, lr=0.05, weight_decay=0.01),
    "RowAdamW": lambda parameters: RowAdamW(parameters, lr=0.05),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=0.05),
}


def train(rank: int, ranks: int, start: str, steps: int) -> dict[str, Any]:
    """Some steps of sphereface2 (it has a parameter that is not sharded) from a checkpoint file, and the next one."""
    saved = torch.load(start) if start else {}
    for kind, make in OPTIMIZERS.items():
        head = partial("sphereface2")
        optimizer = make(head.parameters())
        if kind in saved:
            head.load_full_state_dict(saved[kind]["head"])
            head.load_full_optimizer_state(optimizer, saved[kind]["optimizer"])
        x, labels = (part[mine(rank, ranks)] for part in data())
        values = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = head(x, labels)
            values.append(loss.item())
            loss.backward()
            optimizer.step()
        saved[kind] = {
            "head": copy.deepcopy(head.full_state_dict()),
            "optimizer": copy.deepcopy(head.full_optimizer_state(optimizer)),
            "losses": values,
        }
    return saved


class Continue:
    """`train` from a file, as something that can be sent to other processes."""

    def __init__(self, start: Path, steps: int) -> None:
        self.start, self.steps = str(start), steps

    def __call__(self, rank: int, ranks: int) -> dict[str, Any]:
        return train(rank, ranks, self.start, self.steps)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes found; one spawn serves all tests."""
    return on_ranks(2, OverGloo(two_ranks), tmp_path_factory.mktemp("two"))


@pytest.mark.parametrize("name", list(losses.CLASS_LEVEL))
def test_two_ranks_give_the_loss_and_gradients_of_one(pair: list[dict[str, Any]], name: str) -> None:
    whole = one_step(name, 0, 1)
    parts = [rank["losses"][name] for rank in pair]

    def same(ours: object, expected: object) -> None:
        torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)

    for part in parts:
        same(part["loss"], whole["loss"])
        same(part["state"], whole["state"])
    same(torch.cat([part["x"] for part in parts]), whole["x"])
    sharded = losses.CLASS_LEVEL[name].class_parameters
    for key, gradient in whole["gradients"].items():
        if key in sharded:
            same(torch.cat([part["gradients"][key] for part in parts]), gradient)
        else:
            for part in parts:
                same(part["gradients"][key], gradient)


def test_one_process_equals_the_loss_itself() -> None:
    for name in list(losses.CLASS_LEVEL):
        head = partial(name).eval()
        x, labels = data()
        plain = losses.build(name, num_classes=C, dim=D, **MULTI_CENTRE.get(name, {})).double().eval()
        plain.load_state_dict(head.full_state_dict())
        torch.testing.assert_close(head(x, labels), plain(x, labels), rtol=1e-12, atol=1e-12)


def test_a_pair_loss_on_gathered_embeddings_has_the_gradient_of_one_process(pair: list[dict[str, Any]]) -> None:
    expected, gradient = replicated_pair_loss(0, 1)
    assert gradient.abs().sum() > 0
    for rank in pair:
        torch.testing.assert_close(rank["pairs"][0], expected)
    torch.testing.assert_close(torch.cat([rank["pairs"][1] for rank in pair]), gradient)


def test_for_averaging_the_gradient_of_embeddings_is_multiplied_by_the_ranks(pair: list[dict[str, Any]]) -> None:
    gradient = averaged_gradient(0, 1)
    assert gradient is not None
    torch.testing.assert_close(torch.cat([rank["averaged"] for rank in pair]), 2 * gradient)


def test_on_two_ranks_just_the_sampled_rows_move_and_the_batchs_are_among_them(pair: list[dict[str, Any]]) -> None:
    assert [rank["faults"] for rank in pair] == [[], []]


@pytest.fixture(scope="module")
def checkpoint(pair: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved by two ranks after three steps."""
    path = tmp_path_factory.mktemp("saved") / "two.pt"
    torch.save(pair[0]["trained"], path)
    return path


def test_a_checkpoint_of_two_ranks_goes_on_in_one_and_in_three(checkpoint: Path, tmp_path: Path) -> None:
    """Three steps on 2 ranks, two on 1, two on 3: the losses of seven steps in one process."""
    straight = train(0, 1, "", 7)
    second = train(0, 1, str(checkpoint), 2)
    torch.save(second, tmp_path / "one.pt")
    third = on_ranks(3, OverGloo(Continue(tmp_path / "one.pt", 2)), tmp_path)[0]
    first = torch.load(checkpoint)
    for kind in OPTIMIZERS:
        joined = first[kind]["losses"] + second[kind]["losses"] + third[kind]["losses"]
        assert joined == pytest.approx(straight[kind]["losses"], rel=1e-9)
        for key, value in straight[kind]["head"].items():
            torch.testing.assert_close(third[kind]["head"][key], value)


# --------------------------------------------------------------------------------------- sampling, one rank


@pytest.mark.parametrize("name", list(losses.CLASS_LEVEL))
@pytest.mark.parametrize("make", [OPTIMIZERS["RowSGD"], OPTIMIZERS["RowAdamW"]])
def test_rows_that_were_not_drawn_stay_bit_by_bit(name: str, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    head = partial(name, sample_rate=0.5)
    optimizer = make(head.parameters())
    x, labels = data()
    drawn_once: set[int] = set()
    for step in range(4):
        head.seed = step
        before = head.loss.weight.detach().clone()
        optimizer.zero_grad()
        head(x, labels).backward()
        gradient = head.loss.weight.grad
        assert gradient is not None
        assert gradient.is_sparse
        drawn = gradient.coalesce().indices()[0]
        assert len(drawn) == 12  # half of 23, rounded up
        assert torch.isin(labels, drawn).all()
        optimizer.step()
        rest = torch.ones(C, dtype=torch.bool).index_fill(0, drawn, value=False)
        assert head.loss.weight.detach()[rest].equal(before[rest])
        assert (head.loss.weight.detach()[~rest] != before[~rest]).flatten(1).any(dim=1).all()
        drawn_once |= set(drawn.tolist())
    assert len(drawn_once) > 12


def test_with_every_class_in_the_batch_sampling_leaves_none_out() -> None:
    head = partial("arcface", sample_rate=0.1)
    labels = torch.arange(C)
    x = torch.randn(C, D, dtype=torch.float64)
    full = partial("arcface")
    torch.testing.assert_close(head(x, labels), full(x, labels))


def test_a_row_is_not_drawn_for_a_sample_of_another_shard() -> None:
    head = partial("cosface", sample_rate=0.2)
    nobody = torch.zeros(4, dtype=torch.bool)
    counts = torch.zeros(C)
    for seed in range(200):
        head.seed = seed
        counts[head.draw(torch.zeros(4, dtype=torch.long), nobody)] += 1
    assert counts[0] < 2 * counts.mean()


def test_the_margin_is_warmed_up_through_the_shards() -> None:
    head = partial("cosface")
    x, labels = data()
    head.margin_scale = 0.0
    plain = losses.build("norm_softmax", num_classes=C, dim=D, s=64.0).double()
    plain.load_state_dict(head.full_state_dict())
    assert head.margin_scale == 0.0
    torch.testing.assert_close(head(x, labels), plain(x, labels))


def test_the_start_does_not_depend_on_how_the_table_is_cut() -> None:
    torch.manual_seed(3)
    whole = losses.base.ClassTable(10_000, 3).draw(3)
    parts: list[Tensor] = []
    for first, stop in ((0, 4000), (4000, 4097), (4097, 10_000)):
        torch.manual_seed(3)
        parts.append(losses.base.ClassTable(10_000, 3, first, stop).draw(3))
    assert torch.cat(parts).equal(whole)
    assert whole.std().item() == pytest.approx(0.01, rel=0.05)


def test_a_shard_refuses_to_be_taken_for_the_whole() -> None:
    part = losses.build_part("cosface", losses.base.ClassTable(C, D, 0, 10))
    assert isinstance(part, ClassLoss)
    with pytest.raises(ValueError, match="PartialFC"):
        part(torch.randn(2, D), torch.tensor([0, 1]))


def test_what_cannot_be_sharded_is_refused() -> None:
    with pytest.raises(ValueError, match="class-level"):
        PartialFC("triplet", num_classes=C, dim=D)
    with pytest.raises(ValueError, match="sample_rate"):
        PartialFC("arcface", num_classes=C, dim=D, sample_rate=0.0)
    with pytest.raises(ValueError, match="did you mean"):
        PartialFC("arcface", num_classes=C, dim=D, margn=0.4)
    with pytest.raises(ValueError, match="0…22"):
        partial("arcface")(torch.randn(2, D), torch.tensor([0, C]))
    smaller = partial("arcface").full_state_dict()
    smaller["weight"] = smaller["weight"][:5]
    with pytest.raises(ValueError, match="5 classes"):
        partial("arcface").load_full_state_dict(smaller)


# ------------------------------------------------------------------------------------------ row optimisers


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda p: RowSGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05),
        ),
        (
            lambda p: RowAdamW(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.05),
            lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.95), weight_decay=0.05),
        ),
    ],
)
@pytest.mark.parametrize("shape", [(6,), (6, 4), (6, 2, 4)])
def test_a_rows_history_is_that_of_a_dense_optimiser_that_saw_only_its_steps(
    ours: Callable[[Any], torch.optim.Optimizer], theirs: Callable[[Any], torch.optim.Optimizer], shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(1)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    table = torch.nn.Parameter(start.clone())
    optimizer = ours([table])
    alone = [torch.nn.Parameter(row.clone()) for row in start]
    theirs_of = [theirs([row]) for row in alone]
    scales = [torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)) for _ in range(2)]
    dense = [ours(scales[:1]), theirs(scales[1:])]
    for _ in range(12):
        index = torch.rand(6, generator=generator).topk(3).indices.sort().values
        target = torch.randn((3, *shape[1:]), generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        torch.autograd.backward(torch.sum((select_rows(table, index) - target) ** 2))
        optimizer.step()
        for place, row in enumerate(index.tolist()):
            theirs_of[row].zero_grad()
            torch.autograd.backward(torch.sum((alone[row] - target[place]) ** 2))
            theirs_of[row].step()
        for scale, of_scale in zip(scales, dense, strict=True):
            of_scale.zero_grad()
            torch.autograd.backward(torch.square(scale))
            of_scale.step()
    torch.testing.assert_close(table.detach(), torch.stack([row.detach() for row in alone]))
    assert scales[0].item() == pytest.approx(scales[1].item()) != 2  # a dense gradient is stepped as usual
