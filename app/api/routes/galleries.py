"""Galleries: sets of enrolled people."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.components import GalleryId
from app.api.operation import CURSOR, GALLERIES, GALLERY, GALLERY_PACKAGE, SEARCH
from app.api.route import Router
from app.calibration.job import Calibrator
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.recognition.operations import Operations

router = Router("galleries")


@router.operation("GET", GALLERIES, scope=Scope.READ, codes=CURSOR)
def list_galleries(
    galleries: Galleries, grant: Grant, query: Annotated[schemas.PageParams, Query()]
) -> schemas.GalleryPage:
    """List galleries.

    The galleries that the key may see, with their counts, in the order of their creation, page by page.
    """
    page = galleries.store.galleries(query.cursor, query.limit, grant.galleries)
    return schemas.GalleryPage.of(page, galleries=[_answer(galleries, gallery) for gallery in page.items])


@router.operation(
    "POST",
    GALLERIES,
    scope=Scope.ADMIN,
    changes=True,
    unrestricted=True,
    status=201,
    codes=("invalid_id", "invalid_metadata", "gallery_exists", *SEARCH, *GALLERY_PACKAGE),
)
def create_gallery(
    operations: Operations,
    galleries: Galleries,
    entry: AuditEntry,
    asked: schemas.GalleryCreate,
) -> schemas.Gallery:
    """Create a gallery.

    The new gallery is empty. It holds templates of one model package, which may be any installed one.
    """
    entry.gallery = fit_id(asked.id)
    made = operations.create_gallery(asked.id, asked.embedder, **asked.model_dump(exclude={"id", "embedder"}))
    return _answer(galleries, made)


@router.operation("GET", GALLERY, scope=Scope.READ, name="show_gallery")
def get_gallery(galleries: Galleries, gallery: GalleryId) -> schemas.Gallery:
    """Show a gallery.

    The gallery with the number of its subjects and faces.
    """
    return _answer(galleries, galleries.store.gallery(gallery))


@router.operation("PATCH", GALLERY, scope=Scope.ADMIN, changes=True, codes=(*SEARCH, "package_unavailable"))
def update_gallery(
    galleries: Galleries,
    calibrator: Calibrator,
    grant: Grant,
    gallery: GalleryId,
    asked: schemas.GalleryPatch,
) -> schemas.Gallery:
    """Change how a gallery is searched, what decides in it, its duplicates, its liveness, or whom it is for.

    An absent field stays as it is. Every kind of search gives the same answers. The index is rebuilt in memory, here at
    once and by other servers of the same database within a moment. With `calibration` set to `gallery` its operating
    points are measured soon, and decide from then on.
    """
    updated = galleries.update_gallery(gallery, **asked.model_dump(exclude_none=True))
    if asked.calibration == "gallery":
        calibrator.keep(updated.id, who=grant.key_id)
    return _answer(galleries, updated)


@router.operation("DELETE", GALLERY, scope=Scope.ADMIN, changes=True, unrestricted=True)
def delete_gallery(galleries: Galleries, gallery: GalleryId) -> None:
    """Delete a gallery with everyone in it.

    Deletes the gallery, its subjects, their faces, stored crops and vectors. This can't be undone.
    """
    galleries.delete_gallery(gallery)


@router.operation("GET", f"{GALLERY}/check", scope=Scope.ADMIN)
def check_gallery(operations: Operations, galleries: Galleries, gallery: GalleryId) -> schemas.GalleryCheck:
    """Check a gallery.

    Compares the database with the search index: do both hold the same faces with the same vectors? Is the model package
    the one that they were made with?
    """
    report = schemas.GalleryCheck.model_validate(galleries.check(gallery))
    if changed := operations.changed_package(gallery):
        return report.model_copy(update={"ok": False, "problems": [*report.problems, changed]})
    return report


def _answer(galleries: Galleries, gallery: Gallery) -> schemas.Gallery:
    return schemas.Gallery.of(gallery, galleries.store.counts(gallery))
