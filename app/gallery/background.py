"""Work that repeats in a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from app.errors import LikenessError

_log = logging.getLogger(__name__)


class Repeating:
    """Calls `work` every `seconds`, the first time after as many, until it is closed.

    What goes wrong is logged, once for as long as it goes wrong in the same way, and tried again.
    """

    def __init__(self, name: str, seconds: float, work: Callable[[], object]) -> None:
        self._seconds = seconds
        self._work = work
        self._closing = threading.Event()
        self._trouble = ""
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
                self._trouble = ""
            except (LikenessError, OSError) as error:  # no database, no space: told, and tried again
                self._say(str(error), with_trace=False)
            except Exception as error:  # noqa: BLE001 - the thread's edge
                self._say(repr(error), with_trace=True)

    def _say(self, trouble: str, *, with_trace: bool) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            _log.warning("%s: %s", self._thread.name, trouble, exc_info=with_trace)
