"""Short functions for the columns that most tables of revisions have."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

KEY = sa.BigInteger().with_variant(sa.Integer, "sqlite")
ID, TIME = sa.String(32), sa.String(32)


def table(name: str, *parts: SchemaItem, numbered: bool = False) -> None:
    op.create_table(name, *parts, sqlite_autoincrement=numbered)


def numbered(name: str, *parts: SchemaItem) -> None:
    table(name, sa.Column("key", KEY, primary_key=True), *parts, numbered=True)


def owner(name: str, kind: Any, target: str, *, primary: bool = False, nullable: bool = False) -> sa.Column[object]:
    """Return a column that refers to another table's row; deleting that row deletes its own."""
    reference = sa.ForeignKey(target, ondelete="CASCADE")
    return sa.Column(name, kind, reference, primary_key=primary, autoincrement=False, nullable=nullable)
