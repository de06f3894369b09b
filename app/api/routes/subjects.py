"""Subjects: the people of a gallery."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Scope
from app.api import schemas
from app.api.components import SubjectId
from app.api.operation import NO_FACE, NO_SUBJECT, SUBJECT_FIELDS, SUBJECT_PATH, SUBJECTS_PATH
from app.api.route import Router
from app.gallery import subjects
from app.gallery.records import UNSET, Consent, Gallery, Terms
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.types import utc_now

router = Router("subjects")


@router.operation("GET", SUBJECTS_PATH, scope=Scope.READ, codes=("invalid_cursor", "invalid_search"))
def list_subjects(
    store: Store, gallery: Gallery, query: Annotated[schemas.SubjectPageParams, Query()]
) -> schemas.SubjectPage:
    """List the subjects of a gallery.

    Lists them in the order of their creation, page by page; with `search` only those whose id or name contains it.
    """
    page = store.subjects(
        gallery,
        cursor=query.cursor,
        limit=query.limit,
        offset=query.offset,
        search=query.search,
        expires_before=query.expires_before,
    )
    return schemas.SubjectPage.of(page, subjects=page.items)


@router.operation(
    "POST", SUBJECTS_PATH, scope=Scope.ENROLL, changes=True, status=201, codes=(*SUBJECT_FIELDS, "subject_exists")
)
def create_subject(store: Store, entry: AuditEntry, gallery: Gallery, asked: schemas.SubjectCreate) -> schemas.Subject:
    """Create a subject.

    Creates a subject without faces. The server makes an id unless one is given. Enrolling also creates a missing
    subject; this is for giving it a name first.
    """
    entry.subject = fit_id(asked.id)
    with store.change(gallery) as change:
        made = subjects.create_subject(change, asked.id, asked.name, asked.metadata, terms=_terms_of(asked))
    entry.subject = made.id
    return schemas.Subject.model_validate(made)


@router.operation("GET", SUBJECT_PATH, scope=Scope.READ, name="show_subject", codes=NO_SUBJECT)
def get_subject(store: Store, gallery: Gallery, subject: SubjectId) -> schemas.Subject:
    """Show a subject.

    Answers the subject with its name, metadata and number of faces.
    """
    return schemas.Subject.model_validate(store.subject(gallery, subject))


@router.operation(
    "PATCH", SUBJECT_PATH, scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, *SUBJECT_FIELDS, "subject_exists")
)
def update_subject(
    store: Store, entry: AuditEntry, gallery: Gallery, subject: SubjectId, asked: schemas.SubjectPatch
) -> schemas.Subject:
    """Change a subject's id, name, metadata, expiry, consent or cover.

    A given field replaces the old value as a whole (metadata too), an absent field stays as it is, null removes it.
    Faces, corrections and sightings follow a new id; the audit log has it beside the old one.
    """
    new_id = asked.id if "id" in asked.model_fields_set else UNSET
    entry.target = None if new_id is UNSET else fit_id(new_id)
    name = asked.name if "name" in asked.model_fields_set else UNSET
    metadata = asked.metadata if "metadata" in asked.model_fields_set else UNSET
    cover = asked.cover if "cover" in asked.model_fields_set else UNSET
    terms = _terms_of(asked)
    with store.change(gallery) as change:
        edited = subjects.edit_subject(
            change, subject, name=name, metadata=metadata, terms=terms, cover=cover, new_id=new_id
        )
    return schemas.Subject.model_validate(edited)


@router.operation("DELETE", SUBJECT_PATH, scope=Scope.ENROLL, changes=True, codes=NO_SUBJECT)
def delete_subject(galleries: Galleries, gallery: Gallery, subject: SubjectId) -> None:
    """Delete a subject with its faces.

    Deletes the subject, its faces, their stored crops and vectors. This can't be undone.
    """
    with galleries.change(gallery) as change:
        subjects.delete_subject(change, subject)


def _terms_of(asked: schemas.SubjectCreate | schemas.SubjectPatch) -> Terms:
    """Return the body's expiry and consent; absent ones stay as they are."""
    given = asked.model_fields_set
    told = asked.consent
    consent = None if told is None else Consent(told.note, told.given_at or utc_now())
    return Terms(asked.expires_at if "expires_at" in given else UNSET, consent if "consent" in given else UNSET)
