"""The REST operations that erase a subject for good with a signed receipt, and list receipts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal, TypeAlias

from fastapi import Query
from fastapi.responses import JSONResponse
from pydantic import Field

from app.access.grants import Scope
from app.api import schemas
from app.api.components import Components, GalleryId, SubjectId, path_id
from app.api.feature import Feature, Part, PeriodicTask
from app.api.operation import CURSOR, NO_SUBJECT, SUBJECT_PATH
from app.api.route import Router
from app.api.schemas.base import NextCursor, Params, Wire
from app.features.erasure.erasing import ErasureReason, Erasures
from app.features.signatures import Signer
from app.features.similarity import most_lenient

subjects = Router("subjects")
receipts = Router("access")
RECEIPTS = "/v1/receipts"
ReceiptId: TypeAlias = Annotated[
    str,
    path_id("The receipt's id, as the erasure gave it.", "0f5c1c2bb2dd4d0aa6a1e9b0c7c3de51"),
]


class EraseParams(Params):
    rewrite: bool = Field(
        default=False,
        description="PostgreSQL only: rewrite all tables (VACUUM FULL) so that nothing stays in their files; locks "
        "them meanwhile. SQLite's files are overwritten in any case.",
    )


class ErasedSubject(Wire):
    """The subject, as a hash that can be checked only with its id."""

    salt: str
    digest: str = Field(description="SHA-256, hexadecimal, of the compact JSON list of salt, gallery and subject id.")


class ErasedCounts(Wire):
    faces: int = Field(ge=0)
    templates: int = Field(ge=0)
    crops: int = Field(ge=0)
    corrections: int = Field(
        default=0, ge=0, description="Other subjects' corrections that may have shown the subject."
    )
    sightings: int = Field(
        default=0, ge=0, description="Sightings of the subject, and of unknown people who resembled it."
    )


class Cleared(Wire):
    """The places on disk that could hold the data, and how each was cleared."""

    tables: str = Field(description="`overwritten` (SQLite), `vacuumed` or `rewritten` (PostgreSQL).")
    write_ahead_log: str
    index_copies: str = Field(description="This server's index snapshots, or the files of Milvus.")


class Signature(Wire):
    """A signature over everything else in the document, as UTF-8 JSON with sorted keys and without white space."""

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str = Field(description="Base64; compare it with one that you kept before.")
    value: str = Field(description="Base64.")


class Receipt(Wire):
    """A record of an erasure, signed with the server's key."""

    format: Literal[1]
    id: str
    gallery: str
    subject: ErasedSubject
    reason: ErasureReason
    erased_at: str = Field(description="When it was deleted: from then on, no answer contains the subject.")
    erased: ErasedCounts
    cleared: Cleared
    complete: bool = Field(
        description="Whether all of `cleared` was done at `completed_at`. If not, the server does the rest soon after; "
        "the receipt stays as it was signed. Says nothing of `not_reached`, and so nothing of other servers."
    )
    completed_at: str
    not_reached: list[str] = Field(description="What this server can't clear, including other servers' copies.")
    signature: Signature


class ReceiptPage(Wire):
    receipts: list[Receipt]
    next_cursor: NextCursor


@subjects.operation("POST", f"{SUBJECT_PATH}/erase", scope=Scope.ADMIN, answer=Receipt, changes=True, codes=NO_SUBJECT)
def erase_subject(
    erasures: Erasures, gallery: GalleryId, subject: SubjectId, query: Annotated[EraseParams, Query()]
) -> JSONResponse:
    """Erase a subject for good.

    Deletes the subject with everything about it, clears what the disk may still contain of it, and answers with a
    signed receipt that says what was erased and what the server can't reach.
    """
    return JSONResponse(erasures.erase(gallery, subject, rewrite=query.rewrite))


@receipts.operation("GET", RECEIPTS, scope=Scope.ADMIN, answer=ReceiptPage, unrestricted=True, codes=CURSOR)
def list_receipts(erasures: Erasures, query: Annotated[schemas.PageParams, Query()]) -> JSONResponse:
    """List the receipts of erasures.

    Lists all complete receipts, in the order of the erasures, page by page. They are kept forever.
    """
    page = erasures.receipts(query.cursor, query.limit)
    return JSONResponse({"receipts": list(page.items), "next_cursor": page.next_cursor})


@receipts.operation(
    "GET",
    f"{RECEIPTS}/{{receipt}}",
    scope=Scope.ADMIN,
    answer=Receipt,
    unrestricted=True,
    codes=("receipt_not_found",),
)
def show_receipt(erasures: Erasures, receipt: ReceiptId) -> JSONResponse:
    """Show the receipt of an erasure.

    The answer is the signed document. Save it as a file, and `likeness receipts verify` checks it without a server.
    """
    return JSONResponse(erasures.receipt(receipt))


def _start(core: Components, *, expiry_seconds: float) -> Part:
    erasures = Erasures(
        core.galleries,
        Signer.of(core.secrets),
        least=partial(most_lenient, core.embedders),
        recorded=partial(core.audit.recorded, "expire_subject"),
        reached=core.erased_too,
    )
    return Part({"erasures": erasures}, tasks=[PeriodicTask(expiry_seconds, "expiry", erasures.sweep)])


FEATURE = Feature([subjects, receipts], _start, ["expiry_seconds"])
