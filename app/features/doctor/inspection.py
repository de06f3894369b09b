"""Inspect a database without changing it: whether it exists, its version, whether it is writable and undamaged."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import SQLAlchemyError

from app.db import usage
from app.db.migrations import revision_of, revisions
from app.db.opening import connected, parse_url, sqlite_file
from app.db.schema import GALLERIES, PACKAGES, REEMBEDDINGS, SECRETS
from app.errors import DatabaseBusy, DatabaseUnavailable

LOOK_BUSY_MS = 2_000
"""Milliseconds to wait for another process's lock."""
SHOWN = 3
_FAILURES = SQLAlchemyError, DatabaseBusy, DatabaseUnavailable


@dataclass(slots=True)
class Inspection:
    """The state of a database. If it doesn't exist or ``problem`` is not empty, the fields after ``problem`` say
    nothing."""

    kind: str
    exists: bool = True
    problem: str = ""
    revision: str | None = None
    newest: str | None = None
    known: bool = True
    """Whether this program knows the schema's revision; False if a newer or unreleased version made it."""
    writable: bool = False
    damage: list[str] = field(default_factory=list)
    clock_off_s: float = 0.0
    """This machine's clock minus the database's, in seconds; 0 for SQLite, which has none."""
    sealed: dict[str, bytes] = field(default_factory=dict)
    """The server's secrets as they are stored (encrypted), by name."""
    needs: list[Need] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Need:
    """A package that galleries use, or are being re-embedded from or to. ``galleries`` is their number, ``example`` the
    id of one of them."""

    package: str
    dimension: int
    galleries: int
    example: str
    digest: str | None = None
    """The model that made the galleries' templates (`Manifest.recipe_digest`), if known."""


def inspect(data_dir: Path, url: str) -> Inspection:
    """Return the state of the database.

    Raises Unusable if the URL isn't supported or its driver is missing, Conflict ``data_dir_in_use`` while the database
    is being restored.
    """
    path, is_sqlite = sqlite_file(url), parse_url(url).get_backend_name() == "sqlite"
    inspection = Inspection("SQLite" if is_sqlite else "PostgreSQL")
    with usage.lock_to_read(data_dir, url):
        if path is not None and not path.exists():
            inspection.exists = False
            return inspection
        try:
            with connected(url, LOOK_BUSY_MS) as connection:
                _read(connection, inspection)
                connection.rollback()
                inspection.writable = _takes_writes(connection)
        except _FAILURES as error:  # the driver's message may contain the URL with its password
            inspection.problem = type(error.__cause__ or error).__name__
    return inspection


def _read(connection: Connection, inspection: Inspection) -> None:
    inspection.newest = revisions()[-1]
    inspection.revision = revision_of(connection)
    inspection.known = inspection.revision in {None, *revisions()}
    if sa.inspect(connection).has_table(SECRETS.name):
        inspection.sealed = {row.name: bytes(row.sealed) for row in connection.execute(sa.select(SECRETS))}
    inspection.needs = _needs(connection)
    if inspection.kind == "SQLite":
        rows = connection.exec_driver_sql("PRAGMA quick_check(3)").scalars().all()
        inspection.damage = [str(row) for row in rows if row != "ok"]
        if orphans := connection.exec_driver_sql("PRAGMA foreign_key_check").fetchmany(SHOWN):
            tables = ", ".join(sorted({orphan[0] for orphan in orphans}))
            inspection.damage.append(f"rows without the row they belong to, in {tables}")
        return
    now: datetime = connection.execute(sa.text("SELECT clock_timestamp()")).scalar_one()
    inspection.clock_off_s = (datetime.now(UTC) - now).total_seconds()


def _needs(connection: Connection) -> list[Need]:
    """Return the packages that galleries need, for any version of the schema."""
    tables = sa.inspect(connection)
    queries = []
    if tables.has_table(GALLERIES.name):
        queries.append(sa.select(GALLERIES.c.embedder.label("package"), GALLERIES.c.dimension, GALLERIES.c.id))
    if tables.has_table(REEMBEDDINGS.name):
        c = REEMBEDDINGS.c
        for package, dimension in ((c.source, c.source_dimension), (c.target, c.target_dimension)):
            query = sa.select(package.label("package"), dimension.label("dimension"), GALLERIES.c.id)
            queries.append(query.select_from(REEMBEDDINGS.join(GALLERIES)))
    if not queries:
        return []
    every = sa.union(*queries).subquery()
    count, example = sa.func.count().label("galleries"), sa.func.min(every.c.id).label("example")
    query = sa.select(every.c.package, every.c.dimension, count, example).group_by(every.c.package, every.c.dimension)
    rows = connection.execute(query.order_by(every.c.package))
    bound = {}
    if tables.has_table(PACKAGES.name):
        bound = {row.id: row.digest for row in connection.execute(sa.select(PACKAGES))}
    return [Need(row.package, row.dimension, row.galleries, row.example, bound.get(row.package)) for row in rows]


def _takes_writes(connection: Connection) -> bool:
    """Try to write, and roll back; return whether this succeeded."""
    try:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.exec_driver_sql("PRAGMA user_version = 0")
        else:
            connection.exec_driver_sql("CREATE TEMPORARY TABLE likeness_doctor (one integer) ON COMMIT DROP")
        connection.rollback()
    except _FAILURES:
        return False
    return True
