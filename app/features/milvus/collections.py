"""The list, in SQL, of this database's collections in Milvus, with each one's gallery, package and state.

A collection is listed before it is made in Milvus, and unlisted after it is dropped there. So no collection is
forgotten if a server dies in between, and other databases' collections are never touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from app.db.engine import Database, select_in
from app.db.schema import CHANGES, COLLECTIONS, FACES, GALLERIES, REEMBEDDINGS
from app.errors import GalleryNotFound
from app.search.types import IndexKey, IndexSpec, LogPosition
from app.types import utc_now

MAKING, CURRENT, OLD = "making", "current", "old"
PREFIX = "likeness_"


class Collections:
    """The list of one database's collections on `server`, the Milvus's name without secrets. Safe to share between
    threads."""

    def __init__(self, database: Database, server: str) -> None:
        self._database = database
        self._server = server

    def current(self, key: IndexKey) -> str | None:
        """Return the name of the collection that is searched for this index now; None if there is none."""
        query = sa.select(COLLECTIONS.c.name).where(self._current(key))
        with self._database.read() as connection:
            name: str | None = connection.execute(query).scalar()
        return name

    def begin(self, key: IndexKey) -> str:
        """Record that a new collection is being made for this index; return its name."""
        name = PREFIX + uuid.uuid4().hex
        values = {
            "name": name,
            "server": self._server,
            "gallery_key": key.gallery,
            "package": key.package,
            "generation": key.generation,
            "state": MAKING,
            "touched_at": utc_now(),
        }
        with self._database.write() as connection:
            connection.execute(sa.insert(COLLECTIONS).values(values))
        return name

    def touch(self, name: str) -> None:
        """Note that the collection is still being made."""
        with self._database.write() as connection:
            connection.execute(sa.update(COLLECTIONS).where(COLLECTIONS.c.name == name).values(touched_at=utc_now()))

    def switch(self, spec: IndexSpec, name: str) -> None:
        """Make the collection `name` the one that is searched for this index. Raises GalleryNotFound."""
        c = COLLECTIONS.c
        held = sa.select(GALLERIES.c.key).where(GALLERIES.c.key == spec.key.gallery).with_for_update()
        others = self._current(spec.key)
        with self._database.write() as connection:
            if connection.execute(held).one_or_none() is None:
                raise GalleryNotFound.of(spec.gallery_id)
            connection.execute(sa.update(COLLECTIONS).where(others).values(state=OLD, touched_at=utc_now()))
            connection.execute(sa.update(COLLECTIONS).where(c.name == name).values(state=CURRENT, touched_at=utc_now()))

    def unwanted(self, *, replaced: timedelta, abandoned: timedelta) -> Sequence[str]:
        """Return the collections to drop: those of deleted galleries, those of packages that their gallery no longer
        uses, those that were replaced more than `replaced` ago, and unfinished ones that nobody has worked on for
        `abandoned`."""
        c = COLLECTIONS.c
        current = (GALLERIES.c.embedder == c.package) & (GALLERIES.c.generation == c.generation)
        current &= GALLERIES.c.key == c.gallery_key
        source = (REEMBEDDINGS.c.source == c.package) & (REEMBEDDINGS.c.source_generation == c.generation)
        target = (REEMBEDDINGS.c.target == c.package) & (REEMBEDDINGS.c.target_generation == c.generation)
        moving = (REEMBEDDINGS.c.gallery_key == c.gallery_key) & (source | target)
        orphaned = sa.not_(sa.exists().where(current)) & sa.not_(sa.exists().where(moving))
        late = ((c.state == OLD) & (c.touched_at < utc_now(-replaced))) | (
            (c.state == MAKING) & (c.touched_at < utc_now(-abandoned))
        )
        return self._database.column(sa.select(c.name).where((c.server == self._server) & (orphaned | late)))

    def orphans(self, gallery: int) -> Sequence[str]:
        """Return the gallery's collections if the gallery was deleted; none otherwise."""
        c = COLLECTIONS.c
        mine = (c.server == self._server) & (c.gallery_key == gallery)
        return self._database.column(sa.select(c.name).where(mine & c.gallery_key.not_in(sa.select(GALLERIES.c.key))))

    def log_start(self, gallery: int) -> LogPosition | None:
        """Return the position from which on a gallery's change log can be read; None if the gallery is gone."""
        query = sa.select(CHANGES.c.number, CHANGES.c.stamp).where(CHANGES.c.gallery_key == gallery)
        rows = self._database.rows(query.order_by(CHANGES.c.number).limit(1))
        return LogPosition(*rows[0]) if rows else None

    def owners(self, faces: Sequence[int]) -> dict[int, int]:
        """Return the subjects' keys by the faces' keys, for the faces that still exist."""
        query = sa.select(FACES.c.key, FACES.c.subject_key)
        with self._database.read() as connection:
            return {row.key: row.subject_key for row in select_in(connection, query, FACES.c.key, faces)}

    def _current(self, key: IndexKey) -> sa.ColumnElement[bool]:
        c = COLLECTIONS.c
        mine = (c.server == self._server) & (c.gallery_key == key.gallery) & (c.package == key.package)
        return mine & (c.generation == key.generation) & (c.state == CURRENT)

    def forget(self, name: str) -> None:
        """Remove a dropped collection from the list."""
        with self._database.write() as connection:
            connection.execute(sa.delete(COLLECTIONS).where(COLLECTIONS.c.name == name))
