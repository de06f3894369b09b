"""Batches for the trainer, prepared in worker processes.

Each batch is a pure function of (seed, epoch, place in the epoch), whichever process prepares it. So a resumed run is
bit-equal to an uninterrupted one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from app.machine import cores
from app.package.manifest import CROP_SIDE
from app.types import Pixels
from training.data.crops import Crops
from training.data.sampler import BatchSampler

AHEAD = 4
"""Number of batches that each worker prepares ahead."""
MOST_WORKERS = 8
"""Maximum of the default number of a rank's worker processes: more processes don't decode crops faster."""
Augmenter: TypeAlias = Callable[[Pixels, np.random.Generator], Pixels]
"""Takes a (112, 112, 3) uint8 RGB crop and its own generator, and returns the crop to train on, of the same shape."""


@dataclass(frozen=True, slots=True)
class Batch:
    """`images` (B, 112, 112, 3) uint8 RGB, `labels` (B,) int64, `indices` (B,) into the set, `mirrored` (B,) bool."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    mirrored: Tensor
    damaged: int = 0
    """Number of damaged images, replaced by others, that the batch's process met for the first time."""

    def to(self, device: torch.device) -> Batch:
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Batch:
        """Pin the tensors. DataLoader calls this if crops travel to a GPU."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> Batch:
        images, labels, indices, mirrored = map(change, (self.images, self.labels, self.indices, self.mirrored))
        return Batch(images, labels, indices, mirrored, self.damaged)


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The crops of a batch and its place in the run: the k-th crop draws from the stream (seed, epoch, start + k)."""

    epoch: int
    start: int
    indices: tuple[int, ...]


class BatchSource(Dataset[Batch]):
    """Returns the batch of a key; safe in worker processes because it has no state."""

    def __init__(self, crops: Crops, seed: int, augment: Augmenter | None) -> None:
        self.crops = crops
        self.seed = seed
        self.augment = augment

    def __getitem__(self, key: BatchKey) -> Batch:
        images = np.empty((len(key.indices), CROP_SIDE, CROP_SIDE, 3), np.uint8)
        known = self.crops.damaged
        mirrored = np.zeros(len(key.indices), bool)
        bits = np.random.Philox(np.random.SeedSequence((self.seed, key.epoch)))
        rng, state = np.random.Generator(bits), bits.state
        for slot, index in enumerate(key.indices):
            # Each crop gets 2^128 numbers of one generator. Making a new one takes half as long as decoding the crop.
            state["state"]["counter"][:] = 0, 0, key.start + slot, 0
            bits.state = state
            mirrored[slot] = rng.random() < 0.5
            crop = self.crops.pixels[int(self.crops.rows[index])]
            if mirrored[slot]:
                crop = np.asarray(cv2.flip(crop, 1), np.uint8)  # thirty times as fast as copying crop[:, ::-1]
            images[slot] = crop if self.augment is None else self.augment(crop, rng)
        indices = np.asarray(key.indices, np.int64)
        labels = torch.from_numpy(self.crops.labels[indices])
        tensors = torch.from_numpy(images), labels, torch.from_numpy(indices), torch.from_numpy(mirrored)
        return Batch(*tensors, damaged=self.crops.damaged - known)


def batch_keys(sampler: BatchSampler, first: int, rank: int, world: int) -> Iterator[BatchKey]:
    """Yield this rank's share of every batch, endlessly, from batch number `first` on (counted over epochs).

    A batch is cut into `world` equal slices, so all ranks together see the same crops for any number of ranks. The
    sampler's cursor is not used, so that several callers can draw from one sampler.
    """
    for count in itertools.count(first):
        epoch, number = divmod(count, len(sampler))
        sampler.set_epoch(epoch)
        batch = sampler.batch(number)
        share = len(batch) // world
        begin = rank * share
        yield BatchKey(epoch, number * len(batch) + begin, tuple(batch[begin : begin + share].tolist()))


def batches(source: BatchSource, keys: Iterator[BatchKey], workers: int, device: torch.device) -> Iterator[Batch]:
    """Yield batches in the order of their keys, prepared ahead by `workers` processes (0: in this one)."""
    loader = DataLoader(
        source,
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        prefetch_factor=AHEAD if workers else None,
        pin_memory=device.type == "cuda",
    )
    return iter(loader)


def worker_count(wanted: int, device: torch.device, ranks_here: int) -> int:
    """Return how many processes prepare a rank's batches.

    If ``wanted`` is 0: with a GPU, one less than the rank's share of the cores, at most MOST_WORKERS; on the CPU, none,
    since training itself uses all cores.
    """
    if wanted:
        return wanted
    return 0 if device.type == "cpu" else max(0, min(MOST_WORKERS, cores() // ranks_here - 1))
