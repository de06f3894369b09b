"""Galleries, and moving them to another model package."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from pydantic import Field

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
    Params,
    Populations,
    Wire,
)
from app.choices import CalibrationSource, CropPolicy, IndexKind, LivenessMode, OnConflict

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
    search: AskedSearchKind = Field(
        default="fp32",
        description=SEARCH_KINDS,
    )
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
    liveness: LivenessMode = Field(description="What is asked of liveness unless a request asks for something else.")
    subjects: int = Field(ge=0)
    faces: int = Field(ge=0)
    created_at: datetime


class GalleryPage(Wire):
    galleries: list[Gallery]
    next_cursor: NextCursor


class GalleryCheck(Wire):
    """Whether the database and the search index hold the same faces with the same vectors."""

    ok: bool
    subjects: int
    faces: int = Field(description="Faces in the database, which is authoritative.")
    indexed: int = Field(description="Faces in the index.")
    problems: list[str] = Field(description="The differences; empty if there are none.")
    examples: list[str] = Field(description="Ids of some faces that are missing or different.")
