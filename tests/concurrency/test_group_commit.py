"""What waits is done in one go, and each item fails for its own faults only."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from app.concurrency.batcher import GroupCommit
from app.errors import Conflict, LikenessError, Unusable
from tests.support.waiting import until

WAIT_S = 60.0


class Desk:
    """Squares numbers; its first call waits until it is told to go on, so that the others' items gather."""

    def __init__(self, most: int) -> None:
        self.together = GroupCommit[int, int](most)
        self.calls: list[list[int]] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    def work(self, items: Sequence[int]) -> list[int]:
        self.calls.append(list(items))
        self.begun.set()
        assert self.go_on.wait(WAIT_S)
        if 13 in items:
            raise Conflict("not thirteen")
        if 99 in items:
            raise Unusable("broken")
        return [item * item for item in items]

    def run(self, *items: int) -> list[Future[int]]:
        """The results of 1 and of these, which arrive while 1 is worked on."""
        with ThreadPoolExecutor(len(items) + 1) as pool:
            futures = [pool.submit(self.together.run, "a", 1, self.work)]
            assert self.begun.wait(WAIT_S)
            for count, item in enumerate(items, 1):
                futures.append(pool.submit(self.together.run, "a", item, self.work))
                until(lambda: self.waiting() >= count)  # noqa: B023 - it is waited for at once
            self.go_on.set()
        return futures

    def waiting(self) -> int:
        return sum(len(line) for line in self.together._lines.values())


def test_what_gathers_is_done_in_one_go() -> None:
    desk = Desk(most=64)
    assert [future.result() for future in desk.run(2, 3, 4, 5)] == [1, 4, 9, 16, 25]
    assert desk.calls == [[1], [2, 3, 4, 5]]
    assert desk.waiting() == 0


def test_no_more_than_so_many_in_one_go() -> None:
    desk = Desk(most=2)
    assert [future.result() for future in desk.run(2, 3, 4)] == [1, 4, 9, 16]
    assert desk.calls == [[1], [2, 3], [4]]


def test_a_fault_of_its_own_is_one_items_alone() -> None:
    desk = Desk(most=64)
    first, second, bad, last = desk.run(2, 13, 4)
    assert [first.result(), second.result(), last.result()] == [1, 4, 16]
    with pytest.raises(Conflict, match="not thirteen"):
        bad.result()
    assert desk.calls == [[1], [2, 13, 4], [2], [13], [4]]


def test_other_errors_are_everybodys_and_nothing_is_done_twice() -> None:
    """A transaction whose commit got no answer may have been made."""
    desk = Desk(most=64)
    first, *others = desk.run(2, 99, 4)
    assert first.result() == 1
    for other in others:
        with pytest.raises(Unusable, match="broken"):
            other.result()
    assert desk.calls == [[1], [2, 99, 4]]


def test_who_is_told_to_stop_leaves_nobody_waiting() -> None:
    together = GroupCommit[int, int]()
    begun, go_on = threading.Event(), threading.Event()

    def stop(_items: Sequence[int]) -> list[int]:
        begun.set()
        assert go_on.wait(WAIT_S)
        raise SystemExit

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(together.run, "a", 1, stop)
        assert begun.wait(WAIT_S)
        other = pool.submit(together.run, "b", 2, list)
        assert other.result() == 2  # another kind waits for nobody
        go_on.set()
        assert isinstance(first.exception(), SystemExit | LikenessError)
    assert together.run("a", 3, list) == 3
