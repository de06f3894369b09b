"""The state of cameras: their watchers' reports, and the sightings of the last hour."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import CAMERAS, SIGHTINGS
from app.features.watching.schemas import CameraReport, CameraState, CameraTold
from app.gallery.records import Gallery, lock_gallery
from app.types import utc_now


class Cameras:
    """Keeps watchers' reports on cameras. Safe to share between threads, the database between servers."""

    def __init__(self, database: Database, kept: timedelta) -> None:
        """Remember a camera for ``kept`` after its last report."""
        self._database, self._kept = database, kept

    def tell(self, gallery: Gallery, reports: Iterable[CameraTold]) -> None:
        """Store a watcher's report on each camera in place of the previous one. Raises GalleryNotFound."""
        now = utc_now()
        with self._database.write(cached=False) as connection:
            lock_gallery(connection, gallery)
            for report in sorted(reports, key=lambda report: report.name):
                values = {"told_at": now, "document": report.model_dump_json(exclude={"name"})}
                insert = self._database.insert(CAMERAS).values(gallery_key=gallery.key, name=report.name, **values)
                connection.execute(insert.on_conflict_do_update(index_elements=["gallery_key", "name"], set_=values))

    def all(self, gallery: Gallery) -> list[CameraState]:
        """Return the gallery's cameras, ordered by name: those that a watcher reported, and those of its sightings."""
        told = sa.select(CAMERAS).where(CAMERAS.c.gallery_key == gallery.key)
        mine = SIGHTINGS.c.gallery_key == gallery.key
        recent = SIGHTINGS.c.last_at >= utc_now(timedelta(hours=-1))
        known = recent & (SIGHTINGS.c.decision == "known")
        counted = sa.select(
            SIGHTINGS.c.camera,
            sa.func.max(SIGHTINGS.c.last_at).label("last_at"),
            sa.func.sum(sa.case((recent, 1), else_=0)).label("visits"),
            sa.func.sum(sa.case((known, 1), else_=0)).label("known"),
        )
        pictured = mine & SIGHTINGS.c.crop.is_not(None)
        newest = sa.select(sa.func.max(SIGHTINGS.c.key)).where(pictured).group_by(SIGHTINGS.c.camera)
        shown = sa.select(SIGHTINGS.c.camera, SIGHTINGS.c.id).where(SIGHTINGS.c.key.in_(newest))
        with self._database.read() as connection:
            reports = {row.name: row for row in connection.execute(told)}
            counts = {row.camera: row for row in connection.execute(counted.where(mine).group_by(SIGHTINGS.c.camera))}
            pictures = {row.camera: row.id for row in connection.execute(shown)}
        return [_state(name, reports.get(name), counts.get(name), pictures) for name in sorted({*reports, *counts})]

    def prune(self) -> int:
        """Delete the reports that are older than ``kept``; return their number."""
        with self._database.write(cached=False) as connection:
            old = sa.delete(CAMERAS).where(CAMERAS.c.told_at < utc_now(-self._kept))
            return connection.execute(old).rowcount


def _state(name: str, told: Any, seen: Any, pictures: Mapping[str, str]) -> CameraState:
    report = CameraReport.model_validate_json(told.document) if told else CameraReport()
    return CameraState(
        **dict(report),
        name=name,
        told_at=told.told_at if told else None,
        visits=seen.visits if seen else 0,
        known=seen.known if seen else 0,
        last_at=seen.last_at if seen else None,
        picture=pictures.get(name),
    )
