"""Corrections: probes that were wrongly taken for a subject."""

from __future__ import annotations

from app.access.grants import Scope
from app.api import schemas
from app.api.body import ONE_IMAGE, Sent
from app.api.components import CorrectionId, GalleryId, SubjectId
from app.api.operation import NO_SUBJECT, SUBJECT, TEMPLATES
from app.api.route import Router
from app.gallery.service import Galleries
from app.recognition.corrections import Corrections
from app.recognition.operations import Operations
from app.timestamps import utc_text_or_none

router = Router("subjects")

CORRECTIONS = f"{SUBJECT}/corrections"


@router.operation("GET", CORRECTIONS, scope=Scope.READ, codes=NO_SUBJECT)
def list_corrections(
    corrections: Corrections, galleries: Galleries, gallery: GalleryId, subject: SubjectId
) -> schemas.CorrectionList:
    """List a subject's corrections.

    Those that have not expired, oldest first.
    """
    listed = corrections.of_subject(galleries.store.gallery(gallery), subject)
    return schemas.CorrectionList.of(corrections=listed)


@router.operation(
    "POST",
    CORRECTIONS,
    scope=Scope.ENROLL,
    changes=True,
    status=201,
    images=ONE_IMAGE,
    codes=(*TEMPLATES, *NO_SUBJECT, "no_face", "subject_expired", "invalid_expiry", "correction_unlikely"),
)
def add_correction(
    operations: Operations, gallery: GalleryId, subject: SubjectId, sent: Sent[schemas.CorrectionParams]
) -> schemas.Correction:
    """Say that a photo does not show the subject.

    Send again the photo of a wrong answer. Its face's template is kept, and its crop if the gallery keeps crops. From
    then on a probe that is more like it than like the subject's own faces is not `known` as the subject, nor a match;
    `explain` lists whom corrections ruled out. It is erased with the subject, dropped when the subject is merged, and
    expires.
    """
    expires_at = utc_text_or_none(sent.params.expires_at)
    correction = operations.correct(
        gallery, subject, sent.images[0], sent.params.face, expires_at, confirm=sent.params.confirm
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
    galleries: Galleries,
    gallery: GalleryId,
    subject: SubjectId,
    correction: CorrectionId,
) -> None:
    """Delete a correction.

    The correction no longer counts when people are identified.
    """
    corrections.delete(galleries.store.gallery(gallery), subject, correction)
