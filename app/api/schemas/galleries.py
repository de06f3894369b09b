"""Galleries, and moving them to another model package."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from app.api.schemas.base import (
    CALIBRATION_SOURCES,
    GALLERY_LIVENESS,
    MAX_ID_LENGTH,
    MODEL,
    ON_CONFLICT,
    POPULATIONS,
    SEARCH_KINDS,
    TIME,
    AskedSearchKind,
    CalibrationSource,
    Example,
    Id,
    LivenessMode,
    Metadata,
    NextCursor,
    OnConflict,
    Params,
    Populations,
    QualityGate,
    SearchKind,
    StoreMode,
    Wire,
)
from app.api.schemas.server import Job

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
    store: StoreMode = Field(
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
    example: ClassVar[Example] = {
        "id": "staff",
        "embedder": MODEL,
        "store": "crop",
        "search": "fp32",
        "calibration": "package",
        "allow_laxer": False,
        "on_conflict": "warn",
        "metadata": {},
        "population": [],
        "liveness": "off",
        "subjects": 1,
        "faces": 1,
        "created_at": TIME,
    }
    id: str
    embedder: str = Field(description="The model package whose templates this gallery holds.")
    store: StoreMode
    search: SearchKind
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
    example: ClassVar[Example] = {"galleries": [Gallery.example], "next_cursor": None}
    galleries: list[Gallery]
    next_cursor: NextCursor


class GalleryCheck(Wire):
    """Whether the database and the search index hold the same faces with the same vectors."""

    example: ClassVar[Example] = {
        "ok": True,
        "subjects": 1,
        "faces": 1,
        "indexed": 1,
        "problems": [],
        "examples": [],
    }

    ok: bool
    subjects: int
    faces: int = Field(description="Faces in the database, which is authoritative.")
    indexed: int = Field(description="Faces in the index.")
    problems: list[str] = Field(description="The differences; empty if there are none.")
    examples: list[str] = Field(description="Ids of some faces that are missing or different.")


class ImportParams(Params):
    content: Literal["photos", "templates", "archive"] = Field(
        default="photos",
        description="The content of the tar. `photos`: one folder per person; `templates`: `templates.npy` with "
        "`faces.jsonl` or `ids.txt`; `archive`: the result of an export.",
    )
    quality: QualityGate = Field(default="medium", description="Photos: the least quality to accept.")
    on_conflict: OnConflict | None = Field(
        default=None,
        description=f"{ON_CONFLICT} Default: the gallery's for photos; `allow` for templates and archives, where the "
        "look costs more than the rest of the import.",
    )
    package: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="Templates: the model package that computed them."
    )
    normalize: bool = Field(default=False, description="Templates: normalize them to length 1 first.")
    trust: str | None = Field(
        default=None,
        max_length=128,
        description="Archives: the public key of the server that signed it, base64, or that key's SHA-256.",
    )

    @model_validator(mode="after")
    def _package_named(self) -> Self:
        if self.content == "templates" and self.package is None:
            raise ValueError("name the package that computed the templates")
        return self


class ExportParams(Params):
    crops: bool = Field(default=True, description="Whether to include the stored crops.")


class ReembedStart(Params):
    example: ClassVar[Example] = {"embedder": "mine"}
    embedder: str = Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="The model package to move to, as `name` or `name@version`.",
    )
    without_crop: Literal["refuse", "drop"] = Field(
        default="refuse",
        description="What to do with faces without a stored crop. `refuse`: do not start. `drop`: leave them out; a "
        "rollback restores them until `finish` deletes them.",
    )
    keep_days: float = Field(
        default=7,
        ge=0,
        le=3650,
        allow_inf_nan=False,
        description="Days after the switch during which a rollback is possible; then the server finishes by itself.",
    )
    force: bool = Field(default=False, description=FORCE)
    accept_non_commercial: bool = Field(default=False, description=ACCEPT_NON_COMMERCIAL)


class Reembedding(Wire):
    """A gallery's move from one model package to another."""

    example: ClassVar[Example] = {
        "gallery": "staff",
        "source": MODEL,
        "target": "mine@1",
        "state": "embedding",
        "without_crop": "refuse",
        "missing": 0,
        "keep_days": 7,
        "started_at": TIME,
        "switched_at": None,
        "keep_until": None,
        "job": Job.example | {"kind": "reembed", "gallery": "staff"},
    }

    gallery: str
    source: str = Field(description="The package before the move.")
    target: str = Field(description="The package after the move.")
    state: Literal["embedding", "ready", "switched", "ending"] = Field(
        description="`embedding`: faces get templates of the target, the source answers. `ready`: all faces have both "
        "(also after a rollback), the source answers. `switched`: the target answers. `ending`: templates that are no "
        "longer needed are being deleted."
    )
    without_crop: Literal["refuse", "drop"]
    missing: int = Field(ge=0, description="Faces without a template of the target, since they have no stored crop.")
    keep_days: float
    started_at: datetime
    switched_at: datetime | None
    keep_until: datetime | None = Field(description="Until when a rollback is possible.")
    job: Job | None = Field(description="The current job, or the last one.")
