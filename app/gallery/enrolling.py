"""The faces of enrollments that share a transaction."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.gallery.blobs import Blobs
from app.gallery.placement import insert_origins
from app.gallery.records import FaceRow, Gallery, NewFace, to_bytes
from app.gallery.tables import CROPS, FACES, SECOND_TEMPLATES


@dataclass(frozen=True, slots=True)
class Enrolling:
    """An enrollment, checked as far as that needs no database: the subject's clean id, its columns that change, and a
    JPEG or None for each face."""

    subject: str
    updates: Mapping[str, object]
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Placed:
    """A face, its crop as JPEG, and whose it is to be."""

    subject: str
    subject_key: int
    face: NewFace
    crop: bytes | None


def insert_faces(
    connection: Connection, gallery: Gallery, placed: Sequence[Placed], now: str, *, blobs: Blobs
) -> list[FaceRow]:
    """The new rows, in their order; the templates fit the gallery."""
    blobs.mark(connection)
    ids = [uuid.uuid4().hex for _ in placed]
    values = [_values(gallery, one, face_id, now, blobs) for face_id, one in zip(ids, placed, strict=True)]
    insert = sa.insert(FACES).returning(FACES.c.key, sort_by_parameter_order=True)
    keys: list[int] = list(connection.execute(insert, values).scalars())
    kept = [
        {"face_key": key, "jpeg": blobs.pack("crop", face_id, one.crop)}
        for key, face_id, one in zip(keys, ids, placed, strict=True)
        if one.crop is not None
    ]
    if kept:
        connection.execute(sa.insert(CROPS), kept)
    seconds = [
        {"face_key": key, "package": second.package, "template": blobs.pack("template", face_id, to_bytes(second))}
        for key, face_id, second in zip(keys, ids, (one.face.second for one in placed), strict=True)
        if second is not None
    ]
    if seconds:
        connection.execute(sa.insert(SECOND_TEMPLATES), seconds)
    insert_origins(connection, gallery, [(key, one.face.origin) for key, one in zip(keys, placed, strict=True)])
    return [_row(key, face_id, one, now) for key, face_id, one in zip(keys, ids, placed, strict=True)]


def _values(gallery: Gallery, one: Placed, face_id: str, now: str, blobs: Blobs) -> dict[str, object]:
    face = one.face
    return {
        "gallery_key": gallery.key,
        "subject_key": one.subject_key,
        "face_id": face_id,
        "package": face.template.package,
        "template": blobs.pack("template", face_id, to_bytes(face.template)),
        "quality": face.quality.score,
        "reasons": json.dumps([str(reason) for reason in face.quality.reasons]),
        "x": face.box.x,
        "y": face.box.y,
        "width": face.box.width,
        "height": face.box.height,
        "created_at": now,
    }


def _row(key: int, face_id: str, one: Placed, now: str) -> FaceRow:
    """As SQL would give it back."""
    face = one.face
    return FaceRow(
        key=key,
        face_id=face_id,
        subject=one.subject,
        quality=face.quality,
        box=face.box,
        package=face.template.package,
        template=to_bytes(face.template),
        crop=one.crop,
        created_at=now,
    )
