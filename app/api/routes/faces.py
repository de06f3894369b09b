"""Faces: the enrolled images of a subject. (Enrolling is in `app.api.routes.recognition`.)"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.api import answers, openapi, schemas
from app.api.paths import FaceId, GalleryId, SubjectId
from app.api.service import ServiceDep
from app.errors import NotFound
from app.gallery.records import Move

router = APIRouter(prefix="/v1/galleries/{gallery}/subjects/{subject}/faces", tags=["faces"])

SUBJECT_CODES = ("gallery_not_found", "subject_not_found", "invalid_id")
FACE_CODES = (*SUBJECT_CODES, "face_not_found")
JPEG_TYPE = "image/jpeg"
CROP_ANSWER: openapi.Responses = {
    200: {
        "description": "The aligned face, 112x112.",
        "content": {JPEG_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@router.get(
    "",
    summary="List a subject's faces",
    responses=openapi.answer(schemas.FacePage) | openapi.call_errors(*SUBJECT_CODES, "invalid_cursor"),
)
async def list_faces(
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.PageParams, Query()],
) -> schemas.FacePage:
    """The enrolled faces in the order they were enrolled, page by page."""

    def read() -> schemas.FacePage:
        home = service.galleries.gallery(gallery)
        page = service.galleries.faces(gallery, subject, cursor=query.cursor, limit=query.limit)
        return schemas.FacePage(
            faces=[answers.stored_face(face, home) for face in page.items], next_cursor=page.next_cursor
        )

    return await service.run(read)


@router.get(
    "/{face_id}",
    summary="Show a face",
    responses=openapi.answer(schemas.StoredFace) | openapi.call_errors(*FACE_CODES),
)
async def get_face(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> schemas.StoredFace:
    """Where the face was in its photo, its quality, and the model that made its template."""

    def read() -> schemas.StoredFace:
        home = service.galleries.gallery(gallery)
        return answers.stored_face(service.galleries.face(gallery, subject, face_id), home)

    return await service.run(read)


@router.delete(
    "/{face_id}",
    status_code=204,
    summary="Delete a face",
    responses=openapi.call_errors(*FACE_CODES),
)
async def delete_face(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> None:
    """Removes the face, its stored crop and its vector; the subject stays, even without any face."""
    await service.run(lambda: service.galleries.delete_face(gallery, subject, face_id))


@router.get(
    "/{face_id}/crop",
    summary="See a face",
    response_class=Response,
    responses=CROP_ANSWER | openapi.call_errors(*FACE_CODES, "crop_not_stored"),
)
async def get_crop(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> Response:
    """The aligned 112x112 crop that the template was made of, as JPEG, where the gallery keeps crops."""
    face = await service.run(lambda: service.galleries.face(gallery, subject, face_id))
    if face.crop is None:
        raise NotFound("the gallery keeps no crops", code="crop_not_stored")
    return Response(face.crop, media_type=JPEG_TYPE)


@router.post(
    "/{face_id}/move",
    summary="Give a face to another subject",
    responses=openapi.answer(schemas.StoredFace) | openapi.call_errors(*openapi.JSON_CODES, *FACE_CODES),
    openapi_extra=openapi.request_body(schemas.FaceMove),
)
async def move_face(
    request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId
) -> schemas.StoredFace:
    """The face keeps its id, template, quality and crop; it is found under its new subject as soon as this answers. The
    subject it leaves stays, even without any face."""
    asked = await service.read_json(request, schemas.FaceMove)

    def move() -> schemas.StoredFace:
        home = service.galleries.gallery(gallery)
        known = service.galleries.face(gallery, subject, face_id)
        target = service.galleries.subject(gallery, asked.subject).id
        service.galleries.move_faces(gallery, [Move(known.face_id, known.subject, target)])
        return answers.stored_face(service.galleries.face(gallery, target, face_id), home)

    return await service.run(move)
