"""Subjects: the people of a gallery."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import JSONResponse

from app.access.audit_store import fit_id
from app.api import endpoints, schemas
from app.api.dependencies import GalleryId, ServiceDep, SubjectId, entry_of
from app.api.router import Router
from app.gallery import deleting, editing, moving
from app.gallery.records import UNSET, Consent, Terms
from app.gallery.text import clean_id
from app.timestamps import utc_now, utc_text, utc_text_or_none

router = Router("subjects")


@router.handles(endpoints.LIST_SUBJECTS)
def list_subjects(
    service: ServiceDep, gallery: GalleryId, query: Annotated[schemas.SubjectPageParams, Query()]
) -> schemas.SubjectPage:
    """List the subjects of a gallery.

    In the order of their creation, page by page; with `search` only those whose id or name contains it.
    """

    store = service.galleries.store
    page = store.subjects(
        store.gallery(gallery),
        cursor=query.cursor,
        limit=query.limit,
        search=query.search,
        expires_before=utc_text_or_none(query.expires_before),
    )
    subjects = [schemas.Subject.model_validate(subject) for subject in page.items]
    return schemas.SubjectPage(subjects=subjects, next_cursor=page.next_cursor)


@router.handles(endpoints.CREATE_SUBJECT)
async def create_subject(request: Request, service: ServiceDep, gallery: GalleryId) -> schemas.Subject:
    """Create a subject.

    The new subject has no faces. Enrolling creates a missing subject too; this is for giving it a name first.
    """
    asked = await service.read_json(request, schemas.SubjectCreate)
    entry_of(request).subject = fit_id(asked.id)

    def create() -> schemas.Subject:
        store = service.galleries.store
        with store.change(store.gallery(gallery)) as change:
            made = editing.create_subject(change, asked.id, asked.name, asked.metadata, terms=_terms_of(asked))
        return schemas.Subject.model_validate(made)

    return await service.run(create)


@router.handles(endpoints.SHOW_SUBJECT)
def get_subject(service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> schemas.Subject:
    """Show a subject.

    The subject with its name, metadata and number of faces.
    """
    store = service.galleries.store
    return schemas.Subject.model_validate(store.subject(store.gallery(gallery), subject))


@router.handles(endpoints.UPDATE_SUBJECT)
async def update_subject(
    request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId
) -> schemas.Subject:
    """Change a subject's name, metadata, expiry, consent or cover.

    A given field replaces the old value as a whole (metadata too), an absent field stays as it is, null removes it.
    """
    asked = await service.read_json(request, schemas.SubjectPatch)
    name = asked.name if "name" in asked.model_fields_set else UNSET
    metadata = asked.metadata if "metadata" in asked.model_fields_set else UNSET
    cover = asked.cover if "cover" in asked.model_fields_set else UNSET
    store = service.galleries.store

    def update() -> schemas.Subject:
        terms = _terms_of(asked)
        with store.change(store.gallery(gallery)) as change:
            edited = editing.edit_subject(change, subject, name=name, metadata=metadata, terms=terms, cover=cover)
        return schemas.Subject.model_validate(edited)

    return await service.run(update)


@router.handles(endpoints.DELETE_SUBJECT)
def delete_subject(service: ServiceDep, gallery: GalleryId, subject: SubjectId) -> None:
    """Delete a subject with its faces.

    Deletes the subject, its faces, their stored crops and vectors. This can't be undone.
    """
    with service.galleries.change(gallery) as change:
        deleting.delete_subject(change, subject)


@router.handles(endpoints.ERASE_SUBJECT)
def erase_subject(
    service: ServiceDep, gallery: GalleryId, subject: SubjectId, query: Annotated[schemas.EraseParams, Query()]
) -> JSONResponse:
    """Erase a subject for good.

    Deletes the subject with everything about it, clears what the disk may still hold of it, and answers with a signed
    receipt of what was erased and of what the server can't reach.
    """
    return JSONResponse(service.erasures.erase(gallery, subject, rewrite=query.rewrite))


@router.handles(endpoints.MERGE_SUBJECT)
async def merge_subject(
    request: Request, service: ServiceDep, gallery: GalleryId, subject: SubjectId
) -> schemas.MergedSubject:
    """Merge a subject into another one.

    The other subject gets all faces, which keep their ids, and the first is deleted, in one step. The other keeps its
    name, metadata and consent, and takes those it lacks; the earlier of two expiries counts. Repeated within a day,
    the request changes nothing and gets the same answer. To undo it, move `faces` back.
    """
    asked = await service.read_json(request, schemas.SubjectMerge)
    entry_of(request).target = fit_id(asked.into)

    def merge() -> schemas.MergedSubject:
        with service.galleries.change(gallery) as change:
            faces = moving.merge_subjects(change, subject, asked.into)
        store = service.galleries.store
        kept = schemas.Subject.model_validate(store.subject(store.gallery(gallery), asked.into))
        return schemas.MergedSubject(subject=kept, merged=clean_id(subject, "subject"), faces=faces)

    return await service.run(merge)


def _terms_of(asked: schemas.SubjectCreate | schemas.SubjectPatch) -> Terms:
    """Return the body's expiry and consent; absent ones stay as they are."""
    given = asked.model_fields_set
    return Terms(
        utc_text_or_none(asked.expires_at) if "expires_at" in given else UNSET,
        _consent(asked.consent) if "consent" in given else UNSET,
    )


def _consent(asked: schemas.Consent | None) -> Consent | None:
    return None if asked is None else Consent(asked.note, utc_text(asked.given_at) if asked.given_at else utc_now())
