"""Make, list, rotate, revoke and declare API keys (`app.access.keys` says what they are)."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from app.access.keys import KEY_ID, ApiKeys, Key, KeyTerms, digest_of, find_key, split_token, to_key, token_of
from app.access.rates import parse_rate
from app.db.pagination import Page, read_page
from app.db.schema import API_KEYS
from app.errors import Conflict, InvalidInput
from app.features.access_keys import KEPT_AS, signing_secrets
from app.gallery.text import clean_id
from app.types import utc_text

SECRET_BYTES = 32
MIN_SECRET = 32
"""Minimum characters of a secret that people choose (in a keys file)."""
MAX_GALLERIES = 1000
"""Maximum galleries that one key may be restricted to."""
NO_OLD: dict[str, Any] = {"old_digest": None, "old_until": None}


@dataclass(frozen=True, slots=True)
class NewKey:
    """A new key and its token, which is shown only once. ``signs``: whether the key's holder may sign requests instead
    of sending the token."""

    key: Key
    token: str
    signs: bool = False

    @property
    def secret(self) -> str:
        """Return the secret part of the token, which requests are signed with."""
        return split_token(self.token)[1]


def create_key(keys: ApiKeys, terms: KeyTerms, *, signs: bool = False) -> NewKey:
    """Create a key. With `signs`, its holder may also sign requests.

    Raises InvalidInput ``invalid_key_id``, ``invalid_rate``, ``invalid_id``, ``invalid_expiry``; Conflict
    ``key_exists``.
    """
    terms = check_terms(terms)
    now = utc_text(keys.clock())
    if terms.expires_at is not None and terms.expires_at <= now:
        raise InvalidInput("The key would have expired already.", code="invalid_expiry")
    secret = secrets.token_urlsafe(SECRET_BYTES)
    values = _values(terms) | {"digest": digest_of(secret), "created_at": now}
    insert = keys.database.insert(API_KEYS).values(values).on_conflict_do_nothing().returning(*API_KEYS.c)
    with keys.database.write() as connection:
        row = connection.execute(insert).one_or_none()
        if row is None:
            raise Conflict(f"There is already a key {terms.id!r}, or was.", code="key_exists", key=terms.id)
        if signs:
            _keep_secrets(keys, connection, terms.id, [secret])
    return NewKey(to_key(row), token_of(terms.id, secret), signs)


def read_key(keys: ApiKeys, key_id: str) -> Key:
    """Return a key. Raises NotFound ``key_not_found``."""
    with keys.database.read() as connection:
        return find_key(connection, key_id)


def list_keys(keys: ApiKeys, cursor: str | None = None, limit: int = 100) -> Page[Key]:
    """Return a page of keys, in the order of their creation. Raises InvalidInput ``invalid_cursor``."""
    query = sa.select(API_KEYS)
    return read_page(keys.database, query, API_KEYS.c.key, to_key, listing="keys", cursor=cursor, limit=limit)


def rotate_key(keys: ApiKeys, key_id: str, grace_s: float = 0) -> NewKey:
    """Give a key a new secret. The previous secret works for `grace_s` more seconds; older ones stop working.

    Raises NotFound ``key_not_found``; Conflict ``key_revoked``.
    """
    now = keys.clock()
    secret = secrets.token_urlsafe(SECRET_BYTES)
    signing = signing_secrets(keys, key_id)
    changes: dict[str, Any] = {"digest": digest_of(secret), "rotated_at": utc_text(now)}
    with keys.database.write() as connection:
        old_key = find_key(connection, key_id, lock=True)
        if old_key.revoked_at is not None:
            raise Conflict(f"Key {key_id!r} is revoked.", code="key_revoked", key=key_id)
        old = {"old_digest": old_key.digest, "old_until": utc_text(now + grace_s)} if grace_s else NO_OLD
        key = _change(connection, key_id, changes | old)
        if signing:
            _keep_secrets(keys, connection, key_id, [secret, *signing[:1]] if grace_s else [secret])
    keys.forget(key_id)
    return NewKey(key, token_of(key_id, secret), bool(signing))


def revoke_key(keys: ApiKeys, key_id: str) -> Key:
    """Revoke a key for good. This process rejects it at once. A second revocation changes nothing.

    Raises NotFound ``key_not_found``.
    """
    with keys.database.write() as connection:
        key = find_key(connection, key_id, lock=True)
        revoked = {"revoked_at": key.revoked_at or utc_text(keys.clock())}
        key = _change(connection, key_id, revoked)
        if keys.secrets is not None:
            keys.secrets.remove(connection, KEPT_AS.format(key_id))
    keys.forget(key_id)
    return key


def declare_keys(keys: ApiKeys, declared: Iterable[tuple[KeyTerms, str]]) -> None:
    """Create or update the keys that a file declares; delete the keys that it declared before and no longer declares.

    A secret is taken from the file only if it has changed there since the last start, so that the file does not restore
    a secret that was rotated over REST or by command. A revoked key stays revoked.
    """
    wanted = {terms.id: (check_terms(terms), digest_of(secret)) for terms, secret in declared}
    now = utc_text(keys.clock())
    with keys.database.write() as connection:
        rows = connection.execute(sa.select(API_KEYS).order_by(API_KEYS.c.key).with_for_update()).all()
        known = {row.id: row.declared for row in rows}
        for key_id, digest in known.items():
            if digest is not None and key_id not in wanted:
                connection.execute(sa.delete(API_KEYS).where(API_KEYS.c.id == key_id))
        for key_id, (terms, digest) in wanted.items():
            changes = _values(terms)
            if key_id not in known:  # another process that starts at the same time may insert it too
                changes |= {"digest": digest, "declared": digest, "created_at": now}
                connection.execute(keys.database.insert(API_KEYS).values(changes).on_conflict_do_nothing())
                continue
            if known[key_id] != digest:
                changes |= {"digest": digest, "declared": digest, "rotated_at": now} | NO_OLD
            connection.execute(sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(changes))


def check_terms(terms: KeyTerms) -> KeyTerms:
    """Check a key's terms; return them with gallery ids in NFC.

    Raises InvalidInput ``invalid_key_id``, ``invalid_rate``, ``invalid_id``.
    """
    if not KEY_ID.fullmatch(terms.id):
        raise InvalidInput("A key's id is 1 to 63 of a-z, 0-9 and inner hyphens.", code="invalid_key_id")
    if terms.rate is not None:
        parse_rate(terms.rate)
    if terms.galleries is None:
        return terms
    return replace(terms, galleries=frozenset(clean_id(gallery, "gallery") for gallery in terms.galleries))


def _keep_secrets(keys: ApiKeys, connection: Connection, key_id: str, kept: list[str]) -> None:
    if keys.secrets is not None:
        keys.secrets.put(connection, KEPT_AS.format(key_id), "\n".join(kept).encode())


def _change(connection: Connection, key_id: str, changes: dict[str, Any]) -> Key:
    update = sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(changes).returning(*API_KEYS.c)
    return to_key(connection.execute(update).one())


def _values(terms: KeyTerms) -> dict[str, Any]:
    return {
        "id": terms.id,
        "name": terms.name,
        "scopes": " ".join(sorted(terms.scopes)),
        "galleries": None if terms.galleries is None else json.dumps(sorted(terms.galleries), ensure_ascii=False),
        "rate": terms.rate,
        "expires_at": terms.expires_at,
    }
