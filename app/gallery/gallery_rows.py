"""Galleries' rows, read with the state of a re-embedding and locked by every writer, and the models they are bound to.

A package's id names a version; its digest says which file it was, prepared how. Another file under the same id makes
other templates, so that comparing them would give meaningless scores.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database
from app.db.schema import CORRECTIONS, GALLERIES, PACKAGES, REEMBEDDINGS, SUBJECTS
from app.errors import GalleryNotFound, PackageUnavailable
from app.gallery.records import Gallery
from app.gallery.text import UNNAMED_LENGTH, UNNAMED_SIGN
from app.inference.package import Package
from app.search.types import IndexKey, IndexSpec

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
    answering, written = template_sets(row)
    return Gallery(
        key=row.key,
        id=row.id,
        index_specs=answering,
        written=written,
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


def template_sets(row: Row[Any]) -> tuple[tuple[IndexSpec, ...], tuple[IndexSpec, ...]]:
    """Return `Gallery.index_specs` and `Gallery.written`, by the state of a re-embedding in a row of GALLERY_ROWS."""
    own = IndexSpec(IndexKey(row.key, row.embedder, row.generation), row.id, row.dimension, row.search)
    if row.state in {None, "ending"}:
        return (own,), (own,)
    if row.embedder == row.source:
        key, dimension = IndexKey(row.key, row.target, row.target_generation), row.target_dimension
    else:
        key, dimension = IndexKey(row.key, row.source, row.source_generation), row.source_dimension
    both = (own, IndexSpec(key, row.id, dimension, row.search))
    return (own,) if row.state == "embedding" else both, both


def find_gallery(connection: Connection, gallery_id: str) -> Gallery:
    """Return the gallery of this id. Raises NotFound ``gallery_not_found``."""
    row = connection.execute(_BY_ID, {"wanted": gallery_id}).one_or_none()
    if row is None:
        raise GalleryNotFound.of(gallery_id)
    return to_gallery(row)


def reread(connection: Connection, gallery: Gallery) -> Gallery:
    """Return the gallery as this transaction sees it. Raises NotFound ``gallery_not_found``."""
    row = connection.execute(_BY_KEY, {"wanted": gallery.key}).one_or_none()
    if row is None:
        raise GalleryNotFound.of(gallery.id)
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


def bind_package(database: Database, package: Package) -> None:
    """Bind the package's id to its model, unless it is bound; a binding that no gallery needs is replaced.

    Raises PackageUnavailable with the reason ``package_changed`` if galleries have templates of another model.
    """
    digest = package.manifest.recipe_digest
    query = sa.select(PACKAGES.c.digest).where(PACKAGES.c.id == package.id)
    with database.read() as connection:
        bound = connection.execute(query).scalar()
    if bound == digest:
        return
    on_its_way = (REEMBEDDINGS.c.source == package.id) | (REEMBEDDINGS.c.target == package.id)
    moving = GALLERIES.c.key.in_(sa.select(REEMBEDDINGS.c.gallery_key).where(on_its_way))
    needing = sa.select(GALLERIES.c.id).where((GALLERIES.c.embedder == package.id) | moving).limit(1)
    insert = database.insert(PACKAGES).values(id=package.id, digest=digest)
    with database.write() as connection:
        connection.execute(insert.on_conflict_do_nothing())
        if (bound := connection.execute(query).scalar_one()) == digest:
            return
        gallery = connection.execute(needing).scalar()
        if gallery is None:
            connection.execute(sa.update(PACKAGES).where(PACKAGES.c.id == package.id).values(digest=digest))
            return
    message = (
        f"{package.folder} has another model than the one that gallery {gallery!r} has templates of, under the same id "
        f"{package.id}. Put the previous package back; or give this one another version in its manifest and move the "
        f"gallery: likeness reembed start {gallery} NAME@VERSION"
    )
    details = {"package": package.id, "reason": "package_changed", "expected": bound, "found": digest}
    raise PackageUnavailable(message, gallery=gallery, **details)
