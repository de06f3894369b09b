"""The audit log and the receipts of erasures, for unrestricted `admin` keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import JSONResponse

from app.access.audit_store import AuditFilter
from app.api import endpoints, schemas
from app.api.dependencies import ReceiptId, ServiceDep
from app.api.operation import OperationTable
from app.api.router import Router
from app.timestamps import utc_text_or_none

router = Router("access")


@router.handles(endpoints.READ_AUDIT)
def read_audit(
    request: Request, service: ServiceDep, query: Annotated[schemas.AuditParams, Query()]
) -> schemas.AuditPage:
    """Read the audit log.

    Which key did what, when, to which gallery and subject, with which outcome: ids, never images, vectors or metadata.
    Changes are recorded before they begin; everything else appears within a second.
    """
    wanted = AuditFilter(
        key=query.key,
        operation=query.operation,
        gallery=query.gallery,
        subject=query.subject,
        since=utc_text_or_none(query.since),
        until=utc_text_or_none(query.until),
        without=_reading(request.app.state.operations) if query.changes else frozenset(),
    )
    newest_first = query.order == "newest"
    page = service.audit.store.entries(wanted, query.cursor, query.limit, newest_first=newest_first)
    return schemas.AuditPage(
        entries=[schemas.AuditEntry.model_validate(entry) for entry in page.items], next_cursor=page.next_cursor
    )


@router.handles(endpoints.LIST_RECEIPTS)
def list_receipts(service: ServiceDep, query: Annotated[schemas.PageParams, Query()]) -> JSONResponse:
    """List the receipts of erasures.

    All complete ones, in the order of the erasures, page by page. They are kept forever.
    """
    page = service.erasures.receipts(query.cursor, query.limit)
    return JSONResponse({"receipts": list(page.items), "next_cursor": page.next_cursor})


@router.handles(endpoints.SHOW_RECEIPT)
def show_receipt(service: ServiceDep, receipt: ReceiptId) -> JSONResponse:
    """Show the receipt of an erasure.

    The document as it was signed. Save the answer as a file, and `likeness receipts verify` checks it without a server.
    """
    return JSONResponse(service.erasures.receipt(receipt))


def _reading(table: OperationTable) -> frozenset[str]:
    """Return the names of the operations that only read; of another API's, too, since they share the names."""
    changing = {operation.name for operation in table.operations if operation.changes}
    return frozenset(operation.name for operation in table.operations) - changing
