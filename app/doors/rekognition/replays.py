"""Signatures that were used already, for as long as their date stamp is good.

A client that asks the same thing twice within a second signs it alike, since SigV4's clock has no parts of seconds:
what changes nothing may therefore come again for REPEAT_S. What changes something may not, or whoever overheard an
IndexFaces could put a face back that was deleted. Where the server refused the work for reasons of its own, the
signature is free again: clients try once more, maybe within the same second.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from app.doors.rekognition import errors
from app.doors.rekognition.errors import Refused
from app.doors.rekognition.sigv4 import SKEW_S

REPEAT_S = 2.0
KEPT_S = 2.0 * SKEW_S
"""A signature made SKEW_S ahead of our clock is good until SKEW_S after."""
MAX_KEPT = 200_000
"""Beyond it the oldest are forgotten: some 40 MB, and more than 300 requests a second all along."""


class Replays:
    """Of one process; safe between threads. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = MAX_KEPT) -> None:
        self._clock = clock
        self._size = size
        self._seen: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def use(self, signature: str, *, changes: bool) -> None:
        """Raises Refused (InvalidSignatureException) for one that was used before."""
        with self._lock:
            now = self._clock()
            self._forget(now)
            first = self._seen.get(signature)
            if first is None:
                self._seen[signature] = now
            elif changes or now - first > REPEAT_S:
                message = "This signature was used already: sign the request again."
                raise Refused(errors.INVALID_SIGNATURE, message, code="wrong_key")

    def free(self, signature: str) -> None:
        """As if it had not been used."""
        with self._lock:
            self._seen.pop(signature, None)

    def _forget(self, now: float) -> None:
        while self._seen:
            signature, first = next(iter(self._seen.items()))
            if len(self._seen) < self._size and now - first <= KEPT_S:
                return
            del self._seen[signature]
