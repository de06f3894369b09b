"""API keys: made, shown, rotated, revoked, by unrestricted `admin` keys."""

from __future__ import annotations

import secrets
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request

from app.access import records
from app.access.keys import NewKey, access_key_of
from app.api import openapi, schemas
from app.api.service import ServiceDep, entry_of
from app.timestamps import utc_text

router = APIRouter(prefix="/v1/keys", tags=["access"])

MADE_ID_BYTES = 6
KEY_CODES = ("gallery_restricted", "key_not_found")
KeyId = Annotated[
    str, Path(min_length=1, max_length=schemas.MAX_ID_LENGTH, description="The key's id.", examples=["door"])
]


@router.get(
    "",
    summary="List the keys",
    responses=openapi.answer(schemas.KeyPage) | openapi.call_errors("gallery_restricted", "invalid_cursor"),
)
async def list_keys(service: ServiceDep, query: Annotated[schemas.PageParams, Query()]) -> schemas.KeyPage:
    """All keys, revoked ones too, in the order they were made, page by page; never their secrets."""

    def read() -> schemas.KeyPage:
        page = service.keys.keys(query.cursor, query.limit)
        return schemas.KeyPage(keys=[_answer(key) for key in page.items], next_cursor=page.next_cursor)

    return await service.run(read)


@router.post(
    "",
    status_code=201,
    summary="Make a key",
    responses=openapi.answer(schemas.NewKey, 201)
    | openapi.call_errors(
        *openapi.JSON_CODES,
        "gallery_restricted",
        "invalid_key_id",
        "invalid_id",
        "invalid_rate",
        "invalid_expiry",
        "key_exists",
    ),
    openapi_extra=openapi.request_body(schemas.KeyCreate),
)
async def create_key(request: Request, service: ServiceDep) -> schemas.NewKey:
    """Makes a key. Its `secret` is shown in this answer and never again: the server keeps its hash alone. With `aws` it
    keeps the secret too, sealed with the data folder's `vault.key`, since checking a signature takes it."""
    asked = await service.read_json(request, schemas.KeyCreate)
    key_id = asked.id if asked.id is not None else secrets.token_hex(MADE_ID_BYTES)
    entry_of(request).target = records.fit_id(key_id)
    terms = records.KeyTerms(
        id=key_id,
        scopes=frozenset(records.Scope(scope) for scope in asked.scopes),
        name=asked.name,
        galleries=None if asked.galleries is None else frozenset(asked.galleries),
        rate=asked.rate,
        expires_at=None if asked.expires_at is None else utc_text(asked.expires_at),
    )
    return await service.run(lambda: _new_answer(service.keys.create(terms, signs=asked.aws)))


@router.get(
    "/{key}",
    summary="Show a key",
    responses=openapi.answer(schemas.Key) | openapi.call_errors(*KEY_CODES),
)
async def get_key(service: ServiceDep, key: KeyId) -> schemas.Key:
    """What the key allows, and whether it was revoked; never its secret."""
    return await service.run(lambda: _answer(service.keys.key(key)))


@router.post(
    "/{key}/rotate",
    summary="Give a key a new secret",
    responses=openapi.answer(schemas.NewKey) | openapi.call_errors(*openapi.JSON_CODES, *KEY_CODES, "key_revoked"),
    openapi_extra=openapi.request_body(schemas.KeyRotate),
)
async def rotate_key(request: Request, service: ServiceDep, key: KeyId) -> schemas.NewKey:
    """The new `secret` is shown in this answer and never again. The last one works for `grace_seconds` more, older ones
    no longer."""
    asked = await service.read_json(request, schemas.KeyRotate)
    return await service.run(lambda: _new_answer(service.keys.rotate(key, asked.grace_seconds)))


@router.delete(
    "/{key}",
    status_code=204,
    summary="Revoke a key",
    responses=openapi.call_errors(*KEY_CODES),
)
async def revoke_key(service: ServiceDep, key: KeyId) -> None:
    """Ends the key for good: at once in this process, within a second in others. It stays listed, and its id taken."""
    await service.run(lambda: service.keys.revoke(key))


def _answer(key: records.Key) -> schemas.Key:
    return schemas.Key.model_validate(_fields(key))


def _new_answer(made: NewKey) -> schemas.NewKey:
    signing = {"aws_access_key_id": access_key_of(made.key.terms.id), "aws_secret_access_key": made.secret}
    shown = signing if made.signs else dict.fromkeys(signing)
    return schemas.NewKey.model_validate(_fields(made.key) | {"secret": made.token} | shown)


def _fields(key: records.Key) -> dict[str, object]:
    terms = key.terms
    return {
        "id": terms.id,
        "name": terms.name,
        "scopes": sorted(terms.scopes),
        "galleries": None if terms.galleries is None else sorted(terms.galleries),
        "rate": terms.rate,
        "created_at": key.created_at,
        "expires_at": terms.expires_at,
        "rotated_at": key.rotated_at,
        "revoked_at": key.revoked_at,
        "old_secret_until": key.old_until,
        "declared": key.declared is not None,
    }
