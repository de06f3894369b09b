"""The REST operation that reads the audit log, and the start of its sink."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request
from pydantic import Field

from app.access.audit import AuditLog
from app.access.grants import Scope
from app.api.components import Components
from app.api.feature import Feature, Part
from app.api.operation import CURSOR
from app.api.route import Router, operations_of
from app.api.schemas.base import MAX_ID_LENGTH, TIME, AskedId, NextCursor, PageParams, Time, Wire
from app.features.audit.reading import AuditFilter, entries
from app.features.audit.sink import AuditSink

router = Router("access")


class AuditParams(PageParams):
    """Query parameters of the audit log: `since` is included, `until` is not; ids match exactly."""

    key: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only entries of this key.")
    operation: str | None = Field(default=None, max_length=64, description="Only this operation, e.g. `enroll`.")
    gallery: AskedId | None = Field(default=None, description="Only entries of this gallery.")
    subject: AskedId | None = Field(default=None, description="Only entries of this subject.")
    since: Time | None = Field(default=None, description="Only from this time on.", examples=[TIME])
    until: Time | None = Field(default=None, description="Only before this time.", examples=[TIME])
    changes: bool = Field(default=False, description="Whether to leave out operations that only read.")
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which entries come first.")


class AuditEntry(Wire):
    """An operation that a key called: when, on what, and with which result."""

    at: datetime
    key: str | None = Field(description="The key's id; `admin.key` is the data folder's key; null: no valid key.")
    operation: str
    gallery: str | None
    subject: str | None
    target: str | None = Field(
        description="The id of the face, key, job or receipt that the operation is about, or the subject's new id."
    )
    status: int | None = Field(
        description="The HTTP status of the answer. 499: the client left before the answer; null: the operation "
        "has begun, its result is unknown."
    )
    request_id: str


class AuditPage(Wire):
    entries: list[AuditEntry]
    next_cursor: NextCursor


@router.operation("GET", "/v1/audit", scope=Scope.ADMIN, unrestricted=True, codes=CURSOR)
def read_audit(request: Request, audit: AuditLog, query: Annotated[AuditParams, Query()]) -> AuditPage:
    """Read the audit log.

    Answers which key did what, when, to which gallery and subject, with which result. Entries contain ids, but never
    images, vectors or metadata. Changes are recorded before they begin; all other entries appear within a second.
    """
    wanted = AuditFilter(
        key=query.key,
        operation=query.operation,
        gallery=query.gallery,
        subject=query.subject,
        since=query.since,
        until=query.until,
        without=_reading(request.app) if query.changes else frozenset(),
    )
    newest_first = query.order == "newest"
    page = entries(audit.store.database, wanted, query.cursor, query.limit, newest_first=newest_first)
    return AuditPage.of(page, entries=page.items)


def _reading(app: FastAPI) -> frozenset[str]:
    """Return the names of the operations that only read. All interfaces share these names."""
    operations = operations_of(app)
    changing = {operation.name for operation in operations if operation.changes}
    return frozenset(operation.name for operation in operations) - changing


def _start(core: Components, audit_sink: str | None) -> Part:
    """Open the audit log's sink, if there is one. Raises Unusable (``audit_sink_unusable``)."""
    core.audit.sink = AuditSink(audit_sink) if audit_sink else None
    return Part()


FEATURE = Feature([router], _start, settings=("audit_sink",))
