"""A thread that works when it is woken or due, and a log of its failures."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from app.errors import LikenessError

RETRY_S = 1.0
_log = logging.getLogger(__name__)


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
