"""Replace a SQLite database with a new one; copy a database into an empty one, SQLite or PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Database
from app.db.migrations import VERSION
from app.db.opening import connected, draft_of, sqlite_file, sqlite_files
from app.db.schema import METADATA, SECRETS, SIGN_INS
from app.errors import Conflict
from app.files import sqlite_url, sync_folder

MADE_AT_START = {VERSION.name, SECRETS.name, SIGN_INS.name}
"""Tables that a server fills when it starts, before any request."""
ROWS_AT_ONCE = 500
"""Rows in memory at a time: a face's template and crop take about 10 kB."""
NUMBERED = tuple(
    table.name
    for table in METADATA.sorted_tables
    if "key" in table.c and table.c.key.primary_key and table.c.key.autoincrement is not False
)
"""Names of the tables whose keys the database numbers."""


def copy_database(source: str, target: str) -> dict[str, int]:
    """Copy every row, and return the row counts by table. The target appears complete or not at all.

    No other process may use either database: hold `app.db.usage.lock_exclusively`. Raises Conflict
    ``database_not_empty``.
    """
    with closing(Database(source, alone=True)) as old, old.read(one_moment=True) as there, _opened(target) as new:
        with new.write() as here:
            for table in reversed(METADATA.sorted_tables):  # deletes the rows that opening the database made
                here.execute(sa.delete(table))
            counts = dict.fromkeys(METADATA.tables, 0)
            for table in METADATA.sorted_tables:
                query = sa.select(table).order_by(*table.primary_key.columns)
                result = there.execution_options(yield_per=ROWS_AT_ONCE).execute(query).mappings()
                for rows in result.partitions():
                    here.execute(sa.insert(table), [dict(row) for row in rows])
                    counts[table.name] += len(rows)
            _number(here, _last_keys(there))
        return counts


@contextmanager
def _opened(url: str) -> Iterator[Database]:
    """Open the target with the present schema. Raises Conflict ``database_not_empty``."""
    path = sqlite_file(url)
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing_sqlite(path, replace=False) as draft, closing(Database(sqlite_url(draft))) as database:
            yield database
        return
    with connected(url) as connection:
        _check_empty(connection)
    with closing(Database(url, alone=True)) as database:
        yield database


def _last_keys(connection: Connection) -> dict[str, int]:
    """Return the last key of each table of NUMBERED, since the copy must not use a key again."""
    if connection.dialect.name == "sqlite":
        numbers = connection.execute(sa.text("SELECT name, seq FROM sqlite_sequence")).all()
        return {name: seq for name, seq in numbers if name in NUMBERED}
    last: dict[str, int] = {}
    for table in NUMBERED:
        sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence(table, "key"))).scalar_one()
        value, called = connection.execute(sa.text(f"SELECT last_value, is_called FROM {sequence}")).one()  # noqa: S608 (the database's own name)
        if called:
            last[table] = value
    return last


def _number(connection: Connection, last_keys: dict[str, int]) -> None:
    """Make the tables continue their numbering after these last keys."""
    for table, last in last_keys.items():
        if connection.dialect.name == "sqlite":
            connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table})
            values = {"name": table, "seq": last}
            connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), values)
        else:
            connection.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table, "key"), last)))


@contextmanager
def replacing_sqlite(path: Path, *, replace: bool) -> Iterator[Path]:
    """Yield a path for a new database, which replaces the one at `path` if the block succeeds.

    No other process may use the old one, and the block must close the new one. Raises Conflict
    ``database_not_empty`` if the old one has content, unless `replace` is set.
    """
    if path.exists():
        with connected(sqlite_url(path)) as connection:
            if not replace:
                _check_empty(connection)
            connection.rollback()
            raw: Any = connection.connection.driver_connection  # a checkpoint must run outside of a transaction
            busy, _, _ = raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()  # empties the write-ahead log
        if busy:
            raise Conflict("The database is in use by another program: stop it first.", code="data_dir_in_use")
    draft = draft_of(path)
    try:
        for name in sqlite_files(draft):
            name.unlink(missing_ok=True)
        yield draft
        for name in sqlite_files(path)[1:]:  # the new database must not be opened with the old one's log
            name.unlink(missing_ok=True)
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        draft.replace(path)
        sync_folder(path.parent)
    finally:
        for name in sqlite_files(draft):
            name.unlink(missing_ok=True)


def _check_empty(connection: Connection) -> None:
    """Raise Conflict ``database_not_empty`` if the database has another program's tables, or rows in tables that a
    first start leaves empty."""
    for name in sa.inspect(connection).get_table_names():
        if name not in METADATA.tables and name != VERSION.name:
            message = f"The database has a table of another program, {name}: name a database of its own."
            raise Conflict(message, code="database_not_empty", table=name)
        first_row = sa.select(sa.literal(1)).select_from(sa.table(name)).limit(1)
        if name not in MADE_AT_START and connection.execute(first_row).first():
            raise Conflict("There is already a database, and it is not empty.", code="database_not_empty")
