"""Bringing what a database holds under another key, or under none, while servers use it.

Batch after batch, each a short transaction; what was stopped goes on where it was, since every blob says what it is
sealed with. A blob that was changed or deleted meanwhile is left to its new owner. What is read is the same before and
after, so no index has to hear of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import FORMAT, HEADER_BYTES
from app.db.engine import Database
from app.db.schema import CROPS, FACES, SECOND_TEMPLATES, SECRETS
from app.db.sealed_columns import MARK_PREFIX, BlobKind, Blobs, column_of, marks, sealed_rows

BATCH = 500
KINDS: tuple[BlobKind, ...] = get_args(BlobKind)
PLAIN = "plain"


def census(database: Database) -> dict[str, dict[BlobKind, int]]:
    """How many blobs lie under which key's id, or under PLAIN. Reads every row."""
    found: dict[str, dict[BlobKind, int]] = {}
    with database.read() as connection:
        for kind in KINDS:
            column = column_of(kind)
            head = sa.case((sealed_rows(kind), sa.func.substr(column, 1, HEADER_BYTES, type_=column.type)))
            query = sa.select(head.label("head"), sa.func.count()).select_from(column.table).group_by("head")
            for mark, count in connection.execute(query):
                name = PLAIN if mark is None else bytes(mark)[1:].hex()
                found.setdefault(name, dict.fromkeys(KINDS, 0))[kind] += count
    return found


def reseal(database: Database, blobs: Blobs, *, batch: int = BATCH) -> Iterator[int]:
    """Makes everything as `blobs` would store it now, and removes the marks of keys that nothing needs any more; says
    after each batch how many blobs that made. Raises Unusable ``sealed_unreadable``."""
    for kind in KINDS:
        made = 1
        while made:  # a pass leaves what others held at that moment
            made = 0
            for changed in _pass(database, blobs, kind, batch):
                made += changed
                yield changed
    with database.write() as connection:
        for name in marks(connection):
            if name != MARK_PREFIX + (blobs.key_id or ""):
                _unmark(connection, name)
    database.request_scrub()


def _pass(database: Database, blobs: Blobs, kind: BlobKind, batch: int) -> Iterator[int]:
    last = 0
    while True:
        with database.read() as connection:
            rows = connection.execute(_due(blobs, kind, last, batch)).all()
        if not rows:
            return
        last = rows[-1].key
        again = [
            (row.key, bytes(row.blob), blobs.pack(kind, row.face_id, blobs.unpack(kind, row.face_id, bytes(row.blob))))
            for row in rows
        ]
        with database.write() as connection:
            blobs.mark(connection)
            changed = _replace(connection, kind, again)
        if changed:
            database.request_scrub()
        yield changed


def _due(blobs: Blobs, kind: BlobKind, after: int, batch: int) -> sa.Select[tuple[int, str, bytes]]:
    key, column = _key_of(kind), column_of(kind)
    query = sa.select(key.label("key"), FACES.c.face_id, column.label("blob")).where((key > after) & blobs.is_due(kind))
    if kind != "template":
        query = query.join_from(column.table, FACES)
    return query.order_by(key).limit(batch)


def _replace(connection: Connection, kind: BlobKind, rows: list[tuple[int, bytes, bytes]]) -> int:
    """Each where it is still what it was; rows that others hold are skipped, so that nobody waits in a circle."""
    key, column = _key_of(kind), column_of(kind)
    query = sa.select(key).where(key.in_([one for one, _, _ in rows])).order_by(key)
    free = set(connection.execute(query.with_for_update(skip_locked=True)).scalars())
    changed = 0
    for one, old, new in rows:
        if one in free:
            update = sa.update(column.table).where((key == one) & (column == old)).values({column.name: new})
            changed += connection.execute(update).rowcount
    return changed


def _unmark(connection: Connection, name: str) -> None:
    """Removes a key's mark where nothing is sealed with it; whoever seals with it holds the mark until they commit."""
    connection.execute(sa.select(SECRETS.c.name).where(SECRETS.c.name == name).with_for_update())
    header = bytes([FORMAT]) + bytes.fromhex(name.removeprefix(MARK_PREFIX))
    for kind in KINDS:
        column = column_of(kind)
        head = sa.func.substr(column, 1, HEADER_BYTES, type_=column.type)
        used = sa.select(sa.literal(1)).select_from(column.table).where(sealed_rows(kind) & (head == header)).limit(1)
        if connection.execute(used).scalar() is not None:
            return
    connection.execute(sa.delete(SECRETS).where(SECRETS.c.name == name))


def _key_of(kind: BlobKind) -> sa.Column[int]:
    return {"template": FACES.c.key, "second": SECOND_TEMPLATES.c.face_key, "crop": CROPS.c.face_key}[kind]
