"""Open SQLite, as this service needs it, or PostgreSQL by its URL, and translate their drivers' errors."""

from __future__ import annotations

import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, ExceptionContext, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DataError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
)

from app.errors import DatabaseBusy, DatabaseUnavailable, InvalidInput, LikenessError, TransactionEnded, Unusable

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Inserting: TypeAlias = "Callable[[sa.Table], SqliteInsert | PostgresInsert]"
BUSY_TIMEOUT_S = 30.0
"""Seconds that a SQLite write waits for another process's write."""
POOL_SIZE = 20
"""Connections kept open; in a burst there may be twice as many."""
WAL_RETRY_S = 0.01
"""Pause between attempts to switch a new SQLite file to write-ahead logging."""
IN_EACH_OTHERS_WAY = ("40001", "40P01")
"""PostgreSQL's error states of a transaction ended in favour of another: serialization_failure, deadlock_detected."""


def parse_url(url: str) -> URL:
    """Return the URL's parts; `postgres://`, which PostgreSQL's own programs take too, is `postgresql://`."""
    try:
        return make_url(f"postgresql{url.removeprefix('postgres')}" if url.startswith("postgres://") else url)
    except ArgumentError as error:  # its text would repeat the URL with its password
        message = "The database URL is malformed; one is postgresql://user:password@host/name."
        raise Unusable(message, code="database_unsupported") from error


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None for others."""
    parsed = parse_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def draft_of(path: Path) -> Path:
    """Return the path of the draft of a database that will replace the one at `path`."""
    return path.with_name(f"{path.name}.restoring")


def sqlite_files(path: Path) -> tuple[Path, ...]:
    """Return the database's files, including SQLite's logs."""
    return (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")))


@contextmanager
def connected(url: str, busy_timeout_ms: int = round(BUSY_TIMEOUT_S * 1000)) -> Iterator[Connection]:
    """Connect to a database once, without migrating it."""
    engine = open_engine(url, busy_timeout_ms)
    try:
        with engine.connect() as connection:
            begin(connection)
            yield connection
    finally:
        engine.dispose()


def open_engine(url: str, busy_timeout_ms: int) -> Engine:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = _open_sqlite(parsed, busy_timeout_ms)
    elif parsed.get_backend_name() == "postgresql":
        engine = _open_postgresql(parsed)
    else:
        message = f"Likeness keeps galleries in SQLite or PostgreSQL, not in {parsed.get_backend_name()}."
        raise Unusable(message, code="database_unsupported")
    sa.event.listen(engine, "handle_error", _translate)
    return engine


def _open_sqlite(url: URL, busy_timeout_ms: int) -> Engine:
    if not url.database or url.database == ":memory:":
        raise Unusable("The SQLite database must be a file.", code="database_unsupported")
    path = Path(url.database)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Make it here, so that only the owner can read it; SQLite gives its other files the same mode.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise DatabaseUnavailable(f"The database can't be opened: {error}") from error
    engine = sa.create_engine(
        url.set(drivername="sqlite+pysqlite"),
        pool_size=POOL_SIZE,
        max_overflow=POOL_SIZE,
        connect_args={"factory": _SqliteConnection},
    )
    sa.event.listen(engine, "checkin", _close_cursors)
    sa.event.listen(engine, "connect", partial(_prepare_sqlite, busy_timeout_ms))
    return engine


class _SqliteConnection(sqlite3.Connection):
    """A connection that remembers its cursors."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.cursors: weakref.WeakSet[sqlite3.Cursor] = weakref.WeakSet()

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        cursor = super().cursor(*arguments, **options)
        self.cursors.add(cursor)
        return cursor


def _close_cursors(connection: _SqliteConnection | None, _record: object) -> None:
    """Close the cursors of a connection that is returned to the pool.

    An error may leave a result unread, which lives as long as the error's traceback, and would keep the lock or an old
    state of the database.
    """
    for cursor in list(connection.cursors) if connection else ():
        cursor.close()


def _prepare_sqlite(busy_timeout_ms: int, connection: sqlite3.Connection, _record: object) -> None:
    connection.isolation_level = None  # transactions begin in `begin`, not when the driver decides
    connection.execute(f"PRAGMA busy_timeout = {busy_timeout_ms}")
    end = time.monotonic() + busy_timeout_ms / 1000
    while True:  # the busy timeout doesn't cover this
        try:
            connection.execute("PRAGMA journal_mode = WAL")  # readers never wait for the writer
            break
        except sqlite3.OperationalError:
            if time.monotonic() >= end:
                raise
            time.sleep(WAL_RETRY_S)
    for pragma in (
        "synchronous = FULL",  # NORMAL may lose the last commits at a power loss
        "foreign_keys = ON",
        "secure_delete = ON",  # deleted data is overwritten
    ):
        connection.execute(f"PRAGMA {pragma}")


def begin(connection: Connection) -> None:
    """Begin a transaction for reading on SQLite; PostgreSQL's driver does that itself.

    A listener to the engine's `begin` event would also work, but then SQLAlchemy looks for listeners at each statement.
    """
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN")


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


def _translate(context: ExceptionContext) -> LikenessError | None:
    """Return the error to raise in place of a driver's error, which stays in the cause, for the log."""
    error = context.sqlalchemy_exception
    if context.is_pre_ping or not isinstance(error, DBAPIError):  # the pool lost a connection, and makes another
        return None
    if isinstance(error, OperationalError):
        return _of_operation(error)
    if isinstance(error, DataError) and "NUL" in str(error.orig):  # psycopg's own, before anything is sent
        return InvalidInput("A text can't hold the character U+0000.", errors=[])
    broken = type(error) is DatabaseError or isinstance(error, InterfaceError | InternalError)
    gone = broken or context.is_disconnect  # the file is damaged or not a database, or the connection is lost
    return DatabaseUnavailable("The database can't be used.") if gone else None


def _of_operation(error: OperationalError) -> LikenessError:
    if getattr(error.orig, "sqlstate", None) in IN_EACH_OTHERS_WAY:
        return TransactionEnded("The database is busy.")
    if "database is locked" in str(error.orig):
        return DatabaseBusy("The database is busy.")
    is_full = "disk is full" in str(error.orig)
    if is_full or getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
        why = "its disk is full" if is_full else "its disk is full, or fails"
        return DatabaseUnavailable(f"The database can't be written to: {why}.")
    return DatabaseUnavailable("The database can't be used at the moment.")


def inserting(dialect: str) -> Inserting:
    """Return the INSERT with ON CONFLICT of ``sqlite`` or ``postgresql``, which takes 20 ms to import."""
    insert: Inserting = import_module(f"sqlalchemy.dialects.{dialect}").insert
    return insert
