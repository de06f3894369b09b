"""Tokens of challenges: encrypted, valid for one kind of request, and used only once among all servers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

from app.choices import Step
from app.db.encryption import Sealer
from app.errors import InvalidInput, SealedUnreadable
from app.features.challenges.judge import draw_steps
from app.features.one_time import SeenSignatures
from app.types import SKEW_S, utc_text

CHALLENGE_VALID_S = 120.0
"""Seconds for which a challenge is valid; used ones are remembered for longer (`one_time.KEPT_S`)."""
PURPOSE = b"challenge"


@dataclass(frozen=True, slots=True)
class Bound:
    """The only use of a challenge: the ids of the key and the gallery, the operation, and its subject's id if it has
    one."""

    key: str
    gallery: str
    operation: str
    subject: str | None


@dataclass(frozen=True, slots=True)
class Challenge:
    """A new challenge: its token, and what the token contains encrypted."""

    token: str
    steps: tuple[Step, ...]
    expires_at: str


class Challenges:
    """Makes and spends tokens. Safe to share between threads.

    `sealer` seals with the server's secrets. `clock` returns seconds since 1970.
    """

    def __init__(self, sealer: Sealer, seen: SeenSignatures, clock: Callable[[], float] = time.time) -> None:
        self._sealer = sealer
        self._seen = seen
        self._clock = clock

    def make(self, bound: Bound) -> Challenge:
        steps, now = draw_steps(), self._clock()
        sealed = self._sealer.seal(json.dumps([*astuple(bound), steps, now]).encode(), PURPOSE)
        return Challenge(base64.urlsafe_b64encode(sealed).decode(), steps, utc_text(now + CHALLENGE_VALID_S))

    def read(self, token: str, key: str, gallery: str) -> tuple[Bound, tuple[Step, ...]]:
        """Return what a challenge may be used for, and its steps. Checks that it is for this key and gallery, and still
        valid.

        Raises InvalidInput ``wrong_challenge``.
        """
        try:
            *names, steps, made_at = json.loads(self._sealer.open(_bytes(token), PURPOSE))
        except (binascii.Error, ValueError, SealedUnreadable):
            raise _wrong_challenge("unreadable", "is none of this server's") from None
        bound = Bound(*names)
        if (bound.key, bound.gallery) != (key, gallery):
            raise _wrong_challenge("other_request", "was made for another key or gallery")
        if not -SKEW_S <= self._clock() - made_at <= CHALLENGE_VALID_S:
            raise _wrong_challenge("expired", f"is older than {CHALLENGE_VALID_S:.0f} seconds")
        return bound, tuple(steps)

    def spend(self, token: str) -> None:
        """Use up a challenge. If several calls do so, one succeeds and the others raise InvalidInput
        ``wrong_challenge``."""
        if not self._seen.use(hashlib.sha256(_bytes(token)).hexdigest(), PURPOSE.decode(), repeat_s=0):
            raise _wrong_challenge("used", "was answered before")

    def release(self, token: str) -> None:
        """Make a used challenge valid again, since the server could not judge its frames."""
        self._seen.release(hashlib.sha256(_bytes(token)).hexdigest())


def _bytes(token: str) -> bytes:
    # Other characters are rejected, since with them several texts would decode to the same bytes.
    return base64.b64decode(token.encode(), altchars=b"-_", validate=True)


def _wrong_challenge(reason: str, what: str) -> InvalidInput:
    return InvalidInput(f"The challenge {what}. Ask for a new one.", code="wrong_challenge", reason=reason)
