"""`/api/v1/recognition/subjects`: a CompreFace subject is one of ours, whose id is its name."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request

from app.access.records import fit_id
from app.api.paths import SubjectId
from app.api.service import ServiceDep, entry_of
from app.compat.compreface.answers import Json
from app.compat.compreface.errors import INCORRECT_ARGUMENT, VALIDATION, Refused
from app.compat.compreface.home import home_of
from app.compat.compreface.reading import SubjectBody, read_json
from app.compat.compreface.rules import SUBJECT, SUBJECTS

router = APIRouter(include_in_schema=False)

MAX_NAME = 50
_NAME = re.compile(r"[^;/\\]+", re.DOTALL)


def checked_name(name: str | None) -> str:
    """As CompreFace checks the names that it makes. Raises Refused."""
    if name is None or not name.strip():
        raise Refused(VALIDATION, "Subject name cannot be empty")
    if len(name) > MAX_NAME:
        raise Refused(VALIDATION, f"Subject name size must be between 1 and {MAX_NAME}")
    if not _NAME.fullmatch(name):
        message = "The name cannot contain the following special characters: ';', '/', '\\'"
        raise Refused(INCORRECT_ARGUMENT, message)
    return name


@router.get(SUBJECTS)
@router.get(f"{SUBJECTS}/")
async def list_subjects(request: Request, service: ServiceDep) -> Json:
    home = await home_of(request, service)
    return {"subjects": await service.run(lambda: service.galleries.subject_ids(home.id))}


@router.post(SUBJECTS, status_code=201)
async def create_subject(request: Request, service: ServiceDep) -> Json:
    name = checked_name((await read_json(request, service, SubjectBody)).subject)
    entry_of(request).subject = fit_id(name)
    home = await home_of(request, service)
    made = await service.run(lambda: service.galleries.create_subject(home.id, name))
    return {"subject": made.id}


@router.put(SUBJECT)
async def rename_subject(request: Request, service: ServiceDep, subject: SubjectId) -> Json:
    """Where the new name is somebody else's, the two become one."""
    name = checked_name((await read_json(request, service, SubjectBody)).subject)
    entry_of(request).target = fit_id(name)
    home = await home_of(request, service)
    if name == subject:
        return {"updated": False}
    await service.run(lambda: service.galleries.rename_subject(home.id, subject, name))
    return {"updated": True}


@router.delete(SUBJECT)
async def delete_subject(request: Request, service: ServiceDep, subject: SubjectId) -> Json:
    home = await home_of(request, service)
    gone = await service.run(lambda: service.galleries.delete_subject(home.id, subject))
    return {"subject": gone.id}


@router.delete(SUBJECTS)
async def delete_all_subjects(request: Request, service: ServiceDep) -> Json:
    home = await home_of(request, service)
    gone = await service.run(lambda: service.galleries.delete_subjects(home.id))
    return {"deleted": gone.subjects}
