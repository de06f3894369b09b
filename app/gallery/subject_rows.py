"""Subjects' rows: found by their ids, and made where they are missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Database, in_parts
from app.db.schema import SUBJECTS
from app.errors import DatabaseBusy
from app.gallery.records import Gallery
from app.gallery.text import fold

CREATE_ATTEMPTS = 10
"""How often a missing subject is made anew when others keep deleting it."""
_FIND = (
    sa.select(SUBJECTS.c.id, SUBJECTS.c.key)
    .where((SUBJECTS.c.gallery_key == sa.bindparam("gallery")) & SUBJECTS.c.id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(SUBJECTS.c.key)
    .with_for_update()
)
_TOUCH = (
    sa.update(SUBJECTS)
    .where(SUBJECTS.c.key.in_(sa.bindparam("keys", expanding=True)))
    .values(updated_at=sa.bindparam("now"))
)


def subject_row(
    gallery: Gallery, subject_id: str, now: str, *, name: str | None = None, **columns: object
) -> dict[str, Any]:
    """A new subject's columns; `columns` are those that are other than a new one's."""
    return {
        "gallery_key": gallery.key,
        "id": subject_id,
        "name": name,
        "folded": fold(subject_id, name),
        "metadata": "{}",
        "created_at": now,
        "updated_at": now,
        "expires_at": None,
        "consent": None,
    } | columns


def make_subjects(connection: Connection, database: Database, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Of those that there were not: their keys by their ids."""
    insert = database.insert(SUBJECTS).on_conflict_do_nothing().returning(SUBJECTS.c.id, SUBJECTS.c.key)
    return {row.id: row.key for row in connection.execute(insert, rows)}


def ensure_subjects(
    connection: Connection, database: Database, gallery: Gallery, rows: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, int], Collection[str]]:
    """Every subject's key by its id, and which of them are new: each row is what is written where its id is missing.
    The rows are ours until the transaction ends.

    Between the two statements others may make or delete them, on PostgreSQL: hence the turns.
    """
    keys: dict[str, int] = {}
    made: dict[str, int] = {}
    for _ in range(CREATE_ATTEMPTS):
        keys |= find_subjects(connection, gallery, [name for name in rows if name not in keys])
        missing = [row for name, row in rows.items() if name not in keys]
        if missing:
            new = make_subjects(connection, database, missing)
            made |= new
            keys |= new
        if len(keys) == len(rows):
            return keys, made.keys()
    raise DatabaseBusy(f"Others keep deleting subject {missing[0]['id']!r}.")


def find_subjects(connection: Connection, gallery: Gallery, ids: Sequence[str]) -> dict[str, int]:
    """The keys of those that there are; the rows are ours until the transaction ends."""
    keys: dict[str, int] = {}
    for some in in_parts(ids):
        keys |= {row.id: row.key for row in connection.execute(_FIND, {"gallery": gallery.key, "ids": some})}
    return keys


def touch_subjects(connection: Connection, keys: Sequence[int], now: str) -> None:
    """Says that they have changed."""
    for some in in_parts(keys):
        connection.execute(_TOUCH, {"keys": some, "now": now})
