"""What counts once: signatures of requests, codes that sign a browser in, tokens of challenges.

All servers of a database share what was used.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from dataclasses import astuple, dataclass, field

import sqlalchemy as sa

from app.access.keys import digest_of
from app.choices import Step
from app.db.encryption import Sealer
from app.db.engine import Database
from app.db.schema import SEEN_SIGNATURES as SEEN
from app.db.schema import SIGN_IN_CODES as CODES
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


CODE_VALID_S = 60.0
SKEW_S = 5.0
"""How far the clocks of a database's servers may differ."""
PREFIX = "lc_"
ID_BYTES, SECRET_BYTES = 8, 32


@dataclass(frozen=True, slots=True)
class SignInCode:
    """A new code; ``text`` is secret until it is spent."""

    text: str = field(repr=False)
    expires_at: str


class SignInCodes:
    """Makes and spends codes. Safe to share between threads; every call may raise what `Database` does.

    `sealer` is the one of the server's secrets, the same for all servers of the database. `clock` returns seconds since
    1970.
    """

    def __init__(self, database: Database, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._sealer = sealer
        self._clock = clock

    def make(self, key: str) -> SignInCode:
        name, secret, now = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES), self._clock()
        purpose = _purpose(name)
        sealed = self._sealer.seal(_own_sealer(secret).seal(key.encode(), purpose), purpose)
        values = {"id": name, "digest": digest_of(secret), "sealed": sealed, "made_at": now}
        with self._database.write() as connection:
            connection.execute(sa.delete(CODES).where(~_valid(now)))
            connection.execute(sa.insert(CODES).values(values))
        return SignInCode(f"{PREFIX}{name}_{secret}", utc_text(now + CODE_VALID_S))

    def spend(self, code: str) -> str:
        """Return the key that the code stands for, and delete the code: of simultaneous calls one succeeds.

        Raises InvalidInput ``wrong_sign_in_code``.
        """
        name, _, secret = code.removeprefix(PREFIX).partition("_")
        mine = sa.and_(CODES.c.id == name, _valid(self._clock()))
        with self._database.read() as connection:
            digest = connection.execute(sa.select(CODES.c.digest).where(mine)).scalar()
        if digest is None or not hmac.compare_digest(bytes(digest), digest_of(secret)):
            raise _wrong_code()
        with self._database.write() as connection:
            sealed = connection.execute(sa.delete(CODES).where(mine).returning(CODES.c.sealed)).scalar()
        self._database.request_scrub()
        if sealed is None:
            raise _wrong_code()
        try:
            return _own_sealer(secret).open(self._sealer.open(bytes(sealed), _purpose(name)), _purpose(name)).decode()
        except SealedUnreadable:  # the server's keys were exchanged meanwhile
            raise _wrong_code() from None

    def prune(self) -> None:
        """Delete the codes that have expired. The scheduler calls it."""
        with self._database.write() as connection:
            deleted = connection.execute(sa.delete(CODES).where(~_valid(self._clock()))).rowcount
        if deleted:
            self._database.request_scrub()


def _valid(now: float) -> sa.ColumnElement[bool]:
    """Return SQL for the codes of the last minute. A clock that was set back makes none of them last longer."""
    return CODES.c.made_at.between(now - CODE_VALID_S, now + SKEW_S)


def _own_sealer(secret: str) -> Sealer:
    return Sealer([hashlib.sha256(b"likeness sign-in\0" + secret.encode()).digest()])


def _purpose(name: str) -> bytes:
    return b"sign-in\0" + name.encode()


def _wrong_code() -> InvalidInput:
    message = "The sign-in code was used, or is older than a minute. `likeness keys link` prints a new link."
    return InvalidInput(message, code="wrong_sign_in_code")


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
