"""Key rotation: encrypts a database's templates, crops, corrections and jobs' keys with another key, or decrypts them.

It runs while servers use the database. It works in batches, each a short transaction, and can be stopped and
continued, since every blob names its key. A blob that was changed or deleted meanwhile is skipped. The content stays
the same, so indexes aren't concerned.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import FORMAT
from app.db.engine import Database
from app.db.schema import FACES, SECRETS
from app.db.sealed_columns import COLUMNS, MARK_PREFIX, BlobKind, Blobs, marks

BATCH = 500
PLAIN = "plain"


def census(database: Database) -> dict[str, dict[BlobKind, int]]:
    """Count the blobs by the id of their key, or PLAIN, and by kind. Reads every row."""
    found: dict[str, dict[BlobKind, int]] = {}
    with database.read() as connection:
        for kind, column in COLUMNS.items():
            head = sa.case((column.is_sealed, column.head))
            query = sa.select(head.label("head"), sa.func.count()).select_from(column.blob.table)
            query = query.where(column.blob.is_not(None)).group_by("head")
            for mark, count in connection.execute(query):
                name = PLAIN if mark is None else bytes(mark)[1:].hex()
                found.setdefault(name, dict.fromkeys(COLUMNS, 0))[kind] += count
    return found


def reseal(database: Database, blobs: Blobs, *, batch: int = BATCH) -> Iterator[int]:
    """Rewrite all blobs as `blobs` would store them now, and remove the marks of unused keys.

    Yield the number of rewritten blobs after each batch. Raises Unusable ``sealed_unreadable``.
    """
    for kind in COLUMNS:
        yield from _reseal_kind(database, blobs, kind, batch)
    with database.write() as connection:
        for name in marks(connection):
            if name != MARK_PREFIX + (blobs.key_id or ""):
                _unmark(connection, name)
    database.request_scrub()


def seal_job_keys(database: Database, blobs: Blobs) -> int:
    """Rewrite the keys of jobs' files as `blobs` would store them now; return how many.

    Versions before 0.2.0 stored them plain. They are few: jobs are deleted soon after they finish.
    """
    return sum(_reseal_kind(database, blobs, "job", BATCH))


def _reseal_kind(database: Database, blobs: Blobs, kind: BlobKind, batch: int) -> Iterator[int]:
    made = 1
    while made:  # a pass skips rows that others have locked
        made = 0
        for changed in _pass(database, blobs, kind, batch):
            made += changed
            yield changed


def _pass(database: Database, blobs: Blobs, kind: BlobKind, batch: int) -> Iterator[int]:
    last = 0
    while True:
        with database.read() as connection:
            rows = connection.execute(_due(blobs, kind, last, batch)).all()
        if not rows:
            return
        last = rows[-1].key
        again = [
            (row.key, bytes(row.blob), blobs.pack(kind, row.owner, blobs.unpack(kind, row.owner, bytes(row.blob))))
            for row in rows
        ]
        with database.write() as connection:
            blobs.mark(connection)
            changed = _replace(connection, kind, again)
        if changed:
            database.request_scrub()
        yield changed


def _due(blobs: Blobs, kind: BlobKind, after: int, batch: int) -> sa.Select[int, str, bytes]:
    column = COLUMNS[kind]
    query = sa.select(column.key.label("key"), column.owner.label("owner"), column.blob.label("blob"))
    query = query.where((column.key > after) & blobs.is_due(kind))
    if column.owner.table is not column.blob.table:
        query = query.join_from(column.blob.table, FACES)
    return query.order_by(column.key).limit(batch)


def _replace(connection: Connection, kind: BlobKind, rows: list[tuple[int, bytes, bytes]]) -> int:
    """Replace the blobs that haven't changed; skip rows that others have locked, so that nobody waits in a circle."""
    key, column = COLUMNS[kind].key, COLUMNS[kind].blob
    query = sa.select(key).where(key.in_([one for one, _, _ in rows])).order_by(key)
    free = set(connection.execute(query.with_for_update(skip_locked=True)).scalars())
    changed = 0
    for one, old, new in rows:
        if one in free:
            update = sa.update(column.table).where((key == one) & (column == old)).values({column.name: new})
            changed += connection.execute(update).rowcount
    return changed


def _unmark(connection: Connection, name: str) -> None:
    """Remove a key's mark if nothing is sealed with it; writers lock the mark until they commit."""
    connection.execute(sa.select(SECRETS.c.name).where(SECRETS.c.name == name).with_for_update())
    header = bytes([FORMAT]) + bytes.fromhex(name.removeprefix(MARK_PREFIX))
    for column in COLUMNS.values():
        rows = sa.select(sa.literal(1)).select_from(column.blob.table)
        used = rows.where(column.is_sealed & (column.head == header)).limit(1)
        if connection.execute(used).scalar() is not None:
            return
    connection.execute(sa.delete(SECRETS).where(SECRETS.c.name == name))
