"""Faces that go over to other subjects, under new keys.

What follows the change log, and what keeps vectors in several servers at once, relies on a face that went never coming
back: so a face that moves is one that goes and another that comes, with the same id and everything that belongs to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.schema import FACES, METADATA

ROWS_AT_ONCE = 1_000


def rekey(connection: Connection, subjects: Mapping[int, int]) -> dict[int, int]:
    """Moves each face, by its key, to the subject of that key; says which key each has now.

    The caller has locked them, and writes the change log.
    """
    moved: dict[int, int] = {}
    keys = sorted(subjects)
    for start in range(0, len(keys), ROWS_AT_ONCE):
        moved |= _rekey_some(connection, keys[start : start + ROWS_AT_ONCE], subjects)
    return moved


def _rekey_some(connection: Connection, keys: Sequence[int], subjects: Mapping[int, int]) -> dict[int, int]:
    faces = _rows(connection, FACES, FACES.c.key, keys)
    belongings = [(column, _rows(connection, column.table, column, keys)) for column in _references()]
    connection.execute(sa.delete(FACES).where(FACES.c.key.in_(keys)))  # and what belongs to them
    old = [row.pop("key") for row in faces]
    new = [row | {"subject_key": subjects[key]} for key, row in zip(old, faces, strict=True)]
    insert = sa.insert(FACES).returning(FACES.c.key, sort_by_parameter_order=True)
    moved = dict(zip(old, connection.execute(insert, new).scalars().all(), strict=True))
    for column, rows in belongings:
        if rows:
            values = [row | {column.name: moved[row[column.name]]} for row in rows]
            connection.execute(sa.insert(column.table), values)
    return moved


def _rows(
    connection: Connection, table: sa.FromClause, column: sa.Column[Any], keys: Sequence[int]
) -> list[dict[str, Any]]:
    query = sa.select(table).where(column.in_(keys)).order_by(column)
    return [dict(row) for row in connection.execute(query).mappings().all()]


def _references() -> list[sa.Column[Any]]:
    """The columns of other tables that name a face, each in a row that has no other key."""
    return [
        column
        for table in METADATA.sorted_tables
        for column in table.columns
        if any(key.column is FACES.c.key for key in column.foreign_keys)
    ]
