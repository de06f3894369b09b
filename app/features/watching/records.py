"""What the service knows of visits: sightings, events, and how long they are kept."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from app.choices import Decision, EventKind
from app.gallery.records import Gallery
from app.types import Face, Template


@dataclass(frozen=True, slots=True)
class Retention:
    """How long sightings are kept after they were last heard of."""

    sightings: timedelta
    unknown: timedelta
    """Crops and templates of people who are neither known nor strangers."""
    strangers: timedelta
    """Strangers, after their last sighting; zero: none are kept."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Describe a track as a watcher reports it: its id, camera, and from when to when (UTC, ISO 8601)."""

    id: str
    camera: str
    first_at: str
    last_at: str
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """The decision about a track. ``score`` and ``margin`` are as they are answered, never exact."""

    gallery: Gallery
    decision: Decision
    subject: str | None
    """The id of the known one, or of the uncertain one."""
    score: float | None
    margin: float | None
    threshold: float
    fpir: float
    frames: int
    """How many of the photos counted."""
    template: Template
    best: Face = field(repr=False)
    """The face of the best quality."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A stored track."""

    id: str
    camera: str
    decision: Decision
    subject: str | None
    name: str | None
    stranger: str | None
    score: float | None
    margin: float | None
    threshold: float
    fpir: float
    frames: int
    quality: float
    first_at: str
    last_at: str
    ended: bool
    expires_at: str
    has_crop: bool


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened; ``document`` is what is sent, without its age."""

    number: int
    id: str
    gallery: str
    kind: EventKind
    camera: str
    document: dict[str, object]
