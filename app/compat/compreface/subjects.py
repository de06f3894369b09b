"""`/api/v1/recognition/subjects`: CompreFace's subject is a subject here, and its name the id."""

from __future__ import annotations

import re

from app.access.audit import fit_id
from app.access.grants import Scope
from app.api.components import SubjectId
from app.api.route import Router
from app.compat.compreface.answers import Json
from app.compat.compreface.requests import CollectionDep, SubjectRequest, is_stored
from app.compat.compreface.wire import COMPREFACE, INCORRECT_ARGUMENT, PREFIX, VALIDATION, Refused
from app.gallery import moving, subjects
from app.gallery.subjects import subject_not_found

router = Router(COMPREFACE.name, COMPREFACE)

SUBJECTS = f"{PREFIX}recognition/subjects"
SUBJECT = f"{SUBJECTS}/{{subject}}"

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


@router.operation("GET", SUBJECTS, scope=Scope.READ)
@router.operation("GET", f"{SUBJECTS}/", scope=Scope.READ, in_document=False)
def list_subjects(home: CollectionDep) -> Json:
    """List the subjects."""
    return {"subjects": home.galleries.store.subject_ids(home.find())}


@router.operation("POST", SUBJECTS, scope=Scope.ENROLL, changes=True, status=201)
def create_subject(home: CollectionDep, asked: SubjectRequest) -> Json:
    """Create a subject."""
    name = checked_name(asked.subject)
    home.entry.subject = fit_id(name)
    with home.galleries.store.change(home.find_or_create()) as change:
        return {"subject": subjects.create_subject(change, name).id}


@router.operation("PUT", SUBJECT, scope=Scope.ENROLL, changes=True)
def rename_subject(
    home: CollectionDep,
    subject: SubjectId,
    asked: SubjectRequest,
) -> Json:
    """Rename a subject.

    If there is a subject with the new name, the two become one.
    """
    name = checked_name(asked.subject)
    home.entry.target = fit_id(name)
    gallery = home.find()
    if name == subject:
        return {"updated": False}
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)
    with home.galleries.change(gallery.id) as change:
        moving.rename_subject(change, subject, name)
    return {"updated": True}


@router.operation("DELETE", SUBJECT, scope=Scope.DELETE, changes=True)
def delete_subject(home: CollectionDep, subject: SubjectId) -> Json:
    """Delete a subject."""
    gallery = home.find()
    if not is_stored(gallery):
        raise subject_not_found(gallery, subject)
    with home.galleries.change(gallery.id) as change:
        return {"subject": subjects.delete_subject(change, subject).id}


@router.operation("DELETE", SUBJECTS, scope=Scope.DELETE, changes=True)
def delete_all_subjects(home: CollectionDep) -> Json:
    """Delete all subjects."""
    gallery = home.find()
    if not is_stored(gallery):
        return {"deleted": 0}
    with home.galleries.change(gallery.id) as change:
        return {"deleted": subjects.delete_subjects(change).subjects}
