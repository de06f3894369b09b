"""API keys: created, listed, rotated, revoked, by unrestricted `admin` keys."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import Query, Request

from app.access.audit_store import fit_id
from app.access.grants import Grant, Scope
from app.access.key_store import Key, KeyTerms
from app.access.keys import NewKey, access_key_of
from app.api import endpoints, schemas
from app.api.auth import required_key
from app.api.dependencies import GrantDep, KeyId, ServiceDep, entry_of
from app.api.router import Router
from app.timestamps import utc_text_or_none

router = Router("access")

KEY_ID_BYTES = 6
"""Random bytes of an id that the server chooses."""


@router.handles(endpoints.SHOW_OWN_KEY)
async def show_own_key(grant: GrantDep) -> schemas.OwnKey:
    """Show what this key may do.

    The id, scopes and galleries of the request's own key, so that a program can offer only what the key allows. Any key
    may call this.
    """
    return _own(grant)


@router.handles(endpoints.CREATE_SIGN_IN_CODE)
def create_sign_in_code(request: Request, service: ServiceDep) -> schemas.SignInCode:
    """Make a sign-in code.

    The page's address with `#code=` and the code behind it is a link that signs in with the request's own key: once,
    within a minute. What a browser keeps of it in its history is of no use afterwards.
    """
    key = required_key(request.headers, request.scope["path"])
    made = service.codes.make(key)
    return schemas.SignInCode.of(made, code=made.text)


@router.handles(endpoints.SIGN_IN)
async def sign_in(request: Request, grant: GrantDep) -> schemas.SignedIn:
    """Exchange a sign-in code for its key.

    Send the code where other operations take a key. It works once; a wrong code counts as a wrong key of the address.
    """
    return schemas.SignedIn(**dict(_own(grant)), secret=request.scope["signed_in_key"])


@router.handles(endpoints.LIST_KEYS)
def list_keys(service: ServiceDep, query: Annotated[schemas.PageParams, Query()]) -> schemas.KeyPage:
    """List the keys.

    All keys, revoked ones too, in the order of their creation, page by page; never their secrets.
    """
    page = service.keys.keys(query.cursor, query.limit)
    return schemas.KeyPage(keys=[_answer(key) for key in page.items], next_cursor=page.next_cursor)


@router.handles(endpoints.CREATE_KEY)
async def create_key(request: Request, service: ServiceDep) -> schemas.NewKey:
    """Create a key.

    The `secret` is in this answer and never shown again: the server keeps only its hash. With `aws` it also keeps the
    secret, sealed with the data folder's `vault.key`, because checking a signature needs it.
    """
    asked = await service.read_json(request, schemas.KeyCreate)
    key_id = asked.id if asked.id is not None else secrets.token_hex(KEY_ID_BYTES)
    entry_of(request).target = fit_id(key_id)
    terms = KeyTerms(
        id=key_id,
        scopes=frozenset(Scope(scope) for scope in asked.scopes),
        name=asked.name,
        galleries=None if asked.galleries is None else frozenset(asked.galleries),
        rate=asked.rate,
        expires_at=utc_text_or_none(asked.expires_at),
    )
    return await service.run(lambda: _new_answer(service.keys.create(terms, signs=asked.aws)))


@router.handles(endpoints.SHOW_KEY)
def get_key(service: ServiceDep, key: KeyId) -> schemas.Key:
    """Show a key.

    What the key allows, and whether it was revoked; never its secret.
    """
    return _answer(service.keys.key(key))


@router.handles(endpoints.ROTATE_KEY)
async def rotate_key(request: Request, service: ServiceDep, key: KeyId) -> schemas.NewKey:
    """Give a key a new secret.

    The new `secret` is in this answer and never shown again. The previous one works for `grace_seconds` more, older
    ones no longer.
    """
    asked = await service.read_json(request, schemas.KeyRotate)
    return await service.run(lambda: _new_answer(service.keys.rotate(key, asked.grace_seconds)))


@router.handles(endpoints.REVOKE_KEY)
def revoke_key(service: ServiceDep, key: KeyId) -> None:
    """Revoke a key.

    Ends the key for good: at once in this process, within a second in others. It stays listed, and its id stays taken.
    """
    service.keys.revoke(key)


def _own(grant: Grant) -> schemas.OwnKey:
    return schemas.OwnKey(
        id=grant.key_id,
        scopes=sorted(scope.value for scope in grant.scopes),
        galleries=None if grant.galleries is None else sorted(grant.galleries),
    )


def _answer(key: Key) -> schemas.Key:
    return schemas.Key.of(key, key.terms, **_shown(key))


def _new_answer(made: NewKey) -> schemas.NewKey:
    return schemas.NewKey.of(
        made.key,
        made.key.terms,
        **_shown(made.key),
        secret=made.token,
        aws_access_key_id=access_key_of(made.key.terms.id) if made.signs else None,
        aws_secret_access_key=made.secret if made.signs else None,
    )


def _shown(key: Key) -> dict[str, object]:
    """Return the fields that differ from the key's own."""
    return {
        "scopes": sorted(key.terms.scopes),
        "galleries": None if key.terms.galleries is None else sorted(key.terms.galleries),
        "old_secret_until": key.old_until,
        "declared": key.declared is not None,
    }
