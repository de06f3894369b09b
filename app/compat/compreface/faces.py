"""`/api/v1/recognition/faces`: a CompreFace image is one of our faces, whose id it writes as a UUID."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from app.access.records import fit_id
from app.api.service import Service, ServiceDep, entry_of
from app.compat.compreface.answers import Json, wanted_faces
from app.compat.compreface.errors import MISSING_PARAMETER, VALIDATION, Refused
from app.compat.compreface.home import home_of
from app.compat.compreface.reading import (
    FILE,
    MAX_PAGE,
    EnrollParams,
    PageParams,
    face_id_of,
    image_id_of,
    read_ids,
    read_images,
)
from app.compat.compreface.rules import FACE, FACES
from app.errors import AmbiguousFace, FaceNotFound, SubjectNotFound
from app.face.quality import QualityLevel
from app.gallery.records import FaceRow
from app.operations import Chosen
from app.pipeline import Choice

router = APIRouter(include_in_schema=False)

BYTES = "application/octet-stream"


@router.get(FACES)
async def list_faces(request: Request, service: ServiceDep, query: Annotated[PageParams, Query()]) -> Json:
    home = await home_of(request, service)
    size = min(query.size, MAX_PAGE)
    entry_of(request).subject = fit_id(query.subject or None)
    rows, total = await service.run(
        lambda: service.galleries.face_ids(home.id, query.subject or None, offset=query.page * size, limit=size)
    )
    return {
        "faces": [{"image_id": image_id_of(face_id), "subject": subject} for face_id, subject in rows],
        "page_number": query.page,
        "page_size": size,
        "total_pages": -(-total // size),
        "total_elements": total,
    }


@router.post(FACES, status_code=201)
async def add_face(
    request: Request, service: ServiceDep, query: Annotated[EnrollParams, Query()], subject: str | None = None
) -> Json:
    """The photo must show one face. Every quality is taken, as CompreFace does."""
    if subject is None:
        raise Refused(MISSING_PARAMETER, "Required parameter subject is missing")
    if not subject.strip():
        raise Refused(VALIDATION, "Subject name is empty")
    entry_of(request).subject = fit_id(subject)
    home = await home_of(request, service)
    images, params = await read_images(request, service, FILE, query)

    def enroll() -> FaceRow:
        photo = service.operations.embed_for(home.id, images["file"])
        faces = wanted_faces(photo, params.det_prob_threshold)
        if len(faces) > 1:
            raise AmbiguousFace("More than one face in the source image")
        place = next(place for place, face in enumerate(photo.faces) if face is faces[0])
        chosen = Chosen(photo, Choice(place, "the only face", 0.0))
        return service.operations.enroll_face(home.id, subject, chosen, QualityLevel.NONE)

    row = await service.run(enroll)
    return {"image_id": image_id_of(row.face_id), "subject": row.subject}


@router.delete(FACES)
async def delete_faces_of(request: Request, service: ServiceDep, subject: str | None = None) -> Json:
    """All faces of the subject, and the subject with them; without one, everybody. Nobody there: none deleted."""
    if subject is not None and not subject.strip():
        raise Refused(VALIDATION, "Subject name is empty")
    entry_of(request).subject = fit_id(subject)
    home = await home_of(request, service)

    def delete() -> int:
        if subject is None:
            return service.galleries.delete_subjects(home.id).faces
        try:
            return service.galleries.delete_subject(home.id, subject).face_count
        except SubjectNotFound:
            return 0

    return {"deleted": await service.run(delete)}


@router.post(f"{FACES}/delete")
async def delete_faces(request: Request, service: ServiceDep) -> list[Json]:
    """Those of the list that are there."""
    wanted = await read_ids(request, service)
    home = await home_of(request, service)

    def delete() -> list[Json]:
        deleted = []
        for face_id in wanted:
            with suppress(FaceNotFound, SubjectNotFound):
                deleted.append(_delete(service, home.id, face_id))
        return deleted

    return await service.run(delete)


@router.delete(FACE)
async def delete_face(request: Request, service: ServiceDep, face_id: str) -> Json:
    wanted = face_id_of(face_id)
    entry = entry_of(request)
    entry.target = wanted
    home = await home_of(request, service)
    return await service.run(lambda: _delete(service, home.id, wanted))


@router.get(f"{FACE}/img", response_class=Response)
async def show_image(request: Request, service: ServiceDep, face_id: str) -> Response:
    """The aligned crop, which is all that is kept; no bytes where there is none, as CompreFace answers."""
    wanted = face_id_of(face_id)
    entry_of(request).target = wanted
    home = await home_of(request, service)

    def read() -> bytes:
        try:
            return service.galleries.find_face(home.id, wanted).crop or b""
        except FaceNotFound:
            return b""

    return Response(await service.run(read), media_type=BYTES)


def _delete(service: Service, gallery: str, face_id: str) -> Json:
    """Between the two steps the face may move to another subject: it is then looked for again."""
    while True:
        found = service.galleries.find_face(gallery, face_id)
        try:
            service.galleries.delete_face(gallery, found.subject, face_id)
        except (FaceNotFound, SubjectNotFound):
            continue
        return {"image_id": image_id_of(face_id), "subject": found.subject}
