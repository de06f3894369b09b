"""Alembic's migrations, run at every start by `app.db.engine.Database`."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.schema import METADATA
from app.errors import Unusable

MIGRATIONS = Path(__file__).parent
VERSION = sa.Table(
    "alembic_version",
    sa.MetaData(),
    sa.Column("version_num", sa.String(32), nullable=False),
    sa.PrimaryKeyConstraint("version_num", name="alembic_version_pkc"),
)
"""Alembic's own table, as it makes it."""
MIGRATION_LOCK = 0x4C494B45
"""PostgreSQL advisory lock ("LIKE" in ASCII), so that processes starting together migrate one after the other."""


def is_current(connection: Connection) -> bool:
    """Return whether the schema is up to date, without importing Alembic, which takes long."""
    return revision_of(connection) == revisions()[-1]


def bring_up_to_date(connection: Connection) -> None:
    """Make or migrate the schema. Raises Unusable ``database_too_new``, ``database_unsupported``."""
    if connection.dialect.name == "postgresql":
        _check_encoding(connection)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(MIGRATION_LOCK)))
    if revision_of(connection) is None:
        METADATA.create_all(connection, checkfirst=False)
        VERSION.create(connection, checkfirst=True)
        connection.execute(sa.insert(VERSION).values(version_num=revisions()[-1]))
    else:
        _migrate(connection)


def revisions() -> list[str]:
    """Return the revisions that this program knows, the newest last."""
    return sorted(path.name.partition("_")[0] for path in MIGRATIONS.glob("versions/[0-9]*.py"))


def revision_of(connection: Connection) -> str | None:
    """Return the revision of the database; None if it has no tables yet."""
    if not sa.inspect(connection).has_table(VERSION.name):
        return None
    return connection.execute(sa.select(VERSION.c.version_num)).scalar_one_or_none()


def _migrate(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - slow to import, needed here only
    from alembic.config import Config  # noqa: PLC0415
    from alembic.util import CommandError  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        message = f"A newer version of this program, or an unreleased one, made the database: {error}"
        raise Unusable(message, code="database_too_new") from error


def _check_encoding(connection: Connection) -> None:
    encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
    if encoding != "UTF8":
        message = f"The PostgreSQL database must be encoded in UTF8, not {encoding}: names are in any script."
        raise Unusable(message, code="database_unsupported")
