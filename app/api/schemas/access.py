"""A request's own key."""

from __future__ import annotations

from pydantic import Field

from app.api.schemas.base import ScopeWord, Wire


class OwnKey(Wire):
    """The scopes and galleries of the request's key."""

    id: str = Field(examples=["door"], description="`admin.key` is the data folder's key, which may do everything.")
    scopes: list[ScopeWord] = Field(description="The key's scopes; `admin` implies all but `templates`.")
    galleries: list[str] | None = Field(description="The only galleries it may see; null: all of them.")
