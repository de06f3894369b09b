"""Keys, the audit log, receipts of erasures."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import Field

from app.api.schemas.base import (
    MAX_GRACE_S,
    MAX_ID_LENGTH,
    MAX_PAGE,
    PUBLIC_KEY,
    TIME,
    Example,
    Id,
    KeyIdText,
    Name,
    PageParams,
    Params,
    RateText,
    ScopeName,
    Time,
    Wire,
)


class KeyCreate(Params):
    """What is absent is the server's default, or has no limit."""

    example: ClassVar[Example] = {"id": "door", "scopes": ["recognize"], "galleries": ["staff"], "rate": "10/s"}

    id: KeyIdText | None = Field(default=None, description="Made by the server if absent.")
    name: Name | None = Field(default=None, description="Whose key it is; free text.")
    scopes: list[ScopeName] = Field(min_length=1, description="What the key may do; `admin` implies all of them.")
    galleries: list[Id] | None = Field(
        default=None, min_length=1, max_length=MAX_PAGE, description="The only galleries it may see; all if absent."
    )
    expires_at: Time | None = Field(default=None, description="When it stops working; never if absent.")
    rate: RateText | None = Field(default=None, description="The server's default if absent.")
    aws: bool = Field(
        default=False,
        description="Whether requests may be signed with it too, as AWS's clients do; its secret is then kept, sealed.",
    )


class KeyRotate(Params):
    example: ClassVar[Example] = {"grace_seconds": 3600}
    grace_seconds: int = Field(
        default=0, ge=0, le=MAX_GRACE_S, description="How long the last secret goes on working beside the new one."
    )


class Key(Wire):
    """A key; its secret is never shown again."""

    example: ClassVar[Example] = {
        "id": "door",
        "name": None,
        "scopes": ["recognize"],
        "galleries": ["staff"],
        "rate": "10/s",
        "created_at": TIME,
        "expires_at": None,
        "rotated_at": None,
        "revoked_at": None,
        "old_secret_until": None,
        "declared": False,
    }

    id: str
    name: str | None
    scopes: list[ScopeName]
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")
    rate: str | None = Field(description="Its own rate limit; null: the server's default.")
    created_at: datetime
    expires_at: datetime | None
    rotated_at: datetime | None
    revoked_at: datetime | None
    old_secret_until: datetime | None = Field(description="Until when the secret before the last rotation works.")
    declared: bool = Field(description="Whether the server's keys file declares it.")


class NewKey(Key):
    """A key with what its holder has to send. This is the only time that it is shown."""

    example: ClassVar[Example] = Key.example | {
        "secret": "lk_door_Vq3zTq9bZ0mJ6cXyqk1o7sJ8b2nPzq4wRrT5uYh6eLk",
        "aws_access_key_id": None,
        "aws_secret_access_key": None,
    }

    secret: str = Field(description="The whole key, as it goes into `Authorization: Bearer` or `x-api-key`.")
    aws_access_key_id: str | None = Field(description="For AWS's clients, where the key was made for them.")
    aws_secret_access_key: str | None = Field(description="The same.")


class OwnKey(Wire):
    """What the key of the request may do, and where."""

    example: ClassVar[Example] = {"id": "door", "scopes": ["recognize"], "galleries": ["staff"]}

    id: str = Field(description="`admin.key` is the data folder's own.")
    scopes: list[ScopeName] = Field(description="As the key was given them; `admin` implies all.")
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")


class KeyPage(Wire):
    example: ClassVar[Example] = {"keys": [Key.example], "next_cursor": None}
    keys: list[Key]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class AuditParams(PageParams):
    """`since` is included, `until` is not; ids match exactly."""

    key: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only what this key did.")
    operation: str | None = Field(default=None, max_length=64, description="Only this operation, e.g. `enroll`.")
    gallery: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only about this gallery.")
    subject: str | None = Field(default=None, max_length=MAX_ID_LENGTH, description="Only about this subject.")
    since: Time | None = Field(default=None, description="Only from this time on.", examples=[TIME])
    until: Time | None = Field(default=None, description="Only before this time.", examples=[TIME])
    order: Literal["newest", "oldest"] = Field(default="newest", description="Which entries come first.")


class AuditEntry(Wire):
    """Who did what, when, to whom, and how it went."""

    example: ClassVar[Example] = {
        "at": TIME,
        "key": "door",
        "operation": "identify",
        "gallery": "staff",
        "subject": None,
        "target": None,
        "status": 200,
        "request_id": "4f1d8f0c2b7e4c4f8a55f3b1f0e7d9aa",
    }

    at: datetime
    key: str | None = Field(description="The key's id; `admin.key` is the data folder's own; null: no key of ours.")
    operation: str
    gallery: str | None
    subject: str | None
    target: str | None = Field(description="The id of the face or key it was about.")
    status: int | None = Field(
        description="The HTTP status of the answer; 499: the caller left before it; null: begun, outcome unknown."
    )
    request_id: str


class AuditPage(Wire):
    example: ClassVar[Example] = {"entries": [AuditEntry.example], "next_cursor": None}
    entries: list[AuditEntry]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")


class ErasedSubject(Wire):
    """Which subject: known to who knows its id, and to nobody else."""

    salt: str
    digest: str = Field(description="SHA-256, hexadecimal, of the compact JSON list of salt, gallery and subject id.")


class ErasedCounts(Wire):
    faces: int = Field(ge=0)
    templates: int = Field(ge=0)
    crops: int = Field(ge=0)


class Cleared(Wire):
    """What was done to everything on disk that could have held them."""

    tables: str = Field(description="`overwritten` (SQLite), `vacuumed` or `rewritten` (PostgreSQL).")
    write_ahead_log: str
    index_copies: str = Field(description="Index snapshots, or the files of Milvus.")


class Signature(Wire):
    """Over everything else in the document: UTF-8 JSON with sorted keys and without white space."""

    algorithm: Literal["Ed25519"]
    key_id: str
    public_key: str = Field(description="Base64; to be compared with one that was kept before.")
    value: str = Field(description="Base64.")


class Receipt(Wire):
    """What was erased, when, and what that means, signed with the server's key."""

    example: ClassVar[Example] = {
        "format": 1,
        "id": "0f5c1c2bb2dd4d0aa6a1e9b0c7c3de51",
        "gallery": "staff",
        "subject": {
            "salt": "9b0d0f3f5a0e4d6b8f7c6a5b4c3d2e1f",
            "digest": "3f1c7a52c4a1a3b7d9e8f0b1c2d3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b",
        },
        "reason": "asked",
        "erased_at": TIME,
        "erased": {"faces": 2, "templates": 2, "crops": 2},
        "cleared": {"tables": "overwritten", "write_ahead_log": "emptied", "index_copies": "removed"},
        "complete": True,
        "completed_at": TIME,
        "not_reached": ["backups, exports and other copies made before"],
        "signature": {
            "algorithm": "Ed25519",
            "key_id": "21fe31dfa154a261",
            "public_key": PUBLIC_KEY,
            "value": "bXktc2lnbmF0dXJlLWlzLTY0LWJ5dGVzLW9mLUVkMjU1MTktb3Zlci10aGUtZG9jdW1lbnQtLi4uLi4uLi4uLg==",
        },
    }

    format: Literal[1]
    id: str
    gallery: str
    subject: ErasedSubject
    reason: Literal["asked", "expired"]
    erased_at: str = Field(description="From then on nobody is answered with the subject.")
    erased: ErasedCounts
    cleared: Cleared
    complete: bool = Field(
        description="Whether all of `cleared` was done at `completed_at`; else it follows by itself."
    )
    completed_at: str
    not_reached: list[str] = Field(description="What the server can't clear.")
    signature: Signature


class ReceiptPage(Wire):
    example: ClassVar[Example] = {"receipts": [Receipt.example], "next_cursor": None}
    receipts: list[Receipt]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last.")
