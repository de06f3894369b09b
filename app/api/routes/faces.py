"""Faces: the enrolled images of a subject. `app.api.routes.recognition` enrolls them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Response

from app.access.grants import Scope
from app.api import schemas
from app.api.body import JPEG_TYPE, File
from app.api.components import FaceId, SubjectId
from app.api.operation import CURSOR, FACES_PATH, NO_FACE, NO_SUBJECT
from app.api.route import Router
from app.errors import NotFound
from app.gallery import subjects
from app.gallery.records import Gallery, StoredFace
from app.gallery.service import Galleries
from app.gallery.store import Store

router = Router("faces")

FACE_PATH = f"{FACES_PATH}/{{face_id}}"


@router.operation("GET", FACES_PATH, scope=Scope.READ, codes=(*NO_SUBJECT, *CURSOR))
def list_faces(
    store: Store, gallery: Gallery, subject: SubjectId, query: Annotated[schemas.PageParams, Query()]
) -> schemas.FacePage:
    """List a subject's faces.

    Lists them in the order of their enrollment, page by page.
    """
    page = store.faces(gallery, subject, cursor=query.cursor, limit=query.limit)
    return schemas.FacePage.of(page, faces=[stored_face(face, gallery) for face in page.items])


@router.operation("GET", FACE_PATH, scope=Scope.READ, name="show_face", codes=NO_FACE)
def get_face(store: Store, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> schemas.StoredFace:
    """Show a face.

    Answers where the face was in its photo, its quality, and the model that computed its template.
    """
    return stored_face(store.face(gallery, face_id, subject), gallery)


@router.operation("DELETE", FACE_PATH, scope=Scope.ENROLL, changes=True, codes=NO_FACE)
def delete_face(galleries: Galleries, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> None:
    """Delete a face.

    Deletes the face, its stored crop and its vector. The subject stays, even without faces, unless it is unnamed.
    """
    with galleries.change(gallery) as change:
        subjects.delete_face(change, subject, face_id)


@router.operation(
    "GET",
    f"{FACE_PATH}/crop",
    scope=Scope.READ,
    name="show_crop",
    file=File((JPEG_TYPE,), "The aligned face, 112x112."),
    codes=(*NO_FACE, "crop_not_stored"),
)
def get_crop(store: Store, gallery: Gallery, subject: SubjectId, face_id: FaceId) -> Response:
    """Show a face's crop.

    Answers the aligned 112x112 crop that the template was computed from, as JPEG, if the gallery keeps crops.
    """
    face = store.face(gallery, face_id, subject)
    if face.crop is None:
        raise NotFound("The gallery keeps no crops.", code="crop_not_stored")
    return Response(face.crop, media_type=JPEG_TYPE)


def stored_face(face: StoredFace, gallery: Gallery) -> schemas.StoredFace:
    return schemas.StoredFace.of(face, model=face.template.package, has_crop=gallery.store == "crop")
