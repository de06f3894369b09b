"""The REST operations on API keys, for `admin` keys that are not restricted to galleries."""

from __future__ import annotations

import secrets
from collections.abc import Set
from typing import Annotated, TypeAlias

from fastapi import Query

from app.access.audit import AuditEntry, fit_id
from app.access.grants import Grant, Scope
from app.access.keys import ApiKeys, Key, KeyTerms
from app.api.components import path_id
from app.api.feature import Feature
from app.api.operation import CURSOR
from app.api.route import Router
from app.api.schemas import PageParams
from app.features import issued_keys
from app.features.access_keys import access_key_of
from app.features.issued_keys import NewKey
from app.features.keys import schemas
from app.features.keys.schemas import KEY_ID_PATTERN

router = Router("access")

NO_KEY = ("key_not_found",)

KEYS = "/v1/keys"
KEY = f"{KEYS}/{{key}}"
KeyId: TypeAlias = Annotated[str, path_id("The key's id.", "door", KEY_ID_PATTERN)]
KEY_ID_BYTES = 6
"""Random bytes of an id that the server chooses."""


@router.operation("GET", KEYS, scope=Scope.ADMIN, unrestricted=True, codes=CURSOR)
def list_keys(keys: ApiKeys, query: Annotated[PageParams, Query()]) -> schemas.KeyPage:
    """List the keys.

    Lists all keys, including revoked ones, in the order of their creation, page by page. Secrets are never shown.
    """
    page = issued_keys.list_keys(keys, query.cursor, query.limit)
    return schemas.KeyPage.of(page, keys=[_answer(key) for key in page.items])


@router.operation(
    "POST",
    KEYS,
    scope=Scope.ADMIN,
    changes=True,
    unrestricted=True,
    status=201,
    codes=("invalid_key_id", "invalid_id", "invalid_rate", "invalid_expiry", "key_exists"),
)
def create_key(grant: Grant, keys: ApiKeys, entry: AuditEntry, asked: schemas.KeyCreate) -> schemas.NewKey:
    """Create a key.

    The `secret` is in this answer and never shown again: the server stores only its hash. With `aws` it also stores the
    secret, encrypted with the data folder's `vault.key`, since it needs the secret to check signatures. Only a key with
    the scope `templates` can give this scope.
    """
    _require_templates(grant, frozenset(asked.scopes))
    key_id = asked.id if asked.id is not None else secrets.token_hex(KEY_ID_BYTES)
    entry.target = fit_id(key_id)
    terms = KeyTerms(
        id=key_id,
        scopes=frozenset(asked.scopes),
        name=asked.name,
        galleries=None if asked.galleries is None else frozenset(asked.galleries),
        rate=asked.rate,
        expires_at=asked.expires_at,
    )
    return _new_answer(issued_keys.create_key(keys, terms, signs=asked.aws))


@router.operation("GET", KEY, scope=Scope.ADMIN, name="show_key", unrestricted=True, codes=NO_KEY)
def get_key(keys: ApiKeys, key: KeyId) -> schemas.Key:
    """Show a key.

    Answers what the key may do and whether it was revoked, but never its secret.
    """
    return _answer(issued_keys.read_key(keys, key))


@router.operation(
    "POST", f"{KEY}/rotate", scope=Scope.ADMIN, changes=True, unrestricted=True, codes=(*NO_KEY, "key_revoked")
)
def rotate_key(grant: Grant, keys: ApiKeys, key: KeyId, asked: schemas.KeyRotate) -> schemas.NewKey:
    """Give a key a new secret.

    The new `secret` is in this answer and never shown again. The previous secret works for `grace_seconds` more; older
    ones stop working. Only a key with the scope `templates` can rotate a key that has it.
    """
    _require_templates(grant, issued_keys.read_key(keys, key).scopes)
    return _new_answer(issued_keys.rotate_key(keys, key, asked.grace_seconds))


@router.operation("DELETE", KEY, scope=Scope.ADMIN, changes=True, unrestricted=True, codes=NO_KEY)
def revoke_key(keys: ApiKeys, key: KeyId) -> None:
    """Revoke a key.

    Revokes the key for good: at once in this process, within a second in others. The key stays listed, and its id can't
    be used again.
    """
    issued_keys.revoke_key(keys, key)


def _require_templates(grant: Grant, scopes: Set[Scope]) -> None:
    if Scope.TEMPLATES in scopes:
        grant.require(Scope.TEMPLATES)


def _answer(key: Key) -> schemas.Key:
    return schemas.Key.of(key, **_shown(key))


def _new_answer(made: NewKey) -> schemas.NewKey:
    return schemas.NewKey.of(
        made.key,
        **_shown(made.key),
        secret=made.token,
        aws_access_key_id=access_key_of(made.key.id) if made.signs else None,
        aws_secret_access_key=made.secret if made.signs else None,
    )


def _shown(key: Key) -> dict[str, object]:
    """Return the fields of an answer that differ from the record's."""
    return {
        "scopes": sorted(key.scopes),
        "galleries": None if key.galleries is None else sorted(key.galleries),
        "old_secret_until": key.old_until,
        "declared": key.declared is not None,
    }


FEATURE = Feature([router])
