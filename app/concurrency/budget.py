"""The memory and the cores that all requests share: taken before they are used, and given back after."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from traceback import clear_frames
from typing import TypeVar

from app.concurrency.overload import Why, current_task, timed_out

T = TypeVar("T")

LARGE_PIXELS = 8_000_000
"""From this size on, decoding and searching a photo takes a core for a second and more."""
COSTLY_PIXELS = 4_000_000
"""From this size on, searching a photo without a face takes a core for half a second and more."""
COSTLY_PARSE = 4 * 1024**2
"""Bytes from which on parsing a body counts as costly."""
NICENESS = 10
"""Added to the process's for threads of costly work: they get a tenth of the core that its other threads want."""
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
    threads: int
    pixels: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False

    @property
    def costly(self) -> bool:
        return self.pixels >= COSTLY_PIXELS


class Budget:
    """Lets ``threads`` threads work on photos at the same time, and all requests hold ``size`` bytes together.

    Kept bytes (`keep`) are granted at once or never. Work (`run`, `hold`) waits: the next is one that fits, of the
    caller with the fewest running; among those, the one that has waited longest. Costly photos have as many threads of
    their own, of low priority, so that no other waits for one to end: at most half of them, but one, for large photos,
    and not all for one caller. They leave bytes to smaller ones. Safe to share between threads.
    """

    def __init__(self, threads: int, size: float = math.inf) -> None:
        self.size = size
        self._count = threads
        self._free = {False: threads, True: threads}  # by whether the work is costly
        self._large_left = max(1, threads // 2)
        self._lock = threading.Lock()
        self._aside = ThreadPoolExecutor(2 * threads, "costly", _lower_priority)
        self._working = 0
        self._kept: Counter[str] = Counter()
        self._running: Counter[tuple[bool, str]] = Counter()
        """Threads, by whether the work is costly, and caller."""
        self._waiting: deque[_Waiter] = deque()
        self._recent: dict[str, float] = {}
        """When each caller last came or left, in monotonic seconds."""

    @property
    def free(self) -> int:
        """Return how many more threads could work on photos that are not costly now."""
        return self._free[False]

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
        return self.size * (1 - KEPT_SHARE) * (1 - SMALL_SHARE)

    @property
    def most_kept(self) -> float:
        """Return the bytes that one caller may keep."""
        return self.size * KEPT_SHARE * CALLER_SHARE

    def keep(self, caller: str, size: int) -> None:
        """Take bytes until `give_back`. Raises Overloaded if there are not so many left, of all or for this caller."""
        with self._lock:
            if self._kept.total() + size > self.size * KEPT_SHARE or self._kept[caller] + size > self.most_kept:
                raise Why.BYTES.error()
            self._kept[caller] += size

    def give_back(self, caller: str, size: int) -> None:
        """Give back what `keep` took."""
        with self._lock:
            self._kept[caller] -= size
            if not self._kept[caller]:
                del self._kept[caller]

    def run(self, work: Callable[[], T], size: int, *, pixels: int = 0, threads: int = 1) -> T:
        """Return what ``work`` returns, done within `hold`, and in a thread of low priority if it is costly.

        What it calls must have freed its memory when it returns, and has when it raises: the next one is let in before
        an error arrives where it is caught.
        """
        with self.hold(size, pixels=pixels, threads=threads):
            try:
                if pixels >= COSTLY_PIXELS or (not threads and size >= COSTLY_PARSE):
                    return self._aside.submit(copy_context().run, work).result()
                return work()
            except BaseException as error:
                clear_frames(error.__traceback__)
                raise

    @contextmanager
    def hold(self, size: int = 0, *, pixels: int = 0, threads: int = 1) -> Iterator[None]:
        """Run the block when ``size`` bytes, at most `most_work`, and a core for a photo of ``pixels`` are free.

        With ``threads=0`` it needs no core. Raises LikenessError (``request_timeout``) if the request's time ends
        first, and Overloaded if a large photo of a request waits for LARGE_WAIT_S.
        """
        task = current_task()
        mine = _Waiter(task.caller, size, threads, pixels)
        with self._lock:
            self._recent[mine.caller] = time.monotonic()
            self._waiting.append(mine)
            mine.lock.acquire()
            self._let_in()
        seconds = min(task.seconds_left, LARGE_WAIT_S if pixels >= LARGE_PIXELS else math.inf)
        # Work of no request has no deadline; who leaves releases the lock.
        if not mine.lock.acquire(timeout=-1 if math.isinf(task.seconds_left) else max(0.0, seconds)):
            with self._lock:
                if not mine.entered:
                    self._waiting.remove(mine)
                    raise timed_out() if task.seconds_left <= 0 else Why.PHOTOS.error()
        try:
            yield
        finally:
            with self._lock:
                self._recent[mine.caller] = time.monotonic()
                self._count_in(mine, -1)
                self._let_in()

    def _let_in(self) -> None:
        while fitting := [waiter for waiter in self._waiting if self._fits(waiter)]:
            chosen = min(fitting, key=lambda waiter: self._running[waiter.costly, waiter.caller])
            self._waiting.remove(chosen)
            self._count_in(chosen, 1)
            chosen.entered = True
            chosen.lock.release()

    def _fits(self, waiter: _Waiter) -> bool:
        left = (self.most_work if waiter.costly else self.size * (1 - KEPT_SHARE)) - self._working
        if self._free[waiter.costly] < waiter.threads or waiter.size > left:
            return False
        if waiter.pixels >= LARGE_PIXELS and not self._large_left:
            return False
        if not waiter.costly or self._running[True, waiter.caller] < max(1, self._count - 1):
            return True
        since = time.monotonic() - RECENT_S  # a core is left to other callers if there are any now
        self._recent = {caller: at for caller, at in self._recent.items() if at >= since}
        return self._recent.keys() <= {waiter.caller}

    def _count_in(self, waiter: _Waiter, sign: int) -> None:
        key = waiter.costly, waiter.caller
        self._running[key] += sign * waiter.threads
        if not self._running[key]:
            del self._running[key]
        self._free[waiter.costly] -= sign * waiter.threads
        self._large_left -= sign * (waiter.pixels >= LARGE_PIXELS)
        self._working += sign * waiter.size


def _lower_priority() -> None:
    if sys.platform == "linux":  # where each thread has a priority of its own
        with suppress(OSError):  # forbidden: the thread keeps the process's priority
            os.nice(NICENESS)  # added to the process's own, which may be lower still
