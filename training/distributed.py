"""One process or many by the same path: who am I, gather with gradients, batch statistics over all ranks.

Losses are computed on the gathered global batch by every rank, so pair-level losses see all pairs and the gradient is
the single process's: the gather's backward sums what every rank sends back (world times the same), and the mean over
ranks that follows takes that factor out again.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.errors import DeviceUnavailable
from training.losses.base import upcast


@dataclass(frozen=True, slots=True)
class World:
    """This process among those that train together."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @contextmanager
    def first_goes_first(self) -> Iterator[None]:
        """The first rank runs the block, then all others: they find the files that it made."""
        if self.size > 1 and not self.is_first:
            dist.barrier()
        yield
        if self.size > 1 and self.is_first:
            dist.barrier()


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """The world that torchrun set up in the environment, or a world of one. `device`: auto, cpu or cuda.

    nccl on CUDA, gloo elsewhere. Raises Unusable (`device_unavailable`) when CUDA is asked for and missing.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    chosen = _device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=size)
    atexit.register(_outlive, dist.group.WORLD)
    try:
        yield World(rank, size, chosen)
        dist.barrier()  # nobody leaves, the first with everyone's store, while another still works
    finally:
        dist.destroy_process_group()


def _outlive(group: object) -> None:
    """Holds the group until the process ends. If DDP's reducer were the last to hold it, that would wait, with Python's
    lock, for gloo's thread to end, which may want the lock to let its last work go."""


def _device(name: str, local_rank: int) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable("CUDA was asked for, but torch sees no CUDA device.")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


class _Gather(torch.autograd.Function):
    """(B, D) of each rank -> (world · B, D), rank after rank; backward: the sum over ranks of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        gradient = gradients[0].contiguous()
        dist.all_reduce(gradient)
        return gradient.chunk(dist.get_world_size())[dist.get_rank()]


class _Sum(torch.autograd.Function):
    """The sum over ranks; its gradient is the sum over ranks as well, since every rank's loss depends on it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        gradient = gradients[0].clone()
        dist.all_reduce(gradient)
        return gradient


def _summed(x: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(x)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return total


def is_sharded() -> bool:
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather(x: Tensor) -> Tensor:
    """All ranks' rows, rank after rank, with gradients; equal numbers of rows on every rank."""
    if not is_sharded():
        return x
    gathered: Tensor = _Gather.apply(x)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return gathered


def mean_gradients(module: nn.Module) -> None:
    """Averages the module's gradients over ranks in one message, which also keeps replicas from drifting apart."""
    if not is_sharded():
        return
    gradients = [p.grad for p in module.parameters() if p.grad is not None]
    if not gradients:
        return
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, part in zip(gradients, torch.split(flat, [g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def total(value: Tensor) -> Tensor:
    """The sum over ranks, without gradient."""
    if is_sharded():
        dist.all_reduce(value)
    return value


def from_first(figures: dict[str, float], device: torch.device) -> dict[str, float]:
    """The first rank's figures, on every rank."""
    if not is_sharded():
        return figures
    carried = [figures]
    dist.broadcast_object_list(carried, src=0, device=device)
    return carried[0]


def any_rank(flag: bool, device: torch.device) -> bool:
    """True on every rank if it is on one."""
    if not is_sharded():
        return flag
    value = torch.tensor(int(flag), device=device)
    dist.all_reduce(value, op=dist.ReduceOp.MAX)
    return bool(value.item())


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with mean and variance of the global batch, on any backend (torch's own needs a GPU)."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  the base class names it so
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the base class names it so
        if not self.training or not is_sharded():
            return super().forward(input)
        x = upcast(input)
        dims = [d for d in range(x.ndim) if d != 1]
        count = x.numel() / x.shape[1] * dist.get_world_size()
        # Two messages: the variance about the global mean is exact where E[x²] − E[x]² cancels.
        mean: Tensor = _summed(x.sum(dims)) / count
        shape = [1, -1] + [1] * (x.ndim - 2)
        centred = x - mean.view(shape)
        variance: Tensor = _summed(centred.square().sum(dims)) / count
        self._track(mean.detach(), variance.detach() * (count / (count - 1)))
        out = centred * torch.rsqrt(variance + self.eps).view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked += 1
        momentum = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)


def synchronise_batchnorm(module: nn.Module) -> nn.Module:
    """Replaces every batch normalisation by one over all ranks, in place; the state's names stay the same."""
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SyncBatchNorm):
            replacement = SyncBatchNorm(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            replacement.load_state_dict(child.state_dict())
            replacement.train(child.training)
            module.add_module(name, replacement)
        else:
            synchronise_batchnorm(child)
    return module
