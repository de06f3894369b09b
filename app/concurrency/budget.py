"""The memory and the cores that all requests share: taken before they are used, and given back after."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from app.concurrency.overload import Task, Why, current_task, timed_out

LARGE_PIXELS = 8_000_000
"""From this size on, decoding and searching a photo takes a core for a second and more."""
COSTLY_PIXELS = 4_000_000
"""From this size on, searching a photo without a face takes a core for half a second and more."""
RECENT_S = 5.0
"""How long after its last photo a caller still counts as another one."""
LARGE_WAIT_S = 10.0
"""How long a large photo waits for cores and memory before its request is answered with 429."""
KEPT_SHARE = 0.3
"""Of the bytes, for what lasts as long as its request, bodies and crops: photos in work leave it to them, as a body is
not let wait. The rest is for work, which waits for nothing while it holds bytes: it ends and lets the next one in."""
CALLER_SHARE = 0.8
"""Of the kept bytes, for one caller."""
SMALL_SHARE = 0.15
"""Of the bytes for work, for photos below COSTLY_PIXELS alone: they don't wait until a large one's are given back."""


@dataclass(slots=True)
class _Waiter:
    caller: str
    size: int
    pixels: int
    threads: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False


class Budget:
    """Lets ``threads`` threads work on photos at the same time, and all requests hold ``size`` bytes together.

    Kept bytes (`keep`) are granted at once or never. Work (`hold`) waits: the next is one that fits, of the caller with
    the fewest running; among those, the one that has waited longest. At most half of the threads, but one, work on
    large photos; a caller's costly ones leave a thread to other callers, and all of them bytes to smaller ones.
    Python's own semaphore lets newcomers pass, so that a request could wait for later ones. Safe to share between
    threads.
    """

    def __init__(self, threads: int, size: float = math.inf) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._count = self._free = threads
        self._working = 0
        self._kept: Counter[str] = Counter()
        self._large_left = max(1, threads // 2)
        self._running: Counter[str] = Counter()
        self._waiting: deque[_Waiter] = deque()
        self._recent: dict[str, float] = {}
        """When each caller last came or left, in monotonic seconds."""

    @property
    def free(self) -> int:
        """Return how many more threads could work on photos now."""
        return self._free

    @property
    def held(self) -> int:
        """Return the bytes that are taken, for work and of what is kept."""
        return self._working + self._kept.total()

    @property
    def kept(self) -> int:
        """Return the bytes of bodies and crops."""
        return self._kept.total()

    @property
    def most_work(self) -> float:
        """Return the bytes that one piece of work may ask for, and that costly photos hold together."""
        return self._for_work * (1 - SMALL_SHARE)

    @property
    def most_kept(self) -> float:
        """Return the bytes that one caller may keep."""
        return self.size * KEPT_SHARE * CALLER_SHARE

    @property
    def _for_work(self) -> float:
        return self.size * (1 - KEPT_SHARE)

    def keep(self, caller: str, size: int) -> None:
        """Take bytes until `give_back`. Raises Overloaded if there are not so many left, of all or for this caller."""
        with self._lock:
            total = self._kept.total() + size
            if total > self.size * KEPT_SHARE or self._kept[caller] + size > self.most_kept:
                raise Why.BYTES.error()
            self._kept[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        """Give back what `keep` took."""
        with self._lock:
            self._kept[caller] -= size
            if not self._kept[caller]:
                del self._kept[caller]

    @contextmanager
    def hold(self, size: int = 0, *, pixels: int = 0, threads: int = 1) -> Iterator[None]:
        """Run the block when ``size`` bytes, at most `most_work`, and a core for a photo of ``pixels`` are free.

        With ``threads=0`` it needs no core. Raises LikenessError (``request_timeout``) if the request's time ends
        first, and Overloaded if a large photo of a request waits for LARGE_WAIT_S.
        """
        task = current_task()
        mine = _Waiter(task.caller, size, pixels, threads)
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
        raise Why.PHOTOS.error()

    def _leave(self, mine: _Waiter) -> None:
        self._recent[mine.caller] = time.monotonic()
        self._free += mine.threads
        self._working -= mine.size
        self._large_left += mine.pixels >= LARGE_PIXELS
        self._running[mine.caller] -= mine.threads
        if not self._running[mine.caller]:
            del self._running[mine.caller]
        self._let_in()

    def _let_in(self) -> None:
        while fitting := [one for one in self._waiting if self._fits(one)]:
            chosen = min(fitting, key=lambda one: self._running[one.caller])
            self._waiting.remove(chosen)
            self._take(chosen)
            chosen.lock.release()

    def _fits(self, one: _Waiter) -> bool:
        return (
            self._free >= one.threads
            and self._working + one.size <= (self.most_work if one.pixels >= COSTLY_PIXELS else self._for_work)
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
        self._free -= one.threads
        self._working += one.size
        self._large_left -= one.pixels >= LARGE_PIXELS
        self._running[one.caller] += one.threads
