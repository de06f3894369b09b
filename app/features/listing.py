"""List and count subjects and faces for other services' interfaces: functions over a `Store`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from functools import partial

import numpy as np
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.engine import select_in
from app.db.pagination import Page, read_page
from app.db.schema import FACE_ORIGINS, FACES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.gallery.records import (
    Gallery,
    StoredFace,
    face_query,
    from_bytes,
    is_unnamed_row,
    join_templates,
    not_expired,
    template_column,
    to_face,
)
from app.gallery.store import Store
from app.gallery.text import clean_id
from app.types import Vector, Vectors


def placed_faces(
    store: Store,
    gallery: Gallery,
    cursor: str | None = None,
    limit: int = 100,
    *,
    subject: str | None = None,
    only: Collection[str] | None = None,
) -> Page[StoredFace]:
    """Return a page of the gallery's faces in the order of their enrollment: all, one subject's, or `only` those with
    these ids.

    They come without templates and crops. The subject need not exist. Raises InvalidInput ``invalid_cursor``.
    """
    query = face_query(gallery.embedder).where(FACES.c.gallery_key == gallery.key)
    if subject is not None:
        query = query.where(SUBJECTS.c.id == clean_id(subject, "subject"))
    if only is not None:
        query = query.where(FACES.c.face_id.in_(only))
    listing, convert = f"placed/{gallery.key}/{subject or ''}", partial(to_face, blobs=None)
    return read_page(store.database, query, FACES.c.key, convert, listing=listing, cursor=cursor, limit=limit)


def faces_of_image(store: Store, gallery: Gallery, image_id: str) -> list[StoredFace]:
    """Return the faces that were enrolled from one photo, without their templates and crops."""
    mine = (FACE_ORIGINS.c.gallery_key == gallery.key) & (FACE_ORIGINS.c.image_id == image_id)
    query = face_query(gallery.embedder).where(mine).order_by(FACES.c.key)
    return [to_face(row, None) for row in store.database.rows(query)]


def count_people(store: Store, gallery: Gallery) -> int:
    """Return the number of named subjects."""
    mine = (SUBJECTS.c.gallery_key == gallery.key) & ~is_unnamed_row() & not_expired()
    query = sa.select(sa.func.count()).select_from(SUBJECTS).where(mine)
    with store.database.read() as connection:
        return connection.execute(query).scalar_one()


def subject_ids(store: Store, gallery: Gallery) -> list[str]:
    """Return the ids of all subjects, oldest first."""
    mine = (SUBJECTS.c.gallery_key == gallery.key) & not_expired()
    query = sa.select(SUBJECTS.c.id).where(mine).order_by(SUBJECTS.c.key)
    return store.database.column(query)


def face_ids(
    store: Store, gallery: Gallery, subject_id: str | None = None, *, offset: int = 0, limit: int = 100
) -> tuple[list[tuple[str, str]], int]:
    """Return pairs of face id and subject id, at most `limit` after the first `offset`, and the number of all pairs.

    They are of all the gallery's faces, or of one subject's, which need not exist. The time grows with `offset`.
    """
    mine = (FACES.c.gallery_key == gallery.key) & not_expired()
    query = sa.select(FACES.c.face_id, SUBJECTS.c.id).join(SUBJECTS).where(mine)
    if subject_id is not None:
        query = query.where(SUBJECTS.c.id == clean_id(subject_id, "subject"))
    count = sa.select(sa.func.count()).select_from(query.subquery())
    with store.database.read(one_moment=True) as connection:
        rows = connection.execute(query.order_by(FACES.c.key).offset(offset).limit(limit)).all()
        return [(face, subject) for face, subject in rows], connection.execute(count).scalar_one()


def faces_by_id(store: Store, gallery: Gallery, face_ids: Sequence[str]) -> dict[str, StoredFace]:
    """Return the faces that exist, by id, without their templates and crops."""
    query = face_query(gallery.embedder).where(FACES.c.gallery_key == gallery.key)
    with store.database.read() as connection:
        rows = list(select_in(connection, query, FACES.c.face_id, face_ids))
    return {row.face_id: to_face(row, None) for row in rows}


def templates_of(connection: Connection, blobs: Blobs, package: str, subjects: Collection[int]) -> dict[int, Vectors]:
    """Return the subjects' templates by this package, (N, D) each, by the subject's key. Subjects without templates are
    left out."""
    template = template_column(package)
    query = sa.select(FACES.c.subject_key, FACES.c.face_id, template.label("template"))
    query = query.select_from(join_templates(FACES, package)).where(template.is_not(None)).order_by(FACES.c.key)
    templates: dict[int, list[Vector]] = defaultdict(list)
    for row in select_in(connection, query, FACES.c.subject_key, subjects):
        templates[row.subject_key].append(from_bytes(blobs.unpack("template", row.face_id, bytes(row.template))))
    return {key: np.stack(vectors) for key, vectors in templates.items()}
