"""Run named background tasks at intervals."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Self

from app.concurrency.threads import FailureLog, Worker

CLOSE_S = 10.0
"""Seconds that `Scheduler.close` waits for running tasks."""
_log = logging.getLogger(__name__)


class Scheduler:
    """Runs tasks at intervals until it is closed, each in its own thread, so that none delays another.

    A task never runs twice at the same time. A failure is logged, and the task runs again after its interval.
    """

    def __init__(self) -> None:
        self._tasks: list[tuple[str, Worker]] = []

    def every(self, interval_s: float, name: str, work: Callable[[], object], *, at_once: bool = False) -> None:
        """Call `work` repeatedly, `interval_s` seconds after its last call ended; with `at_once`, first now.

        The name is used in log messages.
        """

        def run() -> float:
            work()
            return interval_s

        worker = Worker(f"background {name}", run, retry_s=interval_s, failures=FailureLog(name))
        self._tasks.append((name, worker))
        worker.wake(0.0 if at_once else interval_s)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Start no more tasks, and wait at most `timeout_s` seconds for the running ones."""
        for _, worker in self._tasks:
            worker.close(0)
        deadline = time.monotonic() + timeout_s
        running = [name for name, worker in self._tasks if not worker.close(max(0.0, deadline - time.monotonic()))]
        if running:
            _log.warning("Background tasks did not end in time: %s", ", ".join(running))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
