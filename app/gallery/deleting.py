"""Faces and subjects deleted; erasure, which leaves nothing of a subject, is one of the ways."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from app.db.engine import in_parts
from app.db.schema import FACES, SUBJECTS
from app.gallery.change import Change
from app.gallery.change_log import ERASE, REMOVE, REMOVE_SUBJECT
from app.gallery.face_rows import faces_by_id, find_face
from app.gallery.records import Counts, Erased, Subject
from app.gallery.subject_rows import erase_rows, find_subject, has_expired, subject_not_found, tidy, touch_subjects
from app.gallery.text import clean_id


def delete_face(change: Change, subject_id: str, face_id: str) -> None:
    """Delete the subject's face with its crop. Raises NotFound ``subject_not_found``, ``face_not_found``."""
    subject = find_subject(change.connection, change.gallery, clean_id(subject_id, "subject"))
    key: int = find_face(change.connection, change.gallery, face_id, subject).key
    change.connection.execute(sa.delete(FACES).where(FACES.c.key == key))
    touch_subjects(change, [subject.key])
    change.log(REMOVE, [(subject.key, key)])


def delete_faces(change: Change, face_ids: Sequence[str]) -> list[str]:
    """Delete those of the faces that exist, whosever they are, with their crops, and unnamed subjects with their last
    face; return the ids."""
    faces = faces_by_id(change.connection, change.gallery, face_ids)
    for some in in_parts(sorted(row.key for row in faces.values())):
        change.connection.execute(sa.delete(FACES).where(FACES.c.key.in_(some)))
    tidy(change, {row.subject_key for row in faces.values()})
    change.log(REMOVE, [(row.subject_key, row.key) for row in faces.values()])
    return list(faces)


def delete_subject(change: Change, subject_id: str) -> Subject:
    """Delete the subject with its faces and crops; return it as it was. Raises NotFound ``subject_not_found``."""
    subject = find_subject(change.connection, change.gallery, clean_id(subject_id, "subject"))
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.key == subject.key))
    change.log(REMOVE_SUBJECT, [(subject.key, None)])
    return subject


def delete_subjects(change: Change) -> Counts:
    """Delete all subjects with their faces and crops; return their numbers."""
    everybody = sa.select(SUBJECTS.c.key).where(SUBJECTS.c.gallery_key == change.gallery.key)
    keys = list(change.connection.execute(everybody.order_by(SUBJECTS.c.key)).scalars())
    faces = change.connection.execute(sa.delete(FACES).where(FACES.c.gallery_key == change.gallery.key)).rowcount
    change.connection.execute(sa.delete(SUBJECTS).where(SUBJECTS.c.gallery_key == change.gallery.key))
    change.log(REMOVE_SUBJECT, [(key, None) for key in keys])
    return Counts(len(keys), faces)


def erase_subject(change: Change, subject_id: str, *, expired_by: str | None = None) -> Erased:
    """Delete the subject with everything that may mention it.

    With `expired_by`, a subject that hasn't expired by then isn't found. Raises as `delete_subject` does.
    """
    cleaned = clean_id(subject_id, "subject")
    subject = find_subject(change.connection, change.gallery, cleaned)
    if expired_by is not None and not has_expired(subject, expired_by):
        raise subject_not_found(change.gallery, cleaned)
    erased = erase_rows(change.connection, change.gallery, subject)
    change.log(ERASE, [(subject.key, None)])
    return erased
