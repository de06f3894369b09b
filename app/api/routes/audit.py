"""The audit log, for unrestricted `admin` keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query

from app.access.records import AuditEntry, AuditFilter
from app.api import openapi, schemas
from app.api.service import ServiceDep
from app.timestamps import utc_text

router = APIRouter(prefix="/v1/audit", tags=["access"])


@router.get(
    "",
    summary="Read the audit log",
    responses=openapi.answer(schemas.AuditPage) | openapi.call_errors("gallery_restricted", "invalid_cursor"),
)
async def read_audit(service: ServiceDep, query: Annotated[schemas.AuditParams, Query()]) -> schemas.AuditPage:
    """Who did what, when, to which gallery and subject, and how it went: ids, never images, vectors or metadata.

    What changes something is recorded before it begins; the rest appears within a second.
    """
    wanted = AuditFilter(
        who=query.key,
        operation=query.operation,
        gallery=query.gallery,
        subject=query.subject,
        since=_text(query.since),
        until=_text(query.until),
    )

    def read() -> schemas.AuditPage:
        newest_first = query.order == "newest"
        page = service.audit.entries(wanted, query.cursor, query.limit, newest_first=newest_first)
        return schemas.AuditPage(entries=[_answer(entry) for entry in page.items], next_cursor=page.next_cursor)

    return await service.run(read)


def _text(time: datetime | None) -> str | None:
    return None if time is None else utc_text(time)


def _answer(entry: AuditEntry) -> schemas.AuditEntry:
    return schemas.AuditEntry.model_validate(
        {
            "at": entry.at,
            "key": entry.who,
            "operation": entry.operation,
            "gallery": entry.gallery,
            "subject": entry.subject,
            "target": entry.target,
            "status": entry.status,
            "request_id": entry.request_id,
        }
    )
