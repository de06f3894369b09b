"""What the server signs, and the key to check it by."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from app.api import openapi, schemas
from app.api.paths import GalleryId, ReceiptId, SubjectId
from app.api.service import ServiceDep
from app.db import signing

router = APIRouter(prefix="/v1", tags=["server"])


@router.get(
    "/server-key",
    summary="Show the key that the server signs with",
    responses=openapi.answer(schemas.ServerKey) | openapi.call_errors(),
)
async def show_server_key(service: ServiceDep) -> schemas.ServerKey:
    """The public half: keep it, and what this server signs can be checked anywhere. All servers of one database have
    the same."""
    signer = service.signer
    return schemas.ServerKey(
        key_id=signer.key_id,
        algorithm=signing.ALGORITHM,
        public_key=signing.encode(signer.public_key),
        pem=signer.pem,
    )


@router.post(
    "/galleries/{gallery}/subjects/{subject}/erase",
    summary="Erase a subject for good",
    responses=openapi.answer(schemas.Receipt)
    | openapi.call_errors("gallery_not_found", "subject_not_found", "invalid_id"),
    response_model=schemas.Receipt,
    tags=["subjects"],
)
async def erase_subject(
    service: ServiceDep, gallery: GalleryId, subject: SubjectId, query: Annotated[schemas.EraseParams, Query()]
) -> JSONResponse:
    """Deletes the subject with everything about it, clears what the disk may still hold of that, and answers with a
    signed receipt of what was done and of what the server can't reach."""
    document = await service.run(lambda: service.erasures.erase(gallery, subject, rewrite=query.rewrite))
    return JSONResponse(document)


@router.get(
    "/receipts",
    summary="List the receipts of erasures",
    responses=openapi.answer(schemas.ReceiptPage) | openapi.call_errors("gallery_restricted", "invalid_cursor"),
    response_model=schemas.ReceiptPage,
    tags=["access"],
)
async def list_receipts(service: ServiceDep, query: Annotated[schemas.PageParams, Query()]) -> JSONResponse:
    """All that are complete, in the order of the erasures, page by page. They are kept for good."""
    page = await service.run(lambda: service.erasures.receipts(query.cursor, query.limit))
    return JSONResponse({"receipts": list(page.items), "next_cursor": page.next_cursor})


@router.get(
    "/receipts/{receipt}",
    summary="Show the receipt of an erasure",
    responses=openapi.answer(schemas.Receipt) | openapi.call_errors("gallery_restricted", "receipt_not_found"),
    response_model=schemas.Receipt,
    tags=["access"],
)
async def show_receipt(service: ServiceDep, receipt: ReceiptId) -> JSONResponse:
    """As it was signed: keep the answer as a file, and `likeness receipts verify` checks it without a server."""
    return JSONResponse(await service.run(lambda: service.erasures.receipt(receipt)))
