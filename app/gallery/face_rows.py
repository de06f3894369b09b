"""Faces' rows and what belongs to them: read, found, given to another subject, with their origins and crops."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from PIL import Image
from sqlalchemy.engine import Connection, Row

from app.db.engine import in_parts
from app.db.schema import CROPS, FACE_ORIGINS, FACES, METADATA, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import FaceNotFound
from app.face.align import CROP_SIDE
from app.face.formats import Limits
from app.face.image import decode
from app.gallery.records import FaceRow, Gallery, Origin, Subject
from app.gallery.templates import face_columns, join_templates
from app.timestamps import utc_now
from app.types import Box, Pixels, Quality, Reason

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
ROWS_AT_ONCE = 1_000
ORIGIN_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    FACE_ORIGINS.c.image_id,
    FACE_ORIGINS.c.external_id,
    FACE_ORIGINS.c.width.label("photo_width"),
    FACE_ORIGINS.c.height.label("photo_height"),
    FACE_ORIGINS.c.score,
)
_FACE_ID = re.compile("[0-9a-f]{32}")
# Built once: that takes longer than SQLite takes to run them.
_LABELS = (
    sa.select(FACES.c.key, FACES.c.face_id, SUBJECTS.c.id, SUBJECTS.c.name)
    .join(SUBJECTS)
    .where(FACES.c.key.in_(sa.bindparam("keys", expanding=True)))
)
_CURRENT_LABELS = _LABELS.where(SUBJECTS.c.expires_at.is_(None) | (SUBJECTS.c.expires_at > sa.bindparam("now")))


def face_query(package: str) -> sa.Select[Any]:
    """Return the query for faces with their templates of `package` and their subjects' ids; see `to_face`."""
    faces = join_templates(FACES.join(SUBJECTS), package)
    return sa.select(*face_columns(package), SUBJECTS.c.id.label("subject")).select_from(faces)


def to_face(row: Row[Any], blobs: Blobs, crop: bytes | None = None) -> FaceRow:
    """Convert a row of `face_query`, with its `crop` as it is stored. Raises Unusable ``sealed_unreadable``."""
    return FaceRow(
        key=row.key,
        face_id=row.face_id,
        subject=row.subject,
        quality=quality_of(row),
        box=box_of(row),
        package=row.package,
        template=blobs.unpack("template", row.face_id, bytes(row.template)),
        crop=None if crop is None else blobs.unpack("crop", row.face_id, bytes(crop)),
        created_at=row.created_at,
    )


def quality_of(row: Row[Any]) -> Quality:
    return Quality(row.quality, tuple(Reason(reason) for reason in json.loads(row.reasons)))


def box_of(row: Row[Any]) -> Box:
    return Box(row.x, row.y, row.width, row.height)


def find_face(
    connection: Connection, gallery: Gallery, face_id: str, subject: Subject | None = None, *, lock: bool = False
) -> Row[Any]:
    """Return the row of `face_query`, of any subject or of this one. Raises NotFound ``face_not_found``."""
    row = None
    if _FACE_ID.fullmatch(face_id):
        query = face_query(gallery.embedder).where(FACES.c.face_id == face_id, FACES.c.gallery_key == gallery.key)
        if subject is not None:
            query = query.where(FACES.c.subject_key == subject.key)
        row = connection.execute(query.with_for_update(of=FACES) if lock else query).one_or_none()
    if row is not None:
        return row
    if subject is not None:
        raise face_not_found(subject.id, face_id)
    raise FaceNotFound(f"Gallery {gallery.id!r} has no face {face_id!r}.", gallery=gallery.id, face_id=face_id)


def face_not_found(subject_id: str, face_id: str) -> FaceNotFound:
    return FaceNotFound(f"Subject {subject_id!r} has no face {face_id!r}.", subject=subject_id, face_id=face_id)


def read_crop(connection: Connection, face_key: int) -> bytes | None:
    """Return the face's crop as it is stored."""
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


def to_origin(row: Row[Any]) -> Origin | None:
    """Convert a row that has ORIGIN_COLUMNS."""
    if row.image_id is None:
        return None
    return Origin(row.image_id, row.photo_width, row.photo_height, row.score, row.external_id)


def insert_origins(connection: Connection, gallery: Gallery, origins: Iterable[tuple[int, Origin | None]]) -> None:
    """Write the origins of new faces, given by the faces' keys; None for a face of unknown origin."""
    values = [
        {"face_key": key, "gallery_key": gallery.key, **asdict(origin)} for key, origin in origins if origin is not None
    ]
    if values:
        connection.execute(sa.insert(FACE_ORIGINS), values)


def reassign(connection: Connection, subjects: Mapping[int, int]) -> dict[int, int]:
    """Give each face, by its key, to the subject of that key; return the faces' new keys by their old ones.

    A key of a face that was removed must never come back: followers of the change log and servers that share a Milvus
    rely on it. So a reassigned face is removed and inserted again, with the same id and all its belongings. The caller
    has locked the faces and subjects, and writes the change log.
    """
    moved: dict[int, int] = {}
    keys = sorted(subjects)
    for start in range(0, len(keys), ROWS_AT_ONCE):
        moved |= _reassign_some(connection, keys[start : start + ROWS_AT_ONCE], subjects)
    return moved


def _reassign_some(connection: Connection, keys: Sequence[int], subjects: Mapping[int, int]) -> dict[int, int]:
    faces = _rows(connection, FACES, FACES.c.key, keys)
    belongings = [(column, _rows(connection, column.table, column, keys)) for column in _references()]
    connection.execute(sa.delete(FACES).where(FACES.c.key.in_(keys)))  # cascades to what belongs to them
    old = [row.pop("key") for row in faces]
    new = [row | {"subject_key": subjects[key]} for key, row in zip(old, faces, strict=True)]
    insert = sa.insert(FACES).returning(FACES.c.key, sort_by_parameter_order=True)
    moved = dict(zip(old, connection.execute(insert, new).scalars().all(), strict=True))
    for column, rows in belongings:
        if rows:
            values = [row | {column.name: moved[row[column.name]]} for row in rows]
            connection.execute(sa.insert(column.table), values)
    return moved


def _rows(
    connection: Connection, table: sa.FromClause, column: sa.Column[Any], keys: Sequence[int]
) -> list[dict[str, Any]]:
    query = sa.select(table).where(column.in_(keys)).order_by(column)
    return [dict(row) for row in connection.execute(query).mappings().all()]


def _references() -> list[sa.Column[Any]]:
    """Return the columns of other tables that refer to a face; each such row has no other key."""
    return [
        column
        for table in METADATA.sorted_tables
        for column in table.columns
        if any(key.column is FACES.c.key for key in column.foreign_keys)
    ]


def read_labels(
    connection: Connection, face_keys: Sequence[int], *, current: bool
) -> dict[int, tuple[str, str, str | None]]:
    """Return the id, the subject's id and the subject's name of each face that exists, by key.

    With ``current``, faces of expired subjects are left out.
    """
    query = _CURRENT_LABELS if current else _LABELS
    found: dict[int, tuple[str, str, str | None]] = {}
    for some in in_parts(face_keys):
        for key, face_id, subject_id, name in connection.execute(query, {"keys": some, "now": utc_now()}):
            found[key] = (face_id, subject_id, name)
    return found
