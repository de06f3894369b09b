"""Lock a database and its data folder: shared by servers and commands, exclusively for replacing the database.

The lock is a file in the data folder (flock), and beside a SQLite database that is elsewhere; on PostgreSQL an advisory
lock that all of a server's connections share. The kernel and PostgreSQL release it however the process ends.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Engine

from app.db.opening import connected, draft_of, parse_url, sqlite_file, sqlite_files
from app.errors import Conflict, DatabaseBusy, DatabaseUnavailable, Unusable
from app.files import write_new

LOCK_FILE = "likeness.lock"
"""The locked file. It contains the command that has used the folder longest, if known."""
KNOWN_FILE = "database.known"
"""File in the data folder with the name of a database that has had tables. If that is empty now, its data is lost."""
RESTORING = ".restoring-"
"""Prefix of a restore's folder in the data folder. It holds `packages/…` and `calibrations/…`, to be moved there."""
MOVING, REPLACED = "moving", "replaced"
"""In a restore's folder: the file with the names of what it moves, and the folder with what this replaced."""
ADVISORY_LOCK = 0x4C494B46
"""PostgreSQL advisory lock, the number after `app.db.migrations.MIGRATION_LOCK`."""
PATIENCE_MS = 5_000
"""Milliseconds to wait for a busy SQLite database."""
MAX_NAME = 63
"""PostgreSQL's limit for a session's name, in bytes."""
TABLES = ("alembic_version", "galleries", "subjects", "faces")
"""Tables of every version of the schema."""
_HOLDERS = (
    "SELECT DISTINCT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' "
    "AND granted AND classid = 0 AND objid = %s AND objsubid = 1 AND pg_locks.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) ORDER BY application_name"
)


@contextmanager
def lock_shared(data_dir: Path, url: str) -> Iterator[None]:
    """Hold the lock that servers and commands share; on PostgreSQL their connections hold it (`share_lock`). Remove
    what a killed restore has left.

    The data folder must exist. Raises Conflict ``data_dir_in_use`` with the process that holds the lock exclusively,
    and Unusable: ``database_emptied`` if the database had tables and is empty or gone, ``database_misplaced``.
    """
    with _locked(data_dir, [url], exclusive=False):
        _check_not_misplaced(url)
        _check_not_emptied(data_dir, url)
        yield


@contextmanager
def lock_exclusively(data_dir: Path, *urls: str) -> Iterator[None]:
    """Hold the locks exclusively. The data folder must exist. Raises Conflict ``data_dir_in_use`` with a holder."""
    with ExitStack() as stack:
        stack.enter_context(_locked(data_dir, urls, exclusive=True))
        for url in urls:
            if parse_url(url).get_backend_name() == "postgresql":
                connection = stack.enter_context(connected(url, PATIENCE_MS))
                connection.execution_options(isolation_level="AUTOCOMMIT")
                stack.callback(connection.invalidate)  # ends its session and so the lock
                _take_advisory(connection.connection.driver_connection, "pg_try_advisory_lock")
        yield


def share_lock(engine: Engine) -> None:
    """Make every connection of the PostgreSQL engine hold the shared lock while it lasts.

    Connecting raises Conflict ``data_dir_in_use`` while another process holds the lock exclusively.
    """
    sa.event.listen(engine, "connect", lambda made, _: _take_advisory(made, "pg_try_advisory_lock_shared"))


@contextmanager
def lock_to_read(data_dir: Path, url: str) -> Iterator[None]:
    """Hold the shared lock of a SQLite database without changing anything. Raises Conflict ``data_dir_in_use``."""
    with ExitStack() as stack:
        for folder in _folders(data_dir, [url]):
            with suppress(FileNotFoundError):
                _lock_file(stack, folder, exclusive=False, flags=os.O_RDONLY)
        yield


@contextmanager
def _locked(data_dir: Path, urls: Sequence[str], *, exclusive: bool) -> Iterator[None]:
    with ExitStack() as stack:
        for folder in _folders(data_dir, urls):
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                _lock_file(stack, folder, exclusive=exclusive, flags=os.O_RDWR | os.O_CREAT)
            except OSError as error:
                message = f"{folder}: can't be locked ({error.strerror or error})"
                raise Unusable(message, code="data_dir_unusable") from None
        _clean(data_dir, urls[0])
        yield


def _clean(data_dir: Path, url: str) -> None:
    """Remove what a killed restore has left; move packages back, unless it had replaced the database."""
    drafts = sqlite_files(draft_of(path)) if (path := sqlite_file(url)) else ()
    for folder in data_dir.glob(f"{RESTORING}*"):
        with suppress(FileNotFoundError), (folder / MOVING).open("r+") as file:  # without it nothing was moved
            fcntl.flock(file, fcntl.LOCK_EX)  # another server may be starting, too
            if drafts and drafts[0].exists():
                move_back(data_dir, folder)
        shutil.rmtree(folder, ignore_errors=True)
    for draft in drafts:  # they hold templates
        draft.unlink(missing_ok=True)


def move_back(data_dir: Path, folder: Path) -> None:
    """Undo the moves of a restore with this folder, however many were made or are undone already."""
    for name in (folder / MOVING).read_text().split("\0"):
        place, new, old = data_dir / name, folder / name, folder / REPLACED / name
        if place.exists() and not new.exists():
            place.rename(new)
        if old.exists():
            old.rename(place)
    (folder / MOVING).unlink()


def _folders(data_dir: Path, urls: Sequence[str]) -> list[Path]:
    """Return the folders to lock: the data folder, and those of SQLite databases that are elsewhere."""
    files = [path for url in urls if (path := sqlite_file(url))]
    return sorted({data_dir.absolute(), *(path.absolute().parent for path in files)})


def _lock_file(stack: ExitStack, folder: Path, *, exclusive: bool, flags: int) -> None:
    handle = os.open(folder / LOCK_FILE, flags, 0o600)
    stack.callback(os.close, handle)
    holder = os.pread(handle, 1024, 0).decode(errors="replace")
    try:
        fcntl.flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _in_use(str(folder), holder if _runs(holder) else "") from None
    if flags & os.O_RDWR and (exclusive or not _runs(holder)):
        with suppress(OSError):  # on a full disk, others read "another process"
            os.ftruncate(handle, 0)
            os.pwrite(handle, _process().encode(), 0)


def _process() -> str:
    """Return this process's command (without its arguments, which may be secrets or people's names) and its id."""
    word = sys.argv[1] if len(sys.argv) > 1 and sys.argv[1].isidentifier() else ""
    return f"{f'likeness {word}'.strip()} (process {os.getpid()} on {socket.gethostname()})"


def _runs(holder: str) -> bool:
    """Return whether the process that `_process` described may still run; one on another machine always may."""
    named = re.search(r"\(process (\d+) on (.*)\)", holder)
    return named is not None and (named[2] != socket.gethostname() or Path(f"/proc/{named[1]}").exists())


def _in_use(what: str, holder: str) -> Conflict:
    message = f"{what} is in use by {holder or 'another process'}: stop it, or try again when it has ended."
    return Conflict(message, code="data_dir_in_use")


def _take_advisory(connection: Any, function: str) -> None:
    """Take the lock in this session of the driver. Raises Conflict ``data_dir_in_use``."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('application_name', %s, false)", [_process()[:MAX_NAME]])
        if not cursor.execute(f"SELECT {function}(%s)", [ADVISORY_LOCK]).fetchone()[0]:
            holders = ", ".join(name for (name,) in cursor.execute(_HOLDERS, [ADVISORY_LOCK]).fetchall() if name)
            raise _in_use("The PostgreSQL database", holders)
    connection.commit()


def note_tables(data_dir: Path, url: str) -> None:
    """Note that the database has its tables. Call it after opening the database."""
    path = data_dir / KNOWN_FILE
    if _known(path) == (name := _name(data_dir, url)):
        return
    with suppress(OSError):  # a full disk; the next start notes it
        path.unlink(missing_ok=True)
        write_new(path, name.encode() + b"\n")


def _check_not_misplaced(url: str) -> None:
    """Raise Unusable ``database_misplaced`` if the database is where version 0.1.0 put it, which in the data folder's
    path read `%41` as `A` and dropped everything after `?`."""
    path = sqlite_file(url)
    misread = sqlite_file(f"sqlite:///{path}") if path else None
    if path and misread and misread != path and misread.is_file() and not path.exists():
        message = f"Version 0.1.0 put this database elsewhere: move {misread.absolute()} to {path.absolute()}."
        raise Unusable(message, code="database_misplaced")


def _check_not_emptied(data_dir: Path, url: str) -> None:
    path = data_dir / KNOWN_FILE
    if _known(path) != _name(data_dir, url) or _has_tables(url):
        return
    what = sqlite_file(url) or f"the PostgreSQL database {parse_url(url).database}"
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


def _name(data_dir: Path, url: str) -> str:
    """Return a name of the database without user and password, the same after the whole data folder is moved."""
    path, parsed = sqlite_file(url), parse_url(url)
    if path is None:
        host = parsed.host or parsed.query.get("host", "")
        return f"{parsed.get_backend_name()} {host} {parsed.port or ''} {parsed.database}"
    path, folder = path.absolute(), data_dir.absolute()
    return str(path.relative_to(folder) if path.is_relative_to(folder) else path)


def _has_tables(url: str) -> bool:
    path = sqlite_file(url)
    if path is not None and not (path.exists() and path.stat().st_size):  # opening an empty file would write to it
        return False
    try:
        with connected(url, PATIENCE_MS) as connection:
            return all(map(sa.inspect(connection).has_table, TABLES))
    except (DatabaseBusy, DatabaseUnavailable):  # opening the database reports it
        return True
