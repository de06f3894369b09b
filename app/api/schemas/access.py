"""Keys, the audit log, receipts of erasures."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from app.api.schemas.base import (
    MAX_GRACE_S,
    MAX_ID_LENGTH,
    MAX_PAGE,
    TIME,
    Example,
    Id,
    KeyIdText,
    Name,
    NextCursor,
    PageParams,
    Params,
    RateText,
    ScopeName,
    Time,
    Wire,
)

SIGN_IN_LINK = "{url}/#code={code}"
"""Signs a browser in. Browsers send nothing behind the `#`, but keep it in their history."""


class KeyCreate(Params):
    """An absent field has the server's default, or no limit."""

    example: ClassVar[Example] = {"id": "door", "scopes": ["recognize"], "galleries": ["staff"], "rate": "10/s"}

    id: KeyIdText | None = Field(default=None, description="Chosen by the server if absent.")
    name: Name | None = Field(default=None, description="The key's owner or purpose; free text.")
    scopes: list[ScopeName] = Field(
        min_length=1, description="What the key may do; `admin` implies all of them but `templates`."
    )
    galleries: list[Id] | None = Field(
        default=None, min_length=1, max_length=MAX_PAGE, description="The only galleries it may see; all if absent."
    )
    expires_at: Time | None = Field(default=None, description="When it stops working; never if absent.")
    rate: RateText | None = Field(default=None, description="The server's default if absent.")
    aws: bool = Field(
        default=False,
        description="Whether its holder may also sign requests, as AWS's clients do; its secret is stored, sealed.",
    )


class KeyRotate(Params):
    example: ClassVar[Example] = {"grace_seconds": 3600}
    grace_seconds: int = Field(
        default=0, ge=0, le=MAX_GRACE_S, description="How long the previous secret keeps working beside the new one."
    )


class Key(Wire):
    """A key, without its secret."""

    id: str = Field(examples=["door"])
    name: str | None = Field(examples=["The front door"])
    scopes: list[ScopeName]
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")
    rate: str | None = Field(description="Its own rate limit; null: the server's default.")
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    old_secret_until: datetime | None = Field(description="Until when the previous secret works.")
    declared: bool = Field(description="Whether the server's keys file declares it.")


class NewKey(Key):
    """A key with its secret, which is only in this answer."""

    secret: str = Field(description="The whole key, to send in `Authorization: Bearer` or `x-api-key`.")
    aws_access_key_id: str | None = Field(description="For AWS's clients, if the key was created with `aws`.")
    aws_secret_access_key: str | None = Field(description="The same.")


class OwnKey(Wire):
    """The scopes and galleries of the request's key."""

    id: str = Field(examples=["door"], description="`admin.key` is the data folder's key, which may do everything.")
    scopes: list[ScopeName] = Field(description="The key's scopes; `admin` implies all but `templates`.")
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")


class SignInCodeParams(Params):
    valid: Literal["minute", "day"] = Field(
        default="minute", description="How long the code works: to open the link now, or to send it to somebody."
    )


class SignInCode(Wire):
    """A code that signs a browser in with the request's key: once, until it expires."""

    code: str = Field(description="The page's address with `#code=` and this is the link.")
    expires_at: datetime


class Session(Wire):
    """A browser that stays signed in."""

    expires_at: datetime


class SignedIn(OwnKey):
    """The key that a sign-in code stood for."""

    secret: str = Field(description="The whole key, to send in `Authorization: Bearer` or `x-api-key`.")


class KeyPage(Wire):
    keys: list[Key]
    next_cursor: NextCursor


class AuditParams(PageParams):
    """`since` is included, `until` is not; ids match exactly."""

    key: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only entries of this key.")
    operation: str | None = Field(default=None, max_length=64, description="Only this operation, e.g. `enroll`.")
    gallery: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only entries of this gallery.")
    subject: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only entries of this subject.")
    since: Time | None = Field(default=None, description="Only from this time on.", examples=[TIME])
    until: Time | None = Field(default=None, description="Only before this time.", examples=[TIME])
    changes: bool = Field(default=False, description="Whether to leave out operations that only read.")
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which entries come first.")


class AuditEntry(Wire):
    """An operation that a key called: when, on what, with which outcome."""

    at: datetime
    key: str | None = Field(description="The key's id; `admin.key` is the data folder's key; null: no valid key.")
    operation: str
    gallery: str | None
    subject: str | None
    target: str | None = Field(description="The id of its face, key, job or receipt, or its subject's new id.")
    status: int | None = Field(
        description="The HTTP status of the answer; 499: the client left before it; null: begun, outcome unknown."
    )
    request_id: str


class AuditPage(Wire):
    entries: list[AuditEntry]
    next_cursor: NextCursor


class ErasedSubject(Wire):
    """The subject, as a hash that can be checked only with its id."""

    salt: str
    digest: str = Field(description="SHA-256, hexadecimal, of the compact JSON list of salt, gallery and subject id.")


class ErasedCounts(Wire):
    faces: int = Field(ge=0)
    templates: int = Field(ge=0)
    crops: int = Field(ge=0)
    corrections: int = Field(default=0, ge=0, description="Corrections of other subjects that matched the faces.")
    sightings: int = Field(
        default=0, ge=0, description="Sightings of the subject, and of unknown people who resembled it."
    )


class Cleared(Wire):
    """The places on disk that could hold the data, and how each was cleared."""

    tables: str = Field(description="`overwritten` (SQLite), `vacuumed` or `rewritten` (PostgreSQL).")
    write_ahead_log: str
    index_copies: str = Field(description="Index snapshots, or the files of Milvus.")


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
    reason: Literal["asked", "expired"]
    erased_at: str = Field(description="From then on no answer contains the subject.")
    erased: ErasedCounts
    cleared: Cleared
    complete: bool = Field(
        description="Whether all of `cleared` was done at `completed_at`; if not, the server completes it later."
    )
    completed_at: str
    not_reached: list[str] = Field(description="What the server can't clear.")
    signature: Signature


class ReceiptPage(Wire):
    receipts: list[Receipt]
    next_cursor: NextCursor
