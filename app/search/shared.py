"""Searches of concurrent requests: those of the same index share a pass over its vectors."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from app.concurrency.batcher import Batcher
from app.machine import cores
from app.search.registry import Searchable
from app.search.types import Answer, Match
from app.types import Vectors

MOST = 64
"""Searches that share a pass; more would delay the first of them by more than the pass saves."""
QUEUE = 1_024
WORKERS = 2
"""One for the largest gallery, and one so that the others needn't wait behind it."""
ENROLLMENT_WAIT_S = 0.25
"""The longest that an enrollment's search waits for others': two cores enroll about sixteen photos meanwhile."""


@dataclass(frozen=True, slots=True)
class _Search:
    index: Searchable
    probes: Vectors
    limit: int


class SharedSearches:
    """Runs searches; safe to share between threads.

    A search is taken at once, and shares its pass with those that come while others run. An enrollment's search also
    waits for those of the enrollments that are still `enrolling`, while these keep all cores busy: a pass for sixteen
    takes a third of the time a probe of a pass for one. Sixteen clients on two cores then enroll 0.97 of what they do
    without looking among 100,000 × 128, without this 0.81.
    """

    def __init__(self) -> None:
        self._searches = Batcher(
            _together, max_batch=MOST, max_wait_s=0, queue_limit=QUEUE, workers=WORKERS, name="search"
        )
        self._cores = cores()
        self._enrolling = 0
        self._guard = threading.Lock()
        self._for_enrollments = Batcher(
            _together,
            max_batch=MOST,
            max_wait_s=ENROLLMENT_WAIT_S,
            queue_limit=QUEUE,
            pays=lambda waiting: self._enrolling - waiting >= self._cores,
            name="enrollment-search",
        )

    def run(self, index: Searchable, probes: Vectors, limit: int, *, enrolling: bool = False) -> list[list[Match]]:
        """Search as `Searchable.search`; `enrolling`: for an enrollment. Raises Overloaded if too many wait."""
        if index.quick:
            answers = index.begin(probes, limit)
        else:
            answers = (self._for_enrollments if enrolling else self._searches).run([_Search(index, probes, limit)])[0]
        return [answer(limit) for answer in answers]  # exact scores on this thread, not in the batch

    @contextmanager
    def enrolling(self) -> Iterator[None]:
        """Count an enrollment until it has searched."""
        with self._guard:
            self._enrolling += 1
        try:
            yield
        finally:
            with self._guard:
                self._enrolling -= 1
            self._for_enrollments.reconsider()

    @property
    def waiting(self) -> int:
        return self._searches.waiting + self._for_enrollments.waiting

    @property
    def batch_sizes(self) -> dict[int, int]:
        """Return how many batches of each size there were."""
        return dict(Counter(self._searches.batch_sizes) + Counter(self._for_enrollments.batch_sizes))

    def close(self) -> None:
        self._searches.close()
        self._for_enrollments.close()


def _together(searches: list[_Search]) -> Sequence[list[Answer]]:
    """Begin searches of the same index in one pass."""
    results: list[list[Answer]] = [[] for _ in searches]
    groups: dict[int, list[int]] = {}
    for place, search in enumerate(searches):
        groups.setdefault(id(search.index), []).append(place)
    for places in groups.values():
        group = [searches[place] for place in places]
        probes = np.concatenate([search.probes for search in group])
        answers = iter(group[0].index.begin(probes, max(search.limit for search in group)))
        for place, search in zip(places, group, strict=True):
            results[place] = [next(answers) for _ in search.probes]
    return results
