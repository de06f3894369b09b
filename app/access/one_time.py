"""What counts once: signatures of requests, tokens of challenges.

All servers of a database share what was used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass

import sqlalchemy as sa

from app.access.sign_in import SKEW_S
from app.choices import Step
from app.db.encryption import Sealer
from app.db.engine import Database
from app.db.schema import SEEN_SIGNATURES as SEEN
from app.errors import InvalidInput, SealedUnreadable
from app.recognition.challenge import draw_steps
from app.timestamps import utc_text

KEPT_S = 600.0
"""Seconds that a used signature is remembered, which is longer than any is valid: SigV4's may be made 300 s ahead of
our clock, and is valid until 300 s after that time."""


class SeenSignatures:
    """Remembers valid signatures, so that none is used twice. Safe to share between threads. Every call is one
    transaction, and may raise what `Database` does.

    A row stays for KEPT_S seconds, after which the signature is invalid by its age. Only valid signatures come
    here, so the keys' rates bound how many rows there are. ``clock`` returns seconds since 1970.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def use(self, signature: str, attempt: str, repeat_s: float) -> bool:
        """Keep the use of a signature, and return True; False if it was used before.

        Other attempts with the same signature count as new for ``repeat_s`` seconds after its first use.
        """
        now = self._clock()
        first = sa.select(sa.func.min(SEEN.c.seen_at)).where(SEEN.c.signature == signature)
        values = {"signature": signature, "attempt": attempt, "seen_at": now}
        with self._database.write() as connection:
            connection.execute(sa.delete(SEEN).where(SEEN.c.seen_at < now - KEPT_S))
            used_at = connection.execute(first).scalar()
            if used_at is not None and abs(now - used_at) > repeat_s:
                return False
            insert = self._database.insert(SEEN).values(values).on_conflict_do_nothing().returning(SEEN.c.signature)
            return connection.execute(insert).first() is not None  # PostgreSQL's driver counts no rows here

    def release(self, signature: str) -> None:
        with self._database.write() as connection:
            connection.execute(sa.delete(SEEN).where(SEEN.c.signature == signature))


CHALLENGE_VALID_S = 120.0
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
        steps, now = draw_steps(), self._clock()
        sealed = self._sealer.seal(json.dumps([*astuple(bound), steps, now]).encode(), PURPOSE)
        return Challenge(base64.urlsafe_b64encode(sealed).decode(), steps, utc_text(now + CHALLENGE_VALID_S))

    def read(self, token: str, key: str, gallery: str) -> tuple[Bound, tuple[Step, ...]]:
        """Return what a challenge of this key and gallery is for, and its steps.

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
        """Use up a challenge. Of simultaneous calls one succeeds, the others raise InvalidInput ``wrong_challenge``."""
        if not self._seen.use(hashlib.sha256(_bytes(token)).hexdigest(), PURPOSE.decode(), repeat_s=0):
            raise _wrong_challenge("used", "was answered before")

    def release(self, token: str) -> None:
        """Let a spent challenge be answered again: the server could not judge its frames."""
        self._seen.release(hashlib.sha256(_bytes(token)).hexdigest())


def _bytes(token: str) -> bytes:
    return base64.b64decode(token.encode(), altchars=b"-_", validate=True)  # several texts may decode to the same


def _wrong_challenge(reason: str, what: str) -> InvalidInput:
    return InvalidInput(f"The challenge {what}. Ask for a new one.", code="wrong_challenge", reason=reason)
