"""Which of a Milvus's collections are this database's, and what each is for.

A collection is entered here before it is made there, and struck out after it was dropped there: whoever dies in
between, none is forgotten, and none of another database's is touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import timedelta

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import COLLECTIONS, GALLERIES, REEMBEDDINGS
from app.gallery.records import Gallery, gallery_not_found
from app.timestamps import utc_now

MAKING, CURRENT, OLD = "making", "current", "old"
PREFIX = "likeness_"


class Catalogue:
    """Of one database's collections on `server`, a name of it that holds no secrets; safe to share between threads."""

    def __init__(self, database: Database, server: str) -> None:
        self._database = database
        self._server = server

    def current(self, gallery: Gallery) -> str | None:
        """The name of the collection that is searched for the gallery, as seen by one package, now."""
        query = sa.select(COLLECTIONS.c.name).where(self._current(gallery))
        with self._database.read() as connection:
            name: str | None = connection.execute(query).scalar()
        return name

    def begin(self, gallery: Gallery) -> str:
        """The name, never used before, of a collection to be made for the gallery."""
        name = PREFIX + uuid.uuid4().hex
        values = {
            "name": name,
            "server": self._server,
            "gallery_key": gallery.key,
            "package": gallery.embedder,
            "generation": gallery.generation,
            "state": MAKING,
            "touched_at": utc_now(),
        }
        with self._database.write() as connection:
            connection.execute(sa.insert(COLLECTIONS).values(values))
        return name

    def touch(self, name: str) -> None:
        """It is still being made."""
        with self._database.write() as connection:
            connection.execute(sa.update(COLLECTIONS).where(COLLECTIONS.c.name == name).values(touched_at=utc_now()))

    def switch(self, gallery: Gallery, name: str) -> None:
        """From now on `name` is searched for the gallery. Raises NotFound ``gallery_not_found``."""
        c = COLLECTIONS.c
        held = sa.select(GALLERIES.c.key).where(GALLERIES.c.key == gallery.key).with_for_update()
        others = self._current(gallery)
        with self._database.write() as connection:
            if connection.execute(held).one_or_none() is None:
                raise gallery_not_found(gallery.id)
            connection.execute(sa.update(COLLECTIONS).where(others).values(state=OLD, touched_at=utc_now()))
            connection.execute(sa.update(COLLECTIONS).where(c.name == name).values(state=CURRENT, touched_at=utc_now()))

    def unwanted(self, *, replaced: timedelta, abandoned: timedelta) -> Sequence[str]:
        """Collections to drop: of galleries that are gone, of packages that a gallery has left, `replaced` so long ago,
        or of whose making nothing was heard for as long as `abandoned`."""
        c = COLLECTIONS.c
        own = (GALLERIES.c.embedder == c.package) & (GALLERIES.c.generation == c.generation)
        own &= GALLERIES.c.key == c.gallery_key
        source = (REEMBEDDINGS.c.source == c.package) & (REEMBEDDINGS.c.source_generation == c.generation)
        target = (REEMBEDDINGS.c.target == c.package) & (REEMBEDDINGS.c.target_generation == c.generation)
        moving = (REEMBEDDINGS.c.gallery_key == c.gallery_key) & (source | target)
        orphaned = sa.not_(sa.exists().where(own)) & sa.not_(sa.exists().where(moving))
        late = ((c.state == OLD) & (c.touched_at < utc_now(-replaced))) | (
            (c.state == MAKING) & (c.touched_at < utc_now(-abandoned))
        )
        with self._database.read() as connection:
            query = sa.select(c.name).where((c.server == self._server) & (orphaned | late))
            return list(connection.execute(query).scalars())

    def orphans(self, gallery_key: int) -> Sequence[str]:
        """The gallery's collections, where there is no such gallery any more."""
        c = COLLECTIONS.c
        mine = (c.server == self._server) & (c.gallery_key == gallery_key)
        query = sa.select(c.name).where(mine & c.gallery_key.not_in(sa.select(GALLERIES.c.key)))
        with self._database.read() as connection:
            return list(connection.execute(query).scalars())

    def _current(self, gallery: Gallery) -> sa.ColumnElement[bool]:
        c = COLLECTIONS.c
        mine = (c.server == self._server) & (c.gallery_key == gallery.key) & (c.package == gallery.embedder)
        return mine & (c.generation == gallery.generation) & (c.state == CURRENT)

    def forget(self, name: str) -> None:
        """It has been dropped."""
        with self._database.write() as connection:
            connection.execute(sa.delete(COLLECTIONS).where(COLLECTIONS.c.name == name))
