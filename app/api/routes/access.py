"""Access: API keys, for unrestricted `admin` keys; the audit log; receipts of erasures."""

from __future__ import annotations

import secrets
from collections.abc import Set
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from starlette.types import Receive
from starlette.types import Scope as RequestScope

from app.access.audit import AuditEntry, AuditFilter, AuditLog, fit_id
from app.access.grants import Grant, Scope
from app.access.keys import Key, Keys, KeyTerms, NewKey, access_key_of
from app.access.sign_in import Invitations, Sessions, SignInCodes
from app.api import schemas
from app.api.auth import key_of, require_scope, session_cookie
from app.api.components import Components, KeyId, ReceiptId
from app.api.operation import CURSOR, NO_KEY
from app.api.route import Router, operations_of, respond
from app.api.wire import OwnFormat, address_of
from app.gallery.erasure import Erasures

router = Router("access")

SESSION = "/v1/session"
KEYS = "/v1/keys"
KEY = f"{KEYS}/{{key}}"
KEY_ID_BYTES = 6
"""Random bytes of an id that the server chooses."""


class ByCode(OwnFormat):
    """Takes a sign-in code in the place of a key."""

    takes_keys = False

    async def authenticate(
        self, scope: RequestScope, receive: Receive, components: Components
    ) -> tuple[Grant, Receive]:
        """Return what the key of the code allows. A wrong code counts as a wrong key of the address."""
        code, address = key_of(scope), address_of(scope)
        codes = components.invitations if code.startswith(Invitations.prefix) else components.codes
        key = await components.guard.attempt(lambda: codes.spend(code), address)
        scope["signed_in_key"] = key
        return await components.guard.check(key, address), receive


@router.operation("GET", "/v1/key", scope=None)
async def show_own_key(grant: Grant) -> schemas.OwnKey:
    """Show what this key may do.

    The id, scopes and galleries of the request's own key, so that a program can offer only what the key allows. Any key
    may call this.
    """
    return _own(grant)


@router.operation("POST", "/v1/sign-in-codes", scope=None, changes=True, status=201)
def create_sign_in_code(
    request: Request,
    codes: SignInCodes,
    invitations: Invitations,
    query: Annotated[schemas.SignInCodeParams, Query()],
) -> schemas.SignInCode:
    """Make a sign-in code.

    The page's address with `#code=` and the code behind it is a link that signs in with the request's own key: once,
    within a minute, or within a day if it is to be sent to somebody. What a browser keeps of it in its history is of
    no use afterwards.
    """
    made = (invitations if query.valid == "day" else codes).make(key_of(request.scope))
    return schemas.SignInCode.of(made, code=made.text)


@router.operation("POST", "/v1/sign-in", scope=None, changes=True, codes=("wrong_sign_in_code",), wire=ByCode())
async def sign_in(request: Request, grant: Grant) -> schemas.SignedIn:
    """Exchange a sign-in code for its key.

    Send the code where other operations take a key. It works once; a wrong code counts as a wrong key of the address.
    """
    return schemas.SignedIn(**dict(_own(grant)), secret=request.scope["signed_in_key"])


@router.operation(
    "POST", SESSION, scope=None, answer=schemas.Session, changes=True, status=201, codes=("sessions_not_allowed",)
)
def begin_session(request: Request, sessions: Sessions) -> Response:
    """Stay signed in.

    Has the browser keep a session of the request's own key: a cookie that no script can read. With it and the header
    `x-likeness-session`, requests of the page need no key. It ends after `LIKENESS_SESSION_DAYS`, with its key, or by
    signing out.
    """
    made = sessions.make(key_of(request.scope))
    return _keeping(request, respond(schemas.Session.of(made), 201), made.text, int(sessions.valid_s))


@router.operation("DELETE", SESSION, scope=None, changes=True, status=204, codes=("session_ended",))
def end_session(request: Request, sessions: Sessions) -> Response:
    """Sign out.

    Ends the session that the request came with, and has the browser forget it.
    """
    if session := request.scope.get("session"):
        sessions.end(session)
    return _keeping(request, respond(None, 204), "", 0)


def _keeping(request: Request, response: Response, session: str, seconds: int) -> Response:
    """Have the browser keep the session for so long."""
    response.headers["set-cookie"] = session_cookie(session, seconds, secure=request.url.scheme == "https")
    return response


@router.operation("GET", KEYS, scope=Scope.ADMIN, unrestricted=True, codes=CURSOR)
def list_keys(keys: Keys, query: Annotated[schemas.PageParams, Query()]) -> schemas.KeyPage:
    """List the keys.

    All keys, revoked ones too, in the order of their creation, page by page; never their secrets.
    """
    page = keys.keys(query.cursor, query.limit)
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
def create_key(grant: Grant, keys: Keys, entry: AuditEntry, asked: schemas.KeyCreate) -> schemas.NewKey:
    """Create a key.

    The `secret` is in this answer and never shown again: the server keeps only its hash. With `aws` it also keeps the
    secret, sealed with the data folder's `vault.key`, because checking a signature needs it. Only a key with
    `templates` gives that scope.
    """
    _require_templates(grant, frozenset(asked.scopes))
    key_id = asked.id if asked.id is not None else secrets.token_hex(KEY_ID_BYTES)
    entry.target = fit_id(key_id)
    terms = KeyTerms(
        id=key_id,
        scopes=frozenset(Scope(scope) for scope in asked.scopes),
        name=asked.name,
        galleries=None if asked.galleries is None else frozenset(asked.galleries),
        rate=asked.rate,
        expires_at=asked.expires_at,
    )
    return _new_answer(keys.create(terms, signs=asked.aws))


@router.operation("GET", KEY, scope=Scope.ADMIN, name="show_key", unrestricted=True, codes=NO_KEY)
def get_key(keys: Keys, key: KeyId) -> schemas.Key:
    """Show a key.

    What the key allows, and whether it was revoked; never its secret.
    """
    return _answer(keys.key(key))


@router.operation(
    "POST", f"{KEY}/rotate", scope=Scope.ADMIN, changes=True, unrestricted=True, codes=(*NO_KEY, "key_revoked")
)
def rotate_key(grant: Grant, keys: Keys, key: KeyId, asked: schemas.KeyRotate) -> schemas.NewKey:
    """Give a key a new secret.

    The new `secret` is in this answer and never shown again. The previous one works for `grace_seconds` more, older
    ones no longer. A key with `templates` is needed for one that has it.
    """
    _require_templates(grant, keys.key(key).scopes)
    return _new_answer(keys.rotate(key, asked.grace_seconds))


@router.operation("DELETE", KEY, scope=Scope.ADMIN, changes=True, unrestricted=True, codes=NO_KEY)
def revoke_key(keys: Keys, key: KeyId) -> None:
    """Revoke a key.

    Ends the key for good: at once in this process, within a second in others. It stays listed, and its id stays taken.
    """
    keys.revoke(key)


def _require_templates(grant: Grant, scopes: Set[str]) -> None:
    if Scope.TEMPLATES in scopes:
        require_scope(grant, Scope.TEMPLATES)


def _own(grant: Grant) -> schemas.OwnKey:
    return schemas.OwnKey(
        id=grant.key_id,
        scopes=sorted(scope.value for scope in grant.scopes),
        galleries=None if grant.galleries is None else sorted(grant.galleries),
    )


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
    """Return the fields that differ from the key's own."""
    return {
        "scopes": sorted(key.scopes),
        "galleries": None if key.galleries is None else sorted(key.galleries),
        "old_secret_until": key.old_until,
        "declared": key.declared is not None,
    }


RECEIPTS = "/v1/receipts"


@router.operation("GET", "/v1/audit", scope=Scope.ADMIN, unrestricted=True, codes=CURSOR)
def read_audit(request: Request, audit: AuditLog, query: Annotated[schemas.AuditParams, Query()]) -> schemas.AuditPage:
    """Read the audit log.

    Which key did what, when, to which gallery and subject, with which outcome: ids, never images, vectors or metadata.
    Changes are recorded before they begin; everything else appears within a second.
    """
    wanted = AuditFilter(
        key=query.key,
        operation=query.operation,
        gallery=query.gallery,
        subject=query.subject,
        since=query.since,
        until=query.until,
        without=_reading(request.app) if query.changes else frozenset(),
    )
    newest_first = query.order == "newest"
    page = audit.store.entries(wanted, query.cursor, query.limit, newest_first=newest_first)
    return schemas.AuditPage.of(page, entries=page.items)


@router.operation("GET", RECEIPTS, scope=Scope.ADMIN, answer=schemas.ReceiptPage, unrestricted=True, codes=CURSOR)
def list_receipts(erasures: Erasures, query: Annotated[schemas.PageParams, Query()]) -> JSONResponse:
    """List the receipts of erasures.

    All complete ones, in the order of the erasures, page by page. They are kept forever.
    """
    page = erasures.receipts(query.cursor, query.limit)
    return JSONResponse({"receipts": list(page.items), "next_cursor": page.next_cursor})


@router.operation(
    "GET",
    f"{RECEIPTS}/{{receipt}}",
    scope=Scope.ADMIN,
    answer=schemas.Receipt,
    unrestricted=True,
    codes=("receipt_not_found",),
)
def show_receipt(erasures: Erasures, receipt: ReceiptId) -> JSONResponse:
    """Show the receipt of an erasure.

    The document as it was signed. Save the answer as a file, and `likeness receipts verify` checks it without a server.
    """
    return JSONResponse(erasures.receipt(receipt))


def _reading(app: FastAPI) -> frozenset[str]:
    """Return the names of the operations that only read; of another API's, too, since they share the names."""
    operations = operations_of(app)
    changing = {operation.name for operation in operations if operation.changes}
    return frozenset(operation.name for operation in operations) - changing
