"""Subjects made and edited without their faces."""

from __future__ import annotations

import uuid

from app.errors import Conflict
from app.gallery.change import Change
from app.gallery.face_rows import find_face
from app.gallery.records import NO_TERMS, UNSET, Metadata, Subject, Terms, Unset
from app.gallery.subject_rows import find_subject, make_subjects, subject_values, terms_columns, update_subject
from app.gallery.text import check_visible, clean_id, clean_name, encode_metadata, fold


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
        message = f"Gallery {change.gallery.id!r} already has a subject {cleaned!r}."
        raise Conflict(message, code="subject_exists", gallery=change.gallery.id, subject=cleaned)
    return find_subject(change.connection, change.gallery, cleaned)


def edit_subject(
    change: Change,
    subject_id: str,
    name: str | Unset | None = UNSET,
    metadata: Metadata | Unset = UNSET,
    *,
    terms: Terms = NO_TERMS,
    cover: str | Unset | None = UNSET,
) -> Subject:
    """Replace what is given, metadata as a whole; a `name` or `cover` of None removes it.

    Raises InvalidInput ``invalid_id``, ``invalid_name``, ``invalid_metadata``, ``invalid_expiry``,
    ``invalid_consent``; NotFound ``subject_not_found``, ``face_not_found``.
    """
    cleaned = clean_id(subject_id, "subject")
    subject = find_subject(change.connection, change.gallery, cleaned)
    updates = terms_columns(terms)
    if name is not UNSET:
        new_name = None if name is None else clean_name(name)
        updates |= {"name": new_name, "folded": fold(cleaned, new_name)}
    if metadata is not UNSET:
        updates["metadata"] = encode_metadata(metadata, change.max_metadata_bytes)
    if cover is not UNSET:
        found = None if cover is None else find_face(change.connection, change.gallery, cover, subject)
        updates["cover"] = None if found is None else found.face_id
    update_subject(change, subject.key, updates)
    return find_subject(change.connection, change.gallery, cleaned)
