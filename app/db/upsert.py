"""INSERT … ON CONFLICT in the words of the database in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert as PostgresInsert
    from sqlalchemy.dialects.sqlite import Insert as SqliteInsert

Inserting: TypeAlias = "Callable[[sa.Table], SqliteInsert | PostgresInsert]"


def inserting(dialect: str) -> Inserting:
    """What makes such a statement for a table; ``dialect`` is SQLAlchemy's name, ``sqlite`` or ``postgresql``."""
    if dialect == "postgresql":
        from sqlalchemy.dialects.postgresql import insert  # noqa: PLC0415 - 20 ms of a start that SQLite has no use for

        return insert
    from sqlalchemy.dialects.sqlite import insert as sqlite_insert  # noqa: PLC0415 - its counterpart

    return sqlite_insert
