"""Change a gallery in a transaction that locks it, and log the change for every process to follow.

`app.gallery.service.Galleries.change` opens a change; `Store.change` does for changes that no index follows. Locks are
always taken in the same order: the index's lock, the transaction, the gallery's row. The row's lock excludes all other
writers to the gallery's subjects and faces, so there are no deadlocks, and changes don't mix.

Functions over a `Change` make all changes (`app.gallery.subjects`); several of them may share one. An exception undoes
everything. The answer to a request with a token is stored in the same transaction, so that a repeated request gets the
same answer and changes nothing.

The log's entries are numbered without gaps and written in the transaction of the change itself. The gallery's row holds
the last number and stays locked until that transaction ends, so a number becomes visible only after all lower ones.
Entries hold keys, never a template or a name. A gallery's last entry is never pruned, since it marks the log's end.
`ChangeReader` reads the log, and faces, for the search indexes.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, select_in
from app.db.opening import Inserting
from app.db.schema import CHANGES, FACES, GALLERIES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import GalleryNotFound, PackageMismatch
from app.gallery.records import (
    GALLERY_ROWS,
    Gallery,
    is_unnamed_row,
    join_templates,
    template_column,
    template_sets,
    to_block,
)
from app.search.types import Changes, FaceBlock, GalleryState, IndexSpec, LogPosition, Moved, Removed, Step
from app.types import Sizes, utc_now

BEGIN, ADD, MOVE, REMOVE, REMOVE_SUBJECT, ERASE = "begin", "add", "move", "remove", "subject", "erase"
STAMP_BITS = 63
Entry: TypeAlias = tuple[str, int, int | None]
"""The kind of change, the subject's key (of a MOVE the new one), and the face's key or None for all."""
MAX_NUMBER = 2**63 - 1
STREAM_ROWS = 10_000
"""Number of faces read at a time when an index is built."""
_BUMP = (
    sa.update(GALLERIES)
    .where(GALLERIES.c.key == sa.bindparam("gallery"))
    .values(last_change=GALLERIES.c.last_change + sa.bindparam("count"), last_stamp=sa.bindparam("stamp"))
    .returning(GALLERIES.c.last_change)
)
_INSERT = sa.insert(CHANGES)


@dataclass(eq=False, slots=True)
class Change:
    """An open transaction that holds the lock of the gallery."""

    gallery: Gallery
    """The gallery as of this transaction."""
    connection: Connection
    insert: Inserting
    """INSERT with ON CONFLICT, in the database's dialect."""
    blobs: Blobs
    max_metadata_bytes: int
    now: str = field(default_factory=utc_now)
    overwrites: bool = False
    """Whether something is deleted or replaced, so that SQLite's files must be scrubbed."""
    entries: list[Entry] = field(default_factory=list)
    """The entries to write to the change log at the end."""

    def log(self, kind: str, faces: Iterable[tuple[int, int | None]]) -> None:
        """Note a change of these faces, given by subject key and face key (None: all of the subject's)."""
        self.overwrites |= kind != ADD
        self.entries += [(kind, subject, face) for subject, face in faces]


def begin_log(connection: Connection, gallery_key: int, stamp: int, now: str) -> None:
    """Write entry 0 of a new gallery."""
    values = {"gallery_key": gallery_key, "number": 0, "stamp": stamp, "kind": BEGIN, "created_at": now}
    connection.execute(sa.insert(CHANGES).values(values))


def record_changes(change: Change) -> None:
    """Write the change's entries to the log. From here on other writers to the gallery wait."""
    gallery, entries, stamp = change.gallery.key, change.entries, secrets.randbits(STAMP_BITS)
    new = {"gallery": gallery, "count": len(entries), "stamp": stamp}
    last: int = change.connection.execute(_BUMP, new).scalar_one()
    values = [
        {
            "gallery_key": gallery,
            "number": number,
            "stamp": stamp,
            "kind": kind,
            "subject_key": subject,
            "face_key": face,
            "created_at": change.now,
        }
        for number, (kind, subject, face) in enumerate(entries, last - len(entries) + 1)
    ]
    change.connection.execute(_INSERT, values)


def prune_log(connection: Connection, before: str) -> int:
    """Delete entries older than `before`, except each gallery's last; return how many."""
    last = sa.select(GALLERIES.c.last_change).where(GALLERIES.c.key == CHANGES.c.gallery_key).scalar_subquery()
    old = sa.delete(CHANGES).where((CHANGES.c.created_at < before) & (CHANGES.c.number < last))
    return connection.execute(old).rowcount


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
_STATE = GALLERY_ROWS.where(GALLERIES.c.key == sa.bindparam("gallery"))
_SNAPSHOT = sa.text("SELECT pg_current_snapshot()::text")


class ChangeReader:
    """Implements `app.search.types.FaceSource`, which describes the calls. They also raise what `Database` raises."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    def version(self) -> object:
        if self._database.is_sqlite:
            return self._database.version()
        with self._database.read() as connection:  # transactions with equal snapshots see the same
            return connection.execute(_SNAPSHOT).scalar_one()

    def states(self) -> dict[int, GalleryState]:
        return {
            row.key: GalleryState(LogPosition(row.last_change, row.last_stamp), template_sets(row)[0])
            for row in self._database.rows(GALLERY_ROWS)
        }

    def head(self, spec: IndexSpec) -> LogPosition | None:
        query = sa.select(GALLERIES.c.last_change, GALLERIES.c.last_stamp).where(GALLERIES.c.key == spec.key.gallery)
        rows = self._database.rows(query)
        return LogPosition(*rows[0]) if rows else None

    def changes(
        self, spec: IndexSpec, since: LogPosition, limit: int, until: LogPosition | None = None
    ) -> Changes | None:
        """Return up to `limit` entries after `since`, up to number `until`.

        Return None if the log has a gap after `since`: it was pruned, the database was restored, or the gallery is
        gone. Faces that have been removed since they were added are left out, since their removal follows; so are faces
        without a template of the gallery's package. A single statement reads everything, so the result is consistent.
        """
        wanted = {
            "gallery": spec.key.gallery,
            "package": spec.key.package,
            "since": since.number,
            "until": MAX_NUMBER if until is None else until.number,
            "limit": limit + 2,
        }
        rows = self._database.rows(_READ, wanted)
        if not rows or LogPosition(rows[0].number, rows[0].stamp) != since:
            return None
        if rows[-1].number - since.number != len(rows) - 1:
            return None
        some = rows[: limit + 1]
        steps = _steps(some[1:], spec.dimension, self._blobs)
        return Changes(steps, LogPosition(some[-1].number, some[-1].stamp), len(rows) > len(some))

    @contextmanager
    def read_all(self, spec: IndexSpec, *, named: bool = False) -> Iterator[tuple[LogPosition, Iterator[FaceBlock]]]:
        with self._database.read(one_moment=True) as connection:
            row = connection.execute(_STATE, {"gallery": spec.key.gallery}).one_or_none()
            if row is None:
                raise GalleryNotFound.of(spec.gallery_id)
            if spec.key not in (kept.key for templates in template_sets(row) for kept in templates):
                message = f"Gallery {spec.gallery_id!r} has no templates of {spec.key.package} any more."
                raise PackageMismatch(message, given=spec.key.package)
            position = LogPosition(row.last_change, row.last_stamp)
            query = _faces(spec, named=named).order_by(FACES.c.key)
            with connection.execution_options(yield_per=STREAM_ROWS).execute(query) as result:
                parts = result.partitions()
                yield position, (to_block(_opened(rows, self._blobs), spec.dimension) for rows in parts)

    def faces_of(self, spec: IndexSpec, subjects: Sequence[int]) -> FaceBlock | None:
        return self._some_faces(spec, FACES.c.subject_key, subjects)

    def faces_at(self, spec: IndexSpec, faces: Sequence[int]) -> FaceBlock | None:
        return self._some_faces(spec, FACES.c.key, faces)

    def sizes(self, spec: IndexSpec, *, named: bool = False) -> Sizes:
        faces = sa.func.count().label("faces")
        each = _faces(spec, named=named).with_only_columns(faces).group_by(FACES.c.subject_key).subquery()
        rows = self._database.rows(sa.select(each.c.faces, sa.func.count()).group_by(each.c.faces))
        return {row[0]: row[1] for row in rows}

    def _some_faces(self, spec: IndexSpec, column: sa.Column[Any], keys: Sequence[int]) -> FaceBlock | None:
        with self._database.read() as connection:
            rows = sorted(select_in(connection, _faces(spec), column, keys), key=lambda row: row.key)
        return to_block(_opened(rows, self._blobs), spec.dimension) if rows else None


def _faces(spec: IndexSpec, *, named: bool = False) -> sa.Select[Any]:
    template = template_column(spec.key.package)
    columns = (FACES.c.key, FACES.c.subject_key, FACES.c.quality, FACES.c.face_id, template.label("template"))
    query = sa.select(*columns).select_from(join_templates(FACES, spec.key.package))
    query = query.where((FACES.c.gallery_key == spec.key.gallery) & template.is_not(None))
    return query.join(SUBJECTS, FACES.c.subject_key == SUBJECTS.c.key).where(~is_unnamed_row()) if named else query


def _opened(rows: Iterable[Sequence[Any]], blobs: Blobs) -> list[tuple[int, int, float, bytes]]:
    """Decrypt the templates; return the rows for `to_block`."""
    return [
        (key, subject, quality, blobs.unpack("template", face_id, template))
        for key, subject, quality, face_id, template in rows
    ]


def _steps(rows: Sequence[Row[Any]], dimension: int, blobs: Blobs) -> tuple[Step, ...]:
    """Convert the entries; consecutive additions become one block, and so do moves."""
    steps: list[Step] = []
    for kind, group in groupby(rows, key=attrgetter("kind")):
        if kind == ADD:
            there = [
                (row.face_key, row.subject_key, row.quality, blobs.unpack("template", row.face_id, row.template))
                for row in group
                if row.template is not None
            ]
            steps += [to_block(there, dimension)] if there else []
        elif kind == MOVE:
            moves = {row.face_key: row.subject_key for row in group}  # for a face that moved twice, the last move
            steps.append(Moved(np.array(list(moves), np.int64), np.array(list(moves.values()), np.int64)))
        else:
            steps += [Removed(row.subject_key, row.face_key, kind == ERASE) for row in group]
    return tuple(steps)
