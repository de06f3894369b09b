"""A cache of SQL's answers that is valid until anyone commits to the database.

SQLite counts the commits of all processes and reports the count within microseconds, while a query through SQLAlchemy
takes a few hundred. PostgreSQL has no such count, so nothing is cached there. Without the cache a server takes 8 % more
CPU time to verify a photo: 21.3 ms in place of 19.7 (AMD EPYC, Zen 5, two cores; 200 requests to each, in turns).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

KEPT = 256
"""Entries of one cache; a full cache is emptied."""


class Version:
    """The number of a SQLite file's version, which every commit changes. Safe to share between threads.

    https://www.sqlite.org/pragma.html#pragma_data_version: commits of the same connection don't count, so it has a
    connection of its own, which makes none.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)

    def __call__(self) -> int | None:
        """Return None if the file can't be read."""
        try:
            with self._lock:
                [(version,)] = self._connection.execute("PRAGMA data_version").fetchall()
        except sqlite3.Error:
            return None
        return int(version)

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class Cache(Generic[K, V]):
    """Keeps values until the database changes. Safe to share between threads. ``version`` returns None if nothing may
    be cached."""

    def __init__(self, version: Callable[[], int | None]) -> None:
        self._version = version
        self._kept: dict[K, tuple[int, V]] = {}

    def get(self, key: K, query: Callable[[], V]) -> V:
        """Return the result of ``query``, cached or not; errors aren't cached."""
        version = self._version()  # before the query, so that a commit in between is noticed next time
        if version is None:
            return query()
        kept = self._kept.get(key)
        if kept is not None and kept[0] == version:
            return kept[1]
        found = query()
        if len(self._kept) >= KEPT:
            self._kept.clear()
        self._kept[key] = version, found
        return found
