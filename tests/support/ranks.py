"""Run several processes that train together over gloo.

They are forked from one that has loaded torch, since each would take seconds to load it."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from training.service import reserved_port

LOADED_ONCE = ["torch._dynamo", "tests.training.test_partial_fc", "tests.training.test_distributed_training"]
"""Modules that the first process imports for all. Optimisers import the first one."""


def _on_rank(rank: int, ranks: int, port: int, work: Callable[[int, int], object], folder: str) -> None:
    """Do the work in the new process, with the environment that torchrun sets."""
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"WORLD_SIZE": str(ranks), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.save(work(rank, ranks), Path(folder) / f"{rank}.pt")


def on_ranks(ranks: int, work: Callable[[int, int], Any], folder: Path) -> list[Any]:
    """Return the results of `work(rank, ranks)`, which must be picklable, from several new processes."""
    multiprocessing.set_forkserver_preload(LOADED_ONCE)
    with reserved_port() as port:
        start_processes(  # type: ignore[no-untyped-call]  # untyped in torch
            _on_rank, args=(ranks, port, work, str(folder)), nprocs=ranks, start_method="forkserver"
        )
    return [torch.load(folder / f"{rank}.pt") for rank in range(ranks)]


class OverGloo:
    """A callable that joins the process group, does `work`, and leaves the group."""

    def __init__(self, work: Callable[[int, int], object]) -> None:
        self.work = work

    def __call__(self, rank: int, ranks: int) -> object:
        dist.init_process_group("gloo")
        try:
            return self.work(rank, ranks)
        finally:
            dist.destroy_process_group()
