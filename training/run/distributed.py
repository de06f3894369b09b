"""Joining the process group, and batch statistics over all ranks. One process and many take the same path.

Every rank computes the losses on the gathered global batch, so pair-level losses see all pairs and the gradient is that
of a single process: the gather's backward sums what every rank sends back (the same, once a rank), and the mean over
ranks that follows takes that factor out again.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.errors import DeviceUnavailable
from training import collectives
from training.losses.base import upcast


@dataclass(frozen=True, slots=True)
class World:
    """This process's rank, the number of ranks, and its device."""

    rank: int
    size: int
    device: torch.device
    ranks_here: int = 1
    """The number of ranks on this machine."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0


@contextmanager
def joined(device: str = "auto") -> Iterator[World]:
    """Join the world that torchrun set up in the environment, or a world of one. `device`: auto, cpu or cuda.

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
        yield World(rank, size, chosen, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        dist.barrier()  # no rank may leave, above all the first, which holds the store, while another still works
    finally:
        dist.destroy_process_group()


def _outlive(group: object) -> None:
    """Hold the group until the process ends.

    If DDP's reducer were the last to hold it, it would wait for gloo's thread while holding Python's lock, which that
    thread may need to release its last work: a deadlock.
    """


def _device(name: str, local_rank: int) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable("CUDA was asked for, but torch sees no CUDA device.")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _sum(values: Tensor) -> Tensor:
    """Sum over ranks; its gradient is the sum over ranks as well, because every rank's loss depends on it."""
    return collectives.total(collectives.shared(values))


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with mean and variance of the global batch, on any backend (torch's own needs a GPU)."""

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002  the base class names it so
        if input.ndim < 2:
            raise ValueError(f"expected at least 2 dimensions, got {input.ndim}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  the base class names it so
        if not self.training or collectives.ranks() == 1:
            return super().forward(input)
        x = upcast(input)
        dims = [d for d in range(x.ndim) if d != 1]
        count = x.numel() / x.shape[1] * collectives.ranks()
        # Two messages: the variance about the global mean is exact where E[x²] − E[x]² cancels.
        mean: Tensor = _sum(x.sum(dims)) / count
        shape = [1, -1] + [1] * (x.ndim - 2)
        centred = x - mean.view(shape)
        variance: Tensor = _sum(centred.square().sum(dims)) / count
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
    """Replace every batch normalisation by one over all ranks, in place; the state's names stay the same."""
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
