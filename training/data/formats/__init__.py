"""Readers of the formats that sets of crops come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["path", "bytes", "record"]
"""How an image is read: the file of its name; a stretch of bytes; a record of RecordIO."""
COPIES = "shards"
"""Beside an index: copies of shards in object storage."""
IMAGES = "images.bin"
"""Beside an index: images whose own files can't be read at random."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some images of a set: the person in each, its name in the set, and where it begins and how long it is in the
    set's file number ``file``, in bytes, (n,) int64 each (0 where ``Kind`` doesn't need them)."""

    people: Sequence[str]
    names: Sequence[str]
    file: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of_paths(cls, people: Sequence[str], paths: Sequence[str]) -> Block:
        """Return the block of images that are files of their own."""
        nowhere = np.zeros(len(paths), np.int64)
        return cls(people, paths, 0, nowhere, nowhere)


@dataclass(frozen=True, slots=True)
class Listing:
    """A set that can be indexed.

    ``files`` hold the images; of the kind ``path`` they are the folder that names are relative to. A str is a shard's
    URL, and None the file `IMAGES` beside the index, which ``blocks`` writes. ``watched``: files and folders whose
    sizes and times tell whether the set has changed. ``blocks`` takes the index's folder.
    """

    kind: Kind
    files: tuple[Path | str | None, ...]
    watched: Callable[[], Iterable[Path | str]]
    blocks: Callable[[Path], Iterator[Block]]
