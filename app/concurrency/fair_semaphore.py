"""A semaphore over cores and pixels: fair between callers, and in the order of arrival for each."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.concurrency.deadline import Task, current_task, timed_out
from app.errors import Overloaded

LARGE_PIXELS = 8_000_000
"""From this size on, decoding and searching a photo takes a core for a second and more."""
COSTLY_PIXELS = 4_000_000
"""From this size on, searching a photo without a face takes a core for half a second and more."""
RECENT_S = 5.0
"""How long after its last photo a caller still counts as another one."""
LARGE_WAIT_S = 10.0
"""How long a large photo waits for cores and memory before its request is answered with 429."""
RETRY_AFTER_S = 5.0


@dataclass(slots=True)
class _Waiter:
    caller: str
    pixels: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False


class FairSemaphore:
    """Lets `count` threads run at the same time, on photos of at most `max_pixels` together.

    The next is a waiting photo that fits, of the caller with the fewest running; among those, the one that has waited
    longest. At most half of the threads, but one, work on large photos, and a caller's costly ones leave a thread to
    other callers. Python's own semaphore lets newcomers pass, so that a request could wait for later ones.
    """

    def __init__(self, count: int, max_pixels: float = math.inf) -> None:
        self._lock = threading.Lock()
        self._count = count
        self._free = count
        self._pixels_left = max_pixels
        self._max_pixels = max_pixels
        self._large_left = max(1, count // 2)
        self._running: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()
        self._recent: dict[str, float] = {}
        """When each caller last came or left, in monotonic seconds."""

    @property
    def free(self) -> int:
        """Return how many more threads could enter now."""
        return self._free

    @contextmanager
    def hold(self, pixels: int = 0) -> Iterator[None]:
        """Run the block when a core and memory for so many pixels are free; one photo always fits.

        Raises LikenessError (``request_timeout``) if the request's time ends first, and Overloaded if a large photo of
        a request waits for LARGE_WAIT_S.
        """
        task = current_task()
        mine = _Waiter(task.caller, int(min(pixels, self._max_pixels)))
        self._enter(mine, task)
        try:
            yield
        finally:
            with self._lock:
                self._leave(mine)

    def _enter(self, mine: _Waiter, task: Task) -> None:
        with self._lock:
            self._recent[mine.caller] = time.monotonic()
            if self._fits(mine):
                self._take(mine)
                return
            mine.lock.acquire()
            self._waiting.append(mine)
        seconds = task.seconds_left
        if math.isinf(seconds):  # work of no request has no deadline
            mine.lock.acquire()  # released by the thread that leaves
            return
        if mine.pixels >= LARGE_PIXELS:
            seconds = min(seconds, LARGE_WAIT_S)
        if mine.lock.acquire(timeout=max(0.0, seconds)):
            return
        with self._lock:
            if mine.entered:
                return
            self._waiting.remove(mine)
        if task.seconds_left <= 0:
            raise timed_out()
        raise Overloaded("Too many large photos at once.", retry_after=RETRY_AFTER_S)

    def _leave(self, mine: _Waiter) -> None:
        self._recent[mine.caller] = time.monotonic()
        self._free += 1
        self._pixels_left += mine.pixels
        self._large_left += mine.pixels >= LARGE_PIXELS
        self._running[mine.caller] -= 1
        if not self._running[mine.caller]:
            del self._running[mine.caller]
        while fitting := [one for one in self._waiting if self._fits(one)]:
            chosen = min(fitting, key=lambda one: self._running[one.caller])
            self._waiting.remove(chosen)
            self._take(chosen)
            chosen.lock.release()

    def _fits(self, one: _Waiter) -> bool:
        return (
            self._free > 0
            and one.pixels <= self._pixels_left
            and (one.pixels < LARGE_PIXELS or self._large_left > 0)
            and (one.pixels < COSTLY_PIXELS or self._leaves_a_core(one.caller))
        )

    def _leaves_a_core(self, caller: str) -> bool:
        """Return whether a core is left to other callers when ``caller`` enters, or there are no others now."""
        if self._running[caller] < max(1, self._count - 1):
            return True
        since = time.monotonic() - RECENT_S
        self._recent = {other: at for other, at in self._recent.items() if at >= since}
        return self._recent.keys() <= {caller}

    def _take(self, one: _Waiter) -> None:
        one.entered = True
        self._free -= 1
        self._pixels_left -= one.pixels
        self._large_left -= one.pixels >= LARGE_PIXELS
        self._running[one.caller] += 1
