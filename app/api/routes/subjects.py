"""Subjects: the people of a gallery, and corrections, photos that were wrongly taken for one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from fastapi.responses import JSONResponse

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.auth import require_scope
from app.api.body import ONE_IMAGE, Sent
from app.api.components import CorrectionId, GalleryId, SubjectId
from app.api.operation import NO_FACE, NO_SUBJECT, SUBJECT, SUBJECT_FIELDS, SUBJECTS, TEMPLATES
from app.api.route import Router
from app.gallery import moving, subjects
from app.gallery.erasure import Erasures
from app.gallery.records import UNSET, Consent, Gallery, Terms
from app.gallery.service import Galleries
from app.gallery.text import clean_id
from app.recognition.corrections import Corrections
from app.recognition.operations import Operations
from app.timestamps import utc_now

router = Router("subjects")

CORRECTIONS = f"{SUBJECT}/corrections"


@router.operation("GET", SUBJECTS, scope=Scope.READ, codes=("invalid_cursor", "invalid_search"))
def list_subjects(
    galleries: Galleries, gallery: Gallery, query: Annotated[schemas.SubjectPageParams, Query()]
) -> schemas.SubjectPage:
    """List the subjects of a gallery.

    In the order of their creation, page by page; with `search` only those whose id or name contains it.
    """

    page = galleries.store.subjects(
        gallery,
        cursor=query.cursor,
        limit=query.limit,
        offset=query.offset,
        search=query.search,
        expires_before=query.expires_before,
    )
    return schemas.SubjectPage.of(page, subjects=page.items)


@router.operation(
    "POST", SUBJECTS, scope=Scope.ENROLL, changes=True, status=201, codes=(*SUBJECT_FIELDS, "subject_exists")
)
def create_subject(
    galleries: Galleries, entry: AuditEntry, gallery: Gallery, asked: schemas.SubjectCreate
) -> schemas.Subject:
    """Create a subject.

    The new subject has no faces, and an id that the server makes unless one is given. Enrolling creates a missing
    subject too; this is for giving it a name first.
    """
    entry.subject = fit_id(asked.id)
    with galleries.store.change(gallery) as change:
        made = subjects.create_subject(change, asked.id, asked.name, asked.metadata, terms=_terms_of(asked))
    entry.subject = made.id
    return schemas.Subject.model_validate(made)


@router.operation("GET", SUBJECT, scope=Scope.READ, name="show_subject", codes=NO_SUBJECT)
def get_subject(galleries: Galleries, gallery: Gallery, subject: SubjectId) -> schemas.Subject:
    """Show a subject.

    The subject with its name, metadata and number of faces.
    """
    return schemas.Subject.model_validate(galleries.store.subject(gallery, subject))


@router.operation(
    "PATCH", SUBJECT, scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, *SUBJECT_FIELDS, "subject_exists")
)
def update_subject(
    galleries: Galleries, entry: AuditEntry, gallery: Gallery, subject: SubjectId, asked: schemas.SubjectPatch
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
    with galleries.store.change(gallery) as change:
        edited = subjects.edit_subject(
            change, subject, name=name, metadata=metadata, terms=terms, cover=cover, new_id=new_id
        )
    return schemas.Subject.model_validate(edited)


@router.operation("DELETE", SUBJECT, scope=Scope.ENROLL, changes=True, codes=NO_SUBJECT)
def delete_subject(galleries: Galleries, gallery: Gallery, subject: SubjectId) -> None:
    """Delete a subject with its faces.

    Deletes the subject, its faces, their stored crops and vectors. This can't be undone.
    """
    with galleries.change(gallery) as change:
        subjects.delete_subject(change, subject)


@router.operation("POST", f"{SUBJECT}/erase", scope=Scope.ADMIN, answer=schemas.Receipt, changes=True, codes=NO_SUBJECT)
def erase_subject(
    erasures: Erasures, gallery: GalleryId, subject: SubjectId, query: Annotated[schemas.EraseParams, Query()]
) -> JSONResponse:
    """Erase a subject for good.

    Deletes the subject with everything about it, clears what the disk may still hold of it, and answers with a signed
    receipt of what was erased and of what the server can't reach.
    """
    return JSONResponse(erasures.erase(gallery, subject, rewrite=query.rewrite))


@router.operation("POST", f"{SUBJECT}/merge", scope=Scope.ENROLL, changes=True, codes=(*NO_SUBJECT, "subject_expired"))
def merge_subject(
    galleries: Galleries,
    entry: AuditEntry,
    gallery: Gallery,
    subject: SubjectId,
    asked: schemas.SubjectMerge,
) -> schemas.MergedSubject:
    """Merge a subject into another one.

    The other subject gets all faces, which keep their ids, and the first is deleted, in one step. The other keeps its
    name, metadata and consent, and takes those it lacks; the earlier of two expiries counts. Repeated within a day,
    the request changes nothing and gets the same answer. To undo it, move `faces` back.
    """
    entry.target = fit_id(asked.into)
    with galleries.change(gallery) as change:
        faces = moving.merge_subjects(change, subject, asked.into)
    kept = schemas.Subject.model_validate(galleries.store.subject(gallery, asked.into))
    return schemas.MergedSubject(subject=kept, merged=clean_id(subject, "subject"), faces=faces)


@router.operation("GET", CORRECTIONS, scope=Scope.READ, codes=NO_SUBJECT)
def list_corrections(corrections: Corrections, gallery: Gallery, subject: SubjectId) -> schemas.CorrectionList:
    """List a subject's corrections.

    Those that have not expired, oldest first.
    """
    listed = corrections.of_subject(gallery, subject)
    return schemas.CorrectionList.of(corrections=listed)


@router.operation(
    "POST",
    CORRECTIONS,
    scope=Scope.ENROLL,
    changes=True,
    status=201,
    images=ONE_IMAGE,
    codes=(*TEMPLATES, *NO_SUBJECT, "no_face", "face_unalignable", "invalid_expiry", "correction_unlikely"),
)
def add_correction(
    operations: Operations,
    grant: Grant,
    gallery: Gallery,
    subject: SubjectId,
    sent: Sent[schemas.CorrectionParams],
) -> schemas.Correction:
    """Say that a photo does not show the subject.

    Send again the photo of a wrong answer. Its face's template is kept, and its crop if the gallery keeps crops. From
    then on a probe that is more like it than like the subject's own faces is not `known` as the subject, nor a match;
    `explain` lists whom corrections ruled out. It is erased with the subject, dropped when the subject is merged, and
    expires. Unless `confirm` is given, the photo is compared with the subject first, which needs `recognize` too.
    """
    params = sent.params
    if not params.confirm:
        require_scope(grant, Scope.RECOGNIZE)
    correction = operations.correct(
        gallery, subject, sent.images[0], params.face, params.expires_at, confirm=params.confirm
    )
    return schemas.Correction.model_validate(correction)


@router.operation(
    "DELETE",
    f"{CORRECTIONS}/{{correction}}",
    scope=Scope.ENROLL,
    changes=True,
    codes=(*NO_SUBJECT, "correction_not_found"),
)
def delete_correction(
    corrections: Corrections,
    gallery: Gallery,
    subject: SubjectId,
    correction: CorrectionId,
) -> None:
    """Delete a correction.

    The correction no longer counts when people are identified.
    """
    corrections.delete(gallery, subject, correction)


def _terms_of(asked: schemas.SubjectCreate | schemas.SubjectPatch) -> Terms:
    """Return the body's expiry and consent; absent ones stay as they are."""
    given = asked.model_fields_set
    told = asked.consent
    consent = None if told is None else Consent(told.note, told.given_at or utc_now())
    return Terms(asked.expires_at if "expires_at" in given else UNSET, consent if "consent" in given else UNSET)
