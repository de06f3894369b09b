"""The work of a request: its caller, and its deadline."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from app.errors import LikenessError


@dataclass(slots=True)
class Task:
    """Work for a request. ``until`` is in monotonic seconds; ``given_up`` means that the client no longer waits."""

    caller: str = ""
    until: float = math.inf
    given_up: bool = False
    kept: int = 0
    """Bytes of the crops from which its answer is made (`Bytes`)."""

    def count(self, size: int) -> None:
        """Add to the kept bytes. Several threads may call it."""
        with _counting:
            self.kept += size

    @property
    def seconds_left(self) -> float:
        """Return 0 or less once the work is too late or given up."""
        return 0.0 if self.given_up else self.until - time.monotonic()


_counting = threading.Lock()
_NO_REQUEST = Task()
_task: ContextVar[Task] = ContextVar("task", default=_NO_REQUEST)


def current_task() -> Task:
    """Return this thread's task; work without a request gets one without caller and deadline."""
    return _task.get()


@contextmanager
def working(task: Task) -> Iterator[None]:
    """Make ``task`` this thread's while the block runs."""
    token = _task.set(task)
    try:
        yield
    finally:
        _task.reset(token)


def check_deadline() -> None:
    """Raise LikenessError (``request_timeout``) if the current work is too late; call it between its stages."""
    if _task.get().seconds_left <= 0:
        raise timed_out()


def timed_out() -> LikenessError:
    return LikenessError("The request took too long.", code="request_timeout")
