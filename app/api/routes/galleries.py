"""Galleries: sets of enrolled people. Importing and exporting many of them at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated

from fastapi import Query, Request

from app.access.audit_store import fit_id
from app.api import body, endpoints, schemas
from app.api.dependencies import GalleryId, GrantDep, Service, ServiceDep, entry_of
from app.api.router import Router
from app.api.routes import jobs
from app.bulk.service import ImportTerms
from app.errors import InvalidInput
from app.gallery.records import Gallery

router = Router("galleries")


@router.handles(endpoints.LIST_GALLERIES)
def list_galleries(
    service: ServiceDep, grant: GrantDep, query: Annotated[schemas.PageParams, Query()]
) -> schemas.GalleryPage:
    """List galleries.

    The galleries that the key may see, with their counts, in the order of their creation, page by page.
    """
    page = service.galleries.store.galleries(query.cursor, query.limit, grant.galleries)
    return schemas.GalleryPage(
        galleries=[_answer(service, gallery) for gallery in page.items], next_cursor=page.next_cursor
    )


@router.handles(endpoints.CREATE_GALLERY)
async def create_gallery(request: Request, service: ServiceDep) -> schemas.Gallery:
    """Create a gallery.

    The new gallery is empty. It holds templates of one model package, which may be any installed one.
    """
    asked = await service.read_json(request, schemas.GalleryCreate)
    entry_of(request).gallery = fit_id(asked.id)

    def create() -> schemas.Gallery:
        made = service.operations.create_gallery(
            asked.id, asked.embedder, **asked.model_dump(exclude={"id", "embedder"})
        )
        return _answer(service, made)

    return await service.run(create)


@router.handles(endpoints.SHOW_GALLERY)
def get_gallery(service: ServiceDep, gallery: GalleryId) -> schemas.Gallery:
    """Show a gallery.

    The gallery with the number of its subjects and faces.
    """
    return _answer(service, service.galleries.store.gallery(gallery))


@router.handles(endpoints.UPDATE_GALLERY)
async def update_gallery(request: Request, service: ServiceDep, grant: GrantDep, gallery: GalleryId) -> schemas.Gallery:
    """Change how a gallery is searched, what decides in it, its duplicates, its liveness, or whom it is for.

    An absent field stays as it is. Every kind of search gives the same answers. The index is rebuilt in memory, here at
    once and by other servers of the same database within a moment. With `calibration` set to `gallery` its operating
    points are measured soon, and decide from then on.
    """
    asked = await service.read_json(request, schemas.GalleryPatch)

    def update() -> schemas.Gallery:
        updated = service.galleries.update_gallery(gallery, **asked.model_dump(exclude_none=True))
        if asked.calibration == "gallery":
            service.calibrator.keep(updated.id, who=grant.key_id)
        return _answer(service, updated)

    return await service.run(update)


@router.handles(endpoints.DELETE_GALLERY)
def delete_gallery(service: ServiceDep, gallery: GalleryId) -> None:
    """Delete a gallery with everyone in it.

    Deletes the gallery, its subjects, their faces, stored crops and vectors. This can't be undone.
    """
    service.galleries.delete_gallery(gallery)


@router.handles(endpoints.CHECK_GALLERY)
def check_gallery(service: ServiceDep, gallery: GalleryId) -> schemas.GalleryCheck:
    """Check a gallery.

    Compares the database with the search index: do both hold the same faces with the same vectors? Is the model package
    the one that they were made with?
    """
    report = schemas.GalleryCheck.model_validate(service.galleries.check(gallery))
    if changed := service.operations.changed_package(gallery):
        return report.model_copy(update={"ok": False, "problems": [*report.problems, changed]})
    return report


@router.handles(endpoints.IMPORT_FACES)
async def import_faces(
    request: Request,
    service: ServiceDep,
    grant: GrantDep,
    gallery: GalleryId,
    query: Annotated[schemas.ImportParams, Query()],
) -> schemas.Job:
    """Import many faces.

    Takes a tar (or tar.gz) of photos with one folder per person, of templates computed elsewhere, or of an exported
    gallery, and answers with the job that enrolls them. The job's report lists what it rejects.
    """
    if query.trust is not None and grant.galleries is not None:
        message = "Only a key that is not restricted to galleries may say whose archives to trust."
        raise InvalidInput(message, code="gallery_restricted")
    terms = ImportTerms(query.content, query.quality, query.package, query.normalize, query.trust, query.on_conflict)
    home, file = await service.run(lambda: service.bulk.receive(gallery, terms, grant.key_id))
    try:
        upload = body.read_upload(request, endpoints.ARCHIVE, service.limits.seconds)
        with service.admission.receive():
            async with aclosing(upload) as pieces:
                async for piece in pieces:
                    await asyncio.to_thread(file.write, piece)
        job = await asyncio.to_thread(service.bulk.begin_import, home, terms, file, grant.key_id)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(file.abort))
        raise
    finally:
        service.bulk.end_upload(grant.key_id)
    return jobs.answer(job)


@router.handles(endpoints.EXPORT_GALLERY)
def export_gallery(
    service: ServiceDep, grant: GrantDep, gallery: GalleryId, query: Annotated[schemas.ExportParams, Query()]
) -> schemas.Job:
    """Export a gallery.

    Answers with the job that writes the gallery, as it is when the job begins, to one signed archive. Fetch it from
    `/v1/jobs/{job}/result`.
    """
    return jobs.answer(service.bulk.begin_export(gallery, grant.key_id, crops=query.crops))


def _answer(service: Service, gallery: Gallery) -> schemas.Gallery:
    return schemas.Gallery.of(gallery, service.galleries.store.counts(gallery))
