"""The rows of sightings, read as records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import in_parts
from app.db.schema import GALLERIES, SIGHTINGS, STRANGERS, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import NotFound
from app.features.watching.schemas import FilterParams, Sighting
from app.gallery.records import Gallery, from_bytes, not_expired
from app.gallery.store import Change
from app.package.thresholds import fuse_templates
from app.types import Template, Vector

LOOKS = 2
"""Minimum usable photos before somebody is called unknown or becomes a stranger, since a single photo may show a face
that is turned away or half hidden."""
Where: TypeAlias = sa.ColumnElement[bool]
ROWS = (
    sa.select(
        SIGHTINGS,
        GALLERIES.c.id.label("gallery"),
        SUBJECTS.c.id.label("subject"),
        SUBJECTS.c.name.label("name"),
        STRANGERS.c.id.label("stranger"),
        STRANGERS.c.ignored.label("ignored"),
    )
    .join_from(SIGHTINGS, GALLERIES, SIGHTINGS.c.gallery_key == GALLERIES.c.key)
    .outerjoin(SUBJECTS, (SIGHTINGS.c.subject_key == SUBJECTS.c.key) & not_expired())
    .outerjoin(STRANGERS, SIGHTINGS.c.stranger_key == STRANGERS.c.key)
)


@dataclass(frozen=True, slots=True)
class Stored:
    """A sighting with its template and crop, each None if it is no longer kept."""

    sighting: Sighting
    template: Template | None
    crop: bytes | None
    """JPEG of the aligned crop."""
    length: float = 1.0  # see `sighting_template`


def fits(wanted: FilterParams) -> Where:
    """Return the condition that selects the wanted sightings from ROWS."""
    equal = {
        SIGHTINGS.c.camera: wanted.camera,
        SIGHTINGS.c.decision: wanted.decision,
        SUBJECTS.c.id: wanted.subject,
        STRANGERS.c.id: wanted.stranger,
    }
    conditions = [column == value for column, value in equal.items() if value is not None]
    if wanted.since is not None:
        conditions.append(SIGHTINGS.c.last_at >= wanted.since)
    if wanted.until is not None:
        conditions.append(SIGHTINGS.c.first_at <= wanted.until)
    return sa.and_(sa.true(), *conditions)


def find_row(connection: Connection, gallery: Gallery, sighting_id: str) -> Row[Any]:
    """Return the row of ROWS. Raises NotFound ``sighting_not_found``."""
    mine = (SIGHTINGS.c.gallery_key == gallery.key) & (SIGHTINGS.c.id == sighting_id)
    row = connection.execute(ROWS.where(mine)).one_or_none()
    if row is None:
        message = f"Gallery {gallery.id!r} has no sighting {sighting_id!r}."
        raise NotFound(message, code="sighting_not_found", gallery=gallery.id, sighting=sighting_id)
    return row


def to_sighting(row: Row[Any]) -> Sighting:
    has_expired = row.subject_key is not None and row.subject is None
    return Sighting.of(row, has_crop=row.crop is not None, decision="unknown" if has_expired else row.decision)


def sighting_template(row: Row[Any], blobs: Blobs) -> tuple[Vector, float]:
    """Return a row's template, a unit vector, and its length before scaling, 0-1. SQL keeps the mean of the photos'
    unit vectors, whose length is 1 for a single photo. Raises Unusable ``sealed_unreadable``."""
    return fuse_templates(from_bytes(blobs.unpack("sighting", row.id, bytes(row.template)))[None])


def templates(
    connection: Connection, blobs: Blobs, gallery: Gallery, package: str, *where: Where, most: int | None = None
) -> Iterator[tuple[Vector, float, Row[Any]]]:
    """Yield template, length (as `sighting_template` returns them) and row of the gallery's sightings, newest first,
    that have a template by this package and for which ``where`` holds; at most ``most``, with None all."""
    kept = SIGHTINGS.c.gallery_key == gallery.key, SIGHTINGS.c.package == package, SIGHTINGS.c.template.is_not(None)
    for row in connection.execute(ROWS.where(*kept, *where).order_by(SIGHTINGS.c.key.desc()).limit(most)):
        yield *sighting_template(row, blobs), row


def to_stored(row: Row[Any], blobs: Blobs) -> Stored:
    """Return a row as a record, with template and crop decrypted. Raises Unusable ``sealed_unreadable``."""
    template, length = (None, 1.0) if row.template is None else sighting_template(row, blobs)
    crop = None if row.crop is None else blobs.unpack("sighting_crop", row.id, bytes(row.crop))
    kept = None if template is None else Template(template, row.package)
    return Stored(to_sighting(row), kept, crop, length)


def delete_sightings(change: Change, keys: Iterable[int]) -> int:
    """Delete sightings with their events, then strangers without sightings; return the number of sightings."""
    doomed = sorted(set(keys))
    for part in in_parts(doomed):
        change.connection.execute(sa.delete(SIGHTINGS).where(SIGHTINGS.c.key.in_(part)))
    drop_unseen(change.connection, change.gallery)
    change.overwrites |= bool(doomed)
    return len(doomed)


def drop_unseen(connection: Connection, gallery: Gallery) -> None:
    """Delete the gallery's strangers who have no sightings left."""
    empty = ~sa.exists().where(SIGHTINGS.c.stranger_key == STRANGERS.c.key)
    connection.execute(sa.delete(STRANGERS).where((STRANGERS.c.gallery_key == gallery.key) & empty))
