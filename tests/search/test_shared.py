"""Searches of concurrent requests share passes; those of enrollments wait for each other while all cores are busy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from app.machine import cores
from app.search import registry
from app.search.index import Index
from app.search.registry import SharedSearches
from app.search.types import Match
from tests.support.index_faces import DIMENSION, block, random_units
from tests.support.waiting import until

SOON_S = 60.0
PROBES = random_units(2, seed=2)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    monkeypatch.setattr("app.search.index.QUICK_NUMBERS", 0)
    made = Index(DIMENSION)
    made.add(block([(number, number, 1.0, vector) for number, vector in enumerate(random_units(50, seed=1))]))
    return made


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedSearches]:
    monkeypatch.setattr(registry, "ENROLLMENT_WAIT_S", 100 * SOON_S)
    made = SharedSearches()
    yield made
    made.close()


def look(searches: SharedSearches, index: Index, place: int) -> list[list[Match]]:
    with searches.enrolling():
        return searches.run(index, PROBES[place : place + 1], 2, enrolling=True)


def busy(searches: SharedSearches, stack: ExitStack) -> ExitStack:
    """Count enrollments that keep all cores but one busy; return the one that keeps the last."""
    for _ in range(cores() - 1):
        stack.enter_context(searches.enrolling())
    last = stack.enter_context(ExitStack())
    last.enter_context(searches.enrolling())
    return last


def test_looks_wait_for_each_other_while_enrollments_keep_all_cores_busy(
    searches: SharedSearches, index: Index
) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        last = busy(searches, stack)
        found = [pool.submit(look, searches, index, place) for place in range(2)]
        until(lambda: searches.waiting == 2)
        last.close()
        assert [future.result(SOON_S) for future in found] == [[row] for row in index.search(PROBES, 2)]
        assert searches.batch_sizes == {2: 1}


def test_a_look_alone_and_other_searches_wait_for_nobody(searches: SharedSearches, index: Index) -> None:
    expected = index.search(PROBES[:1], 2)
    assert look(searches, index, 0) == expected
    with ExitStack() as stack:
        busy(searches, stack)
        assert searches.run(index, PROBES[:1], 2) == expected


def test_a_look_waits_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch, index: Index) -> None:
    monkeypatch.setattr(registry, "ENROLLMENT_WAIT_S", 0.01)
    searches = SharedSearches()
    with ExitStack() as stack:
        stack.callback(searches.close)
        busy(searches, stack)
        assert look(searches, index, 1) == index.search(PROBES[1:], 2)
