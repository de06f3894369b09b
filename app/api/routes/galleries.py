"""Galleries: sets of enrolled people."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar

from fastapi import Query
from pydantic import Field

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.api.components import Components
from app.api.operation import CURSOR, GALLERIES_PATH, GALLERY_PACKAGE, GALLERY_PATH, SEARCH
from app.api.route import Router
from app.api.schemas.base import (
    CALIBRATION_SOURCES,
    GALLERY_LIVENESS,
    MAX_ID_LENGTH,
    ON_CONFLICT,
    POPULATIONS,
    SEARCH_KINDS,
    AskedSearchKind,
    Example,
    Id,
    Metadata,
    NextCursor,
    PageParams,
    Params,
    Populations,
    Wire,
)
from app.choices import CalibrationSource, CropPolicy, IndexKind, LivenessMode, OnConflict
from app.gallery import records
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.recognition.operations import Operations

router = Router("galleries")

FORCE = "Take a package without operating points: nobody is identified by it before it is measured."
ACCEPT_NON_COMMERCIAL = "Take a package whose licence forbids commercial use."


class GalleryCreate(Params):
    example: ClassVar[Example] = {"id": "staff"}
    id: Id
    embedder: str | None = Field(
        default=None,
        max_length=MAX_ID_LENGTH,
        description="The model package whose templates this gallery holds, as `name` or `name@version`; "
        "the server's default if absent.",
    )
    store: CropPolicy = Field(
        default="crop",
        description="`crop` keeps each face's aligned 112x112 crop (for display and for moving to another "
        "model); `none` keeps templates alone.",
    )
    search: AskedSearchKind = Field(default="fp32", description=SEARCH_KINDS)
    on_conflict: OnConflict = Field(default="warn", description=ON_CONFLICT)
    metadata: Metadata = Field(default_factory=dict, description="Any JSON object, within the server's size limit.")
    population: Populations = Field(default=[], description=POPULATIONS)
    liveness: LivenessMode = Field(default="off", description=GALLERY_LIVENESS)
    force: bool = Field(default=False, description=FORCE)
    accept_non_commercial: bool = Field(default=False, description=ACCEPT_NON_COMMERCIAL)


class GalleryPatch(Params):
    example: ClassVar[Example] = {"search": "int8"}
    search: AskedSearchKind | None = Field(default=None, description=SEARCH_KINDS)
    calibration: CalibrationSource | None = Field(default=None, description=CALIBRATION_SOURCES)
    allow_laxer: bool | None = Field(
        default=None,
        description="Whether the gallery's own thresholds may be laxer than the package's at 3.2 times the false match "
        "rate.",
    )
    on_conflict: OnConflict | None = Field(default=None, description=ON_CONFLICT)
    population: Populations | None = Field(default=None, description=f"{POPULATIONS} An empty list declares none.")
    liveness: LivenessMode | None = Field(default=None, description=GALLERY_LIVENESS)


class Gallery(Wire):
    id: str = Field(examples=["staff"])
    embedder: str = Field(description="The model package whose templates this gallery holds.")
    store: CropPolicy
    search: IndexKind
    calibration: CalibrationSource = Field(description=CALIBRATION_SOURCES)
    allow_laxer: bool
    on_conflict: OnConflict
    metadata: Metadata
    population: list[str] = Field(default=[], description="The declared groups of people; empty: none.")
    liveness: LivenessMode = Field(description="What liveness is used for, unless a request says otherwise.")
    subjects: int = Field(ge=0)
    faces: int = Field(ge=0)
    created_at: datetime


class GalleryPage(Wire):
    galleries: list[Gallery]
    next_cursor: NextCursor


@router.operation("GET", GALLERIES_PATH, scope=Scope.READ, codes=CURSOR)
def list_galleries(store: Store, grant: Grant, query: Annotated[PageParams, Query()]) -> GalleryPage:
    """List galleries.

    Lists the galleries that the key may see, with their counts, in the order of their creation, page by page.
    """
    page = store.galleries(query.cursor, query.limit, grant.galleries)
    return GalleryPage.of(page, galleries=[_answer(store, gallery) for gallery in page.items])


@router.operation(
    "POST",
    GALLERIES_PATH,
    scope=Scope.ADMIN,
    changes=True,
    unrestricted=True,
    status=201,
    codes=("invalid_id", "invalid_metadata", "gallery_exists", *SEARCH, *GALLERY_PACKAGE),
)
def create_gallery(operations: Operations, store: Store, entry: AuditEntry, asked: GalleryCreate) -> Gallery:
    """Create a gallery.

    Creates an empty gallery. It will hold templates of one model package, which may be any installed one.
    """
    entry.gallery = fit_id(asked.id)
    made = operations.create_gallery(asked.id, asked.embedder, **asked.model_dump(exclude={"id", "embedder"}))
    return _answer(store, made)


@router.operation("GET", GALLERY_PATH, scope=Scope.READ, name="show_gallery")
def get_gallery(store: Store, gallery: records.Gallery) -> Gallery:
    """Show a gallery.

    Answers the gallery with the number of its subjects and faces.
    """
    return _answer(store, gallery)


@router.operation("PATCH", GALLERY_PATH, scope=Scope.ADMIN, changes=True, codes=(*SEARCH, "package_unavailable"))
def update_gallery(
    components: Components,
    store: Store,
    galleries: Galleries,
    grant: Grant,
    gallery: records.Gallery,
    asked: GalleryPatch,
) -> Gallery:
    """Change how a gallery is searched, what decides in it, its duplicates, its liveness, or whom it is for.

    An absent field stays as it is. Every kind of search gives the same answers. The index is rebuilt in memory, here at
    once and in other servers of the same database soon after. With `calibration` set to `gallery` its operating points
    are measured soon, and decide from then on.
    """
    updated = galleries.update_gallery(gallery, **asked.model_dump(exclude_none=True))
    for tell in components.gallery_changed:
        tell(updated, grant.key_id)
    return _answer(store, updated)


@router.operation("DELETE", GALLERY_PATH, scope=Scope.ADMIN, changes=True, unrestricted=True)
def delete_gallery(galleries: Galleries, gallery: records.Gallery) -> None:
    """Delete a gallery with everyone in it.

    Deletes the gallery, its subjects, their faces, stored crops and vectors. This can't be undone.
    """
    galleries.delete_gallery(gallery)


def _answer(store: Store, gallery: records.Gallery) -> Gallery:
    counts = store.counts(gallery)
    return Gallery.of(gallery, subjects=counts.subjects, faces=counts.faces)
