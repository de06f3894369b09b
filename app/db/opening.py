"""Opens SQLite, as this service needs it, or PostgreSQL by its URL, and translates what their drivers raise."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.errors import DatabaseBusy, DatabaseUnavailable, TransactionEnded, Unusable

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Inserting: TypeAlias = "Callable[[sa.Table], SqliteInsert | PostgresInsert]"
BUSY_TIMEOUT_S = 30.0
"""How long a SQLite write waits for another process's."""
POOL_SIZE = 20
"""Connections kept open; up to as many again for a burst."""
WAL_RETRY_S = 0.01
"""Pause between attempts to switch a new SQLite file to write-ahead logging."""
IN_EACH_OTHERS_WAY = ("40001", "40P01")
"""PostgreSQL's states of a transaction that it ended for another's sake: serialization_failure, deadlock_detected."""


def parse_url(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:  # its text would repeat the URL, password and all
        raise Unusable("The database URL is malformed.", code="database_unsupported") from error


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None for others."""
    parsed = parse_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def restoring_files(url: str) -> tuple[Path, ...]:
    """Return the files that a killed restore may have left: they hold templates."""
    path = sqlite_file(url)
    return () if path is None else sqlite_files(draft_of(path))


def draft_of(path: Path) -> Path:
    """Return where a database is written that is to replace the one at `path`."""
    return path.with_name(f"{path.name}.restoring")


def sqlite_files(path: Path) -> tuple[Path, ...]:
    """Return the database's files, SQLite's logs among them."""
    return (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")))


def open_engine(url: URL, busy_timeout_ms: int) -> Engine:
    if url.get_backend_name() == "sqlite":
        return _open_sqlite(url, busy_timeout_ms)
    if url.get_backend_name() == "postgresql":
        return _open_postgresql(url)
    message = f"Likeness keeps galleries in SQLite or PostgreSQL, not in {url.get_backend_name()}."
    raise Unusable(message, code="database_unsupported")


def _open_sqlite(url: URL, busy_timeout_ms: int) -> Engine:
    if not url.database or url.database == ":memory:":
        raise Unusable("The SQLite database must be a file.", code="database_unsupported")
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made here, so that nobody else can read it; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise DatabaseUnavailable(f"The database can't be opened: {error}") from error
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        connect_args={"factory": _SqliteConnection},
    )
    sa.event.listen(engine, "checkin", lambda connection, _record: connection and connection.close_cursors())
    sa.event.listen(engine, "connect", lambda connection, _record: _prepare_sqlite(connection, busy_timeout_ms))
    sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


class _SqliteConnection(sqlite3.Connection):
    """A connection that can close its cursors.

    An error may leave a result unread, alive as long as the error's traceback. In a pooled connection it would keep
    holding the lock, or an old state of the database.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        cursor = super().cursor(*arguments, **options)
        self._cursors.add(cursor)
        return cursor

    def close_cursors(self) -> None:
        for cursor in list(self._cursors):
            cursor.close()


def _prepare_sqlite(connection: sqlite3.Connection, busy_timeout_ms: int) -> None:
    connection.isolation_level = None  # transactions begin in `_begin_sqlite`, not when the driver thinks best
    connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
    _enter_wal(connection, busy_timeout_ms / 1000)
    for pragma in (
        "synchronous = FULL",  # NORMAL may lose the last commits with the power
        "foreign_keys = ON",
        "secure_delete = ON",  # what is deleted is overwritten
    ):
        connection.execute(f"PRAGMA {pragma}")


def _enter_wal(connection: sqlite3.Connection, timeout_s: float) -> None:
    """Switch to write-ahead logging: readers never wait for the writer. SQLite's busy timeout doesn't cover this."""
    end = time.monotonic() + timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError:
            if time.monotonic() >= end:
                raise
            time.sleep(WAL_RETRY_S)
        else:
            return


def _begin_sqlite(connection: Connection) -> None:
    """Begin the transaction. A writer locks at once: if it read first, another's write in between would fail it."""
    write = connection.get_execution_options().get("likeness_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")


def _open_postgresql(url: URL) -> Engine:
    try:
        return sa.create_engine(
            url.set(drivername="postgresql+psycopg"),
            pool_size=POOL_SIZE,
            max_overflow=POOL_SIZE,
            pool_pre_ping=True,
            connect_args={"client_encoding": "utf8"},
        )
    except ModuleNotFoundError as error:
        message = "PostgreSQL needs the driver psycopg: pip install 'likeness-server[postgresql]'."
        raise Unusable(message, code="database_driver_missing") from error


@contextmanager
def translated() -> Iterator[None]:
    """Translate the database's errors; the driver's text stays in the cause, for the log."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseBusy("All database connections are busy.") from error
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) in IN_EACH_OTHERS_WAY:
            raise TransactionEnded("The database is busy.") from error
        if "database is locked" in str(error.orig):
            raise DatabaseBusy("The database is busy.") from error
        if "disk is full" in str(error.orig):
            raise DatabaseUnavailable("The database can't be written to: its disk is full.") from error
        if getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
            raise DatabaseUnavailable("The database can't be written to: its disk is full, or fails.") from error
        raise DatabaseUnavailable("The database can't be used at the moment.") from error
    except DBAPIError as error:
        broken = type(error) is DatabaseError or isinstance(error, InterfaceError | InternalError)
        if broken or error.connection_invalidated:  # damaged, no database at all, or gone
            raise DatabaseUnavailable("The database can't be used.") from error
        raise


def inserting(dialect: str) -> Inserting:
    """Return the INSERT with ON CONFLICT of ``sqlite`` or ``postgresql``."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - 20 ms that a start with SQLite doesn't need

        return insert
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert  # noqa: PLC0415 - its counterpart

    return sqlite_insert
