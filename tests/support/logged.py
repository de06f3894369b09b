"""What a test's own work writes to the log, of which other services in this process write lines too."""

from __future__ import annotations

import logging
import threading

import pytest


def logged(caplog: pytest.LogCaptureFixture, thread: str = "") -> list[logging.LogRecord]:
    """Return the records of the thread with this name, by default of the current one."""
    name = thread or threading.current_thread().name
    return [record for record in caplog.records if record.threadName == name]


def messages(caplog: pytest.LogCaptureFixture, thread: str = "") -> list[str]:
    """Return the messages of the records that `logged` returns."""
    return [record.getMessage() for record in logged(caplog, thread)]
