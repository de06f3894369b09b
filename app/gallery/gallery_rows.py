"""Galleries' rows: read together with the state of a re-embedding, and locked by every writer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.schema import CORRECTIONS, GALLERIES, REEMBEDDINGS, SUBJECTS
from app.gallery.records import Gallery, gallery_not_found
from app.gallery.templates import TemplatePlan, TemplateSet
from app.gallery.text import UNNAMED_LENGTH, UNNAMED_SIGN

GALLERY_ROWS = sa.select(
    GALLERIES,
    REEMBEDDINGS.c.source,
    REEMBEDDINGS.c.source_dimension,
    REEMBEDDINGS.c.source_generation,
    REEMBEDDINGS.c.target,
    REEMBEDDINGS.c.target_dimension,
    REEMBEDDINGS.c.target_generation,
    REEMBEDDINGS.c.state,
    sa.exists().where(CORRECTIONS.c.gallery_key == GALLERIES.c.key).label("corrected"),
).select_from(GALLERIES.outerjoin(REEMBEDDINGS))
# Built once: that takes longer than SQLite takes to run them.
_BY_ID = GALLERY_ROWS.where(GALLERIES.c.id == sa.bindparam("wanted"))
_BY_KEY = GALLERY_ROWS.where(GALLERIES.c.key == sa.bindparam("wanted"))
# Not FOR UPDATE, for which rows elsewhere that refer to the gallery would have to wait, too.
_LOCK = sa.select(GALLERIES.c.key).where(GALLERIES.c.key == sa.bindparam("wanted")).with_for_update(key_share=True)


def to_gallery(row: Row[Any]) -> Gallery:
    """Convert a row of GALLERY_ROWS."""
    return Gallery(
        key=row.key,
        id=row.id,
        templates=template_plan(row),
        store=row.store,
        metadata=json.loads(row.metadata),
        created_at=row.created_at,
        search=row.search,
        calibration=row.calibration,
        allow_laxer=bool(row.allow_laxer),
        on_conflict=row.on_conflict,
        corrected=bool(row.corrected),
        population=() if row.population is None else tuple(json.loads(row.population)),
        liveness=row.liveness,
    )


def population_column(population: Sequence[str]) -> str | None:
    """Return the value of the column `population`: a JSON list, NULL where none was declared."""
    return json.dumps(list(population)) if population else None


def template_plan(row: Row[Any]) -> TemplatePlan:
    """Return what the state of a re-embedding means for a row of GALLERY_ROWS."""
    own = TemplateSet(row.embedder, row.dimension, row.generation)
    if row.state in {None, "ending"}:
        return TemplatePlan.of_one(own)
    if row.embedder == row.source:
        other = TemplateSet(row.target, row.target_dimension, row.target_generation)
    else:
        other = TemplateSet(row.source, row.source_dimension, row.source_generation)
    both = (own, other)
    return TemplatePlan(answering=(own,) if row.state == "embedding" else both, written=both)


def find_gallery(connection: Connection, gallery_id: str) -> Gallery:
    """Return the gallery of this id. Raises NotFound ``gallery_not_found``."""
    row = connection.execute(_BY_ID, {"wanted": gallery_id}).one_or_none()
    if row is None:
        raise gallery_not_found(gallery_id)
    return to_gallery(row)


def reread(connection: Connection, gallery: Gallery) -> Gallery:
    """Return the gallery as this transaction sees it. Raises NotFound ``gallery_not_found``."""
    row = connection.execute(_BY_KEY, {"wanted": gallery.key}).one_or_none()
    if row is None:
        raise gallery_not_found(gallery.id)
    return to_gallery(row)


def lock_gallery(connection: Connection, gallery: Gallery) -> Gallery:
    """Be alone with the gallery until the transaction ends; return it as it is from then on.

    Every writer does this before anything else, so writers never wait for each other in a circle. Raises NotFound
    ``gallery_not_found``.
    """
    if connection.dialect.name != "sqlite":  # its write transactions never overlap
        # A statement of its own: one that waits for the row sees other tables as they were before.
        connection.execute(_LOCK, {"wanted": gallery.key})
    return reread(connection, gallery)


def is_unnamed_row() -> sa.ColumnElement[bool]:
    """Return `app.gallery.text.is_unnamed` as SQL."""
    return (sa.func.substr(SUBJECTS.c.id, 1, 1) == UNNAMED_SIGN) & (sa.func.length(SUBJECTS.c.id) == UNNAMED_LENGTH)
