"""Sign-in codes: each signs a browser in once, within a minute, so that links need not carry keys.

A code is `lc_` + id + `_` + secret. Its row has only the SHA-256 of the secret, and the key it stands for: sealed with
the secret, which nobody else knows, and then as the server's own secrets are. So neither the database with its keys nor
a code with the database shows the key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import sqlalchemy as sa

from app.access.keys import digest_of
from app.db.encryption import Sealer
from app.db.engine import Database
from app.db.schema import SIGN_IN_CODES as CODES
from app.errors import InvalidInput, SealedUnreadable
from app.timestamps import utc_text

VALID_S = 60.0
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
        """Return a new code for the key."""
        name, secret, now = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES), self._clock()
        purpose = _purpose(name)
        sealed = self._sealer.seal(_own_sealer(secret).seal(key.encode(), purpose), purpose)
        values = {"id": name, "digest": digest_of(secret), "sealed": sealed, "made_at": now}
        with self._database.write() as connection:
            connection.execute(sa.delete(CODES).where(~_valid(now)))
            connection.execute(sa.insert(CODES).values(values))
        return SignInCode(f"{PREFIX}{name}_{secret}", utc_text(now + VALID_S))

    def spend(self, code: str) -> str:
        """Return the key that the code stands for, and delete the code: of simultaneous calls one succeeds.

        Raises InvalidInput ``wrong_sign_in_code``.
        """
        name, _, secret = code.removeprefix(PREFIX).partition("_")
        mine = sa.and_(CODES.c.id == name, _valid(self._clock()))
        with self._database.read() as connection:
            digest = connection.execute(sa.select(CODES.c.digest).where(mine)).scalar()
        if digest is None or not hmac.compare_digest(bytes(digest), digest_of(secret)):
            raise _wrong()
        with self._database.write() as connection:
            sealed = connection.execute(sa.delete(CODES).where(mine).returning(CODES.c.sealed)).scalar()
        self._database.request_scrub()
        if sealed is None:
            raise _wrong()
        try:
            return _own_sealer(secret).open(self._sealer.open(bytes(sealed), _purpose(name)), _purpose(name)).decode()
        except SealedUnreadable:  # the server's keys were exchanged meanwhile
            raise _wrong() from None

    def prune(self) -> None:
        """Delete the codes that have expired. The scheduler calls it."""
        with self._database.write() as connection:
            deleted = connection.execute(sa.delete(CODES).where(~_valid(self._clock()))).rowcount
        if deleted:
            self._database.request_scrub()


def _valid(now: float) -> sa.ColumnElement[bool]:
    """Return SQL for the codes of the last minute. A clock that was set back makes none of them last longer."""
    return CODES.c.made_at.between(now - VALID_S, now + SKEW_S)


def _own_sealer(secret: str) -> Sealer:
    return Sealer([hashlib.sha256(b"likeness sign-in\0" + secret.encode()).digest()])


def _purpose(name: str) -> bytes:
    return b"sign-in\0" + name.encode()


def _wrong() -> InvalidInput:
    message = "The sign-in code was used, or is older than a minute. `likeness keys link` prints a new link."
    return InvalidInput(message, code="wrong_sign_in_code")
