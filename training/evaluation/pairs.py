"""Pairs of photos to compare: pair lists in LFW's format, and verification packs.

A list's first line is either ``N`` (View 1: N mated pairs, then N non-mated ones) or ``folds N`` (View 2: for each fold
N mated pairs, then N non-mated ones). A mated pair is ``name n1 n2``, a non-mated one ``name1 n1 name2 n2``; columns
are separated by tabs (or by spaces, if no name contains one). n = 1 means the photo ``name/name_0001.jpg``.

A verification pack (``lfw.bin``, ``cfp_fp.bin`` …) names no people. Two images count as one person if they have the
same bytes or are a mated pair, else as different people. So intervals may be too narrow for a pack with many pairs of
few people, but never too wide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data.formats.bins import VerificationPack, read_pack
from training.data.preparation.checking import linked

PACK_ENDING = ".bin"
FOLDS = 10
"""Number of consecutive parts of a pack, as in InsightFace's evaluation (``KFold(shuffle=False)``)."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two photos, each ``name/name_0001`` without extension, and the pair's 0-based fold."""

    first: str
    second: str
    mated: bool
    fold: int


@dataclass(frozen=True, slots=True)
class PairList:
    """The pairs of a list; ``folds`` is 1 if it names none."""

    pairs: tuple[Pair, ...]
    folds: int

    @property
    def photos(self) -> tuple[str, ...]:
        """Return the names of all photos, sorted, each once."""
        return tuple(sorted({photo for pair in self.pairs for photo in (pair.first, pair.second)}))

    @property
    def mated(self) -> NDArray[np.bool_]:
        return np.array([pair.mated for pair in self.pairs])

    @property
    def fold_of(self) -> NDArray[np.int64]:
        return np.array([pair.fold for pair in self.pairs], np.int64)


def person_of(photo: str) -> str:
    """Return ``name`` of ``name/name_0001``: a photo's folder."""
    return photo.rpartition("/")[0]


def read_pairs(path: Path) -> PairList:
    """Read a pair list. Raises ValueError, which names the line, if the file breaks the format or its own counts."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{path} is empty: a pair list starts with its counts")
    folds, per_fold = _counts(path, lines[0])
    if len(lines) - 1 != 2 * folds * per_fold:
        raise ValueError(f"{path} announces {2 * folds * per_fold} pairs and holds {len(lines) - 1}")
    pairs = tuple(_pair(path, i + 2, line, i // (2 * per_fold)) for i, line in enumerate(lines[1:]))
    for i, pair in enumerate(pairs):
        if pair.mated != (i % (2 * per_fold) < per_fold):
            raise ValueError(
                f"{path}, line {i + 2}: each fold lists its mated pairs first, then as many non-mated ones"
            )
    return PairList(pairs, folds)


def _counts(path: Path, line: str) -> tuple[int, int]:
    columns = line.split()
    if len(columns) not in (1, 2) or not all(column.isdecimal() and int(column) > 0 for column in columns):
        raise ValueError(f"{path}, line 1: expected `pairs` or `folds pairs`, two numbers above 0, found {line!r}")
    numbers = [int(column) for column in columns]
    return (1, numbers[0]) if len(numbers) == 1 else (numbers[0], numbers[1])


def _pair(path: Path, number: int, line: str, fold: int) -> Pair:
    columns = line.rstrip("\r\n").split("\t") if "\t" in line else line.split()
    try:
        if len(columns) == 3:
            return Pair(_photo(columns[0], columns[1]), _photo(columns[0], columns[2]), mated=True, fold=fold)
        if len(columns) == 4:
            return Pair(_photo(columns[0], columns[1]), _photo(columns[2], columns[3]), mated=False, fold=fold)
    except ValueError as error:
        raise ValueError(f"{path}, line {number}: {error}") from error
    raise ValueError(f"{path}, line {number}: expected 3 or 4 columns, found {len(columns)}")


def _photo(name: str, number: str) -> str:
    if not name or not number.strip().isdecimal():
        raise ValueError(f"{number!r} is no photo number of {name!r}")
    return f"{name}/{name}_{int(number):04d}"


class Photos:
    """Photos by name (``folder/file`` without extension), each with its reader. Raises ValueError if two have the same
    name."""

    def __init__(self, readers: Iterable[tuple[str, Callable[[], bytes]]]) -> None:
        self._readers: dict[str, Callable[[], bytes]] = {}
        for name, reader in readers:
            if name in self._readers:
                raise ValueError(f"two photos are called {name}")
            self._readers[name] = reader

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._readers)

    def read(self, name: str) -> bytes:
        return self._readers[name]()


class PackPhotos(Photos):
    """A pack's photos by name, ``person/image`` (both numbers). Raises InvalidInput as `read_pack` does."""

    def __init__(self, path: Path) -> None:
        pack = read_pack(path)
        unique = list(dict.fromkeys(pack.images))
        place = {content: i for i, content in enumerate(unique)}
        ends = np.array([place[content] for content in pack.images], np.int64).reshape(-1, 2)
        people = _people(ends, pack.same, len(unique))
        names = tuple(f"{people[i]:05d}/{i:06d}" for i in range(len(unique)))
        super().__init__((name, partial(bytes, content)) for name, content in zip(names, unique, strict=True))
        self.pairs = _pack_pairs(pack, ends, names)


def _people(ends: NDArray[np.int64], same: NDArray[np.bool_], images: int) -> list[int]:
    """Return a number of the person on each image: the lowest image that is connected with it by mated pairs."""
    people = list(range(images))
    for group in linked(ends[same].tolist()):
        for image in group:
            people[image] = group[0]
    return people


def _pack_pairs(pack: VerificationPack, ends: NDArray[np.int64], names: tuple[str, ...]) -> PairList:
    folds = min(FOLDS, len(pack))
    return PairList(
        tuple(
            Pair(names[first], names[second], mated=bool(pack.same[i]), fold=i * folds // len(pack))
            for i, (first, second) in enumerate(ends.tolist())
        ),
        folds,
    )
