"""Whose turn it is where only so many may work at once."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.concurrency.admission import Why, current_task, timed_out


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: str
    turn: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False


class Turns:
    """Lets ``places`` threads work at the same time. Safe to share between threads.

    The next is of the caller with the fewest at work; among these, of the one who was last let in longest ago; among
    its own, the one that has waited longest. So one caller is served first come, first served, and several in turn.
    """

    def __init__(self, places: int) -> None:
        self.free = places
        """How many more could work now."""
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._working: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        """When callers who wait or work were last let in, in monotonic seconds."""

    @property
    def waiting(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    @contextmanager
    def hold(self, patience_s: float = math.inf) -> Iterator[None]:
        """Run the block in this thread's turn, for the current task.

        Raises LikenessError (``request_timeout``) if the task's time ends before, and Overloaded after ``patience_s``
        seconds where the task has an end.
        """
        task = current_task()
        mine = _Waiter(task.caller)
        mine.turn.acquire()
        with self._lock:
            self._waiting.append(mine)
            self._let_in()
        left = task.seconds_left
        # Work of no request has no deadline. Who leaves releases the lock.
        if not mine.turn.acquire(timeout=-1 if math.isinf(left) else max(0.0, min(left, patience_s))):
            with self._lock:
                if not mine.entered:
                    self._waiting.remove(mine)
                    raise timed_out() if task.seconds_left <= 0 else Why.PHOTOS.error()
        try:
            yield
        finally:
            with self._lock:
                self.free += 1
                self._working[mine.caller] -= 1
                self._let_in()
                known = {waiter.caller for waiter in self._waiting}
                if not self._working[mine.caller]:
                    del self._working[mine.caller]
                    if mine.caller not in known:
                        self._last.pop(mine.caller, None)

    def _let_in(self) -> None:
        while self.free and self._waiting:
            chosen = min(self._waiting, key=lambda each: (self._working[each.caller], self._last.get(each.caller, 0.0)))
            self._waiting.remove(chosen)
            self.free -= 1
            self._working[chosen.caller] += 1
            self._last[chosen.caller] = time.monotonic()
            chosen.entered = True
            chosen.turn.release()
