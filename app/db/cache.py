"""What SQL answered before, for as long as nobody, in whatever process, has changed the database since.

SQLite counts the commits of all processes, and says for a few microseconds whether there was one; a query by way of
SQLAlchemy takes a few hundred. PostgreSQL has no such count: there everything is asked each time.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

KEPT = 256
"""Answers of one kind; when there are more, all are forgotten."""


class Version:
    """Of a SQLite file: another number after every commit but its own connection's, which makes none.

    https://www.sqlite.org/pragma.html#pragma_data_version. Safe to share between threads.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def __call__(self) -> int | None:
        """None where it can't be told."""
        try:
            with self._lock:
                [(version,)] = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error:
            return None
        return int(version)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class Memo(Generic[K, V]):
    """Safe to share between threads. ``version`` says None where nothing can be kept."""

    def __init__(self, version: Callable[[], int | None]) -> None:
        self._version = version
        self._kept: dict[K, tuple[int, V]] = {}

    def get(self, key: K, ask: Callable[[], V]) -> V:
        """What ``ask`` says now, as if it were asked; what it raises is not kept."""
        version = self._version()  # before it is asked: a change in between shows the next time
        if version is None:
            return ask()
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version:
            return kept[1]
        found = ask()
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[key] = version, found
        return found
