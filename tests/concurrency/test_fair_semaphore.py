"""FairSemaphore: never more than there are, first come, first served, none lost."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.concurrency.fair_semaphore import FairSemaphore

SOON_S = 20


def test_there_are_never_more_at_once_and_none_is_lost() -> None:
    turns, lock = FairSemaphore(3), threading.Lock()
    now, most = 0, 0

    def work(number: int) -> None:
        nonlocal now, most
        try:
            with turns:
                with lock:
                    now += 1
                    most = max(most, now)
                time.sleep(0)
                with lock:
                    now -= 1
                assert 7 // (number % 7)
        except ZeroDivisionError:
            pass

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(2000)))
    assert now == 0
    assert 1 <= most <= 3
    for _ in range(3):  # all of them are back: this would wait for ever
        turns.__enter__()


def test_the_one_who_waited_longest_is_next() -> None:
    turns = FairSemaphore(1)
    order: list[int] = []
    with ThreadPoolExecutor(5) as pool:
        with turns:
            for number in range(5):
                pool.submit(_noted, turns, order, number)
                end = time.monotonic() + SOON_S
                while len(turns._waiting) <= number and time.monotonic() < end:
                    time.sleep(0.001)
        pool.shutdown()
    assert order == [0, 1, 2, 3, 4]


def _noted(turns: FairSemaphore, order: list[int], number: int) -> None:
    with turns:
        order.append(number)


def test_it_says_how_many_are_free() -> None:
    turns = FairSemaphore(2)
    assert turns.free == 2
    with turns:
        assert turns.free == 1
        with turns:
            assert turns.free == 0
    assert turns.free == 2


def test_there_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="starts at 1"):
        FairSemaphore(0)
