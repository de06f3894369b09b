"""Keep a gallery's dismissals: somebody marked a finding as right, so reviews don't list it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import Database, select_in
from app.db.schema import DISMISSALS, FACES
from app.gallery.records import Gallery, lock_gallery


@dataclass(frozen=True, slots=True)
class Dismissal:
    """A finding that somebody marked as right, by its faces' ids."""

    kind: str
    """The finding's kind (`app.choices.FindingKind`)."""
    face_id: str
    other_face_id: str | None
    created_at: str


def read(database: Database, gallery: Gallery) -> list[Dismissal]:
    """Return the gallery's dismissals, for an export."""
    query = sa.select(DISMISSALS).where(DISMISSALS.c.gallery_key == gallery.key).order_by(DISMISSALS.c.key)
    return [Dismissal(row.kind, row.face_id, row.other_face_id, row.created_at) for row in database.rows(query)]


def restore(
    database: Database, gallery: Gallery, dismissals: Sequence[Dismissal], also: Callable[[Connection], None]
) -> None:
    """Add exported dismissals, except those about faces that the gallery doesn't have; `also` writes in the same
    transaction."""
    with database.write() as connection:
        lock_gallery(connection, gallery)
        ids = {
            face
            for dismissal in dismissals
            for face in (dismissal.face_id, dismissal.other_face_id)
            if face is not None
        }
        query = sa.select(FACES.c.face_id).where(FACES.c.gallery_key == gallery.key)
        there = {None, *(row.face_id for row in select_in(connection, query, FACES.c.face_id, ids))}
        for dismissal in dismissals:
            if dismissal.face_id in there and dismissal.other_face_id in there:
                remember(connection, gallery, dismissal)
        also(connection)


def remember(connection: Connection, gallery: Gallery, dismissal: Dismissal) -> None:
    forget(connection, gallery, dismissal)
    connection.execute(sa.insert(DISMISSALS).values(asdict(dismissal) | {"gallery_key": gallery.key}))


def forget(connection: Connection, gallery: Gallery, dismissal: Dismissal) -> None:
    same = (
        (DISMISSALS.c.gallery_key == gallery.key)
        & (DISMISSALS.c.kind == dismissal.kind)
        & (DISMISSALS.c.face_id == dismissal.face_id)
        & DISMISSALS.c.other_face_id.is_not_distinct_from(dismissal.other_face_id)
    )
    connection.execute(sa.delete(DISMISSALS).where(same))
