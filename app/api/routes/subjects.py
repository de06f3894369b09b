"""Subjects: the people of a gallery."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.access.records import fit_id
from app.api import answers, openapi, schemas
from app.api.paths import GalleryId, SubjectId
from app.api.service import ServiceDep, entry_of
from app.gallery.records import UNSET, Consent, Terms
from app.timestamps import utc_now, utc_text

router = APIRouter(prefix="/v1/galleries/{gallery}/subjects", tags=["subjects"])

TERM_CODES = ("invalid_expiry", "invalid_consent")
SUBJECT_CODES = ("gallery_not_found", "subject_not_found", "invalid_id")


@router.get(
    "",
    summary="List the subjects of a gallery",
    responses=openapi.answer(schemas.SubjectPage)
    | openapi.call_errors("gallery_not_found", "invalid_id", "invalid_cursor", "invalid_search"),
)
async def list_subjects(
    service: ServiceDep, gallery: GalleryId, query: Annotated[schemas.SubjectPageParams, Query()]
) -> schemas.SubjectPage:
    """The subjects in the order they were made, page by page; with `search` those whose id or name contains it."""

    def read() -> schemas.SubjectPage:
        page = service.galleries.subjects(
            gallery,
            cursor=query.cursor,
            limit=query.limit,
            search=query.search,
            expires_before=_text(query.expires_before),
        )
        return schemas.SubjectPage(subjects=[answers.subject(one) for one in page.items], next_cursor=page.next_cursor)

    return await service.run(read)


@router.post(
    "",
    status_code=201,
    summary="Make a subject",
    responses=openapi.answer(schemas.Subject, 201)
    | openapi.call_errors(
        *openapi.JSON_CODES,
        *TERM_CODES,
        "gallery_not_found",
        "invalid_id",
        "invalid_name",
        "invalid_metadata",
        "subject_exists",
    ),
    openapi_extra=openapi.request_body(schemas.SubjectCreate),
)
async def create_subject(request: Request, service: ServiceDep, gallery: GalleryId) -> schemas.Subject:
    """Makes a subject without faces. Enrolling makes a missing subject too; this is for giving it a name first."""
    asked = await service.read_json(request, schemas.SubjectCreate)
    entry_of(request).subject = fit_id(asked.id)
    return await service.run(
        lambda: answers.subject(
            service.galleries.create_subject(gallery, asked.id, asked.name, asked.metadata, terms=terms_of(asked))
        )
    )


@router.get(
    "/{subject}",
    summary="Show a subject",
    responses=openapi.answer(schemas.Subject) | openapi.call_errors(*SUBJECT_CODES),
)
async def get_subject(service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> schemas.Subject:
    """The subject with its name, metadata and number of faces."""
    return await service.run(lambda: answers.subject(service.galleries.subject(gallery, subject)))


@router.patch(
    "/{subject}",
    summary="Change a subject's name, metadata, expiry or consent",
    responses=openapi.answer(schemas.Subject)
    | openapi.call_errors(*openapi.JSON_CODES, *SUBJECT_CODES, *TERM_CODES, "invalid_name", "invalid_metadata"),
    openapi_extra=openapi.request_body(schemas.SubjectPatch),
)
async def update_subject(
    request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId
) -> schemas.Subject:
    """What is given is replaced as a whole (metadata too), what is absent stays as it is, null takes it away."""
    asked = await service.read_json(request, schemas.SubjectPatch)
    name = asked.name if "name" in asked.model_fields_set else UNSET
    metadata = asked.metadata if "metadata" in asked.model_fields_set else UNSET
    return await service.run(
        lambda: answers.subject(
            service.galleries.update_subject(gallery, subject, name=name, metadata=metadata, terms=terms_of(asked))
        )
    )


@router.delete(
    "/{subject}",
    status_code=204,
    summary="Delete a subject with its faces",
    responses=openapi.call_errors(*SUBJECT_CODES),
)
async def delete_subject(service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> None:
    """Removes the subject, its faces, their stored crops and vectors. There is no way back."""
    await service.run(lambda: service.galleries.delete_subject(gallery, subject))


def terms_of(asked: schemas.SubjectCreate | schemas.SubjectPatch) -> Terms:
    """What the body says of expiry and consent; what it leaves out stays as it was."""
    given = asked.model_fields_set
    return Terms(
        _text(asked.expires_at) if "expires_at" in given else UNSET,
        _consent(asked.consent) if "consent" in given else UNSET,
    )


def _consent(asked: schemas.Consent | None) -> Consent | None:
    return None if asked is None else Consent(asked.note, utc_text(asked.given_at) if asked.given_at else utc_now())


def _text(time: datetime | None) -> str | None:
    return None if time is None else utc_text(time)
