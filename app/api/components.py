"""The parts of the running server, as one value that `main` builds; and the types by which handlers take ids from
paths."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeAlias

from fastapi import Path
from sqlalchemy import Table
from starlette.types import Scope

from app.access.audit import AuditLog
from app.access.keys import Guard, Keys
from app.api import schemas
from app.api.body import BodyLimits
from app.api.metrics import Metrics
from app.concurrency.admission import Admission
from app.concurrency.threads import Lanes, WorkerPool
from app.db.clock import ClockGuard
from app.db.encryption import Sealer
from app.db.secrets import SecretStore
from app.gallery.change import Change
from app.gallery.records import Gallery
from app.gallery.service import Galleries
from app.gallery.store import Store
from app.inference.embedders import Embedders
from app.jobs.files import JobFiles
from app.jobs.runner import Runner
from app.jobs.store import JobStore
from app.recognition.gate import Gates
from app.recognition.operations import Operations
from app.workers.queue import PhotoWorkers
from app.workers.threads import PhotoThreads

Drop: TypeAlias = Callable[[Change, str], int]
"""Deletes a feature's data of a subject, given by its id, and data that may show that subject; returns the count."""
GalleryChanged: TypeAlias = Callable[[Gallery, str], None]
"""Takes the gallery, and the id of the key that has changed it."""
SessionKey: TypeAlias = Callable[[Scope], Awaitable[str | None]]
"""Returns the key of a request that sends none, such as that of a browser which is signed in; None without one."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Data of a feature that erasing a subject also deletes: the receipt gives the count as ``name``, and the
    ``tables`` are cleared from the disk."""

    name: str
    drop: Drop
    tables: Sequence[Table]


@dataclass(frozen=True, slots=True)
class Components:
    """The running server's parts, built by `main`. A handler takes the few that it uses, by their names."""

    operations: Operations
    embedders: Embedders
    gates: Gates
    store: Store
    galleries: Galleries
    admission: Admission
    workers: WorkerPool
    parsing: Lanes
    """Where large bodies are parsed."""
    limits: BodyLimits
    metrics: Metrics
    guard: Guard
    keys: Keys
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
    """The folders of the models folder whose package can't be used now."""
    gallery_changed: list[GalleryChanged] = field(default_factory=list)
    """What features do when the settings of a gallery have changed."""
    session_keys: list[SessionKey] = field(default_factory=list)
    erased_too: list[Reached] = field(default_factory=list)
    """What erasing a subject also deletes."""
    parts: dict[str, Any] = field(default_factory=dict)
    """All of these by name, the whole as `components`, and what features add (`app.api.feature`)."""

    def __post_init__(self) -> None:
        self.parts.update({each.name: getattr(self, each.name) for each in fields(self)} | {"components": self})


HEXADECIMAL = "^[0-9a-f]{32}$"
"""Pattern of ids that the server makes."""


def path_id(description: str, example: str, pattern: str = HEXADECIMAL) -> Any:
    """Return a path parameter. The pattern is for the document alone: an id that does not match is simply not found."""
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
