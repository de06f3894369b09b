"""Reads faces and change logs for the search indexes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts
from app.db.schema import FACES
from app.db.sealed_columns import Blobs
from app.gallery import change_log
from app.gallery.gallery_rows import GALLERY_ROWS, template_plan
from app.gallery.records import index_specs, to_block
from app.gallery.templates import join_templates, template_column
from app.search.types import Changes, FaceBlock, GalleryState, IndexSpec, LogPosition

STREAM_ROWS = 10_000


class ChangeReader:
    """Implements `app.search.types.FaceSource`. Every call may also raise what `Database` does."""

    def __init__(self, database: Database, blobs: Blobs) -> None:
        self._database = database
        self._blobs = blobs

    def states(self) -> dict[int, GalleryState]:
        """Return the state of every gallery, by its key."""
        with self._database.read() as connection:
            rows = connection.execute(GALLERY_ROWS).all()
        return {
            row.key: GalleryState(
                LogPosition(row.last_change, row.last_stamp),
                index_specs(row.key, row.id, template_plan(row), row.search),
            )
            for row in rows
        }

    def head(self, spec: IndexSpec) -> LogPosition | None:
        """Return where the change log ends; None if the gallery is gone."""
        with self._database.read() as connection:
            return change_log.head(connection, spec.key.gallery)

    def log_start(self, spec: IndexSpec) -> LogPosition | None:
        """Return the first position from which the change log can be read; None if the gallery is gone."""
        with self._database.read() as connection:
            return change_log.start(connection, spec.key.gallery)

    def changes(
        self, spec: IndexSpec, since: LogPosition, limit: int, until: LogPosition | None = None
    ) -> Changes | None:
        """Return the changes after `since` (see `app.gallery.change_log.read`)."""
        with self._database.read() as connection:
            return change_log.read(connection, spec, since, limit, until, blobs=self._blobs)

    @contextmanager
    def read_all(self, spec: IndexSpec) -> Iterator[tuple[LogPosition, Iterator[FaceBlock]]]:
        """Yield the log's end and all faces in order of their keys, STREAM_ROWS at a time, both as of one moment.

        Raises GalleryNotFound; Unusable ``template_damaged``.
        """
        with self._database.read(one_moment=True) as connection:
            position = change_log.head(connection, spec.key.gallery)
            if position is None:
                raise spec.not_found()
            yield position, _blocks(connection, self._blobs, spec)

    def faces_of(self, spec: IndexSpec, subjects: Sequence[int]) -> FaceBlock | None:
        """Return all faces of these subjects in order of their keys; None if they have none.

        Raises Unusable ``template_damaged``.
        """
        query = _faces(spec)
        rows: list[Row[Any]] = []
        with self._database.read() as connection:
            for some in in_parts(subjects):
                rows += connection.execute(query.where(FACES.c.subject_key.in_(some))).all()
        rows.sort(key=lambda row: row[0])
        return to_block(_opened(rows, self._blobs), spec.dimension) if rows else None

    def existing(self, faces: Sequence[int]) -> set[int]:
        """Return those of the faces that still exist."""
        found: set[int] = set()
        with self._database.read() as connection:
            for some in in_parts(faces):
                found.update(connection.execute(sa.select(FACES.c.key).where(FACES.c.key.in_(some))).scalars())
        return found

    def count(self, spec: IndexSpec) -> tuple[int, int]:
        """Count the subjects with a face to search, and the faces."""
        counts = (sa.func.count(sa.distinct(FACES.c.subject_key)), sa.func.count())
        with self._database.read() as connection:
            subjects, faces = connection.execute(_faces(spec).with_only_columns(*counts)).one()
        return subjects, faces


def _faces(spec: IndexSpec) -> sa.Select[Any]:
    """Select what `_opened` takes."""
    template = template_column(spec.key.package)
    columns = (FACES.c.key, FACES.c.subject_key, FACES.c.quality, FACES.c.face_id, template.label("template"))
    query = sa.select(*columns).select_from(join_templates(FACES, spec.key.package))
    return query.where((FACES.c.gallery_key == spec.key.gallery) & template.is_not(None))


def _opened(rows: Iterable[Sequence[Any]], blobs: Blobs) -> list[tuple[int, int, float, bytes]]:
    """Decrypt the templates; return what `to_block` takes."""
    return [
        (key, subject, quality, blobs.unpack("template", face_id, template))
        for key, subject, quality, face_id, template in rows
    ]


def _blocks(connection: Connection, blobs: Blobs, spec: IndexSpec) -> Iterator[FaceBlock]:
    query = _faces(spec).order_by(FACES.c.key)
    with connection.execution_options(yield_per=STREAM_ROWS).execute(query) as result:
        for rows in result.partitions():
            yield to_block(_opened(rows, blobs), spec.dimension)
