"""The audit log and the receipts of erasures, for unrestricted `admin` keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse

from app.access.audit_store import AuditFilter
from app.access.grants import Scope
from app.api import schemas
from app.api.dependencies import AuditDep, ErasuresDep, ReceiptId
from app.api.operation import CURSOR
from app.api.route import Router, operations_of
from app.timestamps import utc_text_or_none

router = Router("access")

RECEIPTS = "/v1/receipts"


@router.operation("GET", "/v1/audit", scope=Scope.ADMIN, unrestricted=True, codes=CURSOR)
def read_audit(request: Request, audit: AuditDep, query: Annotated[schemas.AuditParams, Query()]) -> schemas.AuditPage:
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
        without=_reading(request.app) if query.changes else frozenset(),
    )
    newest_first = query.order == "newest"
    page = audit.store.entries(wanted, query.cursor, query.limit, newest_first=newest_first)
    return schemas.AuditPage(
        entries=[schemas.AuditEntry.model_validate(entry) for entry in page.items], next_cursor=page.next_cursor
    )


@router.operation("GET", RECEIPTS, scope=Scope.ADMIN, answer=schemas.ReceiptPage, unrestricted=True, codes=CURSOR)
def list_receipts(erasures: ErasuresDep, query: Annotated[schemas.PageParams, Query()]) -> JSONResponse:
    """List the receipts of erasures.

    All complete ones, in the order of the erasures, page by page. They are kept forever.
    """
    page = erasures.receipts(query.cursor, query.limit)
    return JSONResponse({"receipts": list(page.items), "next_cursor": page.next_cursor})


@router.operation(
    "GET",
    f"{RECEIPTS}/{{receipt}}",
    scope=Scope.ADMIN,
    answer=schemas.Receipt,
    unrestricted=True,
    codes=("receipt_not_found",),
)
def show_receipt(erasures: ErasuresDep, receipt: ReceiptId) -> JSONResponse:
    """Show the receipt of an erasure.

    The document as it was signed. Save the answer as a file, and `likeness receipts verify` checks it without a server.
    """
    return JSONResponse(erasures.receipt(receipt))


def _reading(app: FastAPI) -> frozenset[str]:
    """Return the names of the operations that only read; of another API's, too, since they share the names."""
    operations = operations_of(app)
    changing = {operation.name for operation in operations if operation.changes}
    return frozenset(operation.name for operation in operations) - changing
