"""Make, edit and delete subjects and their faces, by functions over a `Change`.

Imports and exports use the functions that write many at once. An unnamed subject (`app.gallery.text.unnamed_id`) is
made with its only face and deleted with it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import in_parts
from app.db.schema import CROPS, FACE_ORIGINS, FACES, SECOND_TEMPLATES, SUBJECTS
from app.errors import Conflict, InvalidInput
from app.gallery.records import (
    NO_TERMS,
    UNSET,
    Consent,
    Metadata,
    StoredFace,
    Subject,
    Terms,
    Unset,
    brief_subjects,
    find_face,
    find_subject,
    is_unnamed_row,
    to_bytes,
)
from app.gallery.store import ADD, REMOVE, REMOVE_SUBJECT, Change
from app.gallery.text import check_visible, clean_id, clean_name, clean_note, encode_metadata, fold
from app.types import utc_now

NO_METADATA = "{}"
_TOUCH = (
    sa.update(SUBJECTS)
    .where(SUBJECTS.c.key.in_(sa.bindparam("keys", expanding=True)))
    .values(updated_at=sa.bindparam("now"))
)


def from_consent(consent: Consent | None) -> str | None:
    """Return the value of the column `consent`. Raises InvalidInput ``invalid_consent``."""
    return (
        None
        if consent is None
        else json.dumps({"note": clean_note(consent.note), "given_at": consent.given_at}, ensure_ascii=False)
    )


def check_unexpired(change: Change, subjects: Iterable[Row[Any]]) -> None:
    """Raise Conflict ``subject_expired`` if one of the subjects is about to be erased."""
    for row in subjects:
        if row.expires_at is not None and row.expires_at <= change.now:
            message = f"Subject {row.id!r} has expired and is about to be erased."
            raise Conflict(message, code="subject_expired", gallery=change.gallery.id, subject=row.id)


def subject_values(change: Change, subject_id: str, *, name: str | None = None, **columns: object) -> dict[str, Any]:
    """Return a new subject's columns; `columns` replace the defaults."""
    return {
        "gallery_key": change.gallery.key,
        "id": subject_id,
        "name": name,
        "folded": fold(subject_id, name),
        "metadata": NO_METADATA,
        "created_at": change.now,
        "updated_at": change.now,
        "expires_at": None,
        "consent": None,
        "cover": None,
    } | columns


def make_subjects(change: Change, rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Insert the rows, at least one, whose ids are free; return the new subjects' keys by id."""
    insert = change.insert(SUBJECTS).on_conflict_do_nothing().returning(SUBJECTS.c.id, SUBJECTS.c.key)
    return {row.id: row.key for row in change.connection.execute(insert, rows)}


def update_subject(change: Change, key: int, updates: Mapping[str, object]) -> None:
    """Set these columns and the time of the change."""
    values = {"updated_at": change.now, **updates}
    change.connection.execute(sa.update(SUBJECTS).where(SUBJECTS.c.key == key).values(values))
    change.overwrites |= bool(updates)


def touch_subjects(change: Change, keys: Iterable[int]) -> None:
    for part in in_parts(sorted(keys)):
        change.connection.execute(_TOUCH, {"keys": part, "now": change.now})


def tidy(change: Change, keys: Iterable[int]) -> None:
    """Delete these subjects if they are unnamed and have lost their last face; set the others' time of change."""
    drop_unnamed(change, keys)
    touch_subjects(change, keys)


def drop_unnamed(change: Change, keys: Iterable[int]) -> None:
    """Delete these subjects if they are unnamed and have no face."""
    empty = ~sa.exists().where(FACES.c.subject_key == SUBJECTS.c.key)
    for part in in_parts(sorted(keys)):
        change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key.in_(part) & is_unnamed_row() & empty))


def terms_columns(terms: Terms) -> dict[str, object]:
    """Return the columns that `terms` change. Raises InvalidInput ``invalid_expiry``, ``invalid_consent``."""
    columns: dict[str, object] = {}
    if terms.expires_at is not UNSET:
        if terms.expires_at is not None and terms.expires_at <= utc_now():
            raise InvalidInput("The subject would have expired already.", code="invalid_expiry")
        columns["expires_at"] = terms.expires_at
    if terms.consent is not UNSET:
        columns["consent"] = from_consent(terms.consent)
    return columns


def create_subject(
    change: Change,
    subject_id: str | None = None,
    name: str | None = None,
    metadata: Metadata | None = None,
    *,
    terms: Terms = NO_TERMS,
) -> Subject:
    """Make a subject without faces, with a random id if none is given.

    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
    ``invalid_consent``; Conflict ``subject_exists``.
    """
    cleaned = clean_id(subject_id if subject_id is not None else uuid.uuid4().hex, "subject")
    check_visible(cleaned, "subject id")
    columns = terms_columns(terms) | {"metadata": encode_metadata(metadata or {}, change.max_metadata_bytes)}
    row = subject_values(change, cleaned, name=None if name is None else clean_name(name), **columns)
    if not make_subjects(change, [row]):
        raise _subject_exists(change, cleaned)
    return find_subject(change.connection, change.gallery, cleaned)


def _subject_exists(change: Change, subject_id: str) -> Conflict:
    message = f"Gallery {change.gallery.id!r} already has a subject {subject_id!r}."
    return Conflict(message, code="subject_exists", gallery=change.gallery.id, subject=subject_id)


def edit_subject(
    change: Change,
    subject_id: str,
    name: str | Unset | None = UNSET,
    metadata: Metadata | Unset = UNSET,
    *,
    terms: Terms = NO_TERMS,
    cover: str | Unset | None = UNSET,
    new_id: str | Unset = UNSET,
) -> Subject:
    """Replace the given fields, metadata as a whole; a `name` or `cover` of None removes it.

    Everything that belongs to the subject refers to its key, so it follows a new id.

    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
    ``invalid_consent``; NotFound ``subject_not_found``, ``face_not_found``; Conflict ``subject_exists``.
    """
    subject = find_subject(change.connection, change.gallery, subject_id)
    updates = terms_columns(terms)
    kept_id = subject.id if new_id is UNSET else _free_id(change, subject, new_id)
    kept_name = subject.name if name is UNSET else None if name is None else clean_name(name)
    if (kept_id, kept_name) != (subject.id, subject.name):
        updates |= {"id": kept_id, "name": kept_name, "folded": fold(kept_id, kept_name)}
    if metadata is not UNSET:
        updates["metadata"] = encode_metadata(metadata, change.max_metadata_bytes)
    if cover is not UNSET:
        face = None if cover is None else find_face(change.connection, change.gallery, cover, subject)
        updates["cover"] = None if face is None else face.face_id
    update_subject(change, subject.key, updates)
    return find_subject(change.connection, change.gallery, kept_id)


def _free_id(change: Change, subject: Subject, wanted: str) -> str:
    """Return the id in NFC if it is free or the subject's own. Raises what `edit_subject` raises."""
    cleaned = clean_id(wanted, "subject")
    if cleaned == subject.id:
        return cleaned
    check_visible(cleaned, "subject id")
    if brief_subjects(change.connection, change.gallery, [cleaned]):
        raise _subject_exists(change, cleaned)
    return cleaned


def delete_subject(change: Change, subject_id: str) -> Subject:
    """Delete the subject with its faces and crops; return it as it was. Raises NotFound ``subject_not_found``."""
    subject = find_subject(change.connection, change.gallery, subject_id, expired=True)
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
    change.log(REMOVE_SUBJECT, [(subject.key, None)])
    return subject


_INSERTS = tuple(sa.insert(table) for table in (FACES, CROPS, SECOND_TEMPLATES, FACE_ORIGINS))
_LAST_KEY = sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'faces'")
_NEXT_KEYS = sa.text("SELECT nextval(pg_get_serial_sequence('faces', 'key')) FROM generate_series(1, :count)")


def write_subjects(
    change: Change, subjects: Iterable[tuple[str, Mapping[str, Any]]], *, unexpired: bool = False
) -> tuple[dict[str, int], set[str]]:
    """Add missing subjects and update the others, given by their ids and columns; return the keys by id, and the new
    ids. If an id comes twice, the later columns count.

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
    rows = [subject_values(change, subject_id, **wanted[subject_id]) for subject_id in missing]
    made = make_subjects(change, rows) if rows else {}
    for subject_id, key in sorted(keys.items()):
        changes = {
            name: value for name, value in wanted[subject_id].items() if name not in {"created_at", "updated_at"}
        }
        if "name" in changes:
            changes["folded"] = fold(subject_id, changes["name"])
        if changes:
            update_subject(change, key, changes)
    return keys | made, set(made)


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
                "template": blobs.pack("template", face_id, to_bytes(face.template)),
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
    """Reserve keys for new faces, since inserting rows with keys is several times as fast as fetching each new key."""
    if connection.dialect.name == "sqlite":  # the caller holds the database's one write lock
        last = connection.execute(_LAST_KEY).scalar() or 0
        return list(range(last + 1, last + count + 1))
    return sorted(connection.execute(_NEXT_KEYS, {"count": count}).scalars())


def delete_face(change: Change, subject_id: str, face_id: str) -> None:
    """Delete the subject's face with its crop; an unnamed subject is deleted with it.

    Raises NotFound ``subject_not_found``, ``face_not_found``.
    """
    subject = find_subject(change.connection, change.gallery, subject_id)
    key: int = find_face(change.connection, change.gallery, face_id, subject).key
    change.connection.execute(sa.delete(FACES).where(FACES.c.key == key))
    tidy(change, [subject.key])
    change.log(REMOVE, [(subject.key, key)])
