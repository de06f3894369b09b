"""A semaphore that serves threads in the order in which they came."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeAlias

Turn: TypeAlias = AbstractContextManager[object]
"""A context manager held while a thread keeps a core busy."""


class FairSemaphore:
    """Lets `count` threads run at the same time; the one that has waited longest is next.

    Python's own semaphore lets newcomers pass, so that a request could wait for later ones.
    """

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError("count starts at 1")
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    @property
    def free(self) -> int:
        """Return how many more threads could enter now."""
        return self._free

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # released by the thread that leaves

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
