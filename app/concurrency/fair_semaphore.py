"""Who finds faces now: as many at once as there are cores, for more would only push each other off them."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TypeAlias

Turn: TypeAlias = AbstractContextManager[object]
"""What is held while something keeps a core busy: entered and left by many threads."""


class FairSemaphore:
    """A semaphore whose turns go to whoever has waited longest, so that nobody's request waits for those that came
    after it; Python's own lets newcomers pass."""

    def __init__(self, count: int) -> None:
        """``count`` at a time, from 1."""
        if count < 1:
            raise ValueError("count starts at 1")
        self._lock = threading.Lock()
        self._free = count
        self._waiting: deque[threading.Lock] = deque()

    @property
    def free(self) -> int:
        """How many turns nobody has now."""
        return self._free

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        mine.acquire()  # released by the one whose turn ends

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
