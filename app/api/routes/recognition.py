"""Photos in, answers out: detect, embed, verify, identify, enroll."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.api import answers, openapi, schemas
from app.api.body import MANY_IMAGES, ONE_IMAGE, TWO_IMAGES
from app.api.paths import GalleryId, SubjectId
from app.api.service import ServiceDep
from app.face.quality import QualityLevel
from app.gallery.records import UNSET, Consent, Terms
from app.timestamps import utc_now, utc_text

router = APIRouter(prefix="/v1", tags=["recognition"])

DECISION_CODES = (*openapi.IMAGE_CODES, "operating_point_unavailable")
PACKAGE_CODES = ("package_unknown", "package_ambiguous", "package_unavailable")
GALLERY_CODES = ("gallery_not_found", "invalid_id", "package_mismatch", "package_unavailable")


@router.post(
    "/detect",
    summary="Find the faces in a photo",
    responses=openapi.answer(schemas.DetectAnswer) | openapi.call_errors(*openapi.IMAGE_CODES),
    openapi_extra=openapi.request_body(schemas.DetectRequest),
)
async def detect(
    request: Request, service: ServiceDep, query: Annotated[schemas.DetectParams, Query()]
) -> schemas.DetectAnswer:
    """Every face with its box, five landmarks and quality, best detector score first; an empty list if there is none.

    Faces from 20 pixels up to ones larger than the frame are looked for; where none is sure, the photo is also looked
    at turned.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    photo = await service.run(lambda: service.operations.detect(images["image"][0]))
    return answers.detect(photo, explain=params.explain)


@router.post(
    "/embed",
    summary="Turn the faces in a photo into vectors",
    responses=openapi.answer(schemas.EmbedAnswer) | openapi.call_errors(*openapi.IMAGE_CODES, *PACKAGE_CODES),
    openapi_extra=openapi.request_body(schemas.EmbedRequest),
)
async def embed(
    request: Request, service: ServiceDep, query: Annotated[schemas.EmbedParams, Query()]
) -> schemas.EmbedAnswer:
    """The same as detect, each face with its embedding: a vector of length 1 whose dot product with another of the
    same `model` is the score."""
    images, params = await service.read(request, ONE_IMAGE, query)
    photo, model = await service.run(lambda: service.operations.embed(images["image"][0], params.model))
    return answers.embed(photo, model, explain=params.explain)


@router.post(
    "/verify",
    summary="Do two photos show the same person?",
    responses=openapi.answer(schemas.VerifyAnswer) | openapi.call_errors(*DECISION_CODES, *PACKAGE_CODES, "no_face"),
    openapi_extra=openapi.request_body(schemas.VerifyRequest),
)
async def verify(
    request: Request, service: ServiceDep, query: Annotated[schemas.VerifyAnyParams, Query()]
) -> schemas.VerifyAnswer:
    """Compares the most prominent face of each photo (large, and near the middle) at the operating point of `fmr`."""
    images, params = await service.read(request, TWO_IMAGES, query)
    found = await service.run(
        lambda: service.operations.verify(images["image1"][0], images["image2"][0], params.fmr, params.model)
    )
    return answers.verify(found, params.fmr, explain=params.explain)


@router.post(
    "/galleries/{gallery}/identify",
    summary="Who is in this photo?",
    responses=openapi.answer(schemas.IdentifyAnswer) | openapi.call_errors(*DECISION_CODES, *GALLERY_CODES),
    openapi_extra=openapi.request_body(schemas.IdentifyRequest),
)
async def identify(
    request: Request, service: ServiceDep, gallery: GalleryId, query: Annotated[schemas.IdentifyParams, Query()]
) -> schemas.IdentifyAnswer:
    """Searches the gallery for every face of the photo, and decides for each: known, uncertain or unknown.

    A subject is given to at most one face of the photo, the best-scoring one. Without `fmr` or `fpir` the server's
    default FPIR is used, or the strictest measured operating point where the gallery is too large for it.
    """
    images, params = await service.read(request, ONE_IMAGE, query)
    found = await service.run(
        lambda: service.operations.identify(
            gallery, images["image"][0], limit=params.limit, fmr=params.fmr, fpir=params.fpir
        )
    )
    return answers.identify(found, params)


@router.post(
    "/galleries/{gallery}/subjects/{subject}/verify",
    summary="Is this person the subject?",
    responses=openapi.answer(schemas.SubjectVerifyAnswer)
    | openapi.call_errors(*DECISION_CODES, *GALLERY_CODES, "no_face", "subject_not_found", "subject_without_faces"),
    openapi_extra=openapi.request_body(schemas.SubjectVerifyRequest),
)
async def verify_subject(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.VerifyParams, Query()],
) -> schemas.SubjectVerifyAnswer:
    """Compares the photo's most prominent face with the subject's enrolled faces; the best of them counts."""
    images, params = await service.read(request, ONE_IMAGE, query)
    found = await service.run(
        lambda: service.operations.verify_subject(
            gallery, subject, images["image"][0], params.fmr, explain=params.explain
        )
    )
    return answers.verify_subject(found, params.fmr, explain=params.explain)


@router.post(
    "/galleries/{gallery}/subjects/{subject}/faces",
    status_code=201,
    summary="Enroll photos of a person",
    responses=openapi.answer(schemas.EnrollAnswer, 201)
    | openapi.call_errors(
        *openapi.IMAGE_CODES,
        *GALLERY_CODES,
        "no_face",
        "ambiguous_face",
        "low_quality",
        "nothing_enrolled",
        "subject_expired",
        "invalid_expiry",
        "invalid_consent",
    ),
    openapi_extra=openapi.request_body(schemas.EnrollRequest),
)
async def enroll(
    request: Request,
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.EnrollParams, Query()],
) -> schemas.EnrollAnswer:
    """Adds each photo's face to the subject, which is made if it is missing; safe in the database and found by
    searches when the answer comes.

    Photos without a face, with several equally prominent ones, or of too little quality are listed in `rejected`, each
    with its reasons, and the good ones are taken; if none is good, nothing changes and the answer is an error.
    """
    images, params = await service.read(request, MANY_IMAGES, query)
    level = QualityLevel(params.quality)
    terms = Terms(
        UNSET if params.expires_at is None else utc_text(params.expires_at),
        UNSET if params.consent is None else Consent(params.consent, utc_now()),
    )
    found = await service.run(lambda: service.operations.enroll(gallery, subject, images["images"], level, terms=terms))
    return answers.enroll(found, explain=params.explain)
