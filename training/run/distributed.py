"""Join the process group. One process takes the same path as many.

Every rank computes the losses on the gathered global batch, so pair-level losses see all pairs and the gradient is that
of a single process: the gather's backward pass sums the equal gradients of all ranks, and the following mean over ranks
divides by their number.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from app.errors import DeviceUnavailable, InvalidInput


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

    The backend is nccl on CUDA, else gloo. Raises Unusable (`device_unavailable`) if CUDA is wanted but missing.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    rank = int(os.environ.get("RANK", "0"))
    chosen = choose_device(device, int(os.environ.get("LOCAL_RANK", "0")))
    if size == 1:
        yield World(0, 1, chosen)
        return
    dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", rank=rank, world_size=size)
    atexit.register(_outlive, dist.group.WORLD)
    try:
        yield World(rank, size, chosen, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        dist.barrier()  # no rank may leave while another works, least of all the first, which holds the shared store
    finally:
        dist.destroy_process_group()


def _outlive(group: object) -> None:
    """Keep a reference to the group until the process ends.

    If DDP's reducer had the last reference, its destructor would wait for gloo's thread while holding the GIL, which
    that thread may need to release its last work: a deadlock.
    """


def choose_device(name: str, local_rank: int = 0) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`. Raises Unusable (`device_unavailable`)."""
    if name == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable("CUDA was asked for, but torch sees no CUDA device.")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def synchronise_batchnorm(model: nn.Module, world: World) -> nn.Module:
    """Return the model with batch statistics over all ranks; the state's names stay the same.

    Raises InvalidInput (`invalid_recipe`) on CPUs, for which torch has no such layer.
    """
    if world.device.type != "cuda":
        raise InvalidInput("train.sync_batchnorm needs GPUs.", code="invalid_recipe")
    synchronised: nn.Module = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]  # torch's
    return synchronised
