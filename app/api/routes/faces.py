"""Faces: the enrolled images of a subject. `app.api.routes.recognition` enrolls them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Scope
from app.api import schemas
from app.api.body import JPEG_TYPE, File
from app.api.components import FaceId, SubjectId
from app.api.operation import CURSOR, FACES, NO_FACE, NO_SUBJECT
from app.api.route import Router
from app.errors import NotFound
from app.gallery import moving
from app.gallery.records import Gallery, Move, StoredFace
from app.gallery.service import Galleries
from app.gallery.text import clean_id

router = Router("faces")

FACE = f"{FACES}/{{face_id}}"


@router.operation("GET", FACES, scope=Scope.READ, codes=(*NO_SUBJECT, *CURSOR))
def list_faces(
    galleries: Galleries,
    gallery: Gallery,
    subject: SubjectId,
    query: Annotated[schemas.PageParams, Query()],
) -> schemas.FacePage:
    """List a subject's faces.

    In the order of their enrollment, page by page.
    """
    page = galleries.store.faces(gallery, subject, cursor=query.cursor, limit=query.limit)
    return schemas.FacePage.of(page, faces=[_stored_face(face, gallery) for face in page.items])


@router.operation("GET", FACE, scope=Scope.READ, name="show_face", codes=NO_FACE)
def get_face(galleries: Galleries, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> schemas.StoredFace:
    """Show a face.

    Where the face was in its photo, its quality, and the model that computed its template.
    """
    return _stored_face(galleries.store.face(gallery, subject, face_id), gallery)


@router.operation("DELETE", FACE, scope=Scope.ENROLL, changes=True, codes=NO_FACE)
def delete_face(galleries: Galleries, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> None:
    """Delete a face.

    Deletes the face, its stored crop and its vector. The subject stays, even without any face; an unnamed one goes.
    """
    with galleries.change(gallery) as change:
        moving.delete_face(change, subject, face_id)


@router.operation(
    "GET",
    f"{FACE}/crop",
    scope=Scope.READ,
    name="show_crop",
    file=File((JPEG_TYPE,), "The aligned face, 112x112."),
    codes=(*NO_FACE, "crop_not_stored"),
)
def get_crop(galleries: Galleries, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> Response:
    """Show a face's crop.

    The aligned 112x112 crop that the template was computed from, as JPEG, if the gallery keeps crops.
    """
    face = galleries.store.face(gallery, subject, face_id)
    if face.crop is None:
        raise NotFound("The gallery keeps no crops.", code="crop_not_stored")
    return Response(face.crop, media_type=JPEG_TYPE)


@router.operation("POST", f"{FACE}/move", scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, "subject_expired"))
def move_face(
    galleries: Galleries,
    gallery: Gallery,
    subject: SubjectId,
    face_id: FaceId,
    asked: schemas.FaceMove,
) -> schemas.StoredFace:
    """Move a face to another subject.

    The face keeps its id, template, quality and crop. When the answer comes, searches find it under its new subject.
    The old subject stays, even without any face.
    """
    store = galleries.store
    known = store.face(gallery, subject, face_id)
    target = store.subject(gallery, asked.subject).id
    with galleries.change(gallery) as change:
        moving.move_faces(change, [Move(known.face_id, known.subject, target)])
    return _stored_face(store.face(gallery, target, face_id), gallery)


@router.operation("POST", f"{FACES}/move", scope=Scope.ENROLL, changes=True, codes=(*NO_FACE, "subject_expired"))
def move_faces(
    galleries: Galleries,
    entry: AuditEntry,
    gallery: Gallery,
    subject: SubjectId,
    asked: schemas.FacesMove,
) -> schemas.Subject:
    """Move several faces to another subject.

    All or none; otherwise as moving one. Answers with the new subject.
    """
    entry.target = fit_id(asked.subject)
    store = galleries.store
    source, target = store.subject(gallery, subject).id, clean_id(asked.subject, "subject")
    moves = [Move(face_id, source, target) for face_id in asked.faces]
    with galleries.change(gallery) as change:
        moving.move_faces(change, moves, create=asked.create)
    return schemas.Subject.model_validate(store.subject(gallery, target))


def _stored_face(face: StoredFace, gallery: Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.of(face, model=face.package, has_crop=gallery.store == "crop")
