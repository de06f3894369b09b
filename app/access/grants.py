"""What a key allows: scopes, galleries, a rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from app.errors import InvalidInput

ADMIN_KEY_ID = "admin.key"
"""The audit log's name of the data folder's key; no other key's id can hold a dot."""
UNLIMITED = "unlimited"
_RATE = re.compile(r"(\d{1,7})/(s|m)(?::(\d{1,7}))?")
_SECONDS = {"s": 1.0, "m": 60.0}


class Scope(StrEnum):
    READ = "read"
    RECOGNIZE = "recognize"
    ENROLL = "enroll"
    ADMIN = "admin"
    DELETE = "delete"
    """Deletions through CompreFace's and Rekognition's interfaces, where one call may delete everybody."""
    METRICS = "metrics"
    TEMPLATES = "templates"
    """Exact scores of enrolled faces, and scores of vectors that the caller chose: enough of them show templates."""


Scopes: TypeAlias = frozenset[Scope]
EXPLICIT: Scopes = frozenset({Scope.TEMPLATES})
"""Scopes that `admin` does not imply; only the data folder's key has them without being given them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """``per_second`` requests on average, ``burst`` of them at once after a pause."""

    per_second: float
    burst: int


def parse_rate(text: str) -> Rate | None:
    """Read ``10/s``, ``600/m`` or ``600/m:20`` (the burst, by default the count); None for ``unlimited``.

    Raises InvalidInput ``invalid_rate``.
    """
    if text == UNLIMITED:
        return None
    found = _RATE.fullmatch(text)
    count, burst = (int(found[1]), int(found[3] or found[1])) if found else (0, 0)
    if not found or not count or not burst:
        raise InvalidInput(
            f"A rate is `10/s`, `600/m`, `600/m:20` (with a burst) or `{UNLIMITED}`.", code="invalid_rate"
        )
    return Rate(count / _SECONDS[found[2]], burst)


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of a request's key; ``galleries`` None: all of them, ``rate`` None: no limit."""

    key_id: str
    scopes: Scopes
    galleries: frozenset[str] | None = None
    rate: Rate | None = None

    def has(self, scope: Scope) -> bool:
        """Return whether the key has the scope: `admin` implies all but EXPLICIT, the data folder's key has all."""
        implied = Scope.ADMIN in self.scopes and (scope not in EXPLICIT or self.key_id == ADMIN_KEY_ID)
        return scope in self.scopes or implied

    @property
    def sees_exact_scores(self) -> bool:
        """Return whether answers hold exact scores of enrolled faces, enough of which show the faces' templates."""
        return self.has(Scope.TEMPLATES)

    def sees(self, gallery: str) -> bool:
        return self.galleries is None or gallery in self.galleries
