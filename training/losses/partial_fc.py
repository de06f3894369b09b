"""Class-level losses whose table of classes is sharded over processes and sampled at each step.

Each rank holds C/ranks of the class rows, sees the embeddings of all ranks, and computes its columns' contributions
(Partial FC, arXiv 2010.05222 and 2203.15565). At `sample_rate` < 1 a rank uses only that share of its rows in a step:
all classes of the batch, and others at random. Rows that were not drawn stay exactly the same: the gradient is a sparse
tensor of the drawn rows, and `training.losses.row_optimizer` steps only these.

Every class-level loss of the registry works: those coupled by softmax (all but one), with one vector or K centres per
class, also with the target's score (curricularface, elasticface's `plus`) or a bias per class (softmax), and
sphereface2, whose decisions are independent. Pair-level losses are rejected, since they have no class rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from training import collectives
from training.losses import build_part
from training.losses.base import (
    ClassTable,
    LossError,
    Part,
    Ranks,
    check_batch,
    full_precision,
    require,
    same_type,
    upcast,
)


class _SelectRows(torch.autograd.Function):
    """Selects rows of a parameter; the gradient is sparse, for only these rows."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = values.shape
        return values[index]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        sparse = torch.sparse_coo_tensor(
            index[None], gradients[0], ctx.shape, is_coalesced=True, check_invariants=False
        )
        return sparse, None


def select_rows(values: Tensor, index: Tensor) -> Tensor:
    """Return values[index] with a sparse gradient."""
    selected: Tensor = _SelectRows.apply(values, index)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return selected


class Shards(Ranks):
    """Exchanges values between the ranks of torch.distributed's default group, which share a table of classes."""

    def total(self, values: Tensor) -> Tensor:
        return collectives.total(values)

    def once(self, values: Tensor) -> Tensor:
        return self.total(values / collectives.ranks())

    def same(self, values: Tensor) -> Tensor:
        return collectives.from_first(values.detach().clone())

    def cross_entropy(self, logits: Tensor, part: Part) -> Tensor:
        largest = collectives.largest(logits.detach().amax(dim=1))
        partition = self.total(torch.exp(logits - largest[:, None]).sum(dim=1))
        return torch.log(partition) + largest - self.total(part.own_values(part.at_target(logits)))

    def parameter(self, values: Tensor) -> Tensor:
        return collectives.shared(values)


class PartialFC(nn.Module):
    """`forward(embeddings, labels)` with this rank's (B_r, D) and (B_r,) → the loss of all ranks' samples together.

    The loss is the same scalar on every rank. After `backward` on every rank an embedding's gradient is that of the
    one-process loss, and so is a class row's on the rank that holds it; parameters that all ranks hold (sphereface2's
    b) have the same gradient everywhere. If the backbone's gradients are then *averaged* over ranks, as
    DistributedDataParallel does, pass averaged=True, which multiplies embeddings' gradients by the number of ranks.

    Every rank's batch must have the same size. In eval mode all classes are used. Set a new `seed` for each step: it
    determines the drawn classes. `full_state_dict` and `full_optimizer_state` are collective and return the states of
    the same loss in one process: a state saved by 2 ranks loads on 1 or 3.
    """

    def __init__(
        self,
        name: str,
        *,
        num_classes: int,
        dim: int,
        sample_rate: float = 1.0,
        averaged: bool = False,
        seed: int = 0,
        **hyper: object,
    ) -> None:
        super().__init__()
        rank, ranks = collectives.rank(), collectives.ranks()
        require(0 < sample_rate <= 1, f"sample_rate must lie in (0, 1], not {sample_rate}")
        require(num_classes >= ranks, f"{num_classes} classes do not fill {ranks} ranks")
        self.table = ClassTable(num_classes, dim, num_classes * rank // ranks, num_classes * (rank + 1) // ranks)
        self.sample_rate, self.seed = sample_rate, seed
        self.factor = float(ranks) if averaged else 1.0
        self.loss = build_part(name, self.table, **hyper)

    @property
    def margin_scale(self) -> float:
        return self.loss.margin_scale

    @margin_scale.setter
    def margin_scale(self, share: float) -> None:
        self.loss.margin_scale = share

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, labels, None, self.table.dim)
        return self.of_gathered(collectives.gather(upcast(embeddings)), collectives.gather(labels))

    def of_gathered(self, everyone: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of (B, D) float32 embeddings and (B,) labels that `collectives.gather` returned."""
        check_batch(everyone, labels, self.table.num_classes, self.table.dim)
        with full_precision(everyone):
            targets = labels.long()
            part = self._part(collectives.scaled(everyone, self.factor), targets)
            counted = sum(self._rows_used(start, end, len(targets)) for start, end in self._shards())
            return self.loss.of(part, counted)

    @torch.no_grad()
    def accuracy(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the share of all ranks' samples whose own class scores highest without margin. Collective."""
        x, targets = collectives.gather(upcast(embeddings)), collectives.gather(labels.long())
        scores = self.loss.logits(x)
        column, is_here = self._own(targets)
        own_scores = scores.gather(1, column[:, None])[:, 0].masked_fill(~is_here, -math.inf)
        return (collectives.largest(own_scores) >= collectives.largest(scores.amax(dim=1))).float().mean()

    def _shards(self) -> list[tuple[int, int]]:
        """Return each rank's first row and the one after its last."""
        ranks = collectives.ranks()
        cuts = [self.table.num_classes * rank // ranks for rank in range(ranks + 1)]
        return list(itertools.pairwise(cuts))

    def _own(self, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's row here, and whether its class is here (if not, the row is arbitrary)."""
        is_here = (targets >= self.table.first) & (targets < self.table.end)
        return (targets - self.table.first).clamp(0, self.table.rows - 1), is_here

    def _part(self, x: Tensor, targets: Tensor) -> Part:
        column, is_here = self._own(targets)
        rows: Mapping[str, Tensor] = self.loss.class_rows()
        if self.training and self.sample_rate < 1:
            index = self.draw(column, is_here)
            rows = {name: select_rows(row, index) for name, row in rows.items()}
            column = torch.searchsorted(index, column).clamp(max=len(index) - 1)
        x, rows = same_type(x, rows)
        return Part(x, rows, column, is_here, Shards())

    def _rows_used(self, start: int, end: int, samples: int) -> int:
        """Return how many rows of a shard take part in a step: the sampled share, at least as many as the batch may
        need. It doesn't depend on the labels, which lie on the device."""
        if not self.training or self.sample_rate == 1:
            return end - start
        return max(math.ceil(self.sample_rate * (end - start)), min(samples, end - start))

    @torch.no_grad()
    def draw(self, column: Tensor, is_here: Tensor) -> Tensor:
        """Return the rows of this step, sorted: those in `column` where `is_here`, and random others.

        The draw depends on (seed, first row of the shard), so a resumed run draws the same rows.
        """
        rows = self.table.rows
        generator = torch.Generator(column.device).manual_seed(hash((self.seed, self.table.first)) % 2**63)
        priority = torch.rand(rows, generator=generator, device=column.device)
        priority.scatter_reduce_(0, column, 2.0 * is_here.to(priority.dtype), "amax")  # 2 is above all values of rand
        count = self._rows_used(self.table.first, self.table.end, len(column))
        return priority.topk(count).indices.sort().values

    # checkpoints, which do not depend on the number of ranks

    def full_state_dict(self) -> dict[str, Any]:
        """Return the state of the same loss in one process; the same on every rank. Collective."""
        state = self.loss.state_dict()
        for name in self.loss.class_parameters:
            state[name] = _gathered(state[name])
        return dict(state)

    def load_full_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's rows from the result of `full_state_dict`, made on any number of ranks."""
        full = dict(state)
        for name in self.loss.class_parameters:
            full[name] = self._mine(full[name])
        self.loss.load_state_dict(full)

    def full_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return `optimizer.state_dict()` with the state of class rows gathered over the ranks. Collective."""
        return self._changed(optimizer, optimizer.state_dict(), _gathered)

    def load_full_optimizer_state(self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
        optimizer.load_state_dict(self._changed(optimizer, state, self._mine))

    def _changed(
        self, optimizer: torch.optim.Optimizer, state: Mapping[str, Any], change: Callable[[Tensor], Tensor]
    ) -> dict[str, Any]:
        """Return an optimiser's state, which numbers its parameters, with ``change`` applied to class rows' tensors."""
        rows = {id(parameter) for parameter in self.loss.class_rows().values()}
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        changed = dict(state["state"])
        for number in (number for number in changed if id(parameters[number]) in rows):
            changed[number] = {
                key: change(value) if isinstance(value, Tensor) and value.ndim else value
                for key, value in changed[number].items()
            }
        return {**state, "state": changed}

    def _mine(self, full: Tensor) -> Tensor:
        if len(full) != self.table.num_classes:
            raise LossError(f"the checkpoint has {len(full)} classes, this loss {self.table.num_classes}")
        return full[self.table.first : self.table.end].clone()


def _gathered(values: Tensor) -> Tensor:
    """Return all ranks' rows; ranks may have different numbers of rows."""
    return collectives.gather(values, collectives.row_counts(values))
