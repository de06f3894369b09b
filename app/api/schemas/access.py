"""A request's own key, and what signs a browser in."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from app.api.schemas.base import (
    Params,
    ScopeName,
    Wire,
)

SIGN_IN_LINK = "{url}/#code={code}"
"""Signs a browser in. Browsers send nothing behind the `#`, but keep it in their history."""


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
