"""`/api/v1/recognition/subjects`: CompreFace's subject is a subject here, and its name the id."""

from __future__ import annotations

import re

from fastapi import Request

from app.access.audit_store import fit_id
from app.api.dependencies import ServiceDep, SubjectId, entry_of
from app.api.openapi import COMPREFACE
from app.api.router import Router
from app.compat.compreface import endpoints
from app.compat.compreface.answers import Json
from app.compat.compreface.errors import INCORRECT_ARGUMENT, VALIDATION, Refused
from app.compat.compreface.requests import GalleryDep, SubjectRequest, gallery_of, is_stored, read_json
from app.gallery import deleting, editing, moving
from app.gallery.subject_rows import subject_not_found

router = Router(COMPREFACE)

MAX_NAME = 50
_NAME = re.compile(r"[^;/\\]+", re.DOTALL)


def checked_name(name: str | None) -> str:
    """Return the name if CompreFace would accept it for a new subject. Raises Refused."""
    if name is None or not name.strip():
        raise Refused(VALIDATION, "Subject name cannot be empty")
    if len(name) > MAX_NAME:
        raise Refused(VALIDATION, f"Subject name size must be between 1 and {MAX_NAME}")
    if not _NAME.fullmatch(name):
        message = "The name cannot contain the following special characters: ';', '/', '\\'"
        raise Refused(INCORRECT_ARGUMENT, message)
    return name


@router.handles(endpoints.LIST_SUBJECTS)
@router.handles(endpoints.LIST_SUBJECTS_SLASH, include_in_schema=False)
def list_subjects(service: ServiceDep, gallery: GalleryDep) -> Json:
    """List the subjects."""
    return {"subjects": service.galleries.store.subject_ids(gallery)}


@router.handles(endpoints.CREATE_SUBJECT)
async def create_subject(request: Request, service: ServiceDep) -> Json:
    """Create a subject."""
    name = checked_name((await read_json(request, service, SubjectRequest)).subject)
    entry_of(request).subject = fit_id(name)
    gallery = await gallery_of(request, service, create=True)

    def create() -> str:
        with service.galleries.store.change(gallery) as change:
            return editing.create_subject(change, name).id

    return {"subject": await service.run(create)}


@router.handles(endpoints.RENAME_SUBJECT)
async def rename_subject(request: Request, service: ServiceDep, subject: SubjectId) -> Json:
    """Rename a subject.

    If there is a subject with the new name, the two become one.
    """
    name = checked_name((await read_json(request, service, SubjectRequest)).subject)
    entry_of(request).target = fit_id(name)
    gallery = await gallery_of(request, service)
    if name == subject:
        return {"updated": False}
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)

    def rename() -> None:
        with service.galleries.change(gallery.id) as change:
            moving.rename_subject(change, subject, name)

    await service.run(rename)
    return {"updated": True}


@router.handles(endpoints.DELETE_SUBJECT)
def delete_subject(service: ServiceDep, gallery: GalleryDep, subject: SubjectId) -> Json:
    """Delete a subject."""
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)
    with service.galleries.change(gallery.id) as change:
        return {"subject": deleting.delete_subject(change, subject).id}


@router.handles(endpoints.DELETE_ALL_SUBJECTS)
def delete_all_subjects(service: ServiceDep, gallery: GalleryDep) -> Json:
    """Delete all subjects."""
    if not is_stored(gallery):
        return {"deleted": 0}
    with service.galleries.change(gallery.id) as change:
        return {"deleted": deleting.delete_subjects(change).subjects}
