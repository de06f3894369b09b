"""Batches for the trainer: decoded crops in one memory-mapped array.

Each batch is a pure function of (seed, epoch, place in the epoch), whichever process prepares it. That makes a resumed
run bit-equal.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from app.types import Pixels
from training.data.dataset import FaceSet
from training.data.sampler import BatchSampler
from training.recipe import CROP

CACHE_THREADS = 2
CACHE_BLOCK = 256

Augment: TypeAlias = Callable[[Pixels, np.random.Generator], Pixels]
"""One (112, 112, 3) uint8 RGB crop and a generator of its own -> the crop to train on, same shape."""


UNLABELLED = -1
"""The label of a crop that shows nobody in particular."""


@dataclass(frozen=True, slots=True)
class Crops:
    """A set's crops: `pixels` (M, 112, 112, 3) uint8 RGB of a whole data source, `rows` (N,) which of them belong to
    the set, `labels` (N,) int64 into `people` or UNLABELLED."""

    pixels: Pixels
    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    people: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def images(self, indices: Sequence[int] | NDArray[np.int64]) -> Pixels:
        """Return copies of crops, (n, 112, 112, 3)."""
        return self.pixels[self.rows[np.asarray(indices, np.int64)]]

    def take(self, indices: Sequence[int] | NDArray[np.int64]) -> Crops:
        """Return some of the crops; people without any drop out and labels close the gaps."""
        chosen = np.asarray(indices, np.int64)
        kept, labels = np.unique(self.labels[chosen], return_inverse=True)
        return Crops(self.pixels, self.rows[chosen], labels.astype(np.int64), [self.people[k] for k in kept])

    def without_labels(self, names: Collection[str]) -> Crops:
        """Return the same crops, with those of the people `names` labelled UNLABELLED."""
        known = [name not in names for name in self.people]
        labels = np.where(known, np.cumsum(known) - 1, UNLABELLED)[self.labels]
        people = [name for name in self.people if name not in names]
        return Crops(self.pixels, self.rows, labels.astype(np.int64), people)


def fingerprint(pixels: Pixels, sampled: int | None = 256) -> str:
    """Return 16 hex digits that change with the number of crops or any of up to `sampled` ones (None: any crop)."""
    digest = hashlib.sha256(str(pixels.shape).encode())
    for index in np.linspace(0, len(pixels) - 1, num=min(sampled or len(pixels), len(pixels)), dtype=np.int64):
        digest.update(np.ascontiguousarray(pixels[index]).tobytes())
    return digest.hexdigest()[:16]


def read_crops(dataset: FaceSet, folder: Path | None, progress: Callable[[int], None] = lambda _n: None) -> Crops:
    """Decode a whole set once: into memory, or into `folder` as `crops.npy`, which later runs memory-map.

    An existing file is used only if it was made from the same images, by `FaceSet.describe` and their files' sizes and
    times; otherwise it is replaced, also while another run still reads the old one.

    What lies in `folder` is used only if it was made from the same images, by `FaceSet.describe` and their files' sizes
    and times; else it is made anew, beside a run that still reads the old one.
    """
    facts = {"images": len(dataset), "source": _source_digest(dataset)}
    rows, labels = np.arange(len(dataset)), np.asarray(dataset.labels, np.int64)
    if folder is None:
        pixels = np.empty((len(dataset), CROP, CROP, 3), np.uint8)
        _fill(pixels, dataset, progress)
        return Crops(pixels, rows, labels, list(dataset.people))
    about, array = folder / "crops.json", folder / "crops.npy"
    if not (about.is_file() and array.is_file() and json.loads(about.read_text()) == facts):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as making:
            part = Path(making) / array.name
            mapped = np.lib.format.open_memmap(part, "w+", np.uint8, (len(dataset), CROP, CROP, 3))
            _fill(mapped, dataset, progress)
            mapped.flush()
            about.unlink(missing_ok=True)
            part.replace(array)
        about.write_text(json.dumps(facts, indent=2) + "\n")
    return Crops(np.load(array, mmap_mode="r"), rows, labels, list(dataset.people))


def _source_digest(dataset: FaceSet) -> str:
    digest = hashlib.sha256()
    for index in range(len(dataset)):
        digest.update(f"{dataset.describe(index)}\n".encode())
    for path in dataset.files():
        digest.update(f"{_stamp(path)}\n".encode())
    return digest.hexdigest()


def _stamp(path: Path) -> str:
    """Return the file's size and time, or `missing`; reading the file reports the error."""
    try:
        found = path.stat()
    except OSError:
        return "missing"
    return f"{found.st_size} {found.st_mtime_ns}"


def _fill(pixels: Pixels, dataset: FaceSet, progress: Callable[[int], None]) -> None:
    def block(start: int) -> int:
        stop = min(start + CACHE_BLOCK, len(dataset))
        for index in range(start, stop):
            pixels[index] = dataset[index][0]
        return stop - start

    with ThreadPoolExecutor(CACHE_THREADS) as pool:
        for done in pool.map(block, range(0, len(dataset), CACHE_BLOCK)):
            progress(done)


@dataclass(frozen=True, slots=True)
class Batch:
    """`images` (B, 112, 112, 3) uint8 RGB, `labels` (B,) int64, `indices` (B,) into the set, `mirrored` (B,) bool."""

    images: Tensor
    labels: Tensor
    indices: Tensor
    mirrored: Tensor

    def to(self, device: torch.device) -> Batch:
        return Batch(
            *(t.to(device, non_blocking=True) for t in (self.images, self.labels, self.indices, self.mirrored))
        )

    def pin_memory(self) -> Batch:
        """Pin the tensors. DataLoader calls this if crops travel to a GPU."""
        return Batch(*(t.pin_memory() for t in (self.images, self.labels, self.indices, self.mirrored)))


@dataclass(frozen=True, slots=True)
class BatchKey:
    """The crops of a batch and its place in the run: the k-th crop draws from a generator seeded (seed, epoch, start
    + k).
    """

    epoch: int
    start: int
    indices: tuple[int, ...]


class BatchSource(Dataset[Batch]):
    """Returns the batch of a key; safe in worker processes because it has no state."""

    def __init__(self, crops: Crops, seed: int, augment: Augment | None) -> None:
        self.crops = crops
        self.seed = seed
        self.augment = augment

    def __getitem__(self, key: BatchKey) -> Batch:
        images = np.empty((len(key.indices), CROP, CROP, 3), np.uint8)
        mirrored = np.zeros(len(key.indices), bool)
        for slot, index in enumerate(key.indices):
            rng = np.random.default_rng((self.seed, key.epoch, key.start + slot))
            mirrored[slot] = rng.random() < 0.5
            crop = self.crops.pixels[self.crops.rows[index]]
            crop = crop[:, ::-1] if mirrored[slot] else crop
            images[slot] = crop if self.augment is None else self.augment(np.ascontiguousarray(crop), rng)
        indices = np.asarray(key.indices, np.int64)
        labels = torch.from_numpy(self.crops.labels[indices])
        return Batch(torch.from_numpy(images), labels, torch.from_numpy(indices), torch.from_numpy(mirrored))


def batch_keys(sampler: BatchSampler, first: int, rank: int, world: int) -> Iterator[BatchKey]:
    """Yield this rank's share of every batch from the `first` (counted over epochs) on, endlessly.

    A batch is cut into `world` equal slices, so what all ranks see together doesn't depend on their number. Where the
    sampler's own cursor stands doesn't matter: several may draw from one sampler.
    """
    for count in itertools.count(first):
        epoch, number = divmod(count, len(sampler))
        sampler.set_epoch(epoch)
        batch = sampler.batch(number)
        share = len(batch) // world
        begin = rank * share
        yield BatchKey(epoch, number * len(batch) + begin, tuple(batch[begin : begin + share].tolist()))


class _Keys:
    """Wraps an endless iterator as what DataLoader calls a sampler."""

    def __init__(self, keys: Iterator[BatchKey]) -> None:
        self._keys = keys

    def __iter__(self) -> Iterator[BatchKey]:
        return self._keys


def batches(source: BatchSource, keys: Iterator[BatchKey], workers: int, device: torch.device) -> Iterator[Batch]:
    """Yield batches in the order of their keys, prepared ahead by `workers` processes (0: in this one)."""
    loader = DataLoader(
        source,
        batch_size=None,
        sampler=_Keys(keys),
        num_workers=workers,
        pin_memory=device.type == "cuda",
        collate_fn=_as_is,  # type: ignore[arg-type]  # with batch_size None it gets what the source answers
    )
    return iter(loader)


def _as_is(batch: Batch) -> Batch:
    return batch


def split_people(labels: NDArray[np.int64], share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the indices of the crops to train on and of those held out: `share` of the people, at least two if any,
    chosen by `seed` among those with two crops or more and a label.
    """
    people, counts = np.unique(labels, return_counts=True)
    several = people[(counts > 1) & (people != UNLABELLED)]
    count = 0 if share == 0 else min(len(several), max(2, round(share * len(people))))
    chosen = np.random.default_rng(seed).permutation(several)[:count]
    held = np.isin(labels, chosen)
    return np.flatnonzero(~held), np.flatnonzero(held)


def whole_people(labels: NDArray[np.int64], limit: int, seed: int) -> NDArray[np.int64]:
    """Return the indices of at most `limit` crops of people with two or more, whole people in an order chosen by
    `seed`.
    """
    chosen: list[NDArray[np.int64]] = []
    total = 0
    for person in np.random.default_rng(seed).permutation(np.unique(labels)):
        indices = np.flatnonzero(labels == person)
        if len(indices) > 1 and total + len(indices) <= limit:
            chosen.append(indices)
            total += len(indices)
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)
