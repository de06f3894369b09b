"""Define grants, which say what a key allows (scopes, galleries, a rate), and enforce rates by token buckets."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from app.errors import InvalidInput

ADMIN_KEY_ID = "admin.key"
"""The id of the data folder's key in the audit log; no other key's id can contain a dot."""
UNLIMITED = "unlimited"
_RATE = re.compile(r"(\d{1,7})/(s|m)(?::(\d{1,7}))?")
_SECONDS = {"s": 1.0, "m": 60.0}


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
class RequestRate:
    """``per_second`` requests on average, ``burst`` of them at once after a pause."""

    per_second: float
    burst: int


def parse_rate(text: str) -> RequestRate | None:
    """Read ``10/s``, ``600/m`` or ``600/m:20`` (the burst, by default the count); None for ``unlimited``.

    Raises InvalidInput ``invalid_rate``.
    """
    if text == UNLIMITED:
        return None
    match = _RATE.fullmatch(text)
    count, burst = (int(match[1]), int(match[3] or match[1])) if match else (0, 0)
    if not match or not count or not burst:
        raise InvalidInput(
            f"A rate is `10/s`, `600/m`, `600/m:20` (with a burst) or `{UNLIMITED}`.", code="invalid_rate"
        )
    return RequestRate(count / _SECONDS[match[2]], burst)


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


MAX_BUCKETS = 10_000
"""Maximum callers remembered; the least recent one is dropped first."""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """One token bucket per caller: it holds ``burst`` tokens and gains ``per_second``. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = MAX_BUCKETS) -> None:
        self._clock = clock
        self._size = size
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._buckets)

    def take(self, caller: str, rate: RequestRate, count: int = 1) -> float:
        """Take `count` tokens, at most the burst, and return 0; without them, return the seconds to wait."""
        with self._lock:
            bucket = self._filled(caller, rate)
            if bucket.tokens < count:
                return (count - bucket.tokens) / rate.per_second
            bucket.tokens -= count
            return 0.0

    def owe(self, caller: str, rate: RequestRate, count: int) -> None:
        """Take `count` tokens, even if there are fewer: the caller then waits longer before its next request."""
        with self._lock:
            self._filled(caller, rate).tokens -= count

    def give_back(self, caller: str, rate: RequestRate, count: int = 1) -> None:
        self.owe(caller, rate, -count)

    def wait(self, caller: str, rate: RequestRate) -> float:
        """Return the seconds until a token is available, without taking it; unknown callers are not remembered."""
        with self._lock:
            if caller not in self._buckets:
                return 0.0
            return max(0.0, (1 - self._filled(caller, rate).tokens) / rate.per_second)

    def _filled(self, caller: str, rate: RequestRate) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(caller, _Bucket(rate.burst, now))
        self._buckets.move_to_end(caller)
        while len(self._buckets) > self._size:
            self._buckets.popitem(last=False)
        bucket.tokens = min(rate.burst, bucket.tokens + (now - bucket.at) * rate.per_second)
        bucket.at = now
        return bucket
