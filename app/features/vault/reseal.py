"""Rewrite encrypted columns with another key, or without encryption, while servers use the database.

Each batch is a short transaction. The work can be stopped and continued, since every blob names its key. Blobs that
were changed or deleted meanwhile are skipped. The content stays the same, so indexes need not change.
"""

from __future__ import annotations

from collections.abc import Iterator

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.encryption import FORMAT, Sealer
from app.db.engine import Database
from app.db.schema import FACES, SECRETS
from app.db.sealed_columns import MARK_PREFIX, SEALED_COLUMNS, BlobKind, Blobs, marks
from app.db.secrets import IS_SECRET, purpose_of

BATCH = 500
PLAIN = "plain"


def census(database: Database) -> dict[str, dict[BlobKind, int]]:
    """Return the numbers of blobs, by the id of their key (or PLAIN) and by their kind. Reads every row."""
    counts: dict[str, dict[BlobKind, int]] = {}
    with database.read() as connection:
        for kind, column in SEALED_COLUMNS.items():
            head = sa.case((column.is_sealed, column.head))
            query = sa.select(head.label("head"), sa.func.count()).select_from(column.blob.table)
            query = query.where(column.blob.is_not(None)).group_by("head")
            for mark, count in connection.execute(query):
                name = PLAIN if mark is None else bytes(mark)[1:].hex()
                counts.setdefault(name, dict.fromkeys(SEALED_COLUMNS, 0))[kind] += count
    return counts


def reseal(database: Database, blobs: Blobs, *, batch: int = BATCH) -> Iterator[int]:
    """Rewrite all blobs as `blobs` would store them now, then remove the marks of keys that are no longer used.

    Yield the number of rewritten blobs after each batch. Raises Unusable ``sealed_unreadable``.
    """
    for kind in SEALED_COLUMNS:
        yield from _reseal_kind(database, blobs, kind, batch)
    with database.write() as connection:
        for name in marks(connection):
            if name != MARK_PREFIX + (blobs.key_id or ""):
                _unmark(connection, name)
    database.request_scrub()


def seal_job_keys(database: Database, blobs: Blobs) -> int:
    """Rewrite the keys of jobs' files as `blobs` would store them now; return their number.

    Versions before 0.2.0 stored them unencrypted. There are few, since jobs are deleted soon after they finish.
    """
    return sum(_reseal_kind(database, blobs, "job", BATCH))


def _reseal_kind(database: Database, blobs: Blobs, kind: BlobKind, batch: int) -> Iterator[int]:
    key, owner, blob = SEALED_COLUMNS[kind].key, SEALED_COLUMNS[kind].owner, SEALED_COLUMNS[kind].blob
    query = sa.select(key.label("key"), owner.label("owner"), blob.label("blob")).where(blobs.is_due(kind))
    if owner.table is not blob.table:
        query = query.join_from(blob.table, FACES)
    query = query.order_by(key).limit(batch)
    last = made = 0
    while True:
        with database.read() as connection:
            rows = connection.execute(query.where(key > last)).all()
        if not rows and not made:
            return
        if not rows:  # one more pass from the beginning, since a pass skips rows that others have locked
            last = made = 0
            continue
        last = rows[-1].key
        changed = 0
        with database.write() as connection:
            blobs.mark(connection)
            # Rows that others have locked are skipped, so that there can be no deadlock.
            free = sa.select(key).where(key.in_([row.key for row in rows])).order_by(key)
            unlocked = set(connection.execute(free.with_for_update(skip_locked=True)).scalars())
            for row in (row for row in rows if row.key in unlocked):
                new = blobs.pack(kind, row.owner, blobs.unpack(kind, row.owner, bytes(row.blob)))
                update = sa.update(blob.table).where((key == row.key) & (blob == row.blob)).values({blob.name: new})
                changed += connection.execute(update).rowcount
        made += changed
        if changed:
            database.request_scrub()
        yield changed


def _unmark(connection: Connection, name: str) -> None:
    """Remove a key's mark if nothing is encrypted with the key. Writers lock the mark until they commit."""
    connection.execute(sa.select(SECRETS.c.name).where(SECRETS.c.name == name).with_for_update())
    header = bytes([FORMAT]) + bytes.fromhex(name.removeprefix(MARK_PREFIX))
    for column in SEALED_COLUMNS.values():
        rows = sa.select(sa.literal(1)).select_from(column.blob.table)
        used = rows.where(column.is_sealed & (column.head == header)).limit(1)
        if connection.execute(used).scalar() is not None:
            return
    connection.execute(sa.delete(SECRETS).where(SECRETS.c.name == name))


def reseal_secrets(database: Database, sealer: Sealer) -> int:
    """Encrypt with the ring's first key the server's secrets that are encrypted with another key; return their
    number."""
    with database.write() as connection:
        rows = connection.execute(sa.select(SECRETS).where(IS_SECRET).order_by(SECRETS.c.name).with_for_update()).all()
        stale = [row for row in rows if not bytes(row.sealed).startswith(sealer.mark)]
        for row in stale:
            purpose = purpose_of(row.name)
            sealed = sealer.seal(sealer.open(bytes(row.sealed), purpose), purpose)
            connection.execute(sa.update(SECRETS).where(SECRETS.c.name == row.name).values(sealed=sealed))
    database.request_scrub()
    return len(stale)
