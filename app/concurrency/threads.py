"""Threads that work on requests: each request has a deadline, callers take turns, and costly work has low priority.

The current `Task` says for whom a thread works, and until when. A `Worker` is a thread of the server's own.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import TypeVar

from app.concurrency.overload import Why
from app.errors import LikenessError

T = TypeVar("T")

NICENESS = 10
"""Niceness of costly work: it gets a tenth of a core that others want."""
COSTLY_WAIT_S = 10.0
"""Seconds that costly work waits for its turn before its request is answered with 429."""
GIVEN_UP = -math.inf
"""The deadline of work whose client no longer waits."""
RETRY_S = 1.0
"""Seconds until a worker tries again what has failed."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Task:
    """The work of a request: its caller, and the time until which it must end, in monotonic seconds."""

    caller: str = ""
    until: float = math.inf


NO_REQUEST = Task()
TASK: ContextVar[Task] = ContextVar("task", default=NO_REQUEST)
"""The work of the current thread."""


def check_deadline() -> None:
    """Raise LikenessError (``request_timeout``) if the current work is too late; call it between its stages."""
    if TASK.get().until <= time.monotonic():
        raise timed_out()


def timed_out() -> LikenessError:
    return LikenessError("The request took too long.", code="request_timeout")


@dataclass(slots=True, eq=False)
class _Waiter:
    caller: str
    turn: threading.Lock = field(default_factory=threading.Lock)
    entered: bool = False


class Turns:
    """Lets ``places`` threads work at the same time. Safe to share between threads.

    The next turn goes to the caller with the fewest working threads; among such callers, to the one whose last turn
    began longest ago. A caller's own threads are served in order.
    """

    def __init__(self, places: int) -> None:
        self.free = places
        """Number of places that are free now."""
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._working: Counter[str] = Counter()
        self._last: dict[str, float] = {}
        """The time, in monotonic seconds, when waiting and working callers were last let in."""

    @property
    def waiting(self) -> int:
        """Return the number of waiting threads."""
        return len(self._waiting)

    @contextmanager
    def take_turn(self, patience_s: float = math.inf) -> Iterator[None]:
        """Run the block in this thread's turn, for the current task.

        Raises LikenessError (``request_timeout``) if the task's deadline passes first, and Overloaded after
        ``patience_s`` seconds if the task has a deadline.
        """
        task = TASK.get()
        mine = _Waiter(task.caller)
        mine.turn.acquire()
        with self._lock:
            self._waiting.append(mine)
            self._let_in()
        left = task.until - time.monotonic()
        # A leaving thread releases this lock.
        if not mine.turn.acquire(timeout=-1 if left == math.inf else max(0.0, min(left, patience_s))):
            with self._lock:
                if not mine.entered:
                    self._waiting.remove(mine)
                    raise timed_out() if task.until <= time.monotonic() else Why.COSTLY.error()
        try:
            yield
        finally:
            with self._lock:
                self.free += 1
                self._working[mine.caller] -= 1
                self._let_in()
                if not self._working[mine.caller]:
                    del self._working[mine.caller]
                    if all(waiter.caller != mine.caller for waiter in self._waiting):
                        self._last.pop(mine.caller, None)

    def _let_in(self) -> None:
        while self.free and self._waiting:
            ranks = [(self._working[waiter.caller], self._last.get(waiter.caller, 0.0)) for waiter in self._waiting]
            chosen = self._waiting.pop(ranks.index(min(ranks)))
            self.free -= 1
            self._working[chosen.caller] += 1
            self._last[chosen.caller] = time.monotonic()
            chosen.entered = True
            chosen.turn.release()


class Lanes:
    """Takes turns separately for quick work and for costly work. The latter is done in threads of low priority, so that
    nothing else waits for it. Safe to share between threads."""

    def __init__(self, quick: int, costly: int) -> None:
        """``quick`` and ``costly``: how many of each kind may work at the same time."""
        self.quick, self.costly = Turns(quick), Turns(costly)
        self._aside = ThreadPoolExecutor(costly, "costly", lower_priority)

    def run(self, work: Callable[[], T], *, costly: bool) -> T:
        """Call ``work`` in its turn, and return its result. Raises what `Turns.take_turn` raises."""
        if not costly:
            with self.quick.take_turn():
                return work()
        with self.costly.take_turn(COSTLY_WAIT_S):
            return self._aside.submit(copy_context().run, work).result()


def lower_priority() -> None:
    """Add NICENESS to this thread's niceness."""
    if sys.platform == "linux":  # only there each thread has its own priority
        with suppress(OSError):  # forbidden: the thread keeps the process's priority
            os.nice(NICENESS)  # added to the process's own, which may be lower still


class FailureLog:
    """Logs repeated failures only when the work starts to fail, the error changes, or it works again.

    Only unexpected errors are logged with a stack trace. Threads that do the same work may share one.
    """

    def __init__(self, work: str) -> None:
        self._work = work
        self._last = ""
        self._lock = threading.Lock()

    def failed(self, error: Exception) -> None:
        """Log the error unless it is the same as the last one."""
        expected = isinstance(error, (LikenessError, OSError))  # the database is down, the disk is full
        message = str(error) if expected else repr(error)
        with self._lock:
            last, self._last = self._last, message
        if message != last:
            _log.warning("%s: %s", self._work, message, exc_info=None if expected else error)

    def succeeded(self) -> None:
        """Log that the work succeeds again, if it failed before."""
        with self._lock:
            last, self._last = self._last, ""
        if last:
            _log.warning("%s: works again", self._work)


class Worker:
    """Calls ``work`` in its own thread. Safe to share between threads.

    ``work`` returns the seconds until it is called again, or None: only when woken. An error is logged, and ``work`` is
    called again after ``retry_s``. The thread starts with the first `wake`.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[], float | None],
        *,
        retry_s: float = RETRY_S,
        failures: FailureLog | None = None,
    ) -> None:
        self._work = work
        self._retry_s = retry_s
        self._failures = failures or FailureLog(name)
        self._changed = threading.Condition()
        self._due = math.inf
        """The time of the next call, in monotonic seconds."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def wake(self, within_s: float = 0.0) -> None:
        """Have the work called at most ``within_s`` seconds from now."""
        due = time.monotonic() + within_s
        with self._changed:
            if self._thread.ident is None and not self._closing:
                self._thread.start()
            if due < self._due:
                self._due = due
                self._changed.notify()

    def close(self, wait_s: float | None = None) -> bool:
        """Stop calling the work, wait at most ``wait_s`` for the thread, and return whether it has ended."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(wait_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        has_failed = False
        while True:
            with self._changed:
                while not self._closing and (wait_s := self._due - time.monotonic()) > 0:
                    self._changed.wait(None if math.isinf(wait_s) else wait_s)
                self._due = math.inf
                if self._closing:
                    return
            again_s: float | None = self._retry_s
            try:
                again_s = self._work()
            except Exception as error:  # noqa: BLE001 - the thread's edge: logged, and tried again
                self._failures.failed(error)
                has_failed = True
            else:
                if has_failed:
                    self._failures.succeeded()
                has_failed = False
            if again_s is not None:
                self.wake(again_s)
