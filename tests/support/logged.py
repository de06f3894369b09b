"""The log of a process in which tests run servers: what a test's own work writes, and settings that end with it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from app.logs import OWN_LOGGERS


def logged(caplog: pytest.LogCaptureFixture, thread: str = "") -> list[logging.LogRecord]:
    """Return the records of the thread with this name, by default of the current one."""
    name = thread or threading.current_thread().name
    return [record for record in caplog.records if record.threadName == name]


def messages(caplog: pytest.LogCaptureFixture, thread: str = "") -> list[str]:
    """Return the messages of the records that `logged` returns."""
    return [record.getMessage() for record in logged(caplog, thread)]


@contextmanager
def own_logging() -> Iterator[None]:
    """Undo at the end what a server does to the logging of its process, so that later tests hear what they expect."""
    root = logging.getLogger()
    loggers = [root, *map(logging.getLogger, OWN_LOGGERS)]
    handlers, levels = list(root.handlers), [logger.level for logger in loggers]
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        root.handlers[:] = handlers
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
