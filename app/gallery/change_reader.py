"""What an index is built from and follows: all faces at one moment, and what changed since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts
from app.db.schema import FACES, REEMBEDDINGS
from app.db.sealed_columns import Blobs
from app.gallery import change_log
from app.gallery.gallery_rows import GALLERY_ROWS, template_plan, to_gallery
from app.gallery.records import (
    Changes,
    Counts,
    FaceBlock,
    Gallery,
    GalleryState,
    Position,
    gallery_not_found,
    to_block,
)
from app.gallery.templates import join_templates, template_column

STREAM_ROWS = 10_000


class Feed:
    """Reads only; safe to share between threads. Every call may also raise what `Database` does."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    @contextmanager
    def moment(self, gallery: Gallery) -> Iterator[tuple[Position, Iterator[FaceBlock]]]:
        """All the gallery's faces as one moment saw them, in order of their keys, STREAM_ROWS at a time, and how far
        the change log was at that moment. Raises NotFound ``gallery_not_found``, Unusable ``template_damaged``."""
        with self._database.read(one_moment=True) as connection:
            position = change_log.head(connection, gallery.key)
            if position is None:
                raise gallery_not_found(gallery.id)
            yield position, _blocks(connection, self._blobs, gallery)

    def changes(self, gallery: Gallery, since: Position, limit: int, until: int | None = None) -> Changes | None:
        """See `app.gallery.change_log.read`."""
        with self._database.read() as connection:
            return change_log.read(connection, gallery, since, limit, until, blobs=self._blobs)

    def log_start(self, gallery: Gallery) -> Position | None:
        """The first position that the gallery's change log still leads on from; None where the gallery is gone."""
        with self._database.read() as connection:
            return change_log.start(connection, gallery.key)

    def faces_of(self, gallery: Gallery, subject_keys: Sequence[int]) -> FaceBlock | None:
        """All faces of these subjects, in order of their keys; None where there are none.

        Raises Unusable ``template_damaged``."""
        query = _block_query(gallery)
        rows: list[Row[Any]] = []
        with self._database.read() as connection:
            for some in in_parts(subject_keys):
                rows += connection.execute(query.where(FACES.c.subject_key.in_(some))).all()
        rows.sort(key=lambda row: row[0])
        return to_block(_opened(rows, self._blobs), gallery.dimension) if rows else None

    def existing(self, face_keys: Sequence[int]) -> set[int]:
        """Those of the faces that there (still) are."""
        found: set[int] = set()
        with self._database.read() as connection:
            for some in in_parts(face_keys):
                found.update(connection.execute(sa.select(FACES.c.key).where(FACES.c.key.in_(some))).scalars())
        return found

    def indexable(self, gallery: Gallery) -> Counts:
        """How many faces there are to search, of how many subjects: counts rows."""
        counts = (sa.func.count(sa.distinct(FACES.c.subject_key)), sa.func.count())
        with self._database.read() as connection:
            return Counts(*connection.execute(_block_query(gallery).with_only_columns(*counts)).one())

    def heads(self) -> dict[int, Position]:
        """How far each gallery's change log is, by the gallery's key."""
        with self._database.read() as connection:
            return change_log.heads(connection)

    def reembedded(self) -> list[Gallery]:
        """Return the galleries that are being re-embedded."""
        with self._database.read() as connection:
            rows = connection.execute(GALLERY_ROWS.where(REEMBEDDINGS.c.state.is_not(None))).all()
        return [to_gallery(row) for row in rows]

    def states(self) -> dict[int, GalleryState]:
        """Return what every process has to follow, by the gallery's key."""
        with self._database.read() as connection:
            rows = connection.execute(GALLERY_ROWS).all()
        return {
            row.key: GalleryState(Position(row.last_change, row.last_stamp), template_plan(row), row.search)
            for row in rows
        }


def _block_query(gallery: Gallery) -> sa.Select[Any]:
    """What `_opened` takes."""
    template = template_column(gallery.embedder)
    columns = (FACES.c.key, FACES.c.subject_key, FACES.c.quality, FACES.c.face_id, template.label("template"))
    query = sa.select(*columns).select_from(join_templates(FACES, gallery.embedder))
    return query.where((FACES.c.gallery_key == gallery.key) & template.is_not(None))


def _opened(rows: Iterable[Sequence[Any]], blobs: Blobs) -> list[tuple[int, int, float, bytes]]:
    """What `to_block` takes."""
    return [
        (key, subject, quality, blobs.unpack("template", face_id, template))
        for key, subject, quality, face_id, template in rows
    ]


def _blocks(connection: Connection, blobs: Blobs, gallery: Gallery) -> Iterator[FaceBlock]:
    query = _block_query(gallery).order_by(FACES.c.key)
    with connection.execution_options(yield_per=STREAM_ROWS).execute(query) as result:
        for rows in result.partitions():
            yield to_block(_opened(rows, blobs), gallery.dimension)
