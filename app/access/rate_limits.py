"""Rate limits: token buckets in bounded memory."""

from __future__ import annotations

import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from app.access.grants import Rate

MAX_BUCKETS = 10_000
"""Callers remembered at a time; the least recent one is dropped first."""
IPV6_PREFIX = 64
"""All addresses of an IPv6 prefix of this length, one customer's, count as one caller."""


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

    def take(self, caller: str, rate: Rate, count: int = 1) -> float:
        """Take `count` tokens, at most the burst, and return 0; without them, return the seconds to wait."""
        with self._lock:
            bucket = self._filled(caller, rate)
            if bucket.tokens < count:
                return (count - bucket.tokens) / rate.per_second
            bucket.tokens -= count
            return 0.0

    def owe(self, caller: str, rate: Rate, count: int) -> None:
        """Take `count` tokens, also those that are not there yet: the caller waits for them later."""
        with self._lock:
            self._filled(caller, rate).tokens -= count

    def wait(self, caller: str, rate: Rate) -> float:
        """Return the seconds until there is a token, without taking it; unknown callers are not remembered."""
        with self._lock:
            if caller not in self._buckets:
                return 0.0
            return max(0.0, (1 - self._filled(caller, rate).tokens) / rate.per_second)

    def _filled(self, caller: str, rate: Rate) -> _Bucket:
        now = self._clock()
        bucket = self._buckets.setdefault(caller, _Bucket(rate.burst, now))
        self._buckets.move_to_end(caller)
        while len(self._buckets) > self._size:
            self._buckets.popitem(last=False)
        bucket.tokens = min(rate.burst, bucket.tokens + (now - bucket.at) * rate.per_second)
        bucket.at = now
        return bucket


def address_group(host: str) -> str:
    """Return what attempts are counted by: an IPv4 address, the /64 of an IPv6 one, otherwise the text itself."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address.packed, IPV6_PREFIX), strict=False))
    return str(address)
