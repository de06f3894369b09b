"""Faces' rows and what belongs to them: their templates, origins and crops.

The faces of a gallery have templates of one package. While the gallery is being re-embedded there are two: a face's row
holds one of them, and the table of second templates the other. Which of the two is in the row depends on when the face
was enrolled and means nothing.
"""

from __future__ import annotations

import io
import json
import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import sqlalchemy as sa
from PIL import Image
from sqlalchemy.engine import Connection, Row

from app.db.engine import select_in
from app.db.schema import CROPS, FACE_ORIGINS, FACES, SECOND_TEMPLATES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import FaceNotFound
from app.face.formats import Limits
from app.face.image import decode
from app.gallery.records import Gallery, Origin, StoredFace, Subject, from_bytes
from app.inference.manifest import CROP_SIDE
from app.types import Box, Pixels, Quality, Reason, Vector, Vectors

JPEG_QUALITY = 95
FULL_CHROMA = 0
"""Pillow's name for 4:4:4: halved chroma would cost an embedder more than it saves here."""
CROP_LIMITS = Limits(
    max_bytes=256 * 1024,  # seven times the pixels' own size
    max_pixels=CROP_SIDE**2,
    max_side=CROP_SIDE,
    min_side=CROP_SIDE,
    formats=frozenset({"JPEG"}),
)
"""What a stored crop may be: imported archives bring crops that other programs made."""
_FACE_ID = re.compile("[0-9a-f]{32}")


Package: TypeAlias = str | sa.BindParameter[str]
"""A package's id, or the statement's parameter that takes it."""


def join_templates(faces: sa.FromClause, package: Package) -> sa.FromClause:
    """Return `faces`, which includes FACES, joined with the second templates of this package."""
    second = SECOND_TEMPLATES.c
    return faces.outerjoin(SECOND_TEMPLATES, (second.face_key == FACES.c.key) & (second.package == package))


def template_column(package: Package) -> sa.ColumnElement[bytes | None]:
    """Return the face's template of this package, or NULL; for queries over `join_templates`."""
    return sa.case((FACES.c.package == package, FACES.c.template), else_=SECOND_TEMPLATES.c.template)


def face_columns(package: str) -> Sequence[sa.ColumnElement[Any]]:
    """Return FACES' columns with the template of this package, or the row's own if the face has none of it."""
    own = template_column(package)
    chosen: Mapping[str, sa.ColumnElement[Any]] = {
        "package": sa.case((own.is_not(None), sa.literal(package)), else_=FACES.c.package).label("package"),
        "template": sa.func.coalesce(own, FACES.c.template).label("template"),
    }
    return [chosen.get(column.name, column) for column in FACES.c]


def face_query(package: str) -> sa.Select[Any]:
    """Return the query for faces with their templates of `package`, subjects' ids and origins; see `to_face`."""
    faces = join_templates(FACES.join(SUBJECTS), package)
    faces = faces.outerjoin(FACE_ORIGINS, FACE_ORIGINS.c.face_key == FACES.c.key)
    origin = (column.label(f"photo_{column.name}") for column in FACE_ORIGINS.c)
    return sa.select(*face_columns(package), SUBJECTS.c.id.label("subject"), *origin).select_from(faces)


def to_face(row: Row[Any], blobs: Blobs | None, crop: bytes | None = None) -> StoredFace:
    """Convert a row of `face_query`, with its `crop` as it is stored. Without `blobs` both are left out.

    Raises Unusable ``sealed_unreadable``.
    """
    origin = None
    if row.photo_image_id is not None:
        size = (row.photo_width, row.photo_height)
        origin = Origin(row.photo_image_id, *size, row.photo_score, row.photo_external_id)
    return StoredFace(
        subject=row.subject,
        template=blobs.unpack("template", row.face_id, bytes(row.template)) if blobs else b"",
        quality=Quality(row.quality, tuple(Reason(reason) for reason in json.loads(row.reasons))),
        box=Box(row.x, row.y, row.width, row.height),
        crop=blobs.unpack("crop", row.face_id, bytes(crop)) if blobs and crop is not None else None,
        face_id=row.face_id,
        created_at=row.created_at,
        origin=origin,
        package=row.package,
        key=row.key,
    )


def find_face(connection: Connection, gallery: Gallery, face_id: str, subject: Subject | None = None) -> Row[Any]:
    """Return the row of `face_query`, of any subject or of this one. Raises NotFound ``face_not_found``."""
    row = None
    if _FACE_ID.fullmatch(face_id):
        query = face_query(gallery.embedder).where(FACES.c.face_id == face_id, FACES.c.gallery_key == gallery.key)
        if subject is not None:
            query = query.where(FACES.c.subject_key == subject.key)
        row = connection.execute(query).one_or_none()
    if row is not None:
        return row
    if subject is not None:
        raise face_not_found(subject.id, face_id)
    raise FaceNotFound(f"Gallery {gallery.id!r} has no face {face_id!r}.", gallery=gallery.id, face_id=face_id)


def face_not_found(subject_id: str, face_id: str) -> FaceNotFound:
    return FaceNotFound(f"Subject {subject_id!r} has no face {face_id!r}.", subject=subject_id, face_id=face_id)


def read_crop(connection: Connection, face_key: int) -> bytes | None:
    crop: bytes | None = connection.execute(sa.select(CROPS.c.jpeg).where(CROPS.c.face_key == face_key)).scalar()
    return crop


def encode_crop(crop: Pixels) -> bytes:
    """Encode a crop, (H, W, 3) uint8 RGB, as JPEG."""
    buffer = io.BytesIO()
    Image.fromarray(crop).save(buffer, "JPEG", quality=JPEG_QUALITY, subsampling=FULL_CHROMA)
    return buffer.getvalue()


def decode_crop(jpeg: bytes) -> Pixels:
    """Decode a stored crop, (112, 112, 3) uint8 RGB. Raises InvalidInput if it is anything else or damaged."""
    return decode(jpeg, CROP_LIMITS).pixels


def faces_by_id(connection: Connection, gallery: Gallery, ids: Sequence[str]) -> dict[str, Row[Any]]:
    """Return the id, the key and the subject's key of each of these faces that exists, by id."""
    query = sa.select(FACES.c.face_id, FACES.c.key, FACES.c.subject_key).where(FACES.c.gallery_key == gallery.key)
    return {row.face_id: row for row in select_in(connection, query, FACES.c.face_id, ids)}


def templates_of(connection: Connection, blobs: Blobs, package: str, subjects: Collection[int]) -> dict[int, Vectors]:
    """Return the (N, D) templates of this package of each of the subjects, by key, that has some."""
    template = template_column(package)
    query = sa.select(FACES.c.subject_key, FACES.c.face_id, template.label("template"))
    query = query.select_from(join_templates(FACES, package)).where(template.is_not(None)).order_by(FACES.c.key)
    templates: dict[int, list[Vector]] = defaultdict(list)
    for row in select_in(connection, query, FACES.c.subject_key, subjects):
        templates[row.subject_key].append(from_bytes(blobs.unpack("template", row.face_id, bytes(row.template))))
    return {key: np.stack(vectors) for key, vectors in templates.items()}
