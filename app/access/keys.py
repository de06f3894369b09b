"""API keys: created, listed, rotated, revoked, and checked at every request, mostly from a cache.

A key is `lk_` + id + `_` + secret. The id finds its row, which holds only the SHA-256 of the secret: a secret of 256
random bits needs no slow hash. For a key that signs requests, as AWS's clients do, the secret itself is stored too,
sealed, since checking a signature needs it; the row still decides whether the key is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.access.grants import Grant, RequestRate, Scope, Scopes, parse_rate
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import API_KEYS
from app.db.secrets import SecretStore
from app.errors import Conflict, InvalidInput, NotFound
from app.gallery.text import clean_id
from app.timestamps import utc_seconds, utc_text

KEY_ID = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
"""Lower case letters, digits and hyphens. No underscore, which ends the id within a key, and no dot."""
MAX_GALLERIES = 1000
"""How many galleries one key may be restricted to."""


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


def check_terms(terms: KeyTerms) -> KeyTerms:
    """Return the terms with gallery ids in NFC.

    Raises InvalidInput ``invalid_key_id``, ``invalid_rate``, ``invalid_id``.
    """
    if not KEY_ID.fullmatch(terms.id):
        raise InvalidInput("A key's id is 1 to 63 of a-z, 0-9 and inner hyphens.", code="invalid_key_id")
    if terms.rate is not None:
        parse_rate(terms.rate)
    if terms.galleries is None:
        return terms
    return replace(terms, galleries=frozenset(clean_id(gallery, "gallery") for gallery in terms.galleries))


PREFIX = "lk_"
SECRET_BYTES = 32
MIN_SECRET = 32
"""Characters of a secret that people choose (in a keys file)."""
CACHE_S = 1.0
"""How long a checked key is cached: a key that another process revoked works no longer than this."""
CACHE_SIZE = 10_000
_KEPT_AS = "signing/{}"
_NO_DIGEST = bytes(hashlib.sha256().digest_size)
_NO_OLD: dict[str, Any] = {"old_digest": None, "old_until": None}


@dataclass(frozen=True, slots=True)
class NewKey:
    """A key and, only here, its token, which its holder sends; ``signs``: its holder may sign requests instead."""

    key: Key
    token: str
    signs: bool = False

    @property
    def secret(self) -> str:
        """The token's secret part, which requests are signed with."""
        return _split(self.token)[1]


@dataclass(frozen=True, slots=True)
class _Checked:
    """A cached grant. ``until``: when the secret expires, in seconds since 1970; ``checked_at``: monotonic seconds."""

    grant: Grant
    until: float
    checked_at: float


class Keys:
    """Creates, changes and checks keys. Safe to share between threads. Calls may raise what `Database` does.

    `default_rate` applies to keys without a rate of their own; `secrets` stores the secrets that requests are signed
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
        self._database = database
        self._secrets = secrets
        self._default_rate = default_rate
        self._clock = clock
        self._monotonic = monotonic
        self._cache: OrderedDict[bytes, _Checked] = OrderedDict()
        self._lock = threading.Lock()

    def create(self, terms: KeyTerms, *, signs: bool = False) -> NewKey:
        """Create a key; with `signs`, its holder may sign requests with it.

        Raises InvalidInput ``invalid_key_id``, ``invalid_rate``, ``invalid_id``, ``invalid_expiry``; Conflict
        ``key_exists``.
        """
        terms = check_terms(terms)
        now = utc_text(self._clock())
        if terms.expires_at is not None and terms.expires_at <= now:
            raise InvalidInput("The key would have expired already.", code="invalid_expiry")
        secret = secrets.token_urlsafe(SECRET_BYTES)
        values = _values(terms) | {"digest": digest_of(secret), "created_at": now}
        insert = self._database.insert(API_KEYS).values(values).on_conflict_do_nothing().returning(*API_KEYS.c)
        with self._database.write() as connection:
            row = connection.execute(insert).one_or_none()
        if row is None:
            raise Conflict(f"There is already a key {terms.id!r}, or was.", code="key_exists", key=terms.id)
        if signs:
            self._keep(terms.id, [secret])
        return NewKey(_key(row), token_of(terms.id, secret), signs)

    def key(self, key_id: str) -> Key:
        """Return a key. Raises NotFound ``key_not_found``."""
        with self._database.read() as connection:
            return _find(connection, key_id)

    def keys(self, cursor: str | None = None, limit: int = 100) -> Page[Key]:
        """Return a page of the keys, in the order of their creation. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(API_KEYS)
        return read_page(self._database, query, API_KEYS.c.key, _key, listing="keys", cursor=cursor, limit=limit)

    def rotate(self, key_id: str, grace_s: float = 0) -> NewKey:
        """Give a key a new secret; the previous one works for `grace_s` more seconds, older ones no longer.

        Raises NotFound ``key_not_found``; Conflict ``key_revoked``.
        """
        now = self._clock()
        secret = secrets.token_urlsafe(SECRET_BYTES)
        signing = self.signing_secrets(key_id)
        changes: dict[str, Any] = {"digest": digest_of(secret), "rotated_at": utc_text(now)}
        with self._database.write() as connection:
            old_key = _find(connection, key_id, lock=True)
            if old_key.revoked_at is not None:
                raise Conflict(f"Key {key_id!r} is revoked.", code="key_revoked", key=key_id)
            old = {"old_digest": old_key.digest, "old_until": utc_text(now + grace_s)} if grace_s else _NO_OLD
            key = _change(connection, key_id, changes | old)
        if signing:
            self._keep(key_id, [secret, *signing[:1]] if grace_s else [secret])
        self._forget(key_id)
        return NewKey(key, token_of(key_id, secret), bool(signing))

    def revoke(self, key_id: str) -> Key:
        """Revoke a key for good; in this process at once. A second revocation changes nothing.

        Raises NotFound ``key_not_found``.
        """
        with self._database.write() as connection:
            key = _find(connection, key_id, lock=True)
            revoked = {"revoked_at": key.revoked_at or utc_text(self._clock())}
            key = _change(connection, key_id, revoked)
        if self._secrets is not None:
            self._secrets.remove(_KEPT_AS.format(key_id))
        self._forget(key_id)
        return key

    def declare(self, declared: Iterable[tuple[KeyTerms, str]]) -> None:
        """Create or update the keys that a file declares; delete those that it declared before and no longer does.

        A secret is taken from the file only if it has changed there since the file was last applied, so that a secret
        that was rotated otherwise does not come back. A revoked key stays revoked.
        """
        wanted = {terms.id: (check_terms(terms), digest_of(secret)) for terms, secret in declared}
        now = utc_text(self._clock())
        with self._database.write() as connection:
            rows = connection.execute(sa.select(API_KEYS).order_by(API_KEYS.c.key).with_for_update()).all()
            known = {row.id: row.declared for row in rows}
            for key_id, digest in known.items():
                if digest is not None and key_id not in wanted:
                    connection.execute(sa.delete(API_KEYS).where(API_KEYS.c.id == key_id))
            for key_id, (terms, digest) in wanted.items():
                changes = _values(terms)
                if key_id not in known:  # processes that start at the same time may both insert
                    changes |= {"digest": digest, "declared": digest, "created_at": now}
                    connection.execute(self._database.insert(API_KEYS).values(changes).on_conflict_do_nothing())
                    continue
                if known[key_id] != digest:
                    changes |= {"digest": digest, "declared": digest, "rotated_at": now} | _NO_OLD
                connection.execute(sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(changes))

    # Checking

    def recall(self, token: str) -> Grant | None:
        """Return what `check` returned less than CACHE_S ago; None: unknown. Reads no database."""
        checked = self._cache.get(digest_of(token))
        if checked is None or self._monotonic() - checked.checked_at >= CACHE_S:
            return None
        return checked.grant if checked.until == math.inf or self._clock() < checked.until else None

    def is_known(self, token: str) -> bool:
        """Return whether the key was valid when it was last looked up, however long ago."""
        return digest_of(token) in self._cache

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

    def signing_secrets(self, key_id: str) -> list[str]:
        """Return the secrets that may sign requests for a key, the newest first, valid or not. Reads the database."""
        kept = None if self._secrets is None else self._secrets.get(_KEPT_AS.format(key_id))
        return kept.decode().split("\n") if kept else []

    def _keep(self, key_id: str, kept: list[str]) -> None:
        if self._secrets is not None:
            self._secrets.put(_KEPT_AS.format(key_id), "\n".join(kept).encode())

    def _look_up(self, token: str) -> _Checked:
        asked_at = self._monotonic()
        key_id, secret = _split(token)
        stored = None
        if KEY_ID.fullmatch(key_id):
            with self._database.read() as connection, suppress(NotFound):
                stored = _find(connection, key_id)
        given = digest_of(secret)
        # All comparisons run, whichever fails, so that the time tells nothing.
        is_current = hmac.compare_digest(given, stored.digest if stored else _NO_DIGEST)
        is_old = hmac.compare_digest(given, (stored.old_digest if stored else None) or _NO_DIGEST)
        if stored is None or not (is_current or is_old):
            raise InvalidInput("The key is not this server's.", code="wrong_key")
        if stored.revoked_at is not None:
            raise InvalidInput("The key was revoked.", code="revoked_key", key=key_id)
        now = self._clock()
        ends = [stored.expires_at] if is_current else [stored.expires_at, stored.old_until]
        until = min((utc_seconds(end) for end in ends if end is not None), default=math.inf)
        if now >= until:
            raise InvalidInput("The key has expired.", code="expired_key", key=key_id)
        rate = self._default_rate if stored.rate is None else parse_rate(stored.rate)
        return _Checked(Grant(stored.id, stored.scopes, stored.galleries, rate), until, asked_at)

    def _forget(self, key_id: str) -> None:
        """Expire the key's cached grants; its tokens stay known."""
        with self._lock:
            for digest, checked in self._cache.items():
                if checked.grant.key_id == key_id:
                    self._cache[digest] = replace(checked, checked_at=-CACHE_S * 2 + self._monotonic())


def _find(connection: Connection, key_id: str, *, lock: bool = False) -> Key:
    """Return a key. Raises NotFound ``key_not_found``."""
    query = sa.select(API_KEYS).where(API_KEYS.c.id == key_id)
    row = connection.execute(query.with_for_update() if lock else query).one_or_none()
    if row is None:
        raise NotFound(f"There is no key {key_id!r}.", code="key_not_found", key=key_id)
    return _key(row)


def _change(connection: Connection, key_id: str, changes: dict[str, Any]) -> Key:
    update = sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(changes).returning(*API_KEYS.c)
    return _key(connection.execute(update).one())


def _values(terms: KeyTerms) -> dict[str, Any]:
    return {
        "id": terms.id,
        "name": terms.name,
        "scopes": " ".join(sorted(terms.scopes)),
        "galleries": None if terms.galleries is None else json.dumps(sorted(terms.galleries), ensure_ascii=False),
        "rate": terms.rate,
        "expires_at": terms.expires_at,
    }


def _key(row: Row[Any]) -> Key:
    columns = {field.name: getattr(row, field.name) for field in fields(Key)}
    scopes = frozenset(Scope(scope) for scope in row.scopes.split())
    galleries = None if row.galleries is None else frozenset(json.loads(row.galleries))
    return Key(**columns | {"scopes": scopes, "galleries": galleries})


def digest_of(secret: str) -> bytes:
    """Return the SHA-256, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def token_of(key_id: str, secret: str) -> str:
    """Return what the holder of a key sends."""
    return f"{PREFIX}{key_id}_{secret}"


def _split(token: str) -> tuple[str, str]:
    """Split a token into id and secret; both are empty if it is no token."""
    if not token.startswith(PREFIX):
        return "", ""
    key_id, _, secret = token.removeprefix(PREFIX).partition("_")
    return key_id, secret
