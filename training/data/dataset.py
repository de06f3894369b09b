"""The interface of every set of training crops: images in a fixed order with labels, and people's names."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal, TypeAlias

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from app.face.formats import Limits, check_size
from app.face.image import decode, decode_jpeg
from app.package.manifest import CROP_SIDE
from app.types import Pixels

OnError: TypeAlias = Literal["raise", "skip"]
"""What to do about a damaged image: raise an error, or take another image of the person in its place."""


JPEG_START = b"\xff\xd8\xff"
HEAD = 4096
"""Number of a JPEG's first bytes to search for NOTES."""
NOTES = (b"Exif\0", b"ICC_PROFILE", b"Adobe")
"""If a JPEG has one of these markers, it may be turned, or in other colours than sRGB."""


def decode_crop(data: bytes) -> Pixels:
    """Decode a stored crop to (112, 112, 3) uint8 RGB; larger ones are area-averaged, smaller ones enlarged bilinearly.

    Raises what `app.face.image.decode` raises.
    """
    pixels: Pixels | None = None
    if data.startswith(JPEG_START) and not any(note in data[:HEAD] for note in NOTES):
        with suppress(ValueError, LookupError):  # `decode` says what is wrong
            height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=True)
            check_size(width, height, Limits())
            pixels = decode_jpeg(data, width, height)  # half the time of `decode`, in which Pillow reads the header
    if pixels is None:
        pixels = decode(data, Limits()).pixels.copy()
    height, width = pixels.shape[:2]
    if (height, width) == (CROP_SIDE, CROP_SIDE):
        return pixels
    shrinks = height >= CROP_SIDE and width >= CROP_SIDE
    way = cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(pixels, (CROP_SIDE, CROP_SIDE), interpolation=way), np.uint8)


class FaceSet(ABC):
    """A map-style data set, which ``torch.utils.data.DataLoader`` can use directly; imports no torch.

    ``labels`` is (N,) int64, 0 to P - 1, and ``people`` the P names, so that ``people[labels[i]]`` is in image ``i``.
    Several processes may read at once, and a set may be sent to them, since it opens files only to read.
    """

    labels: NDArray[np.int64]
    people: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """Return image ``index`` as (112, 112, 3) uint8 RGB, and its label. Raises IndexError after the end."""

    def describe(self, index: int) -> str:
        """Describe where image ``index`` comes from, so that a person can find it."""
        return f"image {index} of {self.people[self.labels[index]]}"

    def key(self) -> str:
        """Return a text that changes if the set's images or people change."""
        return self.stamp()

    @abstractmethod
    def stamp(self) -> str:
        """Return a text that changes if any image does, by the files' sizes and times."""


class Joined(FaceSet):
    """Several sets, one after another; people of different sets are different people, even with equal names."""

    def __init__(self, sets: Sequence[FaceSet]) -> None:
        self.sets = sets
        self.starts = np.cumsum([0, *(len(faces) for faces in sets)])
        people = np.cumsum([0, *(len(faces.people) for faces in sets)])
        self.labels = np.concatenate([faces.labels + first for faces, first in zip(sets, people[:-1], strict=True)])
        self.people = [name for faces in sets for name in faces.people]

    @property
    def skipped(self) -> list[int]:
        """Return the damaged images that this process has met."""
        placed = zip(self.starts.tolist(), self.sets, strict=False)
        return [start + place for start, faces in placed for place in getattr(faces, "skipped", ())]

    def _find(self, index: int) -> tuple[FaceSet, int]:
        place = range(len(self))[index]  # raises IndexError beyond the end
        number = int(np.searchsorted(self.starts, place, side="right")) - 1
        return self.sets[number], place - int(self.starts[number])

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        faces, place = self._find(index)
        return faces[place][0], int(self.labels[index])

    def describe(self, index: int) -> str:
        faces, place = self._find(index)
        return faces.describe(place)

    def key(self) -> str:
        return " ".join(faces.key() for faces in self.sets)

    def stamp(self) -> str:
        return " ".join(faces.stamp() for faces in self.sets)
