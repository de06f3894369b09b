"""Subjects: what makes, edits and deletes them. Erasure, which leaves nothing, is a way to delete."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.db.engine import in_parts
from app.db.schema import ANSWERED_REQUESTS, CROPS, FACES, JOB_REFUSALS, JOBS, SECOND_TEMPLATES, SUBJECTS
from app.errors import Conflict, InvalidInput
from app.gallery.change import ERASE, REMOVE_SUBJECT, Change
from app.gallery.records import NO_TERMS, UNSET, Consent, Counts, Metadata, Subject, Terms, Unset
from app.gallery.rows import brief_subjects, find_face, find_subject, is_unnamed_row, subject_not_found
from app.gallery.text import check_visible, clean_consent, clean_id, clean_name, encode_metadata, fold
from app.timestamps import utc_now

NO_METADATA = "{}"
_TOUCH = (
    sa.update(SUBJECTS)
    .where(SUBJECTS.c.key.in_(sa.bindparam("keys", expanding=True)))
    .values(updated_at=sa.bindparam("now"))
)


def from_consent(consent: Consent | None) -> str | None:
    """Return the column's value. Raises InvalidInput ``invalid_consent``."""
    return None if consent is None else json.dumps(asdict(clean_consent(consent)), ensure_ascii=False)


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
    """Insert the rows whose ids are free; return the new subjects' keys by id."""
    if not rows:
        return {}
    insert = change.insert(SUBJECTS).on_conflict_do_nothing().returning(SUBJECTS.c.id, SUBJECTS.c.key)
    return {row.id: row.key for row in change.connection.execute(insert, rows)}


def update_subject(change: Change, key: int, updates: Mapping[str, object]) -> None:
    """Set these columns and the time of the change."""
    values = {"updated_at": change.now, **updates}
    change.connection.execute(sa.update(SUBJECTS).where(SUBJECTS.c.key == key).values(values))
    change.overwrites |= bool(updates)


def inherited(connection: Connection, source: int, target: int) -> dict[str, object]:
    """Return the columns of `target` that change when `source` becomes part of it (`app.gallery.moving`)."""
    query = sa.select(SUBJECTS).where(SUBJECTS.c.key.in_((source, target)))
    rows = {row.key: row for row in connection.execute(query)}
    old, kept = rows[source], rows[target]
    updates: dict[str, object] = {}
    if kept.name is None and old.name is not None:
        updates |= {"name": old.name, "folded": fold(kept.id, old.name)}
    if kept.metadata == NO_METADATA:
        updates["metadata"] = old.metadata
    if kept.consent is None:
        updates["consent"] = old.consent
    return updates | {"expires_at": earliest([old.expires_at, kept.expires_at])}


def earliest(ends: Iterable[str | None]) -> str | None:
    return min((end for end in ends if end is not None), default=None)


def touch_subjects(change: Change, keys: Iterable[int]) -> None:
    for some in in_parts(sorted(keys)):
        change.connection.execute(_TOUCH, {"keys": some, "now": change.now})


def tidy(change: Change, keys: Iterable[int]) -> None:
    """Delete the unnamed ones of these subjects that have lost their last face; set the others' time of change."""
    drop_unnamed(change, keys)
    touch_subjects(change, keys)


def drop_unnamed(change: Change, keys: Iterable[int]) -> None:
    """Delete the unnamed ones of these subjects that have no face."""
    empty = ~sa.exists().where(FACES.c.subject_key == SUBJECTS.c.key)
    for some in in_parts(sorted(keys)):
        change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key.in_(some) & is_unnamed_row() & empty))


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


def has_expired(subject: Subject, at: str) -> bool:
    return subject.expires_at is not None and subject.expires_at <= at


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
    """Replace what is given, metadata as a whole; a `name` or `cover` of None removes it.

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
    """Return the id in NFC if it is the subject's or no other's. Raises as `edit_subject` does."""
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


def delete_subjects(change: Change) -> Counts:
    everybody = sa.select(SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == change.gallery.key)
    keys = list(change.connection.execute(everybody.order_by(SUBJECTS.c.key)).scalars())
    faces = change.connection.execute(sa.delete(FACES).where(FACES.c.gallery_key == change.gallery.key)).rowcount
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.gallery_key == change.gallery.key))
    change.log(REMOVE_SUBJECT, [(key, None) for key in keys])
    return Counts(len(keys), faces)


def erase_subject(change: Change, subject_id: str, *, expired_by: str | None = None) -> tuple[str, dict[str, int]]:
    """Delete the subject with everything that may mention it; return its id, and how much of what was its.

    With `expired_by`, a subject that hasn't expired by then isn't found. Raises as `delete_subject` does.
    """
    gallery, connection = change.gallery, change.connection
    subject = find_subject(connection, gallery, subject_id, expired=True)
    if expired_by is not None and not has_expired(subject, expired_by):
        raise subject_not_found(gallery, subject.id)
    mine = FACES.c.subject_key == subject.key
    crops, second = (
        connection.execute(sa.select(sa.func.count()).select_from(table.join(FACES)).where(mine)).scalar_one()
        for table in (CROPS, SECOND_TEMPLATES)
    )
    connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
    # Kept answers, the files that jobs left (unreadable without their keys) and jobs' reports may mention anybody.
    connection.execute(sa.delete(ANSWERED_REQUESTS).where(ANSWERED_REQUESTS.c.gallery_key == gallery.key))
    jobs = JOBS.c.gallery_key == gallery.key
    connection.execute(sa.update(JOBS).where(jobs & JOBS.c.result.is_not(None)).values(result=None, secret=None))
    connection.execute(sa.delete(JOB_REFUSALS).where(JOB_REFUSALS.c.job_key.in_(sa.select(JOBS.c.key).where(jobs))))
    change.log(ERASE, [(subject.key, None)])
    faces = subject.face_count
    return subject.id, {"faces": faces, "templates": faces + second, "crops": crops}
