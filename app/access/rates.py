"""Rates of requests, and the token buckets that enforce them."""

from __future__ import annotations

import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.errors import InvalidInput

UNLIMITED = "unlimited"
_RATE = re.compile(r"(\d{1,7})/(s|m)(?::(\d{1,7}))?")
_SECONDS = {"s": 1.0, "m": 60.0}
MAX_BUCKETS = 10_000
"""Maximum callers remembered; the least recent one is dropped first."""


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

    def seconds_to_wait(self, caller: str, rate: RequestRate) -> float:
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
