"""Exchange values between the processes of a training run. In a single process every function returns its input.

Functions with a gradient differ in their backward pass, which each docstring describes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


def rank() -> int:
    """Return this process's rank; 0 without torch.distributed."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def ranks() -> int:
    """Return the number of processes; 1 without torch.distributed."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def summed(values: Tensor) -> Tensor:
    """Sum over ranks, in place if ``values`` is contiguous. No gradient."""
    if ranks() > 1:
        values = values.contiguous()
        dist.all_reduce(values)
    return values


def largest(values: Tensor) -> Tensor:
    """Maximum over ranks, in place. No gradient."""
    if ranks() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.MAX)
    return values


def from_first(values: Tensor) -> Tensor:
    """Replace the values by the first rank's, in place. No gradient."""
    if ranks() > 1:
        dist.broadcast(values, src=0)
    return values


def object_from_first(value: Any, device: torch.device) -> Any:
    """Return the first rank's picklable object on every rank."""
    if ranks() == 1:
        return value
    carried = [value]
    dist.broadcast_object_list(carried, src=0, device=device)
    return carried[0]


def mean_gradients(module: nn.Module) -> None:
    """Average the module's gradients over ranks in one message, which also keeps replicas from drifting apart."""
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if ranks() == 1 or not gradients:
        return
    flat = summed(torch.cat([g.reshape(-1) for g in gradients])) / ranks()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def row_counts(values: Tensor) -> list[int]:
    """Return how many rows each rank has. Synchronises with the device."""
    if ranks() == 1:
        return [len(values)]
    counts = [torch.zeros((), dtype=torch.long, device=values.device) for _ in range(ranks())]
    dist.all_gather(counts, torch.tensor(len(values), device=values.device))
    return [int(count) for count in counts]


def gather(values: Tensor, sizes: Sequence[int] | None = None) -> Tensor:
    """Gather each rank's (B_r, …) to (ΣB, …) on all, in rank order; ``sizes`` only if the numbers of rows differ.

    The gradient of a rank's rows is the sum over ranks.
    """
    if ranks() == 1:
        return values
    sizes = [len(values)] * ranks() if sizes is None else sizes
    gathered: Tensor = _Gather.apply(values, sizes)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return gathered


def scaled(values: Tensor, factor: float) -> Tensor:
    """Return the same values, whose gradient is multiplied by ``factor``."""
    return _hooked(values, lambda gradient: gradient * factor)


def total(values: Tensor) -> Tensor:
    """Return the sum of a number over ranks, on every rank; the gradient passes unchanged."""
    result: Tensor = _Total.apply(values)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return result


def shared(values: Tensor) -> Tensor:
    """Mark values that every rank holds and uses for its own part, so that their gradients are summed over ranks."""
    return _hooked(values, lambda gradient: summed(gradient.clone()))


def _hooked(values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    same = values.view_as(values)
    if same.requires_grad:
        same.register_hook(change)  # type: ignore[no-untyped-call]  # torch has no types here
    return same


def _all_rows(values: Tensor, sizes: Sequence[int]) -> Tensor:
    if len(sizes) == 1:
        return values
    padded = values.contiguous()
    if len(set(sizes)) > 1:
        padded = values.new_zeros(max(sizes), *values.shape[1:])
        padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, sizes: Sequence[int]) -> Tensor:
        start = sum(sizes[: rank()])
        ctx.mine = slice(start, start + len(values))
        return _all_rows(values, sizes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return summed(gradients[0].clone())[ctx.mine], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        del ctx
        return summed(values.clone())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return gradients[0]
