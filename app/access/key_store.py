"""Keys as they are stored: never their secrets, only the SHA-256 of them.

Every public call is one transaction, and may raise what `Database` raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.access.grants import Scope, Scopes, parse_rate
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import API_KEYS
from app.errors import Conflict, InvalidInput, NotFound
from app.gallery.text import clean_id

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


@dataclass(frozen=True, slots=True)
class Key:
    """A stored key. ``digest``: its secret's SHA-256; ``old_digest``: the previous one's, valid until ``old_until``."""

    terms: KeyTerms
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
    galleries = None if terms.galleries is None else frozenset(clean_id(one, "gallery") for one in terms.galleries)
    return KeyTerms(terms.id, terms.scopes, terms.name, galleries, terms.rate, terms.expires_at)


class KeyStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, terms: KeyTerms, digest: bytes, now: str, declared: bytes | None = None) -> Key:
        """Add a key. Raises Conflict ``key_exists``."""
        values = _terms(terms) | {"id": terms.id, "digest": digest, "declared": declared, "created_at": now}
        insert = self._database.insert(API_KEYS).values(values).on_conflict_do_nothing().returning(*API_KEYS.c)
        with self._database.write() as connection:
            row = connection.execute(insert).one_or_none()
        if row is None:
            raise Conflict(f"There is already a key {terms.id!r}, or was.", code="key_exists", key=terms.id)
        return _key(row)

    def find(self, key_id: str) -> Key | None:
        with self._database.read() as connection:
            row = connection.execute(sa.select(API_KEYS).where(API_KEYS.c.id == key_id)).one_or_none()
        return None if row is None else _key(row)

    def keys(self, cursor: str | None = None, limit: int = 100) -> Page[Key]:
        """Return a page of the keys, in the order of their creation. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(API_KEYS)
        return read_page(self._database, query, API_KEYS.c.key, _key, listing="keys", cursor=cursor, limit=limit)

    def rotate(self, key_id: str, digest: bytes, now: str, old_until: str | None) -> Key:
        """Replace the secret; the previous one stays valid until `old_until`.

        Raises NotFound ``key_not_found``, Conflict ``key_revoked``.
        """
        with self._database.write() as connection:
            found = _find(connection, key_id)
            if found.revoked_at is not None:
                raise Conflict(f"Key {key_id!r} is revoked.", code="key_revoked", key=key_id)
            old = None if old_until is None else found.digest
            changes = {"digest": digest, "old_digest": old, "old_until": old_until, "rotated_at": now}
            return _change(connection, key_id, changes)

    def revoke(self, key_id: str, now: str) -> Key:
        """Revoke a key; a second revocation changes nothing. Raises NotFound ``key_not_found``."""
        with self._database.write() as connection:
            found = _find(connection, key_id)
            return found if found.revoked_at else _change(connection, key_id, {"revoked_at": now})

    def declare(self, declared: Iterable[tuple[KeyTerms, bytes]], now: str) -> None:
        """Create or update the keys that a file declares; delete those that it declared before and no longer does.

        A secret is taken from the file only if it has changed there since the file was last applied, so that a secret
        that was rotated otherwise does not come back. A revoked key stays revoked.
        """
        wanted = list(declared)
        with self._database.write() as connection:
            rows = connection.execute(sa.select(API_KEYS).order_by(API_KEYS.c.key).with_for_update()).all()
            known = {row.id: _key(row) for row in rows}
            once = {key.terms.id for key in known.values() if key.declared is not None}
            for key_id in once - {terms.id for terms, _ in wanted}:
                connection.execute(sa.delete(API_KEYS).where(API_KEYS.c.id == key_id))
            for terms, digest in wanted:
                self._declare_one(connection, known.get(terms.id), terms, digest, now)

    def _declare_one(self, connection: Connection, known: Key | None, terms: KeyTerms, digest: bytes, now: str) -> None:
        if known is None:
            values = _terms(terms) | {"id": terms.id, "digest": digest, "declared": digest, "created_at": now}
            # Processes that start at the same time may both insert.
            connection.execute(self._database.insert(API_KEYS).values(values).on_conflict_do_nothing())
            return
        changes = _terms(terms)
        if known.declared != digest:
            changes |= {"digest": digest, "declared": digest, "old_digest": None, "old_until": None, "rotated_at": now}
        connection.execute(sa.update(API_KEYS).where(API_KEYS.c.id == terms.id).values(changes))


def _find(connection: Connection, key_id: str) -> Key:
    row = connection.execute(sa.select(API_KEYS).where(API_KEYS.c.id == key_id).with_for_update()).one_or_none()
    if row is None:
        raise NotFound(f"There is no key {key_id!r}.", code="key_not_found", key=key_id)
    return _key(row)


def _change(connection: Connection, key_id: str, changes: dict[str, Any]) -> Key:
    update = sa.update(API_KEYS).where(API_KEYS.c.id == key_id).values(changes).returning(*API_KEYS.c)
    return _key(connection.execute(update).one())


def _terms(terms: KeyTerms) -> dict[str, Any]:
    return {
        "name": terms.name,
        "scopes": " ".join(sorted(terms.scopes)),
        "galleries": None if terms.galleries is None else json.dumps(sorted(terms.galleries), ensure_ascii=False),
        "rate": terms.rate,
        "expires_at": terms.expires_at,
    }


def _key(row: Row[Any]) -> Key:
    return Key(
        terms=KeyTerms(
            id=row.id,
            scopes=frozenset(Scope(scope) for scope in row.scopes.split()),
            name=row.name,
            galleries=None if row.galleries is None else frozenset(json.loads(row.galleries)),
            rate=row.rate,
            expires_at=row.expires_at,
        ),
        digest=bytes(row.digest),
        old_digest=None if row.old_digest is None else bytes(row.old_digest),
        old_until=row.old_until,
        declared=None if row.declared is None else bytes(row.declared),
        created_at=row.created_at,
        rotated_at=row.rotated_at,
        revoked_at=row.revoked_at,
    )
