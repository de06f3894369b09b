"""Copies a whole database into an empty one, SQLite or PostgreSQL, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import BUSY_TIMEOUT_S, Database, check_empty, open_engine, parse_url, replacing_sqlite, sqlite_file
from app.db.schema import METADATA

ROWS_AT_ONCE = 500
"""Rows in memory at a time: templates and crops take some 10 kB each."""
NUMBERED = tuple(
    table.name
    for table in METADATA.sorted_tables
    if "key" in table.c and table.c.key.primary_key and table.c.key.autoincrement is not False
)
"""Tables whose database numbers their rows."""


def copy_database(source: str, target: str) -> dict[str, int]:
    """Copy every row, and return their numbers by table. The target appears complete or not at all.

    Nobody else may use either: hold `app.db.usage.exclusive`. Raises Conflict ``database_not_empty``.
    """
    with closing(Database(source)) as old, old.read(one_moment=True) as there, _opened(target) as new:
        with new.write() as here:
            for table in reversed(METADATA.sorted_tables):  # what a server made at its start
                here.execute(sa.delete(table))
            counts = {table.name: _copy_table(there, here, table) for table in METADATA.sorted_tables}
            _number(here, _last_keys(there))
        return counts


@contextmanager
def _opened(url: str) -> Iterator[Database]:
    """Open the target with the present schema. Raises Conflict ``database_not_empty``."""
    path = sqlite_file(url)
    if path is not None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with replacing_sqlite(path, replace=False) as draft, closing(Database(f"sqlite:///{draft}")) as database:
            yield database
        return
    engine = open_engine(parse_url(url), round(BUSY_TIMEOUT_S * 1000))
    try:
        with engine.connect() as connection:
            check_empty(connection)
    finally:
        engine.dispose()
    with closing(Database(url)) as database:
        yield database


def _copy_table(there: Connection, here: Connection, table: sa.Table) -> int:
    query = sa.select(table).order_by(*table.primary_key.columns)
    count = 0
    found = there.execution_options(yield_per=ROWS_AT_ONCE).execute(query).mappings()
    for rows in found.partitions():
        here.execute(sa.insert(table), [dict(row) for row in rows])
        count += len(rows)
    return count


def _last_keys(connection: Connection) -> dict[str, int]:
    """Return the last key of each table that numbers its rows: the copy must not use keys again."""
    if connection.dialect.name == "sqlite":
        found = connection.execute(sa.text("SELECT name, seq FROM sqlite_sequence")).all()
        return {name: seq for name, seq in found if name in NUMBERED}
    last: dict[str, int] = {}
    for table in NUMBERED:
        sequence = connection.execute(sa.select(sa.func.pg_get_serial_sequence(table, "key"))).scalar_one()
        value, called = connection.execute(sa.text(f"SELECT last_value, is_called FROM {sequence}")).one()  # noqa: S608 (the database's own name)
        if called:
            last[table] = value
    return last


def _number(connection: Connection, last_keys: dict[str, int]) -> None:
    """Make the tables number new rows after their last keys."""
    for table, last in last_keys.items():
        if connection.dialect.name == "sqlite":
            connection.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = :name"), {"name": table})
            values = {"name": table, "seq": last}
            connection.execute(sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :seq)"), values)
        else:
            connection.execute(sa.select(sa.func.setval(sa.func.pg_get_serial_sequence(table, "key"), last)))
