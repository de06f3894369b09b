"""Run callers in parallel, and repeat photos endlessly."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Generic, TypeVar

T = TypeVar("T")


class Reel(Generic[T]):
    """An endless repetition of the same items; any number of threads may take from it."""

    def __init__(self, things: Sequence[T]) -> None:
        self._things = things
        self._place = count()

    def take(self) -> T:
        return self._things[next(self._place) % len(self._things)]

    def several(self, number: int) -> list[T]:
        return [self.take() for _ in range(number)]

    def endless(self) -> Iterator[T]:
        while True:
            yield self.take()


def side_by_side(run: Callable[[int], int], callers: int) -> Callable[[], int]:
    """Call `run(caller)` in this many threads at once and return the sum of the results."""
    pool = ThreadPoolExecutor(callers)

    def together() -> int:
        return sum(pool.map(run, range(callers)))

    return together


def for_a_while(run: Callable[[], int], callers: int, seconds: float) -> Callable[[], int]:
    """Call `run` repeatedly in this many threads for `seconds`; threads don't wait for each other between calls."""

    def keep_on(_caller: int) -> int:
        done, end = 0, time.perf_counter() + seconds
        while time.perf_counter() < end:
            done += run()
        return done

    return side_by_side(keep_on, callers)
