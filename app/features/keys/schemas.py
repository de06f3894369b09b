"""Requests and answers about keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, TypeAlias

from pydantic import Field

from app.api.schemas.base import MAX_PAGE, Example, Id, Name, NextCursor, Params, ScopeWord, Time, Wire

KEY_ID_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
MAX_GRACE_S = 30 * 24 * 3600
KeyIdText: TypeAlias = Annotated[
    str,
    Field(
        pattern=KEY_ID_PATTERN,
        max_length=63,
        description="A key's id: 1 to 63 of a-z, 0-9 and inner hyphens.",
        examples=["door"],
    ),
]
RateText: TypeAlias = Annotated[
    str,
    Field(
        max_length=32,
        description="Requests per second or minute, and optionally a burst: `10/s`, `600/m:20`, or `unlimited`.",
        examples=["10/s"],
    ),
]


class KeyCreate(Params):
    """The terms of a new key."""

    example: ClassVar[Example] = {"id": "door", "scopes": ["recognize"], "galleries": ["staff"], "rate": "10/s"}

    id: KeyIdText | None = Field(default=None, description="By default the server chooses one.")
    name: Name | None = Field(default=None, description="The key's owner or purpose; free text.")
    scopes: list[ScopeWord] = Field(
        min_length=1, description="What the key may do; `admin` includes all scopes but `templates`."
    )
    galleries: list[Id] | None = Field(
        default=None, min_length=1, max_length=MAX_PAGE, description="The only galleries it may see; by default all."
    )
    expires_at: Time | None = Field(default=None, description="When it stops working; by default never.")
    rate: RateText | None = Field(default=None, description="The key's rate limit; by default the server's.")
    aws: bool = Field(
        default=False,
        description="Whether its holder may also sign requests, as AWS's clients do. The secret is then stored, "
        "encrypted.",
    )


class KeyRotate(Params):
    example: ClassVar[Example] = {"grace_seconds": 3600}
    grace_seconds: int = Field(
        default=0, ge=0, le=MAX_GRACE_S, description="Seconds for which the previous secret keeps working too."
    )


class Key(Wire):
    """A key, without its secret."""

    id: str = Field(examples=["door"])
    name: str | None = Field(examples=["The front door"])
    scopes: list[ScopeWord]
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all galleries.")
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
    aws_access_key_id: str | None = Field(
        description="The access key id for AWS's clients, if the key was created with `aws`."
    )
    aws_secret_access_key: str | None = Field(
        description="The secret for AWS's clients, if the key was created with `aws`."
    )


class KeyPage(Wire):
    keys: list[Key]
    next_cursor: NextCursor
