"""Read entries of the audit log from the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Row

from app.access.audit import AuditEntry
from app.db.engine import Database
from app.db.pagination import Page, read_page
from app.db.schema import AUDIT


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Selects entries of the audit log. A field that is None doesn't restrict them; ``since`` is included, ``until`` is
    not."""

    key: str | None = None
    operation: str | None = None
    gallery: str | None = None
    subject: str | None = None
    since: str | None = None
    until: str | None = None
    without: frozenset[str] = frozenset()
    """Operations to leave out."""


def entries(
    database: Database, wanted: AuditFilter, cursor: str | None = None, limit: int = 100, *, newest_first: bool = True
) -> Page[AuditEntry]:
    """Return a page of entries. Raises InvalidInput ``invalid_cursor``."""
    return read_page(
        database,
        sa.select(AUDIT).where(*_conditions(wanted)),
        AUDIT.c.key,
        _entry,
        listing=f"audit/{newest_first}",
        cursor=cursor,
        limit=limit,
        newest_first=newest_first,
    )


def _entry(row: Row[Any]) -> AuditEntry:
    fields = row._asdict()
    return AuditEntry(row=fields.pop("key"), key=fields.pop("who"), **fields)


def _conditions(wanted: AuditFilter) -> Iterator[sa.ColumnElement[bool]]:
    columns = {"key": AUDIT.c.who} | {name: AUDIT.c[name] for name in ("operation", "gallery", "subject")}
    for field, column in columns.items():
        if (value := getattr(wanted, field)) is not None:
            yield column == value
    if wanted.since is not None:
        yield AUDIT.c.at >= wanted.since
    if wanted.until is not None:
        yield AUDIT.c.at < wanted.until
    if wanted.without:
        yield AUDIT.c.operation.not_in(wanted.without)
