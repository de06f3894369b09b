"""Answers from Milvus and SQL: Milvus says which subjects are worth a look, their faces are read from SQL and scored.

They are scored as `app.search.index` does, by it: an answer doesn't depend on where vectors are searched, and a face
that Milvus has still, or again, though SQL hasn't, is never answered.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np

from app.gallery.change_reader import Feed
from app.gallery.records import Counts, Gallery, Position
from app.search.index import FETCH_MIN, FETCH_PER_SUBJECT, WIDEN, Index, Match
from app.search.milvus.client import FETCH_MAX, CollectionLost, Found, Milvus
from app.types import Vector, Vectors

COUNT_CHEAP_S = 0.02
COUNT_SHARE = 100
"""Once counting takes longer than COUNT_CHEAP_S, it takes one part in so many of the time at most."""


class Searcher:
    """One collection as it is searched; without a name, a gallery that never had a face."""

    def __init__(
        self,
        gallery: Gallery,
        feed: Feed,
        milvus: Milvus,
        name: str | None,
        *,
        count: Count,
        renew: Callable[[Searcher], Searcher],
    ) -> None:
        """`renew` finds what is searched now, where this collection is not there any more."""
        self._gallery = gallery
        self._feed = feed
        self._milvus = milvus
        self._count = count
        self._renew = renew
        self.name = name

    @property
    def subjects(self) -> int:
        return self._count.counted().subjects

    @property
    def quick(self) -> bool:
        return False

    def search(self, vectors: Vectors, limit: int) -> list[list[Match]]:
        """Exactly, where Milvus searches exactly (FLAT)."""
        probes = np.ascontiguousarray(vectors, dtype=np.float32)
        if limit < 1 or not len(probes) or self.name is None:
            return [[] for _ in probes]
        try:
            return self._search(self.name, probes, limit)
        except CollectionLost:
            renewed = self._renew(self)
            return [[] for _ in probes] if renewed.name is None else renewed._search(renewed.name, probes, limit)

    def verify(self, vectors: Vectors, subject: int) -> list[Match | None]:
        """Asks SQL alone."""
        return self._candidates([subject]).verify(vectors, subject)

    def _search(self, name: str, probes: Vectors, limit: int) -> list[list[Match]]:
        fetch = min(FETCH_MAX - 1, max(FETCH_MIN, FETCH_PER_SUBJECT * limit))
        found = self._milvus.search(name, probes, fetch)
        candidates = Index(self._gallery.dimension)
        near = [_promising(rows, limit, fetch, candidates.rounding) for rows in found]
        seen = set().union(*(subjects for subjects, _ in near))
        self._add(candidates, seen)
        matches = candidates.search(probes, limit)
        for place, (rows, (_, floor)) in enumerate(zip(found, near, strict=True)):
            if not _is_complete(matches[place], floor, limit, candidates.rounding):
                matches[place] = self._search_on(name, probes[place], limit, rows, fetch)
        return matches

    def _search_on(self, name: str, probe: Vector, limit: int, rows: list[Found], fetch: int) -> list[Match]:
        """Looks at ever more subjects until no face that wasn't looked at can belong among the best."""
        candidates = Index(self._gallery.dimension)
        seen: set[int] = set()
        while True:
            new = {row.subject for row in rows} - seen
            self._add(candidates, new)
            seen |= new
            best = candidates.search(probe[None], limit)[0]
            if len(rows) < fetch or _is_complete(best, rows[-1].score, limit, candidates.rounding):
                return best
            fetch = min(FETCH_MAX - 1, WIDEN * fetch)
            rows = self._milvus.search(name, probe[None], fetch, sorted(seen))[0]

    def _candidates(self, subjects: Collection[int]) -> Index:
        candidates = Index(self._gallery.dimension)
        self._add(candidates, subjects)
        return candidates

    def _add(self, candidates: Index, subjects: Collection[int]) -> None:
        """With all their faces, as SQL has them."""
        block = self._feed.faces_of(self._gallery, sorted(subjects))
        if block is not None:
            candidates.add(block)


class Count:
    """How many subjects and faces there are to search, counted when that is asked for and may have changed."""

    def __init__(self, feed: Feed, gallery: Gallery) -> None:
        self._feed = feed
        self._gallery = gallery
        self._position: Position | None = None
        self._counted_at: Position | None = None
        self._next = 0.0
        self.known = Counts(0, 0)

    def changed(self, position: Position) -> None:
        self._position = position

    def counted(self) -> Counts:
        start, position = time.monotonic(), self._position
        if self._counted_at == position or start < self._next:
            return self.known
        self.known = self._feed.indexable(self._gallery)
        self._counted_at = position
        took = time.monotonic() - start
        self._next = start + (COUNT_SHARE * took if took > COUNT_CHEAP_S else 0)
        return self.known


def _promising(rows: Sequence[Found], limit: int, fetched: int, rounding: float) -> tuple[set[int], float]:
    """The subjects of the `limit` best, by Milvus's scores, with those that float32 may have ranked wrongly; and the
    score that no face of any other subject is above."""
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
    """Whether no face of a subject not looked at, all of them at most `floor`, can belong among the best."""
    return floor == -np.inf or (len(best) == limit and best[-1].score > floor + rounding)
