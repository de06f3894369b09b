"""Access: a request's own key, and what signs a browser in."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request, Response
from starlette.types import Receive
from starlette.types import Scope as RequestScope

from app.access.grants import Grant
from app.access.sign_in import Invitations, Sessions, SignInCodes
from app.api import schemas
from app.api.auth import key_of, session_cookie
from app.api.components import Components
from app.api.route import Router, respond
from app.api.wire import OwnFormat, address_of

router = Router("access")

SESSION = "/v1/session"


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


def _own(grant: Grant) -> schemas.OwnKey:
    return schemas.OwnKey(
        id=grant.key_id,
        scopes=sorted(scope.value for scope in grant.scopes),
        galleries=None if grant.galleries is None else sorted(grant.galleries),
    )
