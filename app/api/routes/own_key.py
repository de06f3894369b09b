"""What the key of the request itself allows."""

from __future__ import annotations

from fastapi import APIRouter

from app.api import openapi, schemas
from app.api.service import GrantDep

router = APIRouter(prefix="/v1/key", tags=["access"])


@router.get(
    "",
    summary="What may this key do?",
    responses=openapi.answer(schemas.OwnKey) | openapi.call_errors(),
)
async def show_own_key(grant: GrantDep) -> schemas.OwnKey:
    """The id, scopes and galleries of the key that the request came with, so that a program can offer what it may do
    and leave out the rest. Any key will do."""
    return schemas.OwnKey(
        id=grant.key_id,
        scopes=sorted(scope.value for scope in grant.scopes),
        galleries=None if grant.galleries is None else sorted(grant.galleries),
    )
