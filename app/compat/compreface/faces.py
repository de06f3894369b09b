"""`/api/v1/recognition/faces`: CompreFace's image is a face here, and the UUID of the face's id its `image_id`."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import Query, Request, Response

from app.access.audit_store import fit_id
from app.api.dependencies import Service, ServiceDep, entry_of
from app.api.openapi import COMPREFACE
from app.api.router import Router
from app.compat.compreface import endpoints
from app.compat.compreface.answers import Json, wanted_faces
from app.compat.compreface.errors import MISSING_PARAMETER, VALIDATION, Refused
from app.compat.compreface.requests import (
    FILE,
    MAX_PAGE,
    EnrollParams,
    FaceIdList,
    GalleryDep,
    PageParams,
    face_id_of,
    gallery_of,
    image_id_of,
    is_stored,
    read_images,
)
from app.errors import AmbiguousFace, FaceNotFound, SubjectNotFound
from app.face.quality import QualityLevel
from app.gallery import deleting
from app.gallery.bulk import BulkFace
from app.gallery.records import Gallery
from app.pipeline import Choice
from app.recognition.results import Chosen

router = Router(COMPREFACE)

BYTES = "application/octet-stream"


@router.handles(endpoints.LIST_FACES)
def list_faces(
    request: Request, service: ServiceDep, gallery: GalleryDep, query: Annotated[PageParams, Query()]
) -> Json:
    """List the images of all subjects, or of one."""
    size, subject = min(query.size, MAX_PAGE), query.subject or None
    entry_of(request).subject = fit_id(subject)
    rows, total = service.galleries.store.face_ids(gallery, subject, offset=query.page * size, limit=size)
    return {
        "faces": [{"image_id": image_id_of(face_id), "subject": subject} for face_id, subject in rows],
        "page_number": query.page,
        "page_size": size,
        "total_pages": -(-total // size),
        "total_elements": total,
    }


@router.handles(endpoints.ADD_FACE)
async def add_face(
    request: Request, service: ServiceDep, query: Annotated[EnrollParams, Query()], subject: str | None = None
) -> Json:
    """Add an image of a subject.

    The photo must show one face. Every quality is accepted, as in CompreFace.
    """
    if subject is None:
        raise Refused(MISSING_PARAMETER, "Required parameter subject is missing")
    if not subject.strip():
        raise Refused(VALIDATION, "Subject name is empty")
    entry_of(request).subject = fit_id(subject)
    gallery = await gallery_of(request, service, create=True)
    images, params = await read_images(request, service, FILE, query)

    def enroll() -> BulkFace:
        photo = service.operations.embed_for(gallery.id, images["file"])
        faces = wanted_faces(photo, params.det_prob_threshold)
        if len(faces) > 1:
            raise AmbiguousFace("More than one face in the source image")
        place = next(place for place, face in enumerate(photo.faces) if face is faces[0])
        chosen = Chosen(photo, Choice(place, "the only face", 0.0))
        return service.operations.enroll_face(gallery.id, subject, chosen, QualityLevel.NONE)

    row = await service.run(enroll)
    return {"image_id": image_id_of(row.face_id), "subject": row.subject}


@router.handles(endpoints.DELETE_FACES_OF)
async def delete_faces_of(request: Request, service: ServiceDep, subject: str | None = None) -> Json:
    """Delete all images of a subject.

    The subject is deleted too; without `subject`, all subjects are. An unknown subject has no images: 0 are deleted.
    """
    if subject is not None and not subject.strip():
        raise Refused(VALIDATION, "Subject name is empty")
    entry_of(request).subject = fit_id(subject)
    gallery = await gallery_of(request, service)

    def delete() -> int:
        if not is_stored(gallery):
            return 0
        with suppress(SubjectNotFound), service.galleries.change(gallery.id) as change:
            if subject is None:
                return deleting.delete_subjects(change).faces
            return deleting.delete_subject(change, subject).face_count
        return 0

    return {"deleted": await service.run(delete)}


@router.handles(endpoints.DELETE_FACES)
async def delete_faces(request: Request, service: ServiceDep, gallery: GalleryDep) -> list[Json]:
    """Delete the listed images.

    Unknown ids are skipped.
    """
    wanted = [face_id_of(one) for one in (await service.read_json(request, FaceIdList)).root]

    def delete() -> list[Json]:
        deleted = []
        for face_id in wanted:
            with suppress(FaceNotFound, SubjectNotFound):
                deleted.append(_delete(service, gallery, face_id))
        return deleted

    return await service.run(delete)


@router.handles(endpoints.DELETE_FACE)
def delete_face(request: Request, service: ServiceDep, gallery: GalleryDep, face_id: str) -> Json:
    """Delete an image."""
    wanted = face_id_of(face_id)
    entry_of(request).target = wanted
    return _delete(service, gallery, wanted)


@router.handles(endpoints.SHOW_IMAGE)
def show_image(request: Request, service: ServiceDep, gallery: GalleryDep, face_id: str) -> Response:
    """Download an image.

    The aligned crop, which is all that is stored; empty if there is none, as in CompreFace.
    """
    wanted = face_id_of(face_id)
    entry_of(request).target = wanted
    try:
        crop = service.galleries.store.find_face(gallery, wanted).crop
    except FaceNotFound:
        crop = None
    return Response(crop or b"", media_type=BYTES)


def _delete(service: Service, gallery: Gallery, face_id: str) -> Json:
    """Delete a face of any subject. Raises NotFound (``face_not_found``)."""
    found = service.galleries.store.find_face(gallery, face_id)
    with service.galleries.change(gallery.id) as change:
        deleting.delete_faces(change, [face_id])
    return {"image_id": image_id_of(face_id), "subject": found.subject}
