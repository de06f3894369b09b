"""Galleries: sets of enrolled people."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request

from app.access.records import fit_id
from app.api import openapi, schemas
from app.api.paths import GalleryId
from app.api.service import GrantDep, Service, ServiceDep, entry_of
from app.gallery.records import UNSET, Gallery

router = APIRouter(prefix="/v1/galleries", tags=["galleries"])

GALLERY_CODES = ("gallery_not_found", "invalid_id")


@router.get(
    "",
    summary="List galleries",
    responses=openapi.answer(schemas.GalleryPage) | openapi.call_errors("invalid_cursor"),
)
async def list_galleries(
    service: ServiceDep, grant: GrantDep, query: Annotated[schemas.PageParams, Query()]
) -> schemas.GalleryPage:
    """The galleries that the key may see, with their counts, in the order they were made, page by page."""

    def read() -> schemas.GalleryPage:
        page = service.galleries.galleries(query.cursor, query.limit, grant.galleries)
        return schemas.GalleryPage(
            galleries=[_answer(service, gallery) for gallery in page.items], next_cursor=page.next_cursor
        )

    return await service.run(read)


@router.post(
    "",
    status_code=201,
    summary="Make a gallery",
    responses=openapi.answer(schemas.Gallery, 201)
    | openapi.call_errors(
        *openapi.JSON_CODES,
        "gallery_restricted",
        "invalid_id",
        "invalid_metadata",
        "gallery_exists",
        "search_unavailable",
        "package_unknown",
        "package_ambiguous",
        "package_unavailable",
    ),
    openapi_extra=openapi.request_body(schemas.GalleryCreate),
)
async def create_gallery(request: Request, service: ServiceDep) -> schemas.Gallery:
    """Makes an empty gallery for templates of one model package: any that is installed."""
    asked = await service.read_json(request, schemas.GalleryCreate)
    entry_of(request).gallery = fit_id(asked.id)

    def make() -> schemas.Gallery:
        made = service.operations.create_gallery(asked.id, asked.embedder, asked.store, asked.metadata, asked.search)
        return _answer(service, made)

    return await service.run(make)


@router.get(
    "/{gallery}",
    summary="Show a gallery",
    responses=openapi.answer(schemas.Gallery) | openapi.call_errors(*GALLERY_CODES),
)
async def get_gallery(service: ServiceDep, gallery: GalleryId) -> schemas.Gallery:
    """The gallery with the number of its subjects and faces."""
    return await service.run(lambda: _answer(service, service.galleries.gallery(gallery)))


@router.patch(
    "/{gallery}",
    summary="Change how a gallery is searched",
    responses=openapi.answer(schemas.Gallery)
    | openapi.call_errors(*openapi.JSON_CODES, *GALLERY_CODES, "search_unavailable"),
    openapi_extra=openapi.request_body(schemas.GalleryPatch),
)
async def update_gallery(request: Request, service: ServiceDep, gallery: GalleryId) -> schemas.Gallery:
    """What is absent stays as it is. Answers are the same by every kind of search; the index is made anew in memory,
    here at once and by other servers over the same database within a moment."""
    asked = await service.read_json(request, schemas.GalleryPatch)
    search = asked.search if asked.search is not None else UNSET
    return await service.run(lambda: _answer(service, service.galleries.update_gallery(gallery, search=search)))


@router.delete(
    "/{gallery}",
    status_code=204,
    summary="Delete a gallery with everyone in it",
    responses=openapi.call_errors(*GALLERY_CODES, "gallery_restricted"),
)
async def delete_gallery(service: ServiceDep, gallery: GalleryId) -> None:
    """Removes the gallery, its subjects, their faces, stored crops and vectors. There is no way back."""
    await service.run(lambda: service.galleries.delete_gallery(gallery))


@router.get(
    "/{gallery}/check",
    summary="Check a gallery",
    responses=openapi.answer(schemas.GalleryCheck) | openapi.call_errors(*GALLERY_CODES),
)
async def check_gallery(service: ServiceDep, gallery: GalleryId) -> schemas.GalleryCheck:
    """Compares the database, which is the truth, with the search index: the same faces, and the same vectors?"""

    def check() -> schemas.GalleryCheck:
        report = service.galleries.check(gallery)
        return schemas.GalleryCheck(
            ok=report.ok,
            subjects=report.subjects,
            faces=report.faces,
            indexed=report.indexed,
            problems=list(report.problems),
            examples=list(report.examples),
        )

    return await service.run(check)


def _answer(service: Service, gallery: Gallery) -> schemas.Gallery:
    counts = service.galleries.counts(gallery.id)
    return schemas.Gallery.model_validate(
        {
            "id": gallery.id,
            "embedder": gallery.embedder,
            "store": gallery.store,
            "search": gallery.search,
            "metadata": gallery.metadata,
            "subjects": counts.subjects,
            "faces": counts.faces,
            "created_at": gallery.created_at,
        }
    )
