"""Grants, which say what a key allows: scopes, galleries and a rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from app.access.rates import RequestRate
from app.errors import InvalidInput

ADMIN_KEY_ID = "admin.key"
"""The id of the data folder's key in the audit log; no other key's id can contain a dot."""


class Scope(StrEnum):
    READ = "read"
    RECOGNIZE = "recognize"
    ENROLL = "enroll"
    ADMIN = "admin"
    DELETE = "delete"
    """Allows deletions through other services' interfaces, where one call may delete a person or everybody."""
    METRICS = "metrics"
    WATCH = "watch"
    """Allows a watcher beside cameras to report sightings."""
    TEMPLATES = "templates"
    """Gives exact scores of enrolled faces, and of the caller's own vectors: enough of these reveal templates."""


Scopes: TypeAlias = frozenset[Scope]
EXPLICIT: Scopes = frozenset({Scope.TEMPLATES})
"""Scopes that `admin` does not imply; only the data folder's key always has them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a request's key; ``galleries`` None: all of them, ``rate`` None: no limit."""

    key_id: str
    scopes: Scopes
    galleries: frozenset[str] | None = None
    rate: RequestRate | None = None
    allowed: Scopes = field(init=False)
    """The scopes and those that `admin` implies: all except EXPLICIT, for the data folder's key all."""

    def __post_init__(self) -> None:
        every = frozenset(Scope) if self.key_id == ADMIN_KEY_ID else frozenset(Scope) - EXPLICIT
        object.__setattr__(self, "allowed", self.scopes | every if Scope.ADMIN in self.scopes else self.scopes)

    def require(self, scope: Scope) -> None:
        """Raise InvalidInput (``missing_scope``) if the key lacks the scope."""
        if scope not in self.allowed:
            raise missing_scope(scope)

    def sees(self, gallery: str) -> bool:
        return self.galleries is None or gallery in self.galleries


def missing_scope(scope: Scope) -> InvalidInput:
    return InvalidInput(f"This needs a key with the scope `{scope}`.", code="missing_scope", scope=scope)
