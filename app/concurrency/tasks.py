"""The work of one request: whose it is, and until when it may go on."""

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
    """Work for one request. ``until`` is in monotonic seconds; ``given_up`` says that no client waits any more."""

    caller: str = ""
    until: float = math.inf
    given_up: bool = False
    kept: int = 0
    """Bytes of crops that its answer is made of (`Bytes`)."""

    def count(self, size: int) -> None:
        """Add to the bytes that are kept; several threads may."""
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
    """Return the task of this thread; one without a caller and an end for work that is no request's."""
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
