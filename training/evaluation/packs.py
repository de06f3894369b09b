"""A verification pack (``lfw.bin``, ``cfp_fp.bin`` …) as photos and pairs, so that `evaluate pairs` measures on it.

A pack names no people. Who is one person follows from what it does say: images with the same bytes, and the two of a
mated pair. What it leaves open counts as different people, so that the bootstrap's intervals come out rather too
narrow than too wide where a pack shows many pairs of few people.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.bins import VerificationPack, read_pack
from training.evaluation.pairs import Pair, PairList

PACK_ENDING = ".bin"
FOLDS = 10
"""Stretches of the pack in its own order, as InsightFace's evaluation cuts it (``KFold(shuffle=False)``)."""


class PackPhotos:
    """Photos by name, ``person/image``, both numbers of the pack's own. Raises InvalidInput as `read_pack` does."""

    def __init__(self, path: Path) -> None:
        pack = read_pack(path)
        unique = list(dict.fromkeys(pack.images))
        place = {content: i for i, content in enumerate(unique)}
        ends = np.array([place[content] for content in pack.images], np.int64).reshape(-1, 2)
        people = _people(ends, pack.same, len(unique))
        self._content = {f"{people[i]:05d}/{i:06d}": content for i, content in enumerate(unique)}
        self.pairs = _pairs(pack, ends, tuple(self._content))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._content)

    def read(self, name: str) -> bytes:
        return self._content[name]


def _people(ends: NDArray[np.int64], same: NDArray[np.bool_], images: int) -> list[int]:
    """A person's number for each image: the least of the images that mated pairs join it with."""
    parent = list(range(images))

    def root(image: int) -> int:
        while parent[image] != image:
            parent[image] = parent[parent[image]]
            image = parent[image]
        return image

    for first, second in ends[same].tolist():
        low, high = sorted((root(first), root(second)))
        parent[high] = low
    return [root(image) for image in range(images)]


def _pairs(pack: VerificationPack, ends: NDArray[np.int64], names: tuple[str, ...]) -> PairList:
    folds = min(FOLDS, len(pack))
    return PairList(
        tuple(
            Pair(names[first], names[second], mated=bool(pack.same[i]), fold=i * folds // len(pack))
            for i, (first, second) in enumerate(ends.tolist())
        ),
        folds,
    )
