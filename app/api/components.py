"""The parts of the running server, in one value that `main` builds; types for the ids in paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias

from fastapi import Path
from sqlalchemy import Table
from starlette.types import Scope

from app.access.audit import AuditLog
from app.access.keys import ApiKeys, Guard
from app.api import schemas
from app.api.body import BodyLimits
from app.api.metrics import Metrics
from app.concurrency.admission import Admission, WorkerPool
from app.concurrency.threads import Lanes
from app.db.clock import ClockGuard
from app.db.encryption import Sealer
from app.db.secrets import SecretStore
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Change, Store
from app.inference.embedders import Embedders
from app.jobs.files import JobFiles
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.pipeline import PhotoThreads
from app.recognition.gate import Gates
from app.recognition.operations import Operations
from app.workers.queue import PhotoWorkers

Drop: TypeAlias = Callable[[Change, str], int]
"""Deletes a feature's data of a subject, given by its id, and data that may show that subject; returns the count."""
GalleryChanged: TypeAlias = Callable[[Gallery, str], None]
"""Called with the gallery, and the id of the key that has changed it."""
SessionKey: TypeAlias = Callable[[Scope], Awaitable[str | None]]
"""Returns the key of a request that sends none, for example from a signed-in browser; or None."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A feature's data that erasing a subject also deletes. The receipt gives the count as ``name``; the ``tables`` are
    cleared from the disk."""

    name: str
    drop: Drop
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Components:
    """The running server's parts, built by `main`. A handler takes those that it uses, by name."""

    operations: Operations
    embedders: Embedders
    gates: Gates
    store: Store
    galleries: Galleries
    admission: Admission
    workers: WorkerPool
    parsing: Lanes
    """The threads that parse large bodies."""
    limits: BodyLimits
    metrics: Metrics
    guard: Guard
    keys: ApiKeys
    reader: PhotoWorkers | PhotoThreads
    audit: AuditLog
    sealer: Sealer
    secrets: SecretStore
    jobs: JobStore
    runner: Runner
    files: JobFiles
    clock: ClockGuard
    models: Callable[[], Sequence[schemas.Model]]
    """Returns the installed model packages."""
    skipped_models: Callable[[], Sequence[schemas.SkippedModel]]
    """Returns the folders in the models folder whose package can't be used now."""
    gallery_changed: list[GalleryChanged] = field(default_factory=list)
    """Functions of features to call when a gallery's settings have changed."""
    session_keys: list[SessionKey] = field(default_factory=list)
    erased_too: list[Reached] = field(default_factory=list)
    """Features' data that erasing a subject also deletes."""
    parts: dict[str, Any] = field(default_factory=dict)
    """All parts by name, including this object as `components` and those of features (`app.api.feature`)."""

    def __post_init__(self) -> None:
        self.parts.update({part.name: getattr(self, part.name) for part in fields(self)} | {"components": self})


HEXADECIMAL = "^[0-9a-f]{32}$"
"""Pattern of ids that the server makes."""


def path_id(description: str, example: str, pattern: str = HEXADECIMAL) -> Any:
    """Return a path parameter. The pattern is only for the document: an id that doesn't match is not found."""
    return Path(
        min_length=1,
        max_length=schemas.MAX_ID_LENGTH,
        description=description,
        examples=[example],
        json_schema_extra={"pattern": pattern},
    )


_HOW = "percent-encoded (`/` as `%2F`)"
GalleryId: TypeAlias = Annotated[str, path_id(f"The gallery's id, {_HOW}.", "staff", schemas.ID_PATTERN)]
SubjectId: TypeAlias = Annotated[str, path_id(f"The subject's id, {_HOW}.", "collins", schemas.ID_PATTERN)]
FaceId: TypeAlias = Annotated[str, path_id("The face's id, as enrollment gave it.", "6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10")]
JobId: TypeAlias = Annotated[str, path_id("The job's id.", "0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10")]
