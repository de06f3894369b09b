"""Jobs, work that outlasts a request, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.choices import JobStateName

MAX_REFUSED_NAME = 1024
"""Characters kept of a rejected item's name."""

FINISHED: frozenset[JobStateName] = frozenset({"done", "failed", "cancelled"})


@dataclass(frozen=True, slots=True)
class Result:
    """A file that a job has made, encrypted with the job's key."""

    size: int
    """Bytes of its content."""
    sha256: str
    media_type: str
    name: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job. ``saved`` is the last checkpoint, ``counts`` are the work's counts; times are UTC, ISO 8601."""

    key: int
    """The key of its row; it never leaves the service."""
    id: str
    kind: str
    gallery: str | None
    """The gallery's id; a job is deleted with its gallery."""
    state: JobStateName
    done: int
    total: int | None
    params: Mapping[str, Any]
    saved: Mapping[str, Any]
    counts: Mapping[str, int]
    result: Result | None
    who: str | None
    """The id of the API key that created it."""
    cancel_asked: bool
    error_code: str | None
    error_message: str | None
    attempts: int
    """Number of starts since its last checkpoint, without those after which it was handed back."""
    created_at: str
    started_at: str | None
    finished_at: str | None
    lease_owner: str | None
    """The id of the claim that runs it."""

    @property
    def finished(self) -> bool:
        return self.state in FINISHED


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rejected item of a job: its number within the job, from 0, its name, and the reason."""

    item: int
    name: str
    code: str
    message: str
    reasons: Sequence[str] = ()
    enrolled: bool = False
    """Whether it was enrolled nevertheless, so that this is a warning."""
