"""When work ends early: why a request is told to come again, and when its time is over.

`Why` is one table for every 429, and for each 503 that passes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

from app.errors import LikenessError, Overloaded


class Why(Enum):
    """A message, the error's code, and `Retry-After` in seconds where the caller of `error` knows no better."""

    REQUESTS = "Too many requests at once.", "overloaded", 1.0
    """All places are taken, or this key's or address's share of them (`Admission`). A request takes about a second."""
    BYTES = "Too many bytes at once.", "overloaded", 1.0
    """The bodies and crops of requests in progress have their share of the memory (`Budget.keep`)."""
    PHOTOS = "Too many large photos at once.", "overloaded", 5.0
    """A large photo has waited too long for memory and a core (`Budget.hold`)."""
    MEMORY = "There is not enough memory now.", "overloaded", 5.0
    """The system gave less memory than the budget counts on."""
    FACES = "Too many items are waiting.", "overloaded", 0.05
    """The queue of a model or of the search is full (`Batcher`), whose speed says when to come again."""
    UPLOADS = "This key's uploads that wait have too many bytes.", "overloaded", 60.0
    """They lie on the disk until a job has read them."""
    KEY_RATE = "This key sends too many requests.", "rate_limited", 1.0
    VECTOR_RATE = "This key sends too many embeddings.", "rate_limited", 1.0
    FAILURES = "Too many wrong keys came from this address.", "too_many_failures", 1.0
    CONNECTIONS = "The server has no connection or file left.", "too_many_connections", 1.0
    """All connections are busy, or the process has no file descriptor left. Answered with 503."""
    STOPPING = "The service is shutting down.", "shutting_down", 1.0
    """Answered with 503."""

    def __init__(self, message: str, code: str, retry_after_s: float) -> None:
        self.message, self.code, self.retry_after_s = message, code, retry_after_s

    def error(self, retry_after_s: float | None = None) -> Overloaded:
        """Return the error to raise."""
        seconds = self.retry_after_s if retry_after_s is None else max(retry_after_s, 0.0)
        return Overloaded(self.message, code=self.code, retry_after=seconds)


@dataclass(slots=True)
class Task:
    """Work for one request. ``until`` is in monotonic seconds; ``given_up`` says that no client waits any more."""

    caller: str = ""
    until: float = math.inf
    given_up: bool = False
    kept: int = 0
    """Bytes of crops that its answer is made of, taken from the budget."""

    @property
    def seconds_left(self) -> float:
        """Return 0 or less once the work is too late or given up."""
        return 0.0 if self.given_up else self.until - time.monotonic()


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
