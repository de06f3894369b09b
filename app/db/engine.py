"""The SQL database, SQLite or PostgreSQL: its transactions, and a cache of its answers.

SQLite tells within microseconds whether any process has committed; a query through SQLAlchemy takes a few hundred.
PostgreSQL doesn't tell it, so nothing is cached there. Without the cache a server takes 8 % more CPU time to verify a
photo: 21.3 ms in place of 19.7 (AMD EPYC, Zen 5, two cores; 200 requests to each, in turns).
"""

from __future__ import annotations

import math
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any, Generic, TypeVar, TypeVarTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.concurrency.threads import Worker
from app.db import usage
from app.db.migrations import VERSION, bring_up_to_date, is_current
from app.db.opening import BUSY_TIMEOUT_S, begin, inserting, open_engine
from app.errors import DatabaseBusy, DatabaseUnavailable, PackageMismatch, TransactionEnded, TwoPackages

K = TypeVar("K")
V = TypeVar("V")
R = TypeVar("R")
Ts = TypeVarTuple("Ts")

KEPT_ENTRIES = 256
"""Number of entries above which a cache is emptied."""
KEYS_AT_ONCE = 5_000
"""Keys or ids in one IN (...): under SQLite's limit of 32,766 and PostgreSQL's of 65,535 parameters."""
SCRUB_BUSY_MS = 100
"""Milliseconds to wait for readers when emptying SQLite's write-ahead log; writers wait meanwhile."""
SCRUB_RETRY_S = (0.2, 5.0)
"""Seconds of the first and the longest pause between attempts; the pause doubles each time."""
UNMARKED_S = 5.0
"""Maximum seconds that a cached value may outlive another program's commit."""
MARK_BITS = 31
"""Bits of a commit's random mark: SQLite's `user_version` is a signed integer of 32 bits."""
AGAIN = 2
"""Number of times overtaken work is repeated before its caller gets the error."""
AGAIN_S = 0.05
"""Maximum seconds before a repetition; they are random, so that two threads don't collide again."""


class _Commits(threading.local):
    """Counts the commits of each thread."""

    count = 0


_commits = _Commits()


def again_if_overtaken(work: Callable[[], R]) -> R:
    """Do the work, and repeat it if another change overtook it.

    That is: PostgreSQL ended its transaction in favour of another, for example in a deadlock, and this thread has not
    committed anything yet; or a re-embedding has changed the packages of the gallery that the work opened.
    """
    for left in reversed(range(AGAIN + 1)):
        before = _commits.count
        try:
            return work()
        except TransactionEnded:
            if not left or _commits.count != before:
                raise
            time.sleep(random.uniform(AGAIN_S / 2, AGAIN_S))  # noqa: S311 (not a secret)
        except (PackageMismatch, TwoPackages):
            if not left:
                raise
    raise AssertionError


class Database:
    """Transactions on SQLite or PostgreSQL; safe to share between threads.

    `url` is ``sqlite:///path`` or ``postgresql://…``; the schema is brought up to date at opening.
    SQLite commits with synchronous=FULL: acknowledged changes survive a killed process and a power loss.
    Deleted rows are overwritten (secure_delete). The write-ahead log still has the old bytes; a background thread
    empties it as soon as no reader uses it, normally well within a second (`scrub` waits for it).
    PostgreSQL keeps deleted rows until it vacuums; that and the retention of its log are up to its administrator.
    Raises Unusable if the database can't be opened or is newer than this program, and Conflict ``data_dir_in_use``
    while another process replaces it.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S, alone: bool = False) -> None:
        """With `alone` the caller holds `usage.lock_exclusively`; else PostgreSQL's connections share that lock."""
        self._busy_timeout_ms = round(busy_timeout_s * 1000)
        self._engine = open_engine(url, self._busy_timeout_ms)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        if not (self.is_sqlite or alone):
            usage.share_lock(self._engine)
        self.insert = inserting(self._engine.dialect.name)
        """INSERT with ON CONFLICT, in the database's own dialect."""
        self.writable = True
        """Whether the last write succeeded."""
        self._single = self._engine if self.is_sqlite else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        # Writers of this process queue here, since SQLite's busy handler would sleep between attempts.
        self._write_lock: AbstractContextManager[object] = threading.Lock() if self.is_sqlite else nullcontext()
        self._scrubber = _Scrubber(self._scrub_once) if self.is_sqlite else None
        self._version = _Version(self._engine.url.database or "") if self.is_sqlite else None
        self.version: Callable[[], int | None] = self._version or (lambda: None)
        """Returns a number that every commit changes (the audit log's within seconds); None on PostgreSQL."""
        try:
            with self.read() as connection:
                current = is_current(connection)
            if not current:
                with self.write() as connection:
                    bring_up_to_date(connection)
        except BaseException:
            self._close()
            raise
        self.request_scrub()  # a killed process may have left deleted data in the log

    def close(self) -> None:
        if self._scrubber:
            self._scrubber.close()
        self._close()

    @contextmanager
    def read(self, *, one_moment: bool = False) -> Iterator[Connection]:
        """Open a transaction for reading. With `one_moment` all its statements see the same state of the database.

        On SQLite they always do; on PostgreSQL, by default, each statement sees the latest commits.
        """
        with self.connect(autocommit=False) as connection:
            if one_moment and not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            begin(connection)
            yield connection

    def connect(self, *, autocommit: bool = True) -> Connection:
        """Open a connection, by default for single queries, which need no transaction.

        A transaction's begin and end hand over the GIL six times on SQLite, and cost PostgreSQL two more requests.
        Raises DatabaseBusy if the pool has none free in time.
        """
        try:
            return (self._single if autocommit else self._engine).connect()
        except PoolTimeout as error:
            raise DatabaseBusy("All database connections are busy.") from error

    def rows(self, query: sa.Select[*Ts], values: Mapping[str, object] | None = None) -> Sequence[Row[*Ts]]:
        """Return the rows of one query."""
        with self.connect() as connection:
            return connection.execute(query, values).all()

    def column(self, query: sa.Select[Any]) -> list[Any]:
        """Return the first column of the rows of one query."""
        return [row[0] for row in self.rows(query)]

    @contextmanager
    def write(self, *, cached: bool = True) -> Iterator[Connection]:
        """Open a transaction that is committed at the end and rolled back by any error.

        With `cached` False, it must not change anything that a `Cache` keeps.
        """
        try:
            with self._write_lock, self.connect(autocommit=False) as connection, connection.begin():
                if self.is_sqlite:  # lock now: another's commit between the first read and write would make it fail
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                if cached and self._version is not None:
                    mark = secrets.randbits(MARK_BITS)  # so that the commit counts at once (`_Version`)
                    connection.exec_driver_sql(f"PRAGMA user_version = {mark}")
                yield connection
        except DatabaseUnavailable:
            self.writable = False
            raise
        self.writable = True
        _commits.count += 1

    def retry_write(self) -> None:
        """If the last write failed, try a write that changes nothing. Raises what `write` raises."""
        if not self.writable:
            with self.write() as connection:
                connection.execute(sa.update(VERSION).values(version_num=VERSION.c.version_num))

    def request_scrub(self) -> None:
        """Request that the write-ahead log is emptied soon. Call it after a deletion."""
        if self._scrubber:
            self._scrubber.request()

    def scrub(self, timeout_s: float = 10.0) -> bool:
        """Wait until no deleted data is left in SQLite's files; return False if that took too long."""
        return self._scrubber.wait(timeout_s) if self._scrubber else True

    def vacuum(self, tables: Iterable[str], *, full: bool = False) -> None:
        """Vacuum the tables (PostgreSQL only). With `full`, rewrite them, so that nothing deleted stays in their files,
        but they are locked meanwhile."""
        with self.connect() as connection:
            connection.exec_driver_sql(f"VACUUM {'FULL ' if full else ''}{', '.join(tables)}")

    def _close(self) -> None:
        if self._version is not None:
            self._version.close()
        self._engine.dispose()

    def _scrub_once(self) -> bool:
        """Move the write-ahead log into the database and empty it; return False if that isn't possible now."""
        try:
            with self._write_lock, closing(self._engine.raw_connection()) as connection:
                cursor = connection.cursor()
                cursor.execute(f"PRAGMA busy_timeout = {SCRUB_BUSY_MS}")
                try:
                    busy, _, _ = cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
                finally:
                    cursor.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
        # Another process writes, no connection is free, or the disk is full.
        except (sqlite3.Error, PoolTimeout, DatabaseBusy, DatabaseUnavailable):
            return False
        return not busy


def in_parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split `values` into parts that fit one statement each."""
    for start in range(0, len(values), KEYS_AT_ONCE):
        yield values[start : start + KEYS_AT_ONCE]


def select_in(
    connection: Connection, query: sa.Select[Any], column: sa.ColumnElement[Any], keys: Iterable[Any]
) -> Iterator[Row[Any]]:
    """Yield the rows of `query` whose `column` is one of `keys`, in parts, in the order of the keys."""
    for part in in_parts(sorted(keys)):
        yield from connection.execute(query.where(column.in_(part)))


class _Scrubber:
    """Repeats `attempt` in a thread after each request until it succeeds."""

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._changed = threading.Condition()
        self._requested = 0
        self._done = 0
        self._pause_s = SCRUB_RETRY_S[0]
        self._worker = Worker("scrubber", self._work)

    def request(self) -> None:
        with self._changed:
            self._requested += 1
        self._worker.wake()

    def wait(self, timeout_s: float) -> bool:
        with self._changed:
            target = self._requested
            return self._changed.wait_for(lambda: self._done >= target, timeout_s)

    def close(self) -> None:
        """Stop after a last attempt; the next start does the rest."""
        self._worker.close()
        if self._requested > self._done:
            self._work()

    def _work(self) -> float | None:
        with self._changed:
            target = self._requested
        if not self._attempt():
            pause_s, self._pause_s = self._pause_s, min(SCRUB_RETRY_S[1], 2 * self._pause_s)
            return pause_s
        self._pause_s = SCRUB_RETRY_S[0]
        with self._changed:
            self._done = target
            self._changed.notify_all()
        return None


class _Version:
    """Counts the versions of a SQLite file. Safe to share between threads.

    Marked commits, of any process, count at once. Others (the audit log's and other programs') count together, at most
    UNMARKED_S after the last count. The mark is SQLite's `user_version`, which nothing else uses. Commits of the same
    connection don't change its `data_version` (https://www.sqlite.org/pragma.html#pragma_data_version), so this class
    has its own connection, which makes none.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._checks = 0
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._count = 0
        self._counted_at = -math.inf
        self._data: int | None = None
        self._mark: int | None = None
        self._unmarked = False

    def __call__(self) -> int | None:
        """Return the number of the file's version; None if the file can't be read."""
        begun = self._checks
        with self._lock:
            if self._checks != begun and self._mark is not None:
                return self._count  # from another thread's check, which began after this call
            now = time.monotonic()
            self._checks += 1
            try:
                [(data,)] = self._connection.execute("PRAGMA data_version").fetchall()
                if (mark := self._mark) is None or data != self._data:
                    [(mark,)] = self._connection.execute("PRAGMA user_version").fetchall()
            except sqlite3.Error:
                self._mark = None  # so that other threads don't take it as checked
                return None
            self._unmarked |= data != self._data
            if mark != self._mark or (self._unmarked and now - self._counted_at >= UNMARKED_S):
                self._count, self._counted_at, self._unmarked = self._count + 1, now, False
            self._data, self._mark = data, mark
            return self._count

    def close(self) -> None:
        with self._lock:
            self._connection.close()


class Cache(Generic[K, V]):
    """Keeps values until the database changes. Safe to share between threads. Above ``most`` it is emptied.
    ``version`` returns None if nothing may be cached."""

    def __init__(self, version: Callable[[], int | None], most: int = KEPT_ENTRIES) -> None:
        self._version, self._most = version, most
        self._kept: tuple[int, dict[K, V]] = 0, {}
        """A version and its values."""

    def values(self) -> dict[K, V]:
        """Return the values cached since the last commit, to look up and to add to; an empty dict if none may be.

        Call it before the query for missing ones, so that the next call notices a commit in between.
        """
        version = self._version()
        if version is None:
            return {}
        kept_version, kept = self._kept
        if kept_version != version or len(kept) > self._most:
            kept = {}  # not cleared: another thread may be reading it
            self._kept = version, kept
        return kept
