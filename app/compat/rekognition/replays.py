"""Signatures that were used already, for as long as their date stamp is good.

A client that asks the same thing twice within a second signs it alike, since SigV4's clock has no parts of seconds.
AWS's clients tell such requests apart by two headers that they do not sign: `amz-sdk-invocation-id`, a call's own, and
`amz-sdk-request`, which counts its attempts. So for REPEAT_S after its first use a signature is good for other calls
and attempts, but for none twice; after that for nothing. Without those headers, what changes something is good once.
Whoever overhears a request and alters what is not signed has those REPEAT_S, no more: against that there is TLS.
Where the server refused the work for reasons of its own, the signature is as if it had not been used.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from app.compat.rekognition import errors
from app.compat.rekognition.errors import Refused
from app.compat.rekognition.sigv4 import SKEW_S

REPEAT_S = 2.0
KEPT_S = 2.0 * SKEW_S
"""A signature made SKEW_S ahead of our clock is good until SKEW_S after."""
MAX_KEPT = 200_000
"""Beyond it the oldest are forgotten: more than 300 requests a second all along."""
MAX_REPEATS = 256
"""Of one signature."""


@dataclass(slots=True)
class _Use:
    first: float
    attempts: set[str] = field(default_factory=set)


class Replays:
    """Of one process; safe between threads. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, size: int = MAX_KEPT) -> None:
        self._clock = clock
        self._size = size
        self._seen: OrderedDict[str, _Use] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._seen)

    def use(self, signature: str, attempt: str, *, changes: bool) -> None:
        """`attempt`: what the client calls this one, empty where it doesn't say.

        Raises Refused (InvalidSignatureException) for what was used before.
        """
        with self._lock:
            now = self._clock()
            self._forget(now)
            use = self._seen.setdefault(signature, _Use(now))
            if use.attempts and (now - use.first > REPEAT_S or self._is_same(use, attempt, changes)):
                message = "This signature was used already: sign the request again."
                raise Refused(errors.INVALID_SIGNATURE, message, code="wrong_key")
            use.attempts.add(attempt)

    def free(self, signature: str) -> None:
        """As if it had not been used."""
        with self._lock:
            self._seen.pop(signature, None)

    def _is_same(self, use: _Use, attempt: str, changes: bool) -> bool:
        if len(use.attempts) >= MAX_REPEATS:
            return True
        return attempt in use.attempts if attempt else changes

    def _forget(self, now: float) -> None:
        while self._seen:
            signature, use = next(iter(self._seen.items()))
            if len(self._seen) < self._size and now - use.first <= KEPT_S:
                return
            del self._seen[signature]
