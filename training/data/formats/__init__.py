"""Readers of the formats that sets of crops come in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Kind: TypeAlias = Literal["path", "bytes", "record"]
"""How an image is read: a file by its name, a range of bytes, or a record of RecordIO."""
COPIES = "shards"
"""Name of the folder beside an index with copies of shards in object storage."""
IMAGES = "images.bin"
"""Name of the file beside an index with images whose own files don't allow random access."""


@dataclass(frozen=True, slots=True)
class ImageBlock:
    """Some images of a set. Each has a person, a name in the set, and an offset and length in bytes within the set's
    file number ``file``. The numbers are (n,) int64 each, 0 if ``Kind`` doesn't need them."""

    people: Sequence[str]
    names: Sequence[str]
    file: int
    offsets: NDArray[np.int64]
    sizes: NDArray[np.int64]

    @classmethod
    def of_paths(cls, people: Sequence[str], paths: Sequence[str]) -> ImageBlock:
        """Return the block of images that are separate files."""
        nowhere = np.zeros(len(paths), np.int64)
        return cls(people, paths, 0, nowhere, nowhere)


@dataclass(frozen=True, slots=True)
class Listing:
    """A set that can be indexed.

    ``files`` hold the images; for the kind ``path`` they are the folder that names are relative to. A str is a shard's
    URL, and None is the file `IMAGES` beside the index, which ``blocks`` writes. ``watched``: files and folders whose
    sizes and times show whether the set has changed. ``blocks`` takes the index's folder.
    """

    kind: Kind
    files: tuple[Path | str | None, ...]
    watched: Callable[[], Iterable[Path | str]]
    blocks: Callable[[Path], Iterator[ImageBlock]]
