"""Work that repeats in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.errors import LikenessError

_log = logging.getLogger(__name__)


class Trouble:
    """What keeps a worker from its work, logged when it begins, when it becomes another one, and when it is over.

    A stack trace comes only with what nobody foresaw. Threads with the same work may share one.
    """

    def __init__(self, work: str) -> None:
        self._work = work
        self._now = ""
        self._lock = threading.Lock()

    def begins(self, error: Exception) -> None:
        foreseen = isinstance(error, (LikenessError, OSError))  # no database, no space
        said = str(error) if foreseen else repr(error)
        with self._lock:
            before, self._now = self._now, said
        if said != before:
            _log.warning("%s: %s", self._work, said, exc_info=None if foreseen else error)

    def is_over(self) -> None:
        with self._lock:
            before, self._now = self._now, ""
        if before:
            _log.warning("%s: works again", self._work)


class Repeating:
    """Calls `work` every `seconds`, the first time after as many, until it is closed. What goes wrong is told as
    `Trouble` says, and tried again."""

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self._seconds = seconds
        self._work = work
        self._closing = threading.Event()
        self._trouble = Trouble(name)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Waits for work that has begun."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(self._seconds):
            try:
                self._work()
                self._trouble.is_over()
            except Exception as error:  # noqa: BLE001 - the thread's edge
                self._trouble.begins(error)
