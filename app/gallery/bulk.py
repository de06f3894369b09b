"""Faces and subjects as enrollments and imports write them, many in a transaction, and as exports read them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import Database, in_parts
from app.db.schema import CROPS, FACE_ORIGINS, FACES, SECOND_TEMPLATES, SUBJECTS
from app.db.sealed_columns import Blobs
from app.errors import PackageMismatch
from app.gallery import change_log
from app.gallery.face_rows import ORIGIN_COLUMNS, box_of, insert_origins, quality_of, to_origin
from app.gallery.records import (
    NO_TERMS,
    Consent,
    Counts,
    Gallery,
    Metadata,
    NewFace,
    Origin,
    Subject,
    Terms,
    fit_face,
    to_bytes,
    two_packages,
)
from app.gallery.subject_rows import ensure_subjects, from_consent, subject_values, to_consent, update_subject
from app.gallery.templates import TemplatePlan, face_columns, join_templates, template_column
from app.gallery.text import clean_id, clean_name, encode_metadata, fold
from app.types import Box, Quality, Template

EXPORT_ROWS = 1_000
_INSERTS = (sa.insert(FACES), sa.insert(CROPS), sa.insert(SECOND_TEMPLATES))
_LAST_KEY = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'faces'")
_NEXT_KEYS = sa.text("SELECT nextval(pg_get_serial_sequence('faces', 'key')) FROM generate_series(1, :count)")
NOWHERE = Box(0.0, 0.0, 0.0, 0.0)
"""The box of a face that was imported without its photo."""


@dataclass(frozen=True, slots=True)
class BulkFace:
    """A face to write as it is: ``template`` float32 little endian bytes, ``crop`` a JPEG, ``created_at`` None: now."""

    subject: str
    template: bytes
    quality: Quality
    box: Box = NOWHERE
    crop: bytes | None = None
    face_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created_at: str | None = None
    origin: Origin | None = None
    second: Template | None = None
    """Of the gallery's other package, while it is being re-embedded (`TemplatePlan.written`)."""


def bulk_face(subject: str, face: NewFace, crop: bytes | None) -> BulkFace:
    """Convert a face of a photo; `crop` is its JPEG."""
    return BulkFace(
        subject=subject,
        template=to_bytes(face.template),
        quality=face.quality,
        box=face.box,
        crop=crop,
        origin=face.origin,
        second=face.second,
    )


@dataclass(frozen=True, slots=True)
class Enrollment:
    """Faces, with a JPEG or None for each, for a subject, which is made if missing. `terms` replace its own."""

    subject: str
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]
    terms: Terms = NO_TERMS

    def bulk_faces(self, subject: str, plan: TemplatePlan) -> list[BulkFace]:
        """Return the faces as they are written, for the subject of this normalised id, each with a new id.

        Raises Conflict ``package_mismatch`` if a face lacks a template that `plan` writes.
        """
        return [
            bulk_face(subject, fit_face(face, plan), crop) for face, crop in zip(self.faces, self.crops, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment: the subject as it is now, and the new faces with their ids."""

    subject: Subject
    faces: tuple[BulkFace, ...]
    created: bool


@dataclass(frozen=True, slots=True)
class BulkSubject:
    """A subject to write: fields that are given replace those of an existing subject, but for ``created_at`` and
    ``updated_at``, which only a new one takes."""

    id: str
    name: str | None = None
    metadata: Metadata | None = None
    created_at: str | None = None
    updated_at: str | None = None
    expires_at: str | None = None
    consent: Consent | None = None
    cover: str | None = None


@dataclass(frozen=True, slots=True)
class Written:
    """How many subjects and faces were added; ``taken`` are the positions of faces that the gallery already had."""

    subjects: int
    faces: int
    taken: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Everything:
    """A consistent view of a gallery; subjects and faces come in the order of their keys.

    ``counts`` and ``faces`` cover the faces that have a template of the gallery's package; ``left_out`` have none.
    """

    gallery: Gallery
    counts: Counts
    left_out: int
    subjects: Iterator[BulkSubject]
    faces: Iterator[BulkFace]


def subject_columns(subject: BulkSubject, max_metadata_bytes: int) -> tuple[str, dict[str, Any]]:
    """Return the normalised id of a subject to write, and the values of the columns that are given.

    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_consent``.
    """
    columns = {
        "name": None if subject.name is None else clean_name(subject.name),
        "metadata": None if subject.metadata is None else encode_metadata(subject.metadata, max_metadata_bytes),
        "created_at": subject.created_at,
        "updated_at": subject.updated_at,
        "expires_at": subject.expires_at,
        "consent": from_consent(subject.consent),
        "cover": subject.cover,
    }
    return clean_id(subject.id, "subject"), {name: value for name, value in columns.items() if value is not None}


def fit_bulk(gallery: Gallery, faces: Sequence[BulkFace], plan: TemplatePlan) -> Sequence[BulkFace]:
    """Return the faces with exactly the templates that `plan` writes; ``template`` is of the gallery's own package.

    Raises Conflict ``package_mismatch``, ``two_packages``.
    """
    own, *others = plan.packages
    if faces and own != gallery.embedder:
        message = f"Gallery {gallery.id!r} takes templates of {own} now, not of {gallery.embedder}."
        raise PackageMismatch(message, expected=own, given=gallery.embedder)
    if not others:
        return [face if face.second is None else replace(face, second=None) for face in faces]
    if any(face.second is None or face.second.package != others[0] for face in faces):
        raise two_packages(gallery.id)
    return faces


def write_subjects(
    connection: Connection,
    database: Database,
    gallery: Gallery,
    subjects: Iterable[tuple[str, Mapping[str, Any]]],
    now: str,
) -> tuple[dict[str, int], Collection[str]]:
    """Add missing subjects and update the others, given by their ids and columns; return the keys by id, and the new
    ids. Where two are one subject, the later one's columns count."""
    wanted: dict[str, dict[str, Any]] = {}
    for subject_id, columns in subjects:
        wanted.setdefault(subject_id, {}).update(columns)
    rows = {subject_id: subject_values(gallery, subject_id, now, **given) for subject_id, given in wanted.items()}
    keys, made = ensure_subjects(connection, database, gallery, rows)
    for subject_id, given in wanted.items():
        changes = {name: value for name, value in given.items() if name not in {"created_at", "updated_at"}}
        if "name" in changes:
            changes["folded"] = fold(subject_id, changes["name"])
        if changes and subject_id not in made:
            update_subject(connection, keys[subject_id], changes)
    return keys, made


def place_ids(
    connection: Connection, gallery: Gallery, faces: Sequence[BulkFace]
) -> tuple[list[BulkFace], tuple[int, ...]]:
    """Return the faces to write, and the positions of those to skip, whose ids the gallery or an earlier face has.

    A face whose id exists in another gallery (perhaps a copy of this one) gets a new id.
    """
    first: dict[str, int] = {}
    taken: set[int] = set()
    for place, face in enumerate(faces):
        if first.setdefault(face.face_id, place) != place:
            taken.add(place)
    elsewhere: set[int] = set()
    for some in in_parts(list(first)):
        query = sa.select(FACES.c.face_id, FACES.c.gallery_key).where(FACES.c.face_id.in_(some))
        for face_id, gallery_key in connection.execute(query):
            (taken if gallery_key == gallery.key else elsewhere).add(first[face_id])
    new = [
        replace(face, face_id=uuid.uuid4().hex) if place in elsewhere else face
        for place, face in enumerate(faces)
        if place not in taken
    ]
    return new, tuple(sorted(taken))


def write_faces(
    connection: Connection,
    gallery: Gallery,
    subject_keys: Mapping[str, int],
    faces: Sequence[BulkFace],
    now: str,
    *,
    blobs: Blobs,
) -> list[tuple[int, int]]:
    """Insert the faces; return the key of each one's subject and its own, in their order, for `record_added`."""
    keys = _take_keys(connection, len(faces))
    rows, crops, seconds = [], [], []
    blobs.mark(connection)
    for key, face in zip(keys, faces, strict=True):
        face_id = face.face_id
        rows.append(
            {
                "key": key,
                "gallery_key": gallery.key,
                "subject_key": subject_keys[face.subject],
                "face_id": face_id,
                "package": gallery.embedder,
                "template": blobs.pack("template", face_id, face.template),
                "quality": face.quality.score,
                "reasons": json.dumps(face.quality.reasons) if face.quality.reasons else "[]",
                "x": face.box.x,
                "y": face.box.y,
                "width": face.box.width,
                "height": face.box.height,
                "created_at": face.created_at or now,
            }
        )
        if face.crop is not None:
            crops.append({"face_key": key, "jpeg": blobs.pack("crop", face_id, face.crop)})
        if face.second is not None:
            template = blobs.pack("second", face_id, to_bytes(face.second))
            seconds.append({"face_key": key, "package": face.second.package, "template": template})
    for insert, values in zip(_INSERTS, (rows, crops, seconds), strict=True):
        if values:
            connection.execute(insert, values)
    insert_origins(connection, gallery, [(key, face.origin) for key, face in zip(keys, faces, strict=True)])
    return [(subject_keys[face.subject], key) for key, face in zip(keys, faces, strict=True)]


def record_added(connection: Connection, gallery: Gallery, pairs: Sequence[tuple[int, int]]) -> None:
    """Write the change log's entries for new faces; make it the transaction's last write."""
    change_log.record(connection, gallery.key, [(change_log.ADD, subject, face) for subject, face in pairs])


def read_subjects(connection: Connection, gallery: Gallery) -> Iterator[BulkSubject]:
    """Read the gallery's subjects in the order of their keys."""
    query = sa.select(SUBJECTS).where(SUBJECTS.c.gallery_key == gallery.key).order_by(SUBJECTS.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        times = (row.created_at, row.updated_at, row.expires_at)
        yield BulkSubject(row.id, row.name, json.loads(row.metadata), *times, to_consent(row.consent), row.cover)


def count_faces(connection: Connection, gallery: Gallery) -> int:
    """Count the faces that `read_faces` reads."""
    source = join_templates(FACES, gallery.embedder)
    query = sa.select(sa.func.count()).select_from(source).where(_is_whole(gallery))
    return int(connection.execute(query).scalar_one())


def read_faces(connection: Connection, gallery: Gallery, blobs: Blobs, *, crops: bool) -> Iterator[BulkFace]:
    """Read the faces that have a template of the gallery's package, in the order of their keys."""
    columns: list[Any] = [*face_columns(gallery.embedder), SUBJECTS.c.id.label("subject"), *ORIGIN_COLUMNS]
    source = join_templates(FACES.join(SUBJECTS), gallery.embedder).outerjoin(
        FACE_ORIGINS, FACE_ORIGINS.c.face_key == FACES.c.key
    )
    if crops:
        columns.append(CROPS.c.jpeg)
        source = source.outerjoin(CROPS, CROPS.c.face_key == FACES.c.key)
    query = sa.select(*columns).select_from(source).where(_is_whole(gallery)).order_by(FACES.c.key)
    for row in connection.execution_options(yield_per=EXPORT_ROWS).execute(query):
        yield _face(row, blobs, row.jpeg if crops else None)


def _is_whole(gallery: Gallery) -> sa.ColumnElement[bool]:
    return (FACES.c.gallery_key == gallery.key) & template_column(gallery.embedder).is_not(None)


def _face(row: Row[Any], blobs: Blobs, crop: bytes | None) -> BulkFace:
    return BulkFace(
        subject=row.subject,
        template=blobs.unpack("template", row.face_id, bytes(row.template)),
        quality=quality_of(row),
        box=box_of(row),
        crop=None if crop is None else blobs.unpack("crop", row.face_id, bytes(crop)),
        face_id=row.face_id,
        created_at=row.created_at,
        origin=to_origin(row),
    )


def _take_keys(connection: Connection, count: int) -> list[int]:
    """Reserve keys for new faces: inserting rows with keys is several times as fast as asking for each new key."""
    if connection.dialect.name == "sqlite":  # the caller holds the database's one write lock
        last = connection.execute(_LAST_KEY).scalar() or 0
        return list(range(last + 1, last + count + 1))
    return sorted(connection.execute(_NEXT_KEYS, {"count": count}).scalars())
