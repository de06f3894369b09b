"""What every set of training crops is: indexed, labelled, its people named, in an order that never changes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from app.types import Pixels

CROP_SIDE = 112
"""Side of every crop in pixels."""


class FaceSet(ABC):
    """A map-style data set, good for ``torch.utils.data.DataLoader`` as it is; imports no torch.

    ``labels`` is (N,) int64, 0 to P - 1, and ``people`` the P names, so that ``people[labels[i]]`` is in image ``i``.
    Reading is safe from several processes; a set opens its files where it reads, so it may be sent to them.
    """

    labels: NDArray[np.int64]
    people: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """Image ``index`` as (112, 112, 3) uint8 RGB, and its label. Raises IndexError beyond the end."""

    def describe(self, index: int) -> str:
        """Where image ``index`` comes from, for a person to find it."""
        return f"image {index} of {self.people[self.labels[index]]}"


def label_people(names: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Each image's person -> its label (N,) int64, and the people in the order of their labels.

    People are sorted by code point, and by length first where all are digits (2 before 10), so that the labels depend
    on the set of people alone.
    """
    people = sorted(set(names), key=_natural if all(name.isdecimal() for name in set(names)) else None)
    numbers = {name: number for number, name in enumerate(people)}
    return np.array([numbers[name] for name in names], np.int64), people


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


class Subset(FaceSet):
    """Some of a set's images: people who are left without any drop out, and labels close the gaps."""

    def __init__(self, whole: FaceSet, indices: Sequence[int] | NDArray[np.int64]) -> None:
        self.whole = whole
        self.indices = np.asarray(indices, np.int64)
        kept, self.labels = np.unique(whole.labels[self.indices], return_inverse=True)
        self.people = [whole.people[label] for label in kept]

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        label = int(self.labels[index])  # raises IndexError beyond the end
        return self.whole[int(self.indices[index])][0], label

    def describe(self, index: int) -> str:
        return self.whole.describe(int(self.indices[index]))


def without_people(whole: FaceSet, drop: Sequence[str], *, at_least: int = 1) -> Subset:
    """The set without the people named, and without those who have fewer than ``at_least`` images."""
    gone = set(drop)
    counts = np.bincount(whole.labels, minlength=len(whole.people))
    keep = np.array([name not in gone for name in whole.people], bool) & (counts >= at_least)
    return Subset(whole, np.flatnonzero(keep[whole.labels]))
