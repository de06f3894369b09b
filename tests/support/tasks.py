"""Threads of tests that work on a request's task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from app.concurrency.threads import TASK, Task


@contextmanager
def working(task: Task) -> Iterator[None]:
    """Make ``task`` this thread's while the block runs."""
    token = TASK.set(task)
    try:
        yield
    finally:
        TASK.reset(token)
