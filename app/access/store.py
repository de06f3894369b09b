"""Keys and the audit log in SQL. Every public call is one transaction, and may raise what `Database` does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from app.access.grants import Scope
from app.access.records import AuditEntry, AuditFilter, Key, KeyTerms
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import API_KEYS, AUDIT
from app.errors import Conflict, NotFound

PRUNED_AT_ONCE = 5_000
"""Old audit rows deleted in one transaction, so that no writer waits long."""


class KeyStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, terms: KeyTerms, digest: bytes, now: str, declared: bytes | None = None) -> Key:
        """Raises Conflict ``key_exists``."""
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
        """In the order they were made. Raises InvalidInput ``invalid_cursor``."""
        query = sa.select(API_KEYS)
        return read_page(self._database, query, API_KEYS.c.key, _key, listing="keys", cursor=cursor, limit=limit)

    def rotate(self, key_id: str, digest: bytes, now: str, old_until: str | None) -> Key:
        """Replaces the secret; the last one stays valid until `old_until`. Raises as `revoke`, and Conflict
        ``key_revoked``."""
        with self._database.write() as connection:
            found = _find(connection, key_id)
            if found.revoked_at is not None:
                raise Conflict(f"Key {key_id!r} is revoked.", code="key_revoked", key=key_id)
            old = None if old_until is None else found.digest
            changes = {"digest": digest, "old_digest": old, "old_until": old_until, "rotated_at": now}
            return _change(connection, key_id, changes)

    def revoke(self, key_id: str, now: str) -> Key:
        """The first revocation stands. Raises NotFound ``key_not_found``."""
        with self._database.write() as connection:
            found = _find(connection, key_id)
            return found if found.revoked_at else _change(connection, key_id, {"revoked_at": now})

    def declare(self, declared: Iterable[tuple[KeyTerms, bytes]], now: str) -> None:
        """Makes the keys that a file declares what it says, and deletes those that it declared once and no more.

        A secret is taken from the file only where the file's has changed since it was last applied, so that a secret
        rotated by other means does not come back; a revoked key stays revoked.
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
            # Processes that start together may both get here.
            connection.execute(self._database.insert(API_KEYS).values(values).on_conflict_do_nothing())
            return
        changes = _terms(terms)
        if known.declared != digest:
            changes |= {"digest": digest, "declared": digest, "old_digest": None, "old_until": None, "rotated_at": now}
        connection.execute(sa.update(API_KEYS).where(API_KEYS.c.id == terms.id).values(changes))


class AuditStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Adds the entries that have no row yet, and the outcome to those that have one; all in one transaction. Those
        that are added without an outcome are told their row's key; of the others nothing is to come."""
        new = [entry for entry in entries if entry.key is None]
        known = [entry for entry in entries if entry.key is not None]
        begun: list[AuditEntry] = []
        keys: list[int] = []
        with self._database.write() as connection:
            for is_ended, some in groupby(new, key=lambda entry: entry.status is not None):  # in the order they came
                group = list(some)
                values = [_values(entry) for entry in group]
                if is_ended:
                    connection.execute(_INSERT_ENDED, values)
                else:
                    begun += group
                    keys += connection.execute(_INSERT_BEGUN, values).scalars()
            if known:
                connection.execute(_UPDATE_ENTRY, [{"of": entry.key, **_values(entry)} for entry in known])
        for entry, key in zip(begun, keys, strict=True):
            entry.key = key

    def entries(
        self, wanted: AuditFilter, cursor: str | None = None, limit: int = 100, *, newest_first: bool = True
    ) -> Page[AuditEntry]:
        """Raises InvalidInput ``invalid_cursor``."""
        return read_page(
            self._database,
            sa.select(AUDIT).where(*_conditions(wanted)),
            AUDIT.c.key,
            _entry,
            listing=f"audit/{newest_first}",
            cursor=cursor,
            limit=limit,
            newest_first=newest_first,
        )

    def prune(self, before: str) -> int:
        """Deletes the entries older than `before`; how many."""
        some = sa.select(AUDIT.c.key).where(AUDIT.c.at < before).limit(PRUNED_AT_ONCE)
        total = 0
        while True:
            with self._database.write() as connection:
                deleted = connection.execute(sa.delete(AUDIT).where(AUDIT.c.key.in_(some))).rowcount
            total += deleted
            if deleted < PRUNED_AT_ONCE:
                break
        if total:
            self._database.request_scrub()
        return total


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
        key=row.key,
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


_FIELDS = ("at", "who", "operation", "request_id", "gallery", "subject", "target", "status")
_INSERT_ENDED = sa.insert(AUDIT)
_INSERT_BEGUN = _INSERT_ENDED.returning(AUDIT.c.key, sort_by_parameter_order=True)
_UPDATE_ENTRY = (
    sa.update(AUDIT).where(AUDIT.c.key == sa.bindparam("of")).values({name: sa.bindparam(name) for name in _FIELDS})
)


def _values(entry: AuditEntry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in _FIELDS}


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(**{name: getattr(row, name) for name in (*_FIELDS, "key")})


def _conditions(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = [
        AUDIT.c[name] == value
        for name in ("who", "operation", "gallery", "subject")
        if (value := getattr(wanted, name)) is not None
    ]
    if wanted.since is not None:
        found.append(AUDIT.c.at >= wanted.since)
    if wanted.until is not None:
        found.append(AUDIT.c.at < wanted.until)
    return found
