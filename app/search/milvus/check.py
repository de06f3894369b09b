"""Whether a collection of Milvus holds the faces that it should."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from app.gallery.records import FaceBlock
from app.search.milvus.client import Milvus


class Comparison:
    """Of a collection with SQL's faces, which come in order of their keys."""

    def __init__(self, milvus: Milvus, name: str, dimension: int) -> None:
        self._milvus = milvus
        self._name = name
        self._dimension = dimension
        self._last = 0
        self.missing: list[int] = []
        self.different: list[int] = []
        self.extra: list[int] = []
        self.held = 0

    def look(self, block: FaceBlock) -> None:
        until = int(block.faces[-1])
        pages = list(self._pages(until))
        held = {key: place for place, key in enumerate(key for page in pages for key in page.faces.tolist())}
        keys: list[int] = block.faces.tolist()
        self.missing += [key for key in keys if key not in held]
        self.extra += sorted(held.keys() - set(keys))
        there = np.array([key in held for key in keys])
        if there.any():
            places = np.array([held[key] for key in keys if key in held])
            vectors = np.concatenate([page.vectors for page in pages])[places]
            subjects = np.concatenate([page.subjects for page in pages])[places]
            equal = (vectors == block.vectors[there]).all(axis=1) & (subjects == block.subjects[there])
            self.different += block.faces[there][~equal].tolist()
        self._last = until

    def look_beyond(self) -> None:
        """After the last face that SQL has."""
        for page in self._pages(None):
            self.extra += page.faces.tolist()

    def _pages(self, until: int | None) -> Iterator[FaceBlock]:
        for page in self._milvus.blocks(self._name, self._last, until, self._dimension):
            self.held += len(page.faces)
            yield page
