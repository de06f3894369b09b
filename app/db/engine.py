"""The SQL database: opening, schema migration, transactions and errors. SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    InterfaceError,
    InternalError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from app.db.cache import Version
from app.db.schema import METADATA, SECRETS, SIGN_IN_CODES
from app.errors import Conflict, DatabaseBusy, DatabaseUnavailable, Unusable
from app.files import sync_folder

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Inserting: TypeAlias = "Callable[[sa.Table], SqliteInsert | PostgresInsert]"
KEYS_AT_ONCE = 5_000
"""Keys or ids in one IN (...): under SQLite's limit of 32,766 and PostgreSQL's of 65,535 parameters."""
BUSY_TIMEOUT_S = 30.0
"""How long a SQLite write waits for another process's."""
POOL_SIZE = 20
"""Connections kept open; up to as many again for a burst."""
SCRUB_BUSY_MS = 100
"""How long emptying SQLite's write-ahead log waits for its readers; writers wait meanwhile."""
SCRUB_RETRY_S = (0.2, 5.0)
"""The first pause between attempts, and the longest; it doubles each time."""
WAL_RETRY_S = 0.01
"""Pause between attempts to switch a new SQLite file to write-ahead logging."""
IN_EACH_OTHERS_WAY = ("40001", "40P01")
"""PostgreSQL's states of a transaction that it ended for another's sake: serialization_failure, deadlock_detected."""
MIGRATIONS = Path(__file__).parent / "migrations"
VERSION = sa.table("alembic_version", sa.column("version_num"))
MADE_AT_START = {VERSION.name, SECRETS.name, SIGN_IN_CODES.name}
"""Tables that a server fills although nothing has been asked of it."""
MIGRATION_LOCK = 0x4C494B45
"""PostgreSQL advisory lock ("LIKE" in ASCII), so that processes starting together migrate one after the other."""


class Database:
    """Transactions on SQLite or PostgreSQL; safe to share between threads.

    `url` is ``sqlite:///path`` or ``postgresql://…``; the schema is brought up to date at opening.
    SQLite commits with synchronous=FULL: what was acknowledged survives a killed process and a power loss.
    Deleted rows are overwritten (secure_delete). The write-ahead log still holds the old bytes; a background thread
    empties it as soon as no reader uses it, normally well within a second (`scrub` waits for it).
    PostgreSQL keeps deleted rows until it vacuums; that and the retention of its log are up to its administrator.
    Raises Unusable if the database can't be opened or is newer than this program.
    """

    def __init__(self, url: str, *, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        self._busy_timeout_ms = round(busy_timeout_s * 1000)
        self._engine = open_engine(parse_url(url), self._busy_timeout_ms)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        self.insert = inserting(self._engine.dialect.name)
        """INSERT with ON CONFLICT, in the database's own dialect."""
        self.writable = True
        """Whether the last write succeeded."""
        self._writer = self._engine.execution_options(likeness_write=True)
        # Writers of this process queue here: SQLite's busy handler would sleep between attempts.
        self._write_lock = threading.Lock()
        self._scrubber = _Scrubber(self._scrub_once) if self.is_sqlite else None
        self._version = Version(self._engine.url.database or "") if self.is_sqlite else None
        try:
            self._migrate()
        except BaseException:
            self._close()
            raise
        self.request_scrub()  # a killed process may have left some behind

    def close(self) -> None:
        if self._scrubber:
            self._scrubber.close()
        self._close()

    def version(self) -> int | None:
        """Return a number that every commit of any process changes; None on PostgreSQL."""
        return None if self._version is None else self._version()

    @contextmanager
    def read(self, *, one_moment: bool = False) -> Iterator[Connection]:
        """Open a transaction for reading. With `one_moment` all its statements see the same state of the database.

        On SQLite they always do; on PostgreSQL each statement otherwise sees the latest commits.
        """
        with translated(), self._engine.connect() as connection:
            if one_moment and not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction that is committed at the end and rolled back by any error."""
        try:
            with ExitStack() as stack:
                if self.is_sqlite:
                    stack.enter_context(self._write_lock)
                stack.enter_context(translated())
                yield stack.enter_context(self._writer.begin())
        except DatabaseUnavailable:
            self.writable = False
            raise
        self.writable = True

    def retry_write(self) -> None:
        """Write something that changes nothing, if the last write failed. Raises as `write` does."""
        if not self.writable:
            with self.write() as connection:
                connection.execute(sa.update(VERSION).values(version_num=VERSION.c.version_num))

    def request_scrub(self) -> None:
        """Have the write-ahead log emptied soon; call it after a deletion."""
        if self._scrubber:
            self._scrubber.request()

    def scrub(self, timeout_s: float = 10.0) -> bool:
        """Wait until no deleted data is left in SQLite's files; return False if that took too long."""
        return self._scrubber.wait(timeout_s) if self._scrubber else True

    def vacuum(self, tables: Iterable[str], *, full: bool = False) -> None:
        """Vacuum the tables (PostgreSQL only). With `full`, rewrite them, so that nothing deleted stays in their files;
        that locks them meanwhile."""
        if self.is_sqlite:
            return
        with translated(), self._engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
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
        except (sqlite3.Error, SQLAlchemyError):  # another process writes, no connection is free, the disk is full
            return False
        return not busy

    def _migrate(self) -> None:
        with self.read() as connection:
            if is_current(connection):
                return
        with self.write() as connection:
            if not self.is_sqlite:
                _check_encoding(connection)
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
            migrate(connection, "head")


def inserting(dialect: str) -> Inserting:
    """Return the INSERT with ON CONFLICT of ``sqlite`` or ``postgresql``."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - 20 ms that a start with SQLite doesn't need

        return insert
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert  # noqa: PLC0415 - its counterpart

    return sqlite_insert


def in_parts(values: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Split `values` into parts that fit one statement each."""
    for start in range(0, len(values), KEYS_AT_ONCE):
        yield values[start : start + KEYS_AT_ONCE]


def is_current(connection: Connection) -> bool:
    """Return whether the schema is up to date, without importing Alembic, which takes long."""
    if not sa.inspect(connection).has_table(VERSION.name):
        return False
    newest = max((path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py")), default=None)
    return connection.execute(sa.select(VERSION.c.version_num)).scalars().all() == [newest]


def migrate(connection: Connection, revision: str) -> None:
    """Migrate the schema to that revision. Raises Unusable ``database_too_new`` if the schema is unknown."""
    from alembic import command  # noqa: PLC0415 - slow to import, needed here only
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, revision)
    except CommandError as error:
        message = f"A newer version of this program, or an unreleased one, made the database: {error}"
        raise Unusable(message, code="database_too_new") from error


@contextmanager
def replacing_sqlite(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yield the place of a new database, which replaces the one at `path` if the block succeeds.

    Nobody else may use that one, and the new one must be closed. Raises Conflict ``database_not_empty`` if it isn't
    empty, unless told to `replace` it.
    """
    with translated():
        if path.exists():
            _prepare_replacement(path, replace=replace)
        draft = _draft_of(path)
        try:
            for name in _sqlite_files(draft):
                name.unlink(missing_ok=True)
            yield draft
            for name in _sqlite_files(path)[1:]:  # another database's log must not be taken for the new one's
                name.unlink(missing_ok=True)
            with draft.open("rb") as file:
                os.fsync(file.fileno())
            draft.replace(path)
            sync_folder(path.parent)
        finally:
            for name in _sqlite_files(draft):
                name.unlink(missing_ok=True)


def _prepare_replacement(path: Path, *, replace: bool) -> None:
    """Check that the database may be replaced, and empty its write-ahead log, which is deleted before it."""
    old = open_engine(parse_url(f"sqlite:///{path}"), round(BUSY_TIMEOUT_S * 1000))
    try:
        with old.connect() as connection:
            if not replace:
                check_empty(connection)
        with closing(old.raw_connection()) as raw:
            busy, _, _ = raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if busy:
            raise Conflict("The database is in use by another program: stop it first.", code="data_dir_in_use")
    finally:
        old.dispose()


def check_empty(connection: Connection) -> None:
    """Raise Conflict ``database_not_empty`` if it has rows that no server makes at its first start, or other tables."""
    for name in sa.inspect(connection).get_table_names():
        if name not in METADATA.tables and name != VERSION.name:
            message = f"The database has a table of another program, {name}: name a database of its own."
            raise Conflict(message, code="database_not_empty")
        some = sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)
        if name not in MADE_AT_START and connection.execute(some).first():
            raise Conflict("There is already a database, and it is not empty.", code="database_not_empty")


def sqlite_file(url: str) -> Path | None:
    """Return the file of a SQLite database; None for others."""
    parsed = parse_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None


def restoring_files(url: str) -> tuple[Path, ...]:
    """Return the files that a killed restore may have left: they hold templates."""
    path = sqlite_file(url)
    return () if path is None else _sqlite_files(_draft_of(path))


def _draft_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.restoring")


def _sqlite_files(path: Path) -> tuple[Path, ...]:
    return (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm", "-journal")))


class _Scrubber:
    """A thread that repeats `attempt` after each request until it succeeds; it starts with the first request."""

    def __init__(self, attempt: Callable[[], bool]) -> None:
        self._attempt = attempt
        self._condition = threading.Condition()
        self._requested = 0
        self._done = 0
        self._closing = False
        self._thread: threading.Thread | None = None

    def request(self) -> None:
        with self._condition:
            self._requested += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scrubber", daemon=True)
                self._thread.start()
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> bool:
        with self._condition:
            target = self._requested
            return self._condition.wait_for(lambda: self._done >= target, timeout_s)

    def close(self) -> None:
        """Stop after one last attempt; the next start does the rest."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        pause, longest = SCRUB_RETRY_S
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closing or self._requested > self._done)
                if self._requested == self._done:
                    return
                target, last = self._requested, self._closing
            succeeded = self._attempt()
            with self._condition:
                if succeeded:
                    self._done = target
                    pause = SCRUB_RETRY_S[0]
                    self._condition.notify_all()
                elif last:
                    return
                else:
                    self._condition.wait_for(lambda: self._closing, pause)
                    pause = min(longest, 2 * pause)


def parse_url(url: str) -> URL:
    try:
        return make_url(url)
    except ArgumentError as error:  # its text would repeat the URL, password and all
        raise Unusable("The database URL is malformed.", code="database_unsupported") from error


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


def _check_encoding(connection: Connection) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        message = f"The PostgreSQL database must be encoded in UTF8, not {encoding}: names are in any script."
        raise Unusable(message, code="database_unsupported")


@contextmanager
def translated() -> Iterator[None]:
    """Translate the database's errors; the driver's text stays in the cause, for the log."""
    try:
        yield
    except PoolTimeout as error:
        raise DatabaseBusy("All database connections are busy.") from error
    except OperationalError as error:
        if "database is locked" in str(error.orig) or getattr(error.orig, "sqlstate", None) in IN_EACH_OTHERS_WAY:
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
