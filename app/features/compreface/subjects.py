"""`/api/v1/recognition/subjects` and `/faces`: CompreFace's subject is a subject here, and its name is the id.

CompreFace's image is a face here, and its `image_id` is the face's id as a UUID.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated

from fastapi import Query, Response

from app.access.audit import fit_id
from app.access.grants import Scope
from app.api.body import File
from app.api.components import SubjectId
from app.api.route import Router
from app.errors import AmbiguousFace, FaceNotFound, SubjectNotFound
from app.features import transfers
from app.features.collection import Collection, CollectionDep, is_stored
from app.features.compreface.recognition import wanted_faces
from app.features.compreface.requests import (
    FILE,
    MAX_PAGE,
    EnrollParams,
    FaceIdList,
    FileRequest,
    Json,
    PageParams,
    Photos,
    SubjectRequest,
    face_id_of,
    image_id_of,
)
from app.features.compreface.wire import (
    COMPREFACE,
    INCORRECT_ARGUMENT,
    MANY,
    MISSING_PARAMETER,
    PREFIX,
    VALIDATION,
    CompreFaceError,
    CompreFaceRoute,
)
from app.features.listing import face_ids, faces_by_id, subject_ids
from app.features.photos import embed_for, enroll_face
from app.gallery import subjects
from app.gallery.records import subject_not_found
from app.gallery.text import to_nfc
from app.pipeline import crop_of

router = Router(COMPREFACE.name, COMPREFACE, CompreFaceRoute)

SUBJECTS = f"{PREFIX}recognition/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"
FACES = f"{PREFIX}recognition/faces"
FACE = f"{FACES}/{{face_id}}"
BYTES = "application/octet-stream"
IMAGE = File((BYTES,), "The aligned face, 112x112, as JPEG; empty if there is none.")

MAX_NAME = 50
_NAME = re.compile(r"[^;/\\]+", re.DOTALL)


def checked_name(name: str | None) -> str:
    """Return the name; raise CompreFaceError if CompreFace wouldn't accept it for a new subject."""
    if name is None or not name.strip():
        raise CompreFaceError(VALIDATION, "Subject name cannot be empty")
    if len(to_nfc(name)) > MAX_NAME:  # macOS writes an accent in a file's name as a character of its own
        raise CompreFaceError(VALIDATION, f"Subject name size must be between 1 and {MAX_NAME}")
    if not _NAME.fullmatch(name):
        message = "The name cannot contain the following special characters: ';', '/', '\\'"
        raise CompreFaceError(INCORRECT_ARGUMENT, message)
    return name


@router.operation("GET", SUBJECTS, scope=Scope.READ)
def list_subjects(home: CollectionDep) -> Json:
    """List the subjects."""
    return {"subjects": subject_ids(home.store, home.open())}


@router.operation("POST", SUBJECTS, scope=Scope.ENROLL, changes=True, status=201)
def create_subject(home: CollectionDep, asked: SubjectRequest) -> Json:
    """Create a subject."""
    name = checked_name(asked.subject)
    home.entry.subject = fit_id(name)
    with home.store.change(home.open_or_create()) as change:
        return {"subject": subjects.create_subject(change, name).id}


@router.operation("PUT", SUBJECT, scope=Scope.ENROLL, changes=True)
def rename_subject(
    home: CollectionDep,
    subject: SubjectId,
    asked: SubjectRequest,
) -> Json:
    """Rename a subject.

    If another subject already has the new name, the two are merged.
    """
    name = checked_name(asked.subject)
    home.entry.target = fit_id(name)
    gallery = home.open()
    if name == subject:
        return {"updated": False}
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)
    with home.galleries.change(gallery) as change:
        transfers.rename_subject(change, subject, name)
    return {"updated": True}


@router.operation("DELETE", SUBJECT, scope=Scope.DELETE, changes=True)
def delete_subject(home: CollectionDep, subject: SubjectId) -> Json:
    """Delete a subject."""
    gallery = home.open()
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)
    with home.galleries.change(gallery) as change:
        return {"subject": subjects.delete_subject(change, subject).id}


@router.operation("DELETE", SUBJECTS, scope=Scope.DELETE, changes=True)
def delete_all_subjects(home: CollectionDep) -> Json:
    """Delete all subjects."""
    gallery = home.open()
    if not is_stored(gallery):
        return {"deleted": 0}
    with home.galleries.change(gallery) as change:
        return {"deleted": transfers.delete_subjects(change).subjects}


@router.operation("GET", FACES, scope=Scope.READ)
def list_faces(home: CollectionDep, query: Annotated[PageParams, Query()]) -> Json:
    """List the images of all subjects, or of one."""
    size, subject = min(query.size, MAX_PAGE), query.subject or None
    home.entry.subject = fit_id(subject)
    rows, total = face_ids(home.store, home.open(), subject, offset=query.page * size, limit=size)
    return {
        "faces": [{"image_id": image_id_of(face_id), "subject": subject} for face_id, subject in rows],
        "page_number": query.page,
        "page_size": size,
        "total_pages": -(-total // size),
        "total_elements": total,
    }


@router.operation(
    "POST", FACES, scope=Scope.ENROLL, name="enroll", changes=True, status=201, body=FileRequest, images=FILE
)
def add_face(
    home: CollectionDep,
    sent: Photos[EnrollParams],
) -> Json:
    """Add an image of a subject.

    The photo must show one face. Every quality is accepted, as in CompreFace.
    """
    subject = sent.params.subject
    if subject is None:
        raise CompreFaceError(MISSING_PARAMETER, "Required parameter subject is missing")
    if not subject.strip():
        raise CompreFaceError(VALIDATION, "Subject name is empty")
    home.entry.subject = fit_id(subject)
    gallery = home.open_or_create()
    photo = embed_for(home.operations, gallery, sent.images[0])
    faces = wanted_faces(photo.faces, sent.params.det_prob_threshold)
    if len(faces) > 1:
        raise AmbiguousFace("More than one face in the source image")
    crop_of(faces[0])  # raises Unalignable if there is no crop
    row = enroll_face(home.operations, gallery, subject, photo, faces[0])
    return {"image_id": image_id_of(row.face_id), "subject": row.subject}


@router.operation("DELETE", FACES, scope=Scope.DELETE, name="delete_subject", changes=True)
def delete_faces_of(home: CollectionDep, query: Annotated[SubjectRequest, Query()]) -> Json:
    """Delete all images of a subject.

    Deletes the subject too. Without `subject`, deletes all subjects. For an unknown subject, answers that 0 images were
    deleted.
    """
    subject = query.subject
    if subject is not None and not subject.strip():
        raise CompreFaceError(VALIDATION, "Subject name is empty")
    home.entry.subject = fit_id(subject)
    gallery = home.open()
    if not is_stored(gallery):
        return {"deleted": 0}
    with suppress(SubjectNotFound), home.galleries.change(gallery) as change:
        if subject is None:
            return {"deleted": transfers.delete_subjects(change).faces}
        return {"deleted": subjects.delete_subject(change, subject).face_count}
    return {"deleted": 0}


@router.operation("POST", f"{FACES}/delete", scope=Scope.DELETE, changes=True, body_bytes=MANY)
def delete_faces(home: CollectionDep, asked: FaceIdList) -> list[Json]:
    """Delete the listed images.

    Unknown ids are skipped.
    """
    return _delete(home, [face_id_of(image_id) for image_id in asked.root])


@router.operation("DELETE", FACE, scope=Scope.DELETE, changes=True)
def delete_face(home: CollectionDep, face_id: str) -> Json:
    """Delete an image."""
    wanted = face_id_of(face_id)
    home.entry.target = wanted
    deleted = _delete(home, [wanted])
    if not deleted:
        raise FaceNotFound(f"There is no face {wanted!r}.", face_id=wanted)
    return deleted[0]


@router.operation("GET", f"{FACE}/img", scope=Scope.READ, name="show_crop", file=IMAGE)
def show_image(home: CollectionDep, face_id: str) -> Response:
    """Download an image.

    Answers the aligned crop, since photos are not stored; without a stored crop, the image is empty, as in CompreFace.
    """
    wanted = face_id_of(face_id)
    home.entry.target = wanted
    try:
        crop = home.store.face(home.open(), wanted).crop
    except FaceNotFound:
        crop = None
    return Response(crop or b"", media_type=BYTES)


def _delete(home: Collection, face_ids: Sequence[str]) -> list[Json]:
    """Delete those of the faces that exist; return their image ids and subjects."""
    gallery = home.open()
    stored = faces_by_id(home.store, gallery, face_ids)
    if not stored:
        return []
    with home.galleries.change(gallery) as change:
        deleted = set(transfers.delete_faces(change, list(stored)))
    return [
        {"image_id": image_id_of(face_id), "subject": stored[face_id].subject}
        for face_id in dict.fromkeys(face_ids)
        if face_id in deleted
    ]
