"""The change log: what happened to each gallery's faces, numbered without gaps, so that every process can follow it.

Written in the transaction of the change itself. The gallery's row hands out the numbers and stays locked until that
transaction ends: a number is only ever seen when all lower ones can be seen too. Entries hold keys, never a template
or a name. The last entry of a gallery is never pruned: a position is known by it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.schema import CHANGES, FACES, GALLERIES
from app.db.sealed_columns import Blobs
from app.gallery.records import to_block
from app.gallery.templates import join_templates, template_column
from app.search.types import Changes, FaceBlock, IndexSpec, LogPosition, Removed

BEGIN, ADD, REMOVE, REMOVE_SUBJECT, ERASE = "begin", "add", "remove", "subject", "erase"
STAMP_BITS = 63
MAX_NUMBER = 2**63 - 1
_BUMP = (
    sa.update(GALLERIES)
    .where(GALLERIES.c.key == sa.bindparam("gallery"))
    .values(last_change=GALLERIES.c.last_change + sa.bindparam("count"), last_stamp=sa.bindparam("stamp"))
    .returning(GALLERIES.c.last_change)
)
_INSERT = sa.insert(CHANGES)


def _reading() -> sa.Select[Any]:
    package = sa.bindparam("package", type_=FACES.c.package.type)
    faces = sa.and_(CHANGES.c.kind == ADD, FACES.c.key == CHANGES.c.face_key)
    return (
        sa.select(CHANGES, FACES.c.quality, FACES.c.face_id, template_column(package).label("template"))
        .select_from(join_templates(CHANGES.outerjoin(FACES, faces), package))
        .where(CHANGES.c.gallery_key == sa.bindparam("gallery"))
        .where(CHANGES.c.number.between(sa.bindparam("since"), sa.bindparam("until")))
        .order_by(CHANGES.c.number)
        .limit(sa.bindparam("limit"))
    )


_READ = _reading()


def begin_stamp() -> int:
    """What a new gallery's row takes as its `last_stamp`."""
    return secrets.randbits(STAMP_BITS)


def begin(connection: Connection, gallery_key: int, stamp: int, now: str) -> None:
    """The log's entry 0, of a gallery just made."""
    values = {"gallery_key": gallery_key, "number": 0, "stamp": stamp, "kind": BEGIN, "created_at": now}
    connection.execute(sa.insert(CHANGES).values(values))


def record(
    connection: Connection, gallery_key: int, kind: str, *, subject_key: int, faces: Sequence[int | None], now: str
) -> None:
    """One entry a face; to be the transaction's last write, since others that change the gallery wait from here on."""
    record_all(connection, gallery_key, [(kind, subject_key, face) for face in faces], now)


def record_all(
    connection: Connection, gallery_key: int, entries: Sequence[tuple[str, int, int | None]], now: str
) -> None:
    """The same for entries of different kinds and subjects, in order: kind, subject's key, face's key."""
    stamp = begin_stamp()
    new = {"gallery": gallery_key, "count": len(entries), "stamp": stamp}
    last: int = connection.execute(_BUMP, new).scalar_one()
    values = [
        {
            "gallery_key": gallery_key,
            "number": number,
            "stamp": stamp,
            "kind": kind,
            "subject_key": subject,
            "face_key": face,
            "created_at": now,
        }
        for number, (kind, subject, face) in enumerate(entries, last - len(entries) + 1)
    ]
    connection.execute(_INSERT, values)


def head(connection: Connection, gallery_key: int) -> LogPosition | None:
    """Where the gallery's log ends; None where there is no such gallery."""
    query = sa.select(GALLERIES.c.last_change, GALLERIES.c.last_stamp).where(GALLERIES.c.key == gallery_key)
    row = connection.execute(query).one_or_none()
    return LogPosition(*row) if row else None


def start(connection: Connection, gallery_key: int) -> LogPosition | None:
    """Where the gallery's log begins, after what was pruned; None where there is no such gallery."""
    query = sa.select(CHANGES.c.number, CHANGES.c.stamp).where(CHANGES.c.gallery_key == gallery_key)
    row = connection.execute(query.order_by(CHANGES.c.number).limit(1)).one_or_none()
    return LogPosition(*row) if row else None


def read(
    connection: Connection,
    spec: IndexSpec,
    since: LogPosition,
    limit: int,
    until: LogPosition | None = None,
    *,
    blobs: Blobs,
) -> Changes | None:
    """Return up to `limit` changes after `since`, none after `until`.

    None if the log doesn't continue `since`: it was pruned, it is another history, or the gallery is gone.
    A face that was added and is gone by now is left out; its removal comes later. So is a face without a template of
    the package. One statement, so one moment.
    """
    wanted = {
        "gallery": spec.key.gallery,
        "package": spec.key.package,
        "since": since.number,
        "until": MAX_NUMBER if until is None else until.number,
        "limit": limit + 2,
    }
    rows = connection.execute(_READ, wanted).all()
    if not rows or LogPosition(rows[0].number, rows[0].stamp) != since:
        return None
    if rows[-1].number - since.number != len(rows) - 1:
        return None
    some = rows[: limit + 1]
    return Changes(
        _steps(some[1:], spec.dimension, blobs), LogPosition(some[-1].number, some[-1].stamp), len(rows) > len(some)
    )


def prune(connection: Connection, before: str) -> int:
    """Removes entries older than `before`, but each gallery's last; says how many."""
    last = sa.select(GALLERIES.c.last_change).where(GALLERIES.c.key == CHANGES.c.gallery_key).scalar_subquery()
    old = sa.delete(CHANGES).where((CHANGES.c.created_at < before) & (CHANGES.c.number < last))
    return connection.execute(old).rowcount


def _steps(rows: Sequence[Row[Any]], dimension: int, blobs: Blobs) -> tuple[FaceBlock | Removed, ...]:
    """Additions that follow each other become one block."""
    steps: list[FaceBlock | Removed] = []
    for kind, group in groupby(rows, key=lambda row: row.kind):
        if kind == ADD:
            there = [
                (row.face_key, row.subject_key, row.quality, blobs.unpack("template", row.face_id, row.template))
                for row in group
                if row.template is not None
            ]
            steps += [to_block(there, dimension)] if there else []
        else:
            steps += [Removed(row.subject_key, row.face_key, kind == ERASE) for row in group]
    return tuple(steps)
