"""Check API keys at every request: the admin key of the data folder, or the database's keys, mostly from a cache.
`app.features.issued_keys` makes and changes them. Failed attempts are limited per address, successful requests per key.

A key is `lk_` + id + `_` + secret. The id finds its row, which holds only the SHA-256 of the secret: a secret of 256
random bits needs no slow hash. For a key that signs requests, as AWS's clients do, the secret itself is also stored,
sealed, since checking a signature needs it; the row still decides whether the key is valid.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.access.grants import ADMIN_KEY_ID, Grant, Scope, Scopes
from app.access.rates import Buckets, RequestRate, parse_rate
from app.concurrency.admission import LOOKUPS, Shares
from app.concurrency.overload import Why
from app.db.encryption import read_admin_key
from app.db.engine import Database
from app.db.schema import API_KEYS
from app.db.secrets import SecretStore
from app.errors import InvalidInput, NotFound, Unusable
from app.types import utc_seconds

T = TypeVar("T")

KEY_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Lower case letters, digits and hyphens; no dot, and no underscore, since that ends the id within a key."""


@dataclass(frozen=True, slots=True)
class KeyTerms:
    """The declared rights of a key; ``rate`` None: the server's default. Times are UTC, ISO 8601."""

    id: str
    scopes: Scopes
    name: str | None = None
    galleries: frozenset[str] | None = None
    rate: str | None = None
    expires_at: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Key(KeyTerms):
    """A stored key. ``digest``: its secret's SHA-256; ``old_digest``: the previous one's, valid until ``old_until``."""

    digest: bytes
    old_digest: bytes | None
    old_until: str | None
    declared: bytes | None
    """The digest in the keys file when it was last applied; None for keys created otherwise."""
    created_at: str
    rotated_at: str | None
    revoked_at: str | None


KEY_PREFIX = "lk_"
CACHE_S = 1.0
"""Seconds that a checked key is cached. A key may work for this time after another process revoked it."""
CACHE_SIZE = 10_000
"""Maximum keys in the cache."""
ALL_ADDRESSES = 100
"""All addresses together may fail this many times as often as one alone, since addresses can be rented."""
EVERY_ADDRESS = "every address"
IPV6_PREFIX = 64
"""IPv6 addresses with the same prefix of this length count as one caller, since one customer has them all."""
NO_ADDRESS = "no address"
"""The group of all texts that are not addresses; a socket or a proxy's `X-Forwarded-For` may give such."""
FOLLOW_S = 0.5
"""Seconds between checks of the admin key's file."""
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True)
class _Checked:
    """A cached grant. ``until``: when the secret expires, in seconds since 1970; ``checked_at``: monotonic seconds."""

    grant: Grant
    until: float
    checked_at: float


class ApiKeys:
    """Checks keys. Safe to share between threads. Calls may raise what `Database` raises.

    `default_rate` applies to keys without their own rate; `secrets` stores the secrets that requests are signed
    with. `clock` returns seconds since 1970, `monotonic` monotonic seconds.
    """

    def __init__(
        self,
        database: Database,
        *,
        secrets: SecretStore | None = None,
        default_rate: RequestRate | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database = database
        self.secrets = secrets
        self._default_rate = default_rate
        self.clock = clock
        self._monotonic = monotonic
        self._cache: OrderedDict[bytes, _Checked] = OrderedDict()
        self._lock = threading.Lock()

    def recall(self, digest: bytes) -> Grant | None:
        """Return what `check` returned less than CACHE_S ago for the key with this SHA-256, or None. Doesn't read the
        database."""
        checked = self._cache.get(digest)
        if checked is None or self._monotonic() - checked.checked_at >= CACHE_S:
            return None
        return checked.grant if checked.until == math.inf or self.clock() < checked.until else None

    def is_known(self, digest: bytes) -> bool:
        """Return whether the key was valid when it was last looked up, at any time."""
        return digest in self._cache

    def check(self, token: str) -> Grant:
        """Look the key up in the database, and return what it allows.

        Raises InvalidInput ``wrong_key``; ``expired_key``, ``revoked_key`` if the secret is right.
        """
        digest = digest_of(token)
        try:
            checked = self._look_up(token)
        except InvalidInput:
            with self._lock:
                self._cache.pop(digest, None)
            raise
        with self._lock:
            self._cache[digest] = checked
            self._cache.move_to_end(digest)
            while len(self._cache) > CACHE_SIZE:
                self._cache.popitem(last=False)
        return checked.grant

    def _look_up(self, token: str) -> _Checked:
        asked_at = self._monotonic()
        key_id, secret = split_token(token)
        stored = None
        if KEY_ID.fullmatch(key_id):
            with self.database.read() as connection, suppress(NotFound):
                stored = find_key(connection, key_id)
        given = digest_of(secret)
        # Always run all comparisons, so that the time reveals nothing.
        is_current = hmac.compare_digest(given, stored.digest if stored else _NO_DIGEST)
        is_old = hmac.compare_digest(given, (stored.old_digest if stored else None) or _NO_DIGEST)
        if stored is None or not (is_current or is_old):
            raise InvalidInput("The key is not this server's: `likeness keys create` makes one.", code="wrong_key")
        if stored.revoked_at is not None:
            raise InvalidInput("The key was revoked.", code="revoked_key", key=key_id)
        now = self.clock()
        ends = [stored.expires_at] if is_current else [stored.expires_at, stored.old_until]
        until = min((utc_seconds(end) for end in ends if end is not None), default=math.inf)
        if now >= until:
            raise InvalidInput("The key has expired.", code="expired_key", key=key_id)
        rate = self._default_rate if stored.rate is None else parse_rate(stored.rate)
        return _Checked(Grant(stored.id, stored.scopes, stored.galleries, rate), until, asked_at)

    def forget(self, key_id: str) -> None:
        """Expire the key's cached grants; its tokens stay known."""
        with self._lock:
            for digest, checked in self._cache.items():
                if checked.grant.key_id == key_id:
                    self._cache[digest] = replace(checked, checked_at=-CACHE_S * 2 + self._monotonic())


ADMIN = Grant(ADMIN_KEY_ID, frozenset({Scope.ADMIN}))
"""The grant of the admin key: everything, in all galleries, without a rate limit."""


class AdminKey:
    """Knows the admin key by its SHA-256. It follows the key's file within FOLLOW_S; a file without a key is ignored.

    `monotonic` returns monotonic seconds.
    """

    def __init__(self, key: str, path: Path | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._digest = digest_of(key)
        self._path = path
        self._monotonic = monotonic
        self._state: tuple[int, ...] = ()
        self._due = 0.0

    def matches(self, digest: bytes) -> bool:
        """Return whether this is the admin key's SHA-256; compares in constant time."""
        now = self._monotonic()
        if self._path is not None and now >= self._due:
            self._due = now + FOLLOW_S
            with suppress(OSError, Unusable):  # deleted or being written by hand: the last key stays
                status = self._path.stat()
                state = (status.st_mtime_ns, status.st_ino, status.st_size)
                if state != self._state:
                    self._digest, self._state = digest_of(read_admin_key(self._path)), state
        return hmac.compare_digest(digest, self._digest)


@dataclass(frozen=True, slots=True)
class Guard:
    """Checks keys: the admin key by its SHA-256, the others through `keys`.

    `failures` limits how many wrong keys an address may send; all addresses together may send ALL_ADDRESSES times as
    many. Beyond the limit unknown keys are answered with 429; a key is looked up only if it has worked before.
    """

    admin: AdminKey
    keys: ApiKeys
    failures: RequestRate
    attempts: Buckets = field(default_factory=Buckets)
    requests: Buckets = field(default_factory=Buckets)
    vector_rate: RequestRate | None = None
    """The rate at which a key may have its holder's own vectors scored; None: no limit."""
    vectors: Buckets = field(default_factory=Buckets)
    lookups: Shares = field(default_factory=lambda: Shares(LOOKUPS))
    """Counts unknown keys that are being looked up."""

    async def check(self, given: str, address: str) -> Grant:
        """Return what a key allows. Secrets are compared in constant time (`hmac.compare_digest`).

        Raises InvalidInput (``wrong_key``, ``expired_key``, ``revoked_key``) and Overloaded (``too_many_failures``,
        ``rate_limited``).
        """
        digest = digest_of(given)
        if self.admin.matches(digest):
            return ADMIN
        grant = self.keys.recall(digest)
        if grant is None:
            known = self.keys.is_known(digest)
            grant = await self.attempt(lambda: self.keys.check(given), address, known=known)
        self.count_request(grant)
        return grant

    def count_request(self, grant: Grant) -> None:
        """Count a request of the key. Raises Overloaded (``rate_limited``)."""
        if grant.rate and (wait_s := self.requests.take(grant.key_id, grant.rate)):
            raise Why.KEY_RATE.error(wait_s)

    def count_faces(self, grant: Grant, count: int) -> None:
        """Count each searched face of a photo as a request of the key; the first is counted already.

        A key in debt waits before its next request (`count_request`).
        """
        if grant.rate and count > 1:
            self.requests.owe(grant.key_id, grant.rate, count - 1)

    async def attempt(self, look_up: Callable[[], T], address: str, *, known: bool = False) -> T:
        """Return the result of `look_up`, which reads the database. Its InvalidInput is a failure of the address.

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
        if wait_s := self.attempts.seconds_to_wait(address_group(address), self.failures):
            raise Why.FAILURES.error(wait_s)

    @contextmanager
    def _counted(self, address: str, *, known: bool) -> Iterator[None]:
        """Count a failure before the block, so that simultaneous requests can't exceed the limit; take it back unless
        the block raises InvalidInput."""
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


def address_group(host: str) -> str:
    """Return the group whose attempts are counted together: an IPv4 address, or the /64 of an IPv6 one. Other texts, of
    which a caller could invent any number, are NO_ADDRESS."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return NO_ADDRESS
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address.packed, IPV6_PREFIX), strict=False))
    return str(address)


def find_key(connection: Connection, key_id: str, *, lock: bool = False) -> Key:
    """Return a key. Raises NotFound ``key_not_found``."""
    query = sa.select(API_KEYS).where(API_KEYS.c.id == key_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"There is no key {key_id!r}.", code="key_not_found", key=key_id)
    return to_key(row)


def to_key(row: Row[Any]) -> Key:
    columns = {attribute.name: getattr(row, attribute.name) for attribute in fields(Key)}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    galleries = None if row.galleries is None else frozenset(json.loads(row.galleries))
    return Key(**columns | {"scopes": scopes, "galleries": galleries})


def digest_of(secret: str) -> bytes:
    """Return the SHA-256, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def token_of(key_id: str, secret: str) -> str:
    """Return the token that the holder of a key sends."""
    return f"{KEY_PREFIX}{key_id}_{secret}"


def split_token(token: str) -> tuple[str, str]:
    """Split a token into id and secret; both are empty if it is not a token."""
    if not token.startswith(KEY_PREFIX):
        return "", ""
    key_id, _, secret = token.removeprefix(KEY_PREFIX).partition("_")
    return key_id, secret
