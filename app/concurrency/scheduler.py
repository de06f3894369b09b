"""Background work: named tasks that run at intervals."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from app.errors import LikenessError

CLOSE_S = 10.0
"""How long `Scheduler.close` waits for running tasks."""
_log = logging.getLogger(__name__)


class FailureLog:
    """Logs the failures of repeated work once: when it starts to fail, when the error changes, when it works again.

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
        """Log that the work is done again, if it failed before."""
        with self._lock:
            last, self._last = self._last, ""
        if last:
            _log.warning("%s: works again", self._work)


@dataclass(eq=False, slots=True)
class _Task:
    work: Callable[[], object]
    interval_s: float
    due: float
    """When it runs next, as `time.monotonic` counts."""
    failures: FailureLog
    name: str
    running: bool = False


class Scheduler:
    """Runs tasks at intervals until it is closed. Safe to share between threads.

    A task never runs twice at the same time. One that fails is logged and tried again after its interval. One that
    takes long doesn't delay the others: when every thread is busy, another is started.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tasks: list[_Task] = []
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def every(self, interval_s: float, name: str, work: Callable[[], object], *, at_once: bool = False) -> None:
        """Call `work` again and again, `interval_s` seconds after its last call ended; `at_once`: the first time now.

        The name stands in log messages.
        """
        due = time.monotonic() + (0.0 if at_once else interval_s)
        with self._changed:
            self._tasks.append(_Task(work, interval_s, due, FailureLog(name), name))
            if not self._threads:
                self._start_thread()
            self._changed.notify_all()

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Start no more tasks and wait for the running ones, but not longer than `timeout_s` seconds."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if running := [task.name for task in self._tasks if task.running]:
            _log.warning("Background tasks did not end in time: %s", ", ".join(running))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._run, name=f"background-{len(self._threads)}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self) -> None:
        while (task := self._next()) is not None:
            try:
                task.work()
            except Exception as error:  # noqa: BLE001 - the thread's edge: logged, and tried again
                task.failures.failed(error)
            else:
                task.failures.succeeded()
            with self._changed:
                task.due = time.monotonic() + task.interval_s
                task.running = False

    def _next(self) -> _Task | None:
        """Wait for a task that is due; None when the scheduler is closed."""
        with self._changed:
            self._idle += 1
            try:
                while not self._closed:
                    waiting = (task for task in self._tasks if not task.running)
                    task = min(waiting, key=lambda each: each.due, default=None)
                    wait_s = None if task is None else task.due - time.monotonic()
                    if task is not None and wait_s is not None and wait_s <= 0:
                        task.running = True
                        if self._idle == 1:  # a thread must watch the clock while this one works
                            self._start_thread()
                        return task
                    self._changed.wait(wait_s)
                return None
            finally:
                self._idle -= 1
