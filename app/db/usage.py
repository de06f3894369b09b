"""Locks on a database and its data folder: shared by servers and commands, exclusive for what replaces the database.

A locked file in the data folder (flock), and beside a SQLite database that is elsewhere; over PostgreSQL also an
advisory lock. The kernel and PostgreSQL drop the lock with the process, however it ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import socket
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from app.db.copying import restoring_files
from app.db.opening import open_engine, parse_url, sqlite_file, translated
from app.errors import Conflict, DatabaseUnavailable, Unusable
from app.files import write_new

LOCK_FILE = "likeness.lock"
USERS_FOLDER = "users"
"""Beside the lock: a locked file for each process that holds it, with its command."""
KNOWN_FILE = "database.known"
"""In the data folder: says that its database has had its tables, so that an empty one is not taken for a new one."""
ADVISORY_LOCK = 0x4C494B46
"""PostgreSQL advisory lock, the number after `app.db.migrations.MIGRATION_LOCK`."""
KEEP_S = 2.0
"""Between looks whether PostgreSQL still holds the lock: it forgets it with the connection."""
PATIENCE_MS = 5_000
MAX_NAME = 63
"""PostgreSQL's limit for a session's name, in bytes."""
TABLES = ("alembic_version", "galleries", "subjects", "faces")
"""Tables of every version of the schema."""
_log = logging.getLogger(__name__)


@contextmanager
def shared(data_dir: Path, url: str) -> Iterator[None]:
    """Hold the lock that servers and commands share. What a killed restore has left is removed.

    The data folder must exist. Raises Conflict ``data_dir_in_use`` with the process that holds the lock exclusively,
    and Unusable ``database_emptied`` if the database had tables and is empty or gone.
    """
    with _locked(data_dir, url, exclusive=False):
        for path in restoring_files(url):
            with suppress(OSError):
                path.unlink(missing_ok=True)
        _check_not_emptied(data_dir, url)
        yield


@contextmanager
def exclusive(data_dir: Path, *urls: str) -> Iterator[None]:
    """Hold the locks alone. The data folder must exist. Raises Conflict ``data_dir_in_use`` with those who use it."""
    with _locked(data_dir, *urls, exclusive=True):
        yield


@contextmanager
def looking(data_dir: Path, url: str) -> Iterator[None]:
    """Hold the shared lock of a SQLite database without changing anything. Raises Conflict ``data_dir_in_use``."""
    with ExitStack() as stack:
        for folder in _folders(data_dir, parse_url(url)):
            with suppress(FileNotFoundError):
                _lock_file(stack, folder, exclusive=False, flags=os.O_RDONLY)
        yield


def remember(data_dir: Path, url: str) -> None:
    """Note that the database has its tables. Call it after the database was opened."""
    path = data_dir / KNOWN_FILE
    if _known(path) == (name := _name(data_dir, parse_url(url))):
        return
    with suppress(OSError):  # a full disk; the next start notes it
        path.unlink(missing_ok=True)
        write_new(path, name.encode() + b"\n")


def _check_not_emptied(data_dir: Path, url: str) -> None:
    parsed = parse_url(url)
    path = data_dir / KNOWN_FILE
    if _known(path) != _name(data_dir, parsed) or _has_tables(parsed):
        return
    what = sqlite_file(url) or f"the PostgreSQL database {parsed.database}"
    message = (
        f"{what} held a Likeness database and is now empty or gone. Put it back, or restore a backup with `likeness "
        f"restore`. To start with an empty database, delete {path}."
    )
    raise Unusable(message, code="database_emptied")


def _known(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _name(data_dir: Path, url: URL) -> str:
    """Return a name of the database without user and password, the same when the whole data folder is moved."""
    if url.get_backend_name() != "sqlite":
        host = url.host or url.query.get("host", "")
        return f"{url.get_backend_name()} {host} {url.port or ''} {url.database}"
    path, folder = Path(url.database or "").absolute(), data_dir.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _has_tables(url: URL) -> bool:
    """Return whether the tables exist; a database that can't be read counts as one that has them."""
    if url.get_backend_name() != "sqlite":
        engine = open_engine(url, PATIENCE_MS)
        try:
            with translated(), engine.connect() as connection:
                return all(map(sa.inspect(connection).has_table, TABLES))
        finally:
            engine.dispose()
    path = Path(url.database or "")
    if not path.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    except sqlite3.Error:  # damaged or busy: whoever opens it says so
        return True
    return found >= set(TABLES)


# ---------------------------------------------------------------- locks


@contextmanager
def _locked(data_dir: Path, *urls: str, exclusive: bool) -> Iterator[None]:
    parsed = [parse_url(url) for url in urls]
    with ExitStack() as stack:
        for folder in sorted({folder for url in parsed for folder in _folders(data_dir, url)}):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _lock_file(stack, folder, exclusive=exclusive, flags=os.O_RDWR | os.O_CREAT)
                stack.enter_context(_announced(folder / USERS_FOLDER))
            except OSError as error:
                message = f"{folder}: can't be locked ({error.strerror or error})"
                raise Unusable(message, code="data_dir_unusable") from None
        for url in parsed:
            if url.get_backend_name() == "postgresql":
                stack.enter_context(_advisory(url, exclusive=exclusive))
        yield


def _folders(data_dir: Path, url: URL) -> list[Path]:
    """Return the folders with a lock: the data folder, and a SQLite database's if it is not inside."""
    folders = {data_dir.absolute()}
    if url.get_backend_name() == "sqlite" and url.database:
        folders.add(Path(url.database).absolute().parent)
    return sorted(folders)


def _lock_file(stack: ExitStack, folder: Path, *, exclusive: bool, flags: int) -> None:
    handle = os.open(folder / LOCK_FILE, flags, 0o600)
    stack.callback(os.close, handle)
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(str(folder), _users(folder / USERS_FOLDER), exclusive=exclusive) from None


def _in_use(what: str, users: list[str], *, exclusive: bool) -> Conflict:
    who = ", ".join(users) or "another process"
    do = "stop it first" if exclusive else "try again when it has ended"
    return Conflict(f"{what} is in use by {who}: {do}.", code="data_dir_in_use")


def _process() -> str:
    """Return this process's command, without its arguments, which may be secrets or names of people, and its id."""
    word = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].isidentifier() else ""
    return f"{f'likeness {word}'.strip()} (process {os.getpid()} on {socket.gethostname()})"


@contextmanager
def _announced(folder: Path) -> Iterator[None]:
    """Let others read who holds the lock. Without room on the disk they read of "another process"."""
    path = folder / f"{secrets.token_hex(8)}.user"
    draft = path.with_suffix(".draft")
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            _users(folder)
            handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            stack.callback(os.close, handle)
            for name in (draft, path):
                stack.callback(name.unlink, missing_ok=True)
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.write(handle, _process().encode())
            draft.rename(path)  # it appears with its lock
        yield


def _users(folder: Path) -> list[str]:
    """Return who uses the folder; the files of ended processes are deleted."""
    found = []
    for path in sorted(folder.glob("*.user")):
        try:
            handle = os.open(path, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found.append(path.read_text())
        else:
            path.unlink(missing_ok=True)
        finally:
            os.close(handle)
    return [text for text in found if text]


@contextmanager
def _advisory(url: URL, *, exclusive: bool) -> Iterator[None]:
    engine = open_engine(url, PATIENCE_MS)
    try:
        with translated():
            lock = _AdvisoryLock(engine, exclusive=exclusive)
            lock.take()
        try:
            yield
        finally:
            lock.close()
    finally:
        engine.dispose()


class _AdvisoryLock:
    """A lock of a PostgreSQL session. A thread takes it again after the connection was lost."""

    def __init__(self, engine: Engine, *, exclusive: bool) -> None:
        self._engine = engine
        self._exclusive = exclusive
        self._connection: Connection | None = None
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="database lock", daemon=True)

    def take(self) -> None:
        """Raise Conflict ``data_dir_in_use`` if others hold it."""
        self._connect()
        self._keeper.start()

    def close(self) -> None:
        self._closing.set()
        self._keeper.join()
        if self._connection is not None:
            with suppress(SQLAlchemyError):
                self._connection.invalidate()  # the session ends, and the lock with it
                self._connection.close()

    def _connect(self) -> None:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            self._lock(connection)
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        self._connection = connection

    def _lock(self, connection: Connection) -> None:
        connection.execute(sa.select(sa.func.set_config("application_name", _process()[:MAX_NAME], False)))
        lock = sa.func.pg_try_advisory_lock if self._exclusive else sa.func.pg_try_advisory_lock_shared
        if not connection.execute(sa.select(lock(ADVISORY_LOCK))).scalar_one():
            raise _in_use("The PostgreSQL database", _sessions(connection), exclusive=self._exclusive)

    def _keep(self) -> None:
        lost = False
        while not self._closing.wait(KEEP_S):
            try:
                if self._connection is None:
                    self._connect()
                    _log.warning("The lock on the database is held again")
                    lost = False
                elif not self._closing.is_set():
                    self._connection.execute(sa.select(1))
            except (SQLAlchemyError, Conflict, DatabaseUnavailable) as error:
                if not lost:
                    _log.warning("The lock on the database is lost (%s); it is taken again", type(error).__name__)
                lost = True
                if self._connection is not None:
                    with suppress(SQLAlchemyError):
                        self._connection.invalidate()
                        self._connection.close()
                self._connection = None


def _sessions(connection: Connection) -> list[str]:
    """Return the names of the sessions that hold the advisory lock."""
    query = sa.text(
        "SELECT DISTINCT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' "
        "AND granted AND classid = 0 AND objid = :lock AND objsubid = 1 AND pg_locks.database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY application_name"
    )
    return [name for name in connection.execute(query, {"lock": ADVISORY_LOCK}).scalars() if name]
