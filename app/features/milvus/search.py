"""Search in Milvus, which proposes subjects; their faces are then read from the database and scored again.

`app.search.index` computes these scores. So an answer doesn't depend on where vectors are searched, and never contains
a face that was deleted from the database but not yet from Milvus.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial

import numpy as np

from app.features.milvus.client import FETCH_MAX, CollectionLost, FoundRow, Milvus
from app.search.index import FETCH_MIN, FETCH_PER_SUBJECT, WIDEN, Index
from app.search.quantised import rounding
from app.search.types import FaceBlock, FaceSource, FinishSearch, IndexSpec, LogPosition, Match, joined
from app.types import Sizes, Vector, Vectors

COUNT_CHEAP_S = 0.02
COUNT_SHARE = 100
"""If counting takes longer than COUNT_CHEAP_S seconds, it is repeated so rarely that it takes 1 / COUNT_SHARE of the
time."""


class Searcher:
    """Searches one collection. ``name`` is None if the gallery never had a face and so has no collection."""

    quick = False

    def __init__(
        self,
        spec: IndexSpec,
        source: FaceSource,
        milvus: Milvus,
        name: str | None,
        *,
        count: Count,
        renew: Callable[[Searcher], Searcher],
    ) -> None:
        """`renew` returns the searcher that replaces this one when its collection is gone."""
        self._spec = spec
        self._source = source
        self._milvus = milvus
        self._count = count
        self._renew = renew
        self.name = name

    @property
    def sizes(self) -> Sizes:
        return self._count.counted()

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Search as `Searchable.search` does. The result is exact if Milvus searches exactly (FLAT)."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or self.name is None:
            return [[] for _ in probes]
        try:
            return self._search(self.name, probes, limit)
        except CollectionLost:
            renewed = self._renew(self)
            return [[] for _ in probes] if renewed.name is None else renewed._search(renewed.name, probes, limit)

    def begin(self, vectors: Vectors, limit: int) -> list[FinishSearch]:
        return [partial(_first, matches) for matches in self.search(vectors, limit)]

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Verify as `Searchable.verify` does, from the database alone."""
        return self._with_faces_of([subject]).verify(vectors, subject)

    def _search(self, name: str, probes: Vectors, limit: int) -> list[list[Match]]:
        fetch = min(FETCH_MAX - 1, max(FETCH_MIN, FETCH_PER_SUBJECT * limit))
        hits = self._milvus.search(name, probes, fetch)
        near = [_promising(rows, limit, fetch, rounding(self._spec.dimension)) for rows in hits]
        candidates = self._with_faces_of(set().union(*(subjects for subjects, _ in near)))
        matches = candidates.search(probes, limit)
        for place, (rows, (_, floor)) in enumerate(zip(hits, near, strict=True)):
            if not _is_complete(matches[place], floor, limit, rounding(self._spec.dimension)):
                matches[place] = self._search_on(name, probes[place], limit, rows, fetch)
        return matches

    def _search_on(self, name: str, probe: Vector, limit: int, rows: list[FoundRow], fetch: int) -> list[Match]:
        """Return a probe's best matches: compare more and more subjects until no other one can be among the best."""
        seen: set[int] = set()
        candidates = self._with_faces_of(seen)
        while True:
            new = {row.subject for row in rows} - seen
            self._with_faces_of(new, candidates)
            seen |= new
            best = candidates.search(probe[None], limit)[0]
            if len(rows) < fetch or _is_complete(best, rows[-1].score, limit, rounding(self._spec.dimension)):
                return best
            fetch = min(FETCH_MAX - 1, WIDEN * fetch)
            rows = self._milvus.search(name, probe[None], fetch, sorted(seen))[0]

    def _with_faces_of(self, subjects: Collection[int], index: Index | None = None) -> Index:
        """Add all faces of these subjects, read from the database, to the index, by default a new one; return the
        index."""
        index = index or Index(self._spec.dimension)
        if (block := self._source.faces_of(self._spec, sorted(subjects))) is not None:
            index.add(block)
        return index


def _first(matches: list[Match], limit: int) -> list[Match]:
    return matches[:limit]


class Count:
    """Counts the sizes of the subjects to search, when they are asked for and the log has changed."""

    def __init__(self, source: FaceSource, spec: IndexSpec) -> None:
        self._source = source
        self._spec = spec
        self._position: LogPosition | None = None
        self._counted_at: LogPosition | None = None
        self._next = 0.0
        self.known: Sizes = {}

    def changed(self, position: LogPosition) -> None:
        self._position = position

    def counted(self) -> Sizes:
        start, position = time.monotonic(), self._position
        if self._counted_at == position or start < self._next:
            return self.known
        self.known = self._source.sizes(self._spec)
        self._counted_at = position
        took = time.monotonic() - start
        self._next = start + (COUNT_SHARE * took if took > COUNT_CHEAP_S else 0)
        return self.known


def _promising(rows: Sequence[FoundRow], limit: int, fetched: int, rounding: float) -> tuple[set[int], float]:
    """Return the `limit` best subjects by Milvus's scores, together with subjects that rounding may have ranked too
    low; and the highest score that a face of any other subject can have."""
    subjects: set[int] = set()
    last = -np.inf
    for row in rows:
        if row.subject not in subjects:
            if len(subjects) >= limit and row.score < last - rounding:
                return subjects, row.score
            subjects.add(row.subject)
            if len(subjects) == limit:
                last = row.score
    return subjects, rows[-1].score if len(rows) >= fetched else -np.inf


def _is_complete(best: Sequence[Match], floor: float, limit: int, rounding: float) -> bool:
    """Return whether the best matches are complete: no other subject can be among them, if its faces score at most
    `floor`."""
    return floor == -np.inf or (len(best) == limit and best[-1].score > floor + rounding)


class Comparison:
    """Compares a collection with the database's faces, given in blocks in the order of their keys. Lists hold faces'
    keys."""

    def __init__(self, milvus: Milvus, name: str, dimension: int) -> None:
        self._milvus = milvus
        self._name = name
        self._dimension = dimension
        self._last = 0
        self.missing: list[int] = []
        self.different: list[int] = []
        self.extra: list[int] = []
        self.held = 0

    def compare(self, block: FaceBlock) -> None:
        held = joined(list(self._pages(int(block.faces[-1]))), self._dimension)
        there = np.isin(block.faces, held.faces)
        ours, theirs = held.only(np.searchsorted(held.faces, block.faces[there])), block.only(there)
        equal = (ours.vectors == theirs.vectors).all(axis=1) & (ours.subjects == theirs.subjects)
        self.missing += block.faces[~there].tolist()
        self.different += theirs.faces[~equal].tolist()
        self.extra += held.faces[~np.isin(held.faces, block.faces)].tolist()
        self._last = int(block.faces[-1])

    def look_beyond(self) -> None:
        """Note the collection's faces that follow the database's last face as extra."""
        for page in self._pages(None):
            self.extra += page.faces.tolist()

    def _pages(self, until: int | None) -> Iterator[FaceBlock]:
        for page in self._milvus.blocks(self._name, self._last, until, self._dimension):
            self.held += len(page.faces)
            yield page
