"""Faces and subjects as enrollments and imports write them, many in a change, all or none; and as exports read them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.db.schema import CROPS, FACE_ORIGINS, FACES, SECOND_TEMPLATES
from app.gallery.change import ADD, Change
from app.gallery.records import (
    NO_TERMS,
    Gallery,
    NewFace,
    StoredFace,
    Terms,
    fit_face,
    to_bytes,
)
from app.gallery.rows import (
    brief_subjects,
    encode_crop,
)
from app.gallery.subjects import (
    check_unexpired,
    make_subjects,
    subject_values,
    terms_columns,
    touch_subjects,
    update_subject,
)
from app.gallery.text import check_visible, clean_id, fold


@dataclass(frozen=True, slots=True)
class SubjectFaces:
    """Faces, with a JPEG or None for each, for a subject, which is made if missing. `terms` replace its own; `also`
    writes in the transaction."""

    subject: str
    faces: Sequence[NewFace]
    crops: Sequence[bytes | None]
    terms: Terms = NO_TERMS
    also: Callable[[Connection], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The result of an enrollment: the subject's id, and the new faces with theirs."""

    subject: str
    faces: tuple[StoredFace, ...]
    created: bool


def enroll(change: Change, wanted: Sequence[SubjectFaces]) -> list[Enrolled]:
    """Carry out several enrollments.

    Raises InvalidInput ``invalid_id``, ``invalid_expiry``, ``invalid_consent``, ``invalid_template`` (not a unit vector
    of the gallery's dimension); Conflict ``subject_expired``, ``package_mismatch`` if a face lacks a template that the
    gallery takes.
    """
    subjects: list[tuple[str, dict[str, object]]] = []
    faces: list[tuple[StoredFace, ...]] = []
    for enrollment in wanted:
        name = clean_id(enrollment.subject, "subject")
        subjects.append((name, terms_columns(enrollment.terms)))
        fitted = [fit_face(face, change.gallery.written) for face in enrollment.faces]
        faces.append(tuple(face.stored(name, crop) for face, crop in zip(fitted, enrollment.crops, strict=True)))
    keys, made = write_subjects(change, subjects, unexpired=True)
    for name in made:
        check_visible(name, "subject id")
    touch_subjects(change, [key for name, key in keys.items() if name not in made])
    write_faces(change, change.gallery.embedder, keys, list(chain(*faces)))
    enrolled = []
    for (name, _), some in zip(subjects, faces, strict=True):
        enrolled.append(Enrolled(name, some, created=name in made))
        made.discard(name)  # a second enrollment of the same subject did not create it
    for enrollment in wanted:
        enrollment.also(change.connection)
    return enrolled


def crop_to_keep(gallery: Gallery, face: NewFace) -> bytes | None:
    return encode_crop(face.crop) if gallery.store == "crop" and face.crop is not None else None


_INSERTS = tuple(sa.insert(table) for table in (FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS))
_LAST_KEY = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'faces'")
_NEXT_KEYS = sa.text("SELECT nextval(pg_get_serial_sequence('faces', 'key')) FROM generate_series(1, :count)")


def write_subjects(
    change: Change, subjects: Iterable[tuple[str, Mapping[str, Any]]], *, unexpired: bool = False
) -> tuple[dict[str, int], set[str]]:
    """Add missing subjects and update the others, given by their ids and columns; return the keys by id, and the new
    ids. Where two are one subject, the later one's columns count.

    With `unexpired`, raises Conflict ``subject_expired`` for a subject that has expired.
    """
    wanted: dict[str, dict[str, Any]] = {}
    for subject_id, columns in subjects:
        wanted.setdefault(subject_id, {}).update(columns)
    known = brief_subjects(change.connection, change.gallery, wanted.keys())
    if unexpired:
        check_unexpired(change, known.values())
    keys = {name: row.key for name, row in known.items()}
    missing = sorted(wanted.keys() - keys.keys())
    made = make_subjects(change, [subject_values(change, subject_id, **wanted[subject_id]) for subject_id in missing])
    for subject_id, key in sorted(keys.items()):
        changes = {
            name: value for name, value in wanted[subject_id].items() if name not in {"created_at", "updated_at"}
        }
        if "name" in changes:
            changes["folded"] = fold(subject_id, changes["name"])
        if changes:
            update_subject(change, key, changes)
    return keys | made, set(made)


def id_here(gallery: Gallery, foreign: str) -> str:
    """Return the id of something whose own id another gallery has, perhaps a copy: the same at each import."""
    return hashlib.sha256(f"{gallery.key}/{foreign}".encode()).hexdigest()[:32]


def write_faces(change: Change, package: str, subject_keys: Mapping[str, int], faces: Sequence[StoredFace]) -> None:
    """Insert the faces, whose templates are of `package`; `subject_keys` are given by the subjects' ids."""
    connection, blobs = change.connection, change.blobs
    keys = _take_keys(connection, len(faces))
    rows, crops, seconds, origins = [], [], [], []
    blobs.mark(connection)
    for key, face in zip(keys, faces, strict=True):
        face_id = face.face_id
        rows.append(
            {
                "key": key,
                "gallery_key": change.gallery.key,
                "subject_key": subject_keys[face.subject],
                "face_id": face_id,
                "package": package,
                "template": blobs.pack("template", face_id, face.template),
                "quality": face.quality.score,
                "reasons": json.dumps(face.quality.reasons) if face.quality.reasons else "[]",
                "x": face.box.x,
                "y": face.box.y,
                "width": face.box.width,
                "height": face.box.height,
                "created_at": face.created_at or change.now,
            }
        )
        if face.crop is not None:
            crops.append({"face_key": key, "jpeg": blobs.pack("crop", face_id, face.crop)})
        if face.second is not None:
            template = blobs.pack("second", face_id, to_bytes(face.second))
            seconds.append({"face_key": key, "package": face.second.package, "template": template})
        if face.origin is not None:
            origins.append({"face_key": key, "gallery_key": change.gallery.key, **asdict(face.origin)})
    for insert, values in zip(_INSERTS, (rows, crops, seconds, origins), strict=True):
        if values:
            connection.execute(insert, values)
    change.log(ADD, [(subject_keys[face.subject], key) for key, face in zip(keys, faces, strict=True)])


def _take_keys(connection: Connection, count: int) -> list[int]:
    """Reserve keys for new faces: inserting rows with keys is several times as fast as asking for each new key."""
    if connection.dialect.name == "sqlite":  # the caller holds the database's one write lock
        last = connection.execute(_LAST_KEY).scalar() or 0
        return list(range(last + 1, last + count + 1))
    return sorted(connection.execute(_NEXT_KEYS, {"count": count}).scalars())
