"""Corrections: probes that were wrongly taken for a subject."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from app.api import answers, endpoints, schemas
from app.api.dependencies import CorrectionId, GalleryId, ServiceDep, SubjectId
from app.api.operation import ONE_IMAGE
from app.api.router import Router
from app.timestamps import utc_text_or_none

router = Router("subjects")


@router.handles(endpoints.LIST_CORRECTIONS)
def list_corrections(service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> schemas.CorrectionList:
    """List a subject's corrections.

    Those that have not expired, oldest first.
    """
    found = service.corrections.of_subject(service.galleries.store.gallery(gallery), subject)
    return schemas.CorrectionList(corrections=[answers.correction(one) for one in found])


@router.handles(endpoints.ADD_CORRECTION)
async def add_correction(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.CorrectionParams, Query()],
) -> schemas.Correction:
    """Say that a photo does not show the subject.

    Send again the photo of a wrong answer. Its face's template is kept, and its crop if the gallery keeps crops. From
    then on a probe that is more like it than like the subject's own faces is not `known` as the subject, nor a match;
    `explain` lists whom corrections ruled out. It is erased with the subject, dropped when the subject is merged, and
    expires.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    expires_at = utc_text_or_none(params.expires_at)
    found = await service.run(
        lambda: service.operations.correct(
            gallery, subject, images["image"][0], params.face, expires_at, confirm=params.confirm
        )
    )
    return answers.correction(found)


@router.handles(endpoints.DELETE_CORRECTION)
def delete_correction(service: ServiceDep, gallery: GalleryId, subject: SubjectId, correction: CorrectionId) -> None:
    """Delete a correction.

    The correction no longer counts when people are identified.
    """
    service.corrections.delete(service.galleries.store.gallery(gallery), subject, correction)
