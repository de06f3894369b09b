"""The interface of every set of training crops: indexed, labelled, people named, in a fixed order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidImage, InvalidInput, LikenessError
from app.face.align import CROP_SIDE
from app.face.formats import Limits
from app.face.image import decode
from app.types import Pixels

OnError: TypeAlias = Literal["raise", "skip"]


def decode_crop(data: bytes) -> Pixels:
    """Decode a stored crop to (112, 112, 3) uint8 RGB; larger ones are area-averaged, smaller ones enlarged bilinearly.

    Raises what `app.face.image.decode` raises.
    """
    pixels = decode(data, Limits()).pixels
    height, width = pixels.shape[:2]
    if (height, width) == (CROP_SIDE, CROP_SIDE):
        return pixels.copy()
    shrinks = height >= CROP_SIDE and width >= CROP_SIDE
    way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (CROP_SIDE, CROP_SIDE), interpolation=way), np.uint8)


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
        """Return image ``index`` as (112, 112, 3) uint8 RGB, and its label. Raises IndexError beyond the end."""

    def describe(self, index: int) -> str:
        """Describe where image ``index`` comes from, so that a person can find it."""
        return f"image {index} of {self.people[self.labels[index]]}"

    def files(self) -> Iterable[Path]:
        """Return the files that the images are read from; none if they are generated."""
        return ()


def label_people(names: Sequence[str]) -> tuple[NDArray[np.int64], list[str]]:
    """Return each image's label (N,) int64, and the people in the order of their labels.

    People are sorted by code point, and by length first where all are digits (2 before 10), so that the labels depend
    on the set of people alone.
    """
    people = sorted(set(names), key=_natural if all(name.isdecimal() for name in set(names)) else None)
    numbers = {name: number for number, name in enumerate(people)}
    return np.array([numbers[name] for name in names], np.int64), people


def _natural(name: str) -> tuple[int, str]:
    return len(name), name


class StoredFaces(FaceSet):
    """A set whose images are files' bytes; other sizes than 112 x 112 are resized.

    Where an image is damaged, ``on_error="raise"`` raises InvalidImage (or its kin) that names it; ``"skip"`` answers
    with the next readable image of the same person, and ``skipped`` holds what this process met.
    """

    def __init__(self, names: Sequence[str], on_error: OnError = "raise") -> None:
        if not names:
            raise InvalidInput("The set holds no images.", code="dataset_empty")
        self.labels, self.people = label_people(names)
        self.on_error = on_error
        self.skipped: set[int] = set()

    @abstractmethod
    def encoded(self, index: int) -> bytes:
        """Return image ``index`` as stored: JPEG, PNG or another format that the service reads."""

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        place = range(len(self))[index]  # raises IndexError beyond the end
        label = int(self.labels[place])
        try:
            return self._crop(place), label
        except LikenessError:
            if self.on_error == "raise":
                raise
        self.skipped.add(place)
        return self._another(place, label), label

    def _crop(self, index: int) -> Pixels:
        try:
            return decode_crop(self.encoded(index))
        except (LikenessError, OSError) as error:
            kind = type(error) if isinstance(error, LikenessError) else InvalidImage
            raise kind(f"{self.describe(index)}: {error}", image=self.describe(index)) from error

    def _another(self, index: int, label: int) -> Pixels:
        own = np.flatnonzero(self.labels == label)
        start = int(np.searchsorted(own, index))
        for place in np.roll(own, -start)[1:].tolist():
            try:
                return self._crop(place)
            except LikenessError:
                self.skipped.add(place)
        raise InvalidImage(f"No image of {self.people[label]} can be read.", person=self.people[label])


class Subset(FaceSet):
    """Some of a set's images: people without any image drop out, and labels close the gaps."""

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

    def files(self) -> Iterable[Path]:
        return self.whole.files()


def without_people(whole: FaceSet, drop: Sequence[str], *, at_least: int = 1) -> Subset:
    """Return the set without the people named, and without those who have fewer than ``at_least`` images."""
    gone = set(drop)
    counts = np.bincount(whole.labels, minlength=len(whole.people))
    keep = np.array([name not in gone for name in whole.people], bool) & (counts >= at_least)
    return Subset(whole, np.flatnonzero(keep[whole.labels]))
