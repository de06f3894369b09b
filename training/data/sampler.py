"""Batch samplers: which crops make up each step.

They are for `DataLoader(batch_sampler=…)` and yield lists of positions in the data set. A batch is drawn for all
processes together, from only (seed, epoch, number of the batch), and each rank takes its slice: so ranks agree without
communication, a run is the same on any number of ranks, and resuming needs no replay. `state_dict()` is
{"epoch", "cursor", "seed"}; loader workers fetch ahead of training, so set `cursor` to the number of batches trained
in this epoch before saving.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from app.errors import InvalidInput
from training.recipe import did_you_mean, named

Labels: TypeAlias = Sequence[int] | NDArray[np.integer]
FEISTEL_ROUNDS = 6
"""With four rounds a permutation is hard to tell from a random one (Luby and Rackoff 1988); small sets need more."""


class SamplerError(InvalidInput, ValueError):
    """The sampler can't work with these data or ranks."""

    code = "invalid_sampler"


def require(condition: bool, message: str) -> None:
    if not condition:
        raise SamplerError(message)


class People:
    """The positions of each person's images: `labels` (N,) integers, any values."""

    def __init__(self, labels: Labels) -> None:
        values = np.asarray(labels)
        require(values.ndim == 1 and len(values) > 0, "labels must be a non-empty list of integers")
        require(np.issubdtype(values.dtype, np.integer), f"labels must be integers, not {values.dtype}")
        order = np.argsort(values, kind="stable")
        starts = np.flatnonzero(np.diff(values[order], prepend=values[order[0]] - 1))
        counts = np.diff(starts, append=len(values))
        self.order, self.starts, self.counts = order, starts, counts

    def __len__(self) -> int:
        return len(self.starts)

    def images(self, person: int) -> NDArray[np.intp]:
        start = self.starts[person]
        return self.order[start : start + self.counts[person]]


class Shared(TypedDict, total=False):
    """The keyword arguments of every sampler, which `BatchSampler` explains."""

    seed: int
    rank: int
    world_size: int


class BatchSampler(Sampler[list[int]]):
    """Draws batches of `batch_size` over all ranks; rank `rank` of `world_size` yields its slice of each."""

    def __init__(self, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        require(batch_size >= 1, f"batch_size must be at least 1, not {batch_size}")
        require(0 <= rank < world_size, f"rank {rank} is not one of {world_size}")
        require(batch_size % world_size == 0, f"a batch of {batch_size} does not divide over {world_size} ranks")
        require(seed >= 0, f"seed must not be negative, got {seed}")
        self.batch_size, self.seed = batch_size, seed
        self.rank, self.world_size = rank, world_size
        self.epoch, self.cursor = 0, 0

    def batch(self, index: int) -> NDArray[np.intp]:
        """Return the (batch_size,) positions of this epoch's batch number `index`, for all ranks."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of batches in a whole epoch, also in a resumed one."""
        raise NotImplementedError

    def rng(self, *key: int) -> np.random.Generator:
        return np.random.default_rng([self.seed, self.epoch, *key])

    def shuffled(self, size: int, start: int, count: int) -> NDArray[np.int64]:
        """Return `count` numbers of this epoch's permutation of 0…size−1, repeated, from place `start` on."""
        return permuted(np.arange(start, start + count) % size, size, self.rng())

    def __iter__(self) -> Iterator[list[int]]:
        share = self.batch_size // self.world_size
        while self.cursor < len(self):
            batch = self.batch(self.cursor)
            self.cursor += 1
            yield [int(position) for position in batch[self.rank * share : (self.rank + 1) * share]]
        self.cursor = 0

    def set_epoch(self, epoch: int) -> None:
        """Start another epoch at its first batch; the current one continues if it is the same."""
        if epoch != self.epoch:
            self.epoch, self.cursor = epoch, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "cursor": self.cursor, "seed": self.seed}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.epoch, self.cursor, self.seed = state["epoch"], state["cursor"], state["seed"]


class PKSampler(BatchSampler):
    """Draws P people × K of their images for a batch; every person at least once an epoch.

    In a batch, a person's K images are next to each other. People with fewer than K images repeat some. The last batch
    of an epoch is filled up with the epoch's first people.
    """

    def __init__(self, labels: Labels, *, people: int, images: int, **shared: Unpack[Shared]) -> None:
        require(people >= 1 and images >= 1, f"expected at least 1 person and 1 image, got {people} and {images}")
        super().__init__(people * images, **shared)
        self.people, self.images = people, images
        self.known = People(labels)
        require(len(self.known) >= people, f"{people} people a batch, but only {len(self.known)} can be drawn")

    def __len__(self) -> int:
        return math.ceil(len(self.known) / self.people)

    def batch(self, index: int) -> NDArray[np.intp]:
        chosen = self.shuffled(len(self.known), index * self.people, self.people)
        rng = self.rng(index)
        return np.concatenate([self._draw(rng, self.known.images(person)) for person in chosen.tolist()])

    def _draw(self, rng: np.random.Generator, images: NDArray[np.intp]) -> NDArray[np.intp]:
        """Draw K images; none is repeated before all are drawn."""
        whole, rest = divmod(self.images, len(images))
        return np.concatenate([images] * whole + [rng.choice(images, rest, replace=False)])


class BalancedSampler(BatchSampler):
    """For each place in a batch, draws a person uniformly, then one of that person's images uniformly.

    An epoch has as many draws as there are images, rounded up to whole batches.
    """

    def __init__(self, labels: Labels, *, batch_size: int, **shared: Unpack[Shared]) -> None:
        super().__init__(batch_size, **shared)
        self.known = People(labels)

    def __len__(self) -> int:
        return math.ceil(len(self.known.order) / self.batch_size)

    def batch(self, index: int) -> NDArray[np.intp]:
        rng = self.rng(index)
        person = rng.integers(len(self.known), size=self.batch_size)
        which = rng.integers(self.known.counts[person])
        chosen: NDArray[np.intp] = self.known.order[self.known.starts[person] + which]
        return chosen


class PlainSampler(BatchSampler):
    """Takes every image once an epoch, shuffled; the last batch is filled up with the epoch's first images."""

    def __init__(self, labels: Labels, *, batch_size: int, **shared: Unpack[Shared]) -> None:
        super().__init__(batch_size, **shared)
        require(len(labels) > 0, "there are no images")
        self.size = len(labels)

    def __len__(self) -> int:
        return math.ceil(self.size / self.batch_size)

    def batch(self, index: int) -> NDArray[np.intp]:
        return self.shuffled(self.size, index * self.batch_size, self.batch_size)


class ShardSampler(BatchSampler):
    """Takes every image once an epoch, shard by shard: shards are in a shuffled order, and the images of ``together``
    shards are shuffled together. The last batch is filled up by repeating images of the last shards.

    ``shards`` (N,), ascending, is the shard of each image. ``fetch`` is called with each shard's number a few batches
    before the shard is read.
    """

    def __init__(
        self,
        shards: NDArray[np.integer],
        *,
        together: int,
        batch_size: int,
        fetch: Callable[[int], None] = lambda _shard: None,
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(batch_size, **shared)
        require(
            len(shards) > 0 and bool((np.diff(shards) >= 0).all()), "shards must be ascending numbers, at least one"
        )
        self.numbers, self.starts, self.counts = np.unique(shards, return_index=True, return_counts=True)
        self.size, self.together, self.fetch = len(shards), together, fetch

    def __len__(self) -> int:
        return math.ceil(self.size / self.batch_size)

    def batch(self, index: int) -> NDArray[np.intp]:
        order = self.rng().permutation(len(self.numbers))
        ends = np.cumsum(self.counts[order])
        places = np.arange(index * self.batch_size, (index + 1) * self.batch_size)
        again = self._before((len(ends) - 1) // self.together, ends)
        places = np.where(places < self.size, places, again + (places - self.size) % (self.size - again))
        groups = np.searchsorted(ends, places, side="right") // self.together
        for group in np.unique(groups):
            first, last = self._before(group, ends), self._before(group + 1, ends)
            in_group = groups == group
            places[in_group] = first + permuted(places[in_group] - first, last - first, self.rng(int(group)))
        begins = ends - self.counts[order]
        begun = np.flatnonzero((begins >= index * self.batch_size) & (begins < (index + 1) * self.batch_size))
        for ahead in order[self.together :][begun[begun < len(order) - self.together]].tolist():
            self.fetch(int(self.numbers[ahead]))
        drawn = np.searchsorted(ends, places, side="right")  # the position of each place's shard in the shuffled order
        chosen: NDArray[np.intp] = places - begins[drawn] + self.starts[order[drawn]]
        return chosen

    def _before(self, group: int, ends: NDArray[np.int64]) -> int:
        """Return how many images come before this group of shards."""
        return int(ends[min(group * self.together, len(ends)) - 1]) if group else 0


class MixedSampler(BatchSampler):
    """Takes a fixed share of each batch from every group; each pass through a group's images has a new shuffled order.

    ``groups`` (N,) is the group of each image; ``shares`` are the groups' shares of a batch, with the sum 1. An epoch
    has as many batches as all images fill.
    """

    def __init__(
        self, groups: NDArray[np.integer], *, shares: Sequence[float], batch_size: int, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(batch_size, **shared)
        self.places = [np.flatnonzero(groups == group) for group in range(len(shares))]
        self.shares, self.largest = shares, int(np.argmax(shares))
        require(all(len(places) for places in self.places), "a source has no images left")
        # Rounding may give each other group one crop more than its share; what is left for the largest must not be < 0.
        fits = batch_size * max(shares) >= len(shares) - 2
        require(fits, f"a batch of {batch_size} is too small for {len(shares)} sources")
        self.size = len(groups)

    def __len__(self) -> int:
        return math.ceil(self.size / self.batch_size)

    def drawn(self, number: int) -> list[int]:
        """Return how many images of each group are in the run's first ``number`` batches."""
        counts = [math.floor(number * self.batch_size * share) for share in self.shares]
        counts[self.largest] += number * self.batch_size - sum(counts)
        return counts

    def batch(self, index: int) -> NDArray[np.intp]:
        number = self.epoch * len(self) + index
        parts = []
        for group, (first, last) in enumerate(zip(self.drawn(number), self.drawn(number + 1), strict=True)):
            turns, places = np.divmod(np.arange(first, last), len(self.places[group]))
            for turn in np.unique(turns):
                order = np.random.default_rng([self.seed, group, turn])
                parts.append(self.places[group][permuted(places[turns == turn], len(self.places[group]), order)])
        chosen: NDArray[np.intp] = self.rng(index).permutation(np.concatenate(parts))
        return chosen


def permuted(places: NDArray[np.int64], size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the values (n,) at these places of a random permutation of 0…size−1, without storing the permutation.

    A Feistel network permutes 4^k numbers, the smallest such power ≥ size; a value outside is permuted again until it
    is inside (cycle walking; Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
    """
    bits = np.uint64(max(1, (max(1, size - 1).bit_length() + 1) // 2))
    mask = (np.uint64(1) << bits) - np.uint64(1)
    keys = rng.integers(0, 2**64, FEISTEL_ROUNDS, np.uint64)
    values = places.astype(np.uint64)
    outside = np.ones(len(values), bool)
    while outside.any():
        left, right = values[outside] >> bits, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mixed(right ^ key) & mask)
        values[outside] = left << bits | right
        outside = values >= size
    return values.astype(np.int64)


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of each value by the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    values = (values ^ values >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ values >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return values ^ values >> np.uint64(31)


def names() -> list[str]:
    return ["plain", "balanced", "pk"]


def build(name: str, labels: Labels, *, batch_size: int, images: int = 4, **shared: Unpack[Shared]) -> BatchSampler:
    """Build the sampler with this name, ours or `module:Class`. `batch_size` is over all ranks; `pk` takes batch_size /
    images people in each. Raises SamplerError."""
    if name == "pk":
        require(batch_size % images == 0, f"a batch of {batch_size} does not divide into {images} images a person")
        people = batch_size // images
        return PKSampler(labels, people=people, images=images, **shared)
    if name == "balanced":
        return BalancedSampler(labels, batch_size=batch_size, **shared)
    if name == "plain":
        return PlainSampler(labels, batch_size=batch_size, **shared)
    if ":" in name:
        kind = named("sampler", name)
        require(isinstance(kind, type) and issubclass(kind, BatchSampler), f"{name} is no BatchSampler")
        made: BatchSampler = kind(labels, batch_size=batch_size, **shared)
        return made
    raise SamplerError(f"no sampler {name!r}; {did_you_mean(name, names())} There are: {', '.join(names())}")
