"""Faces: the enrolled images of a subject. `app.api.routes.recognition` enrolls them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response

from app.access.audit_store import fit_id
from app.api import answers, endpoints, schemas
from app.api.dependencies import FaceId, GalleryId, ServiceDep, SubjectId, entry_of
from app.api.router import Router
from app.errors import NotFound
from app.gallery import deleting, moving
from app.gallery.records import Move
from app.gallery.text import clean_id

router = Router("faces")


@router.handles(endpoints.LIST_FACES)
def list_faces(
    service: ServiceDep,
    gallery: GalleryId,
    subject: SubjectId,
    query: Annotated[schemas.PageParams, Query()],
) -> schemas.FacePage:
    """List a subject's faces.

    In the order of their enrollment, page by page.
    """
    store = service.galleries.store
    home = store.gallery(gallery)
    page = store.faces(home, subject, cursor=query.cursor, limit=query.limit)
    return schemas.FacePage(
        faces=[answers.stored_face(face, home) for face in page.items], next_cursor=page.next_cursor
    )


@router.handles(endpoints.SHOW_FACE)
def get_face(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> schemas.StoredFace:
    """Show a face.

    Where the face was in its photo, its quality, and the model that computed its template.
    """
    store = service.galleries.store
    home = store.gallery(gallery)
    return answers.stored_face(store.face(home, subject, face_id), home)


@router.handles(endpoints.DELETE_FACE)
def delete_face(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> None:
    """Delete a face.

    Deletes the face, its stored crop and its vector. The subject stays, even without any face.
    """
    with service.galleries.change(gallery) as change:
        deleting.delete_face(change, subject, face_id)


@router.handles(endpoints.SHOW_CROP)
def get_crop(service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId) -> Response:
    """Show a face's crop.

    The aligned 112x112 crop that the template was computed from, as JPEG, if the gallery keeps crops.
    """
    store = service.galleries.store
    face = store.face(store.gallery(gallery), subject, face_id)
    if face.crop is None:
        raise NotFound("The gallery keeps no crops.", code="crop_not_stored")
    return Response(face.crop, media_type=endpoints.JPEG_TYPE)


@router.handles(endpoints.MOVE_FACE)
async def move_face(
    request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId, face_id: FaceId
) -> schemas.StoredFace:
    """Move a face to another subject.

    The face keeps its id, template, quality and crop. When the answer comes, searches find it under its new subject.
    The old subject stays, even without any face.
    """
    asked = await service.read_json(request, schemas.FaceMove)

    def move() -> schemas.StoredFace:
        store = service.galleries.store
        home = store.gallery(gallery)
        known = store.face(home, subject, face_id)
        target = store.subject(home, asked.subject).id
        with service.galleries.change(gallery) as change:
            moving.move_faces(change, [Move(known.face_id, known.subject, target)])
        return answers.stored_face(store.face(home, target, face_id), home)

    return await service.run(move)


@router.handles(endpoints.MOVE_FACES)
async def move_faces(request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> schemas.Subject:
    """Move several faces to another subject.

    All or none; otherwise as moving one. Answers with the new subject.
    """
    asked = await service.read_json(request, schemas.FacesMove)
    entry_of(request).target = fit_id(asked.subject)

    def move() -> schemas.Subject:
        store = service.galleries.store
        home = store.gallery(gallery)
        source, target = store.subject(home, subject).id, clean_id(asked.subject, "subject")
        moves = [Move(face_id, source, target) for face_id in asked.faces]
        with service.galleries.change(gallery) as change:
            moving.move_faces(change, moves, create=asked.create)
        return schemas.Subject.model_validate(store.subject(home, target))

    return await service.run(move)
