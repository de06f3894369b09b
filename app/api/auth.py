"""Authentication and authorization: the admin key of the data folder, or a key of the database.

Failed attempts are limited per address, successful requests per key.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from starlette.datastructures import Headers
from starlette.types import Scope as RequestScope

from app.access.grants import ADMIN_KEY_ID, Buckets, Grant, RequestRate, Scope, address_group
from app.access.keys import Keys, digest_of
from app.concurrency.admission import LOOKUPS, Shares
from app.concurrency.overload import Why
from app.db.encryption import read_admin_key
from app.errors import InvalidInput, Unusable

T = TypeVar("T")

ALL_ADDRESSES = 100
"""How many times as often all addresses together may fail as one alone: addresses can be rented."""
EVERY_ADDRESS = "every address"
FOLLOW_S = 0.5
"""Seconds between checks whether the file of the admin key was replaced."""
BROWSER_PATHS = ("/docs", "/openapi.json")
"""Paths that also take the key as the password of HTTP Basic, so that a browser can open them. No others do: browsers
send Basic credentials along with requests that other sites make."""


ADMIN = Grant(ADMIN_KEY_ID, frozenset({Scope.ADMIN}))
"""What the admin key allows: everything, in all galleries, without a rate limit."""


class AdminKey:
    """The admin key by its SHA-256. It follows its file within FOLLOW_S; a file without a key changes nothing.

    `monotonic` returns monotonic seconds.
    """

    def __init__(self, key: str, path: Path | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._digest = digest_of(key)
        self._path = path
        self._monotonic = monotonic
        self._state: tuple[int, ...] = ()
        self._due = 0.0

    def matches(self, given: str) -> bool:
        """Return whether this is the admin key; compares in constant time."""
        now = self._monotonic()
        if self._path is not None and now >= self._due:
            self._due = now + FOLLOW_S
            self._follow(self._path)
        return hmac.compare_digest(digest_of(given), self._digest)

    def _follow(self, path: Path) -> None:
        try:
            status = path.stat()
            state = (status.st_mtime_ns, status.st_ino, status.st_size)
            if state != self._state:
                self._digest = digest_of(read_admin_key(path))
                self._state = state
        except (OSError, Unusable):  # deleted or being written by hand: the last key stays
            return


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks keys: the admin key by its SHA-256, the others through `keys`.

    `failures` limits how many wrong keys an address may send; all addresses together may send ALL_ADDRESSES times as
    many. Beyond the limit a key is answered with 429, and looked up only if it has worked before.
    """

    admin: AdminKey
    keys: Keys
    failures: RequestRate
    attempts: Buckets = field(default_factory=Buckets)
    requests: Buckets = field(default_factory=Buckets)
    vector_rate: RequestRate | None = None
    """How often a key may have vectors scored that its holder made; None: no limit."""
    vectors: Buckets = field(default_factory=Buckets)
    lookups: Shares = field(default_factory=lambda: Shares(LOOKUPS))
    """Keys that are looked up now and have not worked before."""

    async def check(self, given: str, address: str) -> Grant:
        """Return what a key allows.

        Raises InvalidInput (``wrong_key``, ``expired_key``, ``revoked_key``) and Overloaded (``too_many_failures``,
        ``rate_limited``). Secrets are compared in constant time (`hmac.compare_digest`).
        """
        if self.admin.matches(given):
            return ADMIN
        grant = self.keys.recall(given)
        if grant is None:
            known = self.keys.is_known(given)
            grant = await self.attempt(lambda: self.keys.check(given), address, known=known)
        self.count_request(grant)
        return grant

    def count_request(self, grant: Grant) -> None:
        """Count a request of the key. Raises Overloaded (``rate_limited``)."""
        if grant.rate and (wait_s := self.requests.take(grant.key_id, grant.rate)):
            raise Why.KEY_RATE.error(wait_s)

    def count_faces(self, grant: Grant, count: int) -> None:
        """Count a photo with several searched faces as that many requests of the key; its own request is one of them.

        A key in debt waits before its next request (`count_request`).
        """
        if grant.rate and count > 1:
            self.requests.owe(grant.key_id, grant.rate, count - 1)

    async def attempt(self, look_up: Callable[[], T], address: str, *, known: bool = False) -> T:
        """Return what `look_up` finds in the database; its InvalidInput counts as a failure of the address.

        Raises Overloaded without looking up if the caller is not `known` and its address, or all together, have failed
        too often (``too_many_failures``), or if too many unknown keys are being looked up.
        """
        with self._counted(address, known=known):
            if known:
                return await asyncio.to_thread(look_up)
            caller = (address_group(address),)
            self.lookups.enter(caller)
            try:
                return await asyncio.to_thread(look_up)
            finally:
                self.lookups.leave(caller)

    def require_few_failures(self, address: str) -> None:
        """Raise Overloaded (``too_many_failures``) if the address has failed too often."""
        if wait_s := self.attempts.wait(address_group(address), self.failures):
            raise Why.FAILURES.error(wait_s)

    @contextmanager
    def _counted(self, address: str, *, known: bool) -> Iterator[None]:
        """Count a failure before the block begins, so that simultaneous requests can't exceed the limit; take it back
        unless the block raises InvalidInput."""
        limits = {
            address_group(address): self.failures,
            EVERY_ADDRESS: RequestRate(self.failures.per_second * ALL_ADDRESSES, self.failures.burst * ALL_ADDRESSES),
        }
        taken = []
        try:
            for caller, rate in limits.items():
                if not (wait_s := self.attempts.take(caller, rate)):
                    taken.append((caller, rate))
                elif not known:
                    raise Why.FAILURES.error(wait_s)
            yield
        except InvalidInput:
            taken.clear()
            raise
        finally:
            for caller, rate in taken:
                self.attempts.give_back(caller, rate)


def require_scope(grant: Grant, scope: Scope) -> None:
    """Raise InvalidInput (``missing_scope``) if the key lacks the scope."""
    if not grant.has(scope):
        raise InvalidInput(f"This needs a key with the scope `{scope}`.", code="missing_scope", scope=scope)


def key_of(scope: RequestScope) -> str:
    """Return the key that a request sends, or that its session stands for. Raises InvalidInput (``missing_key``)."""
    given = scope.get("session_key") or given_key(Headers(scope=scope), scope["path"])
    if given is None:
        raise InvalidInput("Send the key: `Authorization: Bearer KEY` or `x-api-key: KEY`.", code="missing_key")
    return given


def given_key(headers: Headers, path: str) -> str | None:
    """Return the key that a request sends."""
    if key := headers.get("x-api-key"):
        return key
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    if scheme.lower() == "basic" and is_browser_path(path):
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def is_browser_path(path: str) -> bool:
    """Return whether a browser may sign in here by HTTP Basic."""
    return any(path == open_path or path.startswith(open_path + "/") for open_path in BROWSER_PATHS)
