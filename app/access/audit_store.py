"""Entries of the audit log, in SQL. Every public call is one transaction, and may raise what `Database` raises."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import AUDIT
from app.errors import InvalidInput
from app.gallery.text import clean_id

PRUNED_AT_ONCE = 5_000
"""Old rows deleted in one transaction, so that no writer waits long."""


@dataclass(slots=True)
class AuditEntry:
    """One call of an operation. ``status``: None until it ends; ``target``: the id of its face, key, job or receipt."""

    at: str
    key: str | None
    """The id of the API key; None: the server itself, or no valid key."""
    operation: str
    request_id: str
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None
    status: int | None = None
    row: int | None = None
    """The row's primary key, once there is one."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries of the log; None: all. ``since`` is included, ``until`` is not."""

    key: str | None = None
    operation: str | None = None
    gallery: str | None = None
    subject: str | None = None
    since: str | None = None
    until: str | None = None
    without: frozenset[str] = frozenset()
    """Operations to leave out."""


def fit_id(text: str | None) -> str | None:
    """Return ``text`` if it can be an id; else None, so that callers can write nothing else to the log."""
    try:
        return None if text is None else clean_id(text, "record")
    except InvalidInput:
        return None


class AuditStore:
    def __init__(self, database: Database) -> None:
        self.database = database

    def write(self, entries: Sequence[AuditEntry]) -> None:
        """Insert the entries that have no row yet, and update the others.

        An entry that is inserted without an outcome gets its ``row``, for the update to come.
        """
        new = [entry for entry in entries if entry.row is None]
        known = [entry for entry in entries if entry.row is not None]
        begun: list[AuditEntry] = []
        rows: list[int] = []
        with self.database.write() as connection:
            for is_ended, some in groupby(new, key=lambda entry: entry.status is not None):  # in the order they came
                group = list(some)
                values = [_values(entry) for entry in group]
                if is_ended:
                    connection.execute(_INSERT_ENDED, values)
                else:
                    begun += group
                    rows += connection.execute(_INSERT_BEGUN, values).scalars()
            if known:
                connection.execute(_UPDATE_ENTRY, [{"of": entry.row, **_values(entry)} for entry in known])
        for entry, row in zip(begun, rows, strict=True):
            entry.row = row

    def entries(
        self, wanted: AuditFilter, cursor: str | None = None, limit: int = 100, *, newest_first: bool = True
    ) -> Page[AuditEntry]:
        """Return a page of entries. Raises InvalidInput ``invalid_cursor``."""
        return read_page(
            self.database,
            sa.select(AUDIT).where(*_conditions(wanted)),
            AUDIT.c.key,
            _entry,
            listing=f"audit/{newest_first}",
            cursor=cursor,
            limit=limit,
            newest_first=newest_first,
        )

    def prune(self, before: str) -> int:
        """Delete the entries older than `before`; return how many."""
        some = sa.select(AUDIT.c.key).where(AUDIT.c.at < before).limit(PRUNED_AT_ONCE)
        total = 0
        while True:
            with self.database.write() as connection:
                deleted = connection.execute(sa.delete(AUDIT).where(AUDIT.c.key.in_(some))).rowcount
            total += deleted
            if deleted < PRUNED_AT_ONCE:
                break
        if total:
            self.database.request_scrub()
        return total


_COLUMNS = {
    "at": AUDIT.c.at,
    "key": AUDIT.c.who,
    "operation": AUDIT.c.operation,
    "request_id": AUDIT.c.request_id,
    "gallery": AUDIT.c.gallery,
    "subject": AUDIT.c.subject,
    "target": AUDIT.c.target,
    "status": AUDIT.c.status,
}
"""The column of each field."""
_INSERT_ENDED = sa.insert(AUDIT)
_INSERT_BEGUN = _INSERT_ENDED.returning(AUDIT.c.key, sort_by_parameter_order=True)
_UPDATE_ENTRY = (
    sa.update(AUDIT)
    .where(AUDIT.c.key == sa.bindparam("of"))
    .values({one.name: sa.bindparam(one.name) for one in _COLUMNS.values()})
)


def _values(entry: AuditEntry) -> dict[str, Any]:
    return {column.name: getattr(entry, field) for field, column in _COLUMNS.items()}


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(**{field: getattr(row, column.name) for field, column in _COLUMNS.items()}, row=row.key)


def _conditions(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = [
        _COLUMNS[field] == value
        for field in ("key", "operation", "gallery", "subject")
        if (value := getattr(wanted, field)) is not None
    ]
    if wanted.since is not None:
        found.append(AUDIT.c.at >= wanted.since)
    if wanted.until is not None:
        found.append(AUDIT.c.at < wanted.until)
    if wanted.without:
        found.append(AUDIT.c.operation.not_in(wanted.without))
    return found
