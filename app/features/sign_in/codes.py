"""Codes and invitations, each of which signs a browser in once, and sessions of browsers that stay signed in.

Each of these is a text that stands for a key. The database stores the text's SHA-256, and the key encrypted both with
the text and with the server's secrets, so that neither the database nor the server's files alone reveal a key. All
servers of a database share the texts. A text is made or spent in a single commit with its audit entry, since people
wait for this. No cache depends on these rows, so the commits don't invalidate caches.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import sqlalchemy as sa

from app.access.audit import AuditEntry
from app.access.keys import digest_of
from app.db.clock import DAY_S, STEP_S
from app.db.encryption import Sealer
from app.db.engine import Database
from app.db.schema import SIGN_INS
from app.errors import InvalidInput, SealedUnreadable
from app.types import SKEW_S, utc_text

CODE_VALID_S = 60.0
CREATED, OK = 201, 200
"""HTTP statuses."""
ID_BYTES, SECRET_BYTES = 8, 32
CACHE_S = 5.0
"""Seconds for which a session's key is reused without reading the database. A session that was ended on another server
works for this long at most."""
CACHE_SIZE = 1_000


@dataclass(frozen=True, slots=True)
class SignIn:
    """A new code, invitation or session; ``text`` is as secret as the key that it stands for."""

    text: str = field(repr=False)
    expires_at: str


class SignIns:
    """Makes texts that stand for keys, and finds the key of a text. Safe to share between threads.

    Expired texts are deleted only by `prune`, which the scheduler doesn't run while the clock may be wrong.

    Every call may raise what `Database` raises. `sealer` encrypts with the server's secrets, which all servers of the
    database share. `clock` returns seconds since 1970.
    """

    kind: ClassVar[str]
    prefix: ClassVar[str]
    early_s: ClassVar[float] = SKEW_S
    """Maximum seconds by which this server's clock may be behind the clock of the server that made the text."""

    def __init__(
        self, database: Database, sealer: Sealer, valid_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self.valid_s = valid_s
        self._database = database
        self._sealer = sealer
        self._clock = clock

    def make(self, key: str, entry: AuditEntry | None = None) -> SignIn:
        """Make a text that stands for the key, and commit it with the audit entry."""
        name, secret, now = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES), self._clock()
        purpose = self._purpose(name)
        sealed = self._sealer.seal(_own_sealer(secret).seal(key.encode(), purpose), purpose)
        values = {"id": name, "kind": self.kind, "digest": digest_of(secret), "sealed": sealed, "made_at": now}
        with self._database.write(cached=False) as connection:
            connection.execute(sa.insert(SIGN_INS).values(values))
            row = entry.insert(CREATED, connection) if entry else None
        _written(entry, row, CREATED)
        return SignIn(f"{self.prefix}{name}_{secret}", utc_text(now + self.valid_s))

    def prune(self) -> None:
        """Delete the expired texts. Called by the scheduler."""
        self._delete(~self._valid())

    def _open(self, text: str) -> str | None:
        """Return the key that the text stands for; None if the text is wrong or expired."""
        name, _, secret = text.removeprefix(self.prefix).partition("_")
        query = sa.select(SIGN_INS.c.digest, SIGN_INS.c.sealed).where(
            self._mine(), SIGN_INS.c.id == name, self._valid()
        )
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None or not hmac.compare_digest(bytes(row.digest), digest_of(secret)):
            return None
        purpose = self._purpose(name)
        try:
            return _own_sealer(secret).open(self._sealer.open(bytes(row.sealed), purpose), purpose).decode()
        except SealedUnreadable:  # the server's encryption keys were replaced meanwhile
            return None

    def _delete(self, *which: sa.ColumnElement[bool], entry: AuditEntry | None = None) -> bool:
        """Delete the matching rows, in one commit with the audit entry. If there are none, change nothing and return
        False."""
        query = sa.delete(SIGN_INS).where(self._mine(), *which).returning(SIGN_INS.c.id)
        with self._database.write(cached=False) as connection:
            if not connection.execute(query).all():
                return False
            row = entry.insert(OK, connection) if entry else None
        _written(entry, row, OK)
        self._database.request_scrub()
        return True

    def _named(self, text: str) -> sa.ColumnElement[bool]:
        return SIGN_INS.c.id == text.removeprefix(self.prefix).partition("_")[0]

    def _mine(self) -> sa.ColumnElement[bool]:
        return SIGN_INS.c.kind == self.kind

    def _valid(self) -> sa.ColumnElement[bool]:
        """Return the SQL condition for rows that are still valid. Rows that seem to be from more than `early_s` in the
        future, since the clock was set back, are not."""
        now = self._clock()
        return SIGN_INS.c.made_at.between(now - self.valid_s, now + self.early_s)

    def _purpose(self, name: str) -> bytes:
        return f"{self.kind}\0{name}".encode()


class SignInCodes(SignIns):
    """Codes of links that are opened right away: each signs in once, within a minute."""

    kind = "code"
    prefix = "lc_"
    valid_for_s: ClassVar[float] = CODE_VALID_S

    def __init__(self, database: Database, sealer: Sealer, clock: Callable[[], float] = time.time) -> None:
        super().__init__(database, sealer, self.valid_for_s, clock)

    def key(self, code: str) -> str:
        """Return the key that the code stands for. Raises InvalidInput ``wrong_sign_in_code``."""
        key = self._open(code)
        if key is None:
            raise _wrong_code()
        return key

    def spend(self, code: str, entry: AuditEntry | None = None) -> str:
        """Return the key that the code stands for, and delete the code. Of several calls at the same time, only one
        succeeds.

        The deletion is committed with the audit entry. Raises InvalidInput ``wrong_sign_in_code``.
        """
        key = self.key(code)
        if not self._delete(self._named(code), self._valid(), entry=entry):
            raise _wrong_code()
        return key


class Invitations(SignInCodes):
    """Codes of links that are sent to somebody, who gets a key of their own: each signs in once, within a day."""

    kind = "invite"
    prefix = "li_"
    valid_for_s = DAY_S


class Sessions(SignIns):
    """Sessions of browsers that stay signed in for some days. A session also ends when its key does."""

    kind = "session"
    prefix = "ls_"
    early_s = STEP_S + SKEW_S  # after a start with a clock that is behind, the trusted time may be behind by STEP_S

    def __init__(
        self,
        database: Database,
        sealer: Sealer,
        days: float,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Sessions last for ``days``; with 0, nobody can stay signed in."""
        super().__init__(database, sealer, days * DAY_S, clock)
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._cache: dict[bytes, tuple[str, float]] = {}  # by a session's digest: its key, and when it was read

    def make(self, key: str, entry: AuditEntry | None = None) -> SignIn:
        """Return a new session of a key. Raises InvalidInput ``sessions_not_allowed``."""
        if not self.valid_s:
            raise InvalidInput(
                "This server keeps nobody signed in: LIKENESS_SESSION_DAYS is 0.", code="sessions_not_allowed"
            )
        return super().make(key, entry)

    def recall(self, session: str) -> str | None:
        """Return the key of a session that was opened in the last CACHE_S seconds; None for any other."""
        key, looked_up_at = self._cache.get(digest_of(session), ("", -CACHE_S))
        return key if key and self._monotonic() - looked_up_at < CACHE_S else None

    def open(self, session: str) -> str:
        """Return the key that the session stands for, from the database. Raises InvalidInput ``session_ended``."""
        now, key = self._monotonic(), self._open(session) if self.valid_s else None
        with self._lock:
            self._cache = {digest: kept for digest, kept in self._cache.items() if now - kept[1] < CACHE_S}
            if key is not None and len(self._cache) < CACHE_SIZE:
                self._cache[digest_of(session)] = (key, now)
        if key is None:
            raise InvalidInput("You are signed out on this device: sign in again.", code="session_ended")
        return key

    def end(self, session: str) -> None:
        """End a session, in this process at once, in others within CACHE_S seconds."""
        with self._lock:
            self._cache.pop(digest_of(session), None)
        if self._open(session) is not None:
            self._delete(self._named(session), self._valid())


def _wrong_code() -> InvalidInput:
    message = "The sign-in code was used, or is too old. `likeness keys link` prints a new link."
    return InvalidInput(message, code="wrong_sign_in_code")


def _written(entry: AuditEntry | None, row: int | None, status: int) -> None:
    """Note on the audit entry that it was written, once its transaction is committed."""
    if entry:
        entry.row, entry.status = row, status


def _own_sealer(secret: str) -> Sealer:
    return Sealer([hashlib.sha256(b"likeness sign-in\0" + secret.encode()).digest()])
