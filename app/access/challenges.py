"""Challenge tokens: each proves once, within two minutes, which steps the server asked of whom, and for what.

A token holds the request it was made for, sealed as the server's own secrets are, so that all servers of the database
open it and nothing has to be kept but the digests of used ones.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

from app.access.seen_signatures import SeenSignatures
from app.access.sign_in_codes import SKEW_S
from app.choices import Step
from app.db.encryption import Sealer
from app.errors import InvalidInput, SealedUnreadable
from app.recognition.challenge import draw_steps
from app.timestamps import utc_text

VALID_S = 120.0
"""Less than used signatures are kept."""
PURPOSE = b"challenge"


@dataclass(frozen=True, slots=True)
class Bound:
    """Binds a challenge to the key's id, the gallery, an operation, and the subject's id where it has one."""

    key: str
    gallery: str
    operation: str
    subject: str | None


@dataclass(frozen=True, slots=True)
class Challenge:
    """A new challenge, as its token and in clear."""

    token: str
    steps: tuple[Step, ...]
    expires_at: str


class Challenges:
    """Makes and spends tokens. Safe to share between threads.

    `sealer` is the one of the server's secrets. `clock` returns seconds since 1970.
    """

    def __init__(self, sealer: Sealer, seen: SeenSignatures, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._seen = seen
        self._clock = clock

    def make(self, bound: Bound) -> Challenge:
        """Return a new challenge."""
        steps, now = draw_steps(), self._clock()
        sealed = self._sealer.seal(json.dumps([*astuple(bound), steps, now]).encode(), PURPOSE)
        return Challenge(base64.urlsafe_b64encode(sealed).decode(), steps, utc_text(now + VALID_S))

    def read(self, token: str, key: str, gallery: str) -> tuple[Bound, tuple[Step, ...]]:
        """Return what a challenge of this key and gallery is for, and its steps.

        Raises InvalidInput ``wrong_challenge``.
        """
        try:
            *names, steps, made_at = json.loads(self._sealer.open(_bytes(token), PURPOSE))
        except (binascii.Error, ValueError, SealedUnreadable):
            raise _wrong("unreadable", "is none of this server's") from None
        bound = Bound(*names)
        if (bound.key, bound.gallery) != (key, gallery):
            raise _wrong("other_request", "was made for another key or gallery")
        if not -SKEW_S <= self._clock() - made_at <= VALID_S:
            raise _wrong("expired", f"is older than {VALID_S:.0f} seconds")
        return bound, tuple(steps)

    def spend(self, token: str) -> None:
        """Use up a challenge. Of simultaneous calls one succeeds, the others raise InvalidInput ``wrong_challenge``."""
        if not self._seen.use(_digest(token), PURPOSE.decode(), repeat_s=0):
            raise _wrong("used", "was answered before")

    def release(self, token: str) -> None:
        """Let a spent challenge be answered again: the server could not judge its frames."""
        self._seen.release(_digest(token))


def _bytes(token: str) -> bytes:
    return base64.b64decode(token.encode(), altchars=b"-_", validate=True)


def _digest(token: str) -> str:
    return hashlib.sha256(_bytes(token)).hexdigest()  # of the bytes: several texts may decode to the same


def _wrong(reason: str, what: str) -> InvalidInput:
    return InvalidInput(f"The challenge {what}. Ask for a new one.", code="wrong_challenge", reason=reason)
