"""Show a request's own key."""

from __future__ import annotations

from app.access.grants import Grant
from app.api import schemas
from app.api.route import Router

router = Router("access")


@router.operation("GET", "/v1/key", scope=None)
async def show_own_key(grant: Grant) -> schemas.OwnKey:
    """Show what this key may do.

    Answers the id, scopes and galleries of the request's own key, so that a program can offer only what the key allows.
    Any key may call this.
    """
    return own_key(grant)


def own_key(grant: Grant) -> schemas.OwnKey:
    return schemas.OwnKey(
        id=grant.key_id,
        scopes=sorted(grant.scopes),
        galleries=None if grant.galleries is None else sorted(grant.galleries),
    )
