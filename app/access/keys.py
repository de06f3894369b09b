"""API keys: created, listed, rotated, revoked, and checked at every request, mostly from a cache.

A key is `lk_` + id + `_` + secret. The id finds its row, which holds only the SHA-256 of the secret: a secret of 256
random bits needs no slow hash. For a key that signs requests, as AWS's clients do, the secret itself is stored too,
sealed, since checking a signature needs it; the row still decides whether the key is valid.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

from app.access.grants import Grant, Rate, parse_rate
from app.access.key_store import KEY_ID, Key, KeyStore, KeyTerms, check_terms
from app.db.pagination import Page
from app.db.secrets import SecretStore
from app.errors import InvalidInput, NotFound
from app.timestamps import utc_text

PREFIX = "lk_"
SECRET_BYTES = 32
MIN_SECRET = 32
"""Characters of a secret that people choose (in a keys file)."""
CACHE_S = 1.0
"""How long a checked key is cached: a key that another process revoked works no longer than this."""
CACHE_SIZE = 10_000
ACCESS_KEY_PREFIX = "LKIA_"
_ACCESS_KEY = re.compile(r"LKIA_[A-Z0-9_]{1,63}")
_KEPT_AS = "signing/{}"
_NO_DIGEST = bytes(hashlib.sha256().digest_size)


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
    """Creates, changes and checks keys. Safe to share between threads.

    `default_rate` applies to keys without a rate of their own; `secrets` stores the secrets that requests are signed
    with. `clock` returns seconds since 1970, `monotonic` monotonic seconds.
    """

    def __init__(
        self,
        store: KeyStore,
        *,
        secrets: SecretStore | None = None,
        default_rate: Rate | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
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
        secret = _new_secret()
        key = self._store.add(terms, digest_of(secret), now)
        if signs:
            self._keep(terms.id, [secret])
        return NewKey(key, token_of(terms.id, secret), signs)

    def key(self, key_id: str) -> Key:
        """Return a key. Raises NotFound ``key_not_found``."""
        found = self._store.find(key_id)
        if found is None:
            raise NotFound(f"There is no key {key_id!r}.", code="key_not_found", key=key_id)
        return found

    def keys(self, cursor: str | None = None, limit: int = 100) -> Page[Key]:
        """Return a page of keys. Raises InvalidInput ``invalid_cursor``."""
        return self._store.keys(cursor, limit)

    def rotate(self, key_id: str, grace_s: float = 0) -> NewKey:
        """Give a key a new secret; the previous one works for `grace_s` more seconds, older ones no longer.

        Raises NotFound ``key_not_found``; Conflict ``key_revoked``.
        """
        now = self._clock()
        secret = _new_secret()
        old_until = utc_text(now + grace_s) if grace_s else None
        old = self._kept(key_id)
        key = self._store.rotate(key_id, digest_of(secret), utc_text(now), old_until)
        if old:
            self._keep(key_id, [secret, *old[:1]] if grace_s else [secret])
        self._forget(key_id)
        return NewKey(key, token_of(key_id, secret), bool(old))

    def revoke(self, key_id: str) -> Key:
        """Revoke a key for good; in this process at once. Raises NotFound ``key_not_found``."""
        key = self._store.revoke(key_id, utc_text(self._clock()))
        if self._secrets is not None:
            self._secrets.remove(_KEPT_AS.format(key_id))
        self._forget(key_id)
        return key

    def declare(self, declared: list[tuple[KeyTerms, str]]) -> None:
        """Apply a keys file: see `KeyStore.declare`."""
        rows = [(check_terms(terms), digest_of(secret)) for terms, secret in declared]
        self._store.declare(rows, utc_text(self._clock()))

    # Checking

    def recall(self, token: str) -> Grant | None:
        """Return what `check` returned less than CACHE_S ago; None: unknown. Reads no database."""
        checked = self._cache.get(digest_of(token))
        fresh = checked and self._monotonic() - checked.checked_at < CACHE_S and self._clock() < checked.until
        return checked.grant if checked and fresh else None

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

    def signing_tokens(self, access_key: str) -> list[str]:
        """Return the tokens whose secrets may sign requests for an AWS access key id, the newest first.

        Reads the database. `check` tells whether a token is still valid.
        """
        key_id = key_id_of(access_key)
        return [] if key_id is None else [token_of(key_id, secret) for secret in self._kept(key_id)]

    def _keep(self, key_id: str, kept: list[str]) -> None:
        if self._secrets is not None:
            self._secrets.put(_KEPT_AS.format(key_id), "\n".join(kept).encode())

    def _kept(self, key_id: str) -> list[str]:
        found = None if self._secrets is None else self._secrets.get(_KEPT_AS.format(key_id))
        return found.decode().split("\n") if found else []

    def _look_up(self, token: str) -> _Checked:
        asked_at = self._monotonic()
        key_id, secret = _split(token)
        found = self._store.find(key_id) if KEY_ID.fullmatch(key_id) else None
        given = digest_of(secret)
        # All comparisons run, whichever fails, so that the time tells nothing.
        is_current = hmac.compare_digest(given, found.digest if found else _NO_DIGEST)
        is_old = hmac.compare_digest(given, (found.old_digest if found else None) or _NO_DIGEST)
        if found is None or not (is_current or is_old):
            raise InvalidInput("The key is not this server's.", code="wrong_key")
        if found.revoked_at is not None:
            raise InvalidInput("The key was revoked.", code="revoked_key", key=key_id)
        now = self._clock()
        until = _seconds(found.terms.expires_at)
        if not is_current:
            until = min(until, _seconds(found.old_until))
        if now >= until:
            raise InvalidInput("The key has expired.", code="expired_key", key=key_id)
        return _Checked(self._grant(found), until, asked_at)

    def _grant(self, key: Key) -> Grant:
        terms = key.terms
        rate = self._default_rate if terms.rate is None else parse_rate(terms.rate)
        return Grant(terms.id, terms.scopes, terms.galleries, rate)

    def _forget(self, key_id: str) -> None:
        """Expire the key's cached grants; its tokens stay known."""
        with self._lock:
            for digest, checked in self._cache.items():
                if checked.grant.key_id == key_id:
                    self._cache[digest] = replace(checked, checked_at=-CACHE_S * 2 + self._monotonic())


def digest_of(secret: str) -> bytes:
    """Return the SHA-256, 32 bytes."""
    return hashlib.sha256(secret.encode()).digest()


def token_of(key_id: str, secret: str) -> str:
    """Return what the holder of a key sends."""
    return f"{PREFIX}{key_id}_{secret}"


def access_key_of(key_id: str) -> str:
    """Return the AWS access key id of a key: capitals, digits and underscores. `key_id_of` is the inverse."""
    return ACCESS_KEY_PREFIX + key_id.upper().replace("-", "_")


def key_id_of(access_key: str) -> str | None:
    """Return the id of a key by its AWS access key id; None if it can't be one."""
    if not _ACCESS_KEY.fullmatch(access_key):
        return None
    return access_key.removeprefix(ACCESS_KEY_PREFIX).lower().replace("_", "-")


def _split(token: str) -> tuple[str, str]:
    """Split a token into id and secret; both are empty if it is no token."""
    if not token.startswith(PREFIX):
        return "", ""
    key_id, _, secret = token.removeprefix(PREFIX).partition("_")
    return key_id, secret


def _new_secret() -> str:
    return secrets.token_urlsafe(SECRET_BYTES)


def _seconds(text: str | None) -> float:
    """Return a time of the database in seconds since 1970; infinity for None."""
    return float("inf") if text is None else datetime.fromisoformat(text).timestamp()
