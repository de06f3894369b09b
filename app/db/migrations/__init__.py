"""Alembic's migrations, run at every start by `app.db.engine.Database`."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.errors import Unusable

MIGRATIONS = Path(__file__).parent
VERSION = sa.table("alembic_version", sa.column("version_num"))
MIGRATION_LOCK = 0x4C494B45
"""PostgreSQL advisory lock ("LIKE" in ASCII), so that processes starting together migrate one after the other."""


def bring_up_to_date(connection: Connection) -> None:
    """Migrate the schema to this version's. Raises Unusable ``database_too_new``, ``database_unsupported``."""
    if connection.dialect.name == "postgresql":
        _check_encoding(connection)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    migrate(connection, "head")


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


def _check_encoding(connection: Connection) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        message = f"The PostgreSQL database must be encoded in UTF8, not {encoding}: names are in any script."
        raise Unusable(message, code="database_unsupported")
