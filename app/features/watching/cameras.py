"""How the cameras are: what their watchers say of them, and what was seen before them in the last hour."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import CAMERAS, SIGHTINGS
from app.gallery.records import Gallery
from app.gallery.rows import lock_gallery
from app.timestamps import utc_now

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera of a gallery. ``told`` is the watcher's last report, of ``told_at``; empty where no watcher reports."""

    name: str
    told_at: str | None
    told: Mapping[str, Any]
    visits: int
    """In the last hour, as ``known``: those of known people."""
    known: int
    last_at: str | None
    picture: str | None
    """The id of the newest sighting that has a crop."""


class Cameras:
    """Keeps what watchers say of cameras. Safe to share between threads, the database between servers."""

    def __init__(self, database: Database, kept: timedelta) -> None:
        """``kept``: how long after its last word a camera is remembered."""
        self._database, self._kept = database, kept

    def tell(self, gallery: Gallery, reports: Mapping[str, Mapping[str, object]]) -> None:
        """Store a watcher's report of each camera, by its name, in place of the one before. Raises GalleryNotFound."""
        now = utc_now()
        with self._database.write(cached=False) as connection:
            lock_gallery(connection, gallery)
            for name, report in sorted(reports.items()):
                values = {"told_at": now, "document": json.dumps(report, ensure_ascii=False)}
                insert = self._database.insert(CAMERAS).values(gallery_key=gallery.key, name=name, **values)
                connection.execute(insert.on_conflict_do_update(index_elements=["gallery_key", "name"], set_=values))

    def all(self, gallery: Gallery) -> list[Camera]:
        """Return the gallery's cameras by name: those that a watcher told of, and those of its sightings."""
        told = sa.select(CAMERAS).where(CAMERAS.c.gallery_key == gallery.key)
        mine = SIGHTINGS.c.gallery_key == gallery.key
        recent = SIGHTINGS.c.last_at >= utc_now(-HOUR)
        known = recent & (SIGHTINGS.c.decision == "known")
        counted = sa.select(
            SIGHTINGS.c.camera,
            sa.func.max(SIGHTINGS.c.last_at).label("last_at"),
            sa.func.sum(sa.case((recent, 1), else_=0)).label("visits"),
            sa.func.sum(sa.case((known, 1), else_=0)).label("known"),
        )
        newest = sa.select(sa.func.max(SIGHTINGS.c.key)).where(mine & SIGHTINGS.c.crop.is_not(None))
        shown = sa.select(SIGHTINGS.c.camera, SIGHTINGS.c.id).where(
            SIGHTINGS.c.key.in_(newest.group_by(SIGHTINGS.c.camera))
        )
        with self._database.read() as connection:
            reports = {row.name: row for row in connection.execute(told)}
            counts = {row.camera: row for row in connection.execute(counted.where(mine).group_by(SIGHTINGS.c.camera))}
            pictures = {row.camera: row.id for row in connection.execute(shown)}
        return [_camera(name, reports.get(name), counts.get(name), pictures) for name in sorted({*reports, *counts})]

    def prune(self) -> int:
        """Forget the cameras that no watcher has told of for long; return how many."""
        with self._database.write(cached=False) as connection:
            old = sa.delete(CAMERAS).where(CAMERAS.c.told_at < utc_now(-self._kept))
            return connection.execute(old).rowcount


def _camera(name: str, told: Any, seen: Any, pictures: Mapping[str, str]) -> Camera:
    return Camera(
        name,
        told_at=told.told_at if told else None,
        told=json.loads(told.document) if told else {},
        visits=int(seen.visits) if seen else 0,
        known=int(seen.known) if seen else 0,
        last_at=seen.last_at if seen else None,
        picture=pictures.get(name),
    )
