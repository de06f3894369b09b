"""The REST operations on sign-in codes, and on sessions of browsers that stay signed in."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Receive
from starlette.types import Scope as RequestScope

from app.access.audit import AuditEntry
from app.access.grants import Grant, Scope
from app.api.components import Components
from app.api.feature import Feature, Part, PeriodicTask
from app.api.route import Router, respond
from app.api.routes.access import own_key
from app.api.routes.galleries import GalleryPage, list_galleries
from app.api.schemas import OwnKey
from app.api.schemas.base import MAX_PAGE, PageParams, Params, Wire
from app.api.wire import OwnFormat, given_key, missing_key
from app.features.sign_in.codes import Invitations, Sessions, SignInCodes
from app.features.sign_in.links import SIGN_IN_LINK
from app.gallery.store import Store

router = Router("access")

SESSION_COOKIE = "likeness_session"
SESSION_HEADER = "x-likeness-session"
SAME_ORIGIN = "same-origin"
PRUNE_S = 600.0
"""Seconds between deletions of expired codes and sessions."""
SESSION = "/v1/session"


class SignInCodeParams(Params):
    valid: Literal["minute", "day"] = Field(
        default="minute",
        description="How long the code works: `minute` to open the link now, `day` to send it to somebody.",
    )


class SignInCode(Wire):
    """A code that signs a browser in with the request's key, once and until it expires."""

    code: str = Field(description="The link is the page's address with `#code=` and this code appended.")
    expires_at: datetime


class Session(Wire):
    """A browser that stays signed in."""

    expires_at: datetime


class SignedIn(OwnKey):
    """The key that a sign-in code stood for."""

    secret: str = Field(description="The whole key, to send in `Authorization: Bearer` or `x-api-key`.")
    gallery_page: GalleryPage | None = Field(
        default=None,
        description="The first page of the galleries, as `GET /v1/galleries` answers it, since the page shows "
        "them next; null for a key without the scope `read`.",
    )


class ByCode(OwnFormat):
    """The format of a request that has a sign-in code in place of a key."""

    takes_keys = False

    async def authenticate(
        self, scope: RequestScope, receive: Receive, components: Components
    ) -> tuple[Grant, Receive]:
        """Return what the code's key may do. The code is spent later. A wrong code counts as a wrong key."""
        code, address = given_key(Headers(scope=scope), scope["path"]), scope["address"]
        if code is None:
            raise missing_key()
        scope["key"] = code
        codes = _codes_of(code, components)
        key = await components.guard.attempt(lambda: codes.key(code), address)
        return await components.guard.check(key, address), receive


def _codes_of(code: str, components: Components) -> SignInCodes:
    kind: SignInCodes = components.parts["invitations" if code.startswith(Invitations.prefix) else "codes"]
    return kind


@router.operation("POST", "/v1/sign-in-codes", scope=None, changes=True, one_commit=True, status=201)
def create_sign_in_code(
    request: Request,
    entry: AuditEntry,
    codes: SignInCodes,
    invitations: Invitations,
    query: Annotated[SignInCodeParams, Query()],
) -> SignInCode:
    """Make a sign-in code.

    The page's address with `#code=` and the code appended is a link that signs a browser in with the request's own key.
    It works once, within a minute, or within a day if it is meant for somebody else. So the link that stays in a
    browser's history is useless.
    """
    made = (invitations if query.valid == "day" else codes).make(request.scope["key"], entry)
    return SignInCode.of(made, code=made.text)


@router.operation(
    "POST",
    "/v1/sign-in",
    scope=None,
    changes=True,
    one_commit=True,
    codes=("wrong_sign_in_code",),
    wire=ByCode(),
)
def sign_in(request: Request, grant: Grant, entry: AuditEntry, components: Components, store: Store) -> SignedIn:
    """Exchange a sign-in code for its key.

    Send the code in place of a key. It works once; a wrong code counts as a wrong key from the client's address.
    """
    code = request.scope["key"]
    page = list_galleries(store, grant, PageParams(limit=MAX_PAGE)) if Scope.READ in grant.allowed else None
    secret = _codes_of(code, components).spend(code, entry)  # comes last, since the code can't be used again
    return SignedIn(**dict(own_key(grant)), secret=secret, gallery_page=page)


@router.operation(
    "POST",
    SESSION,
    scope=None,
    answer=Session,
    changes=True,
    one_commit=True,
    status=201,
    codes=("sessions_not_allowed",),
)
def begin_session(request: Request, entry: AuditEntry, sessions: Sessions) -> Response:
    """Stay signed in.

    Gives the browser a session of the request's own key, in a cookie that scripts can't read. With this cookie and the
    header `x-likeness-session`, the page's requests need no key. The session ends after `LIKENESS_SESSION_DAYS`, when
    its key ends, or by signing out.
    """
    made = sessions.make(request.scope["key"], entry)
    return _keeping(request, respond(Session.of(made), 201), made.text, int(sessions.valid_s))


@router.operation("DELETE", SESSION, scope=None, changes=True, status=204, codes=("session_ended",))
def end_session(request: Request, sessions: Sessions) -> Response:
    """Sign out.

    Ends the request's session, and deletes its cookie in the browser.
    """
    if session := request.scope.get("session"):
        sessions.end(session)
    return _keeping(request, respond(None, 204), "", 0)


def _keeping(request: Request, response: Response, session: str, seconds: int) -> Response:
    """Add the cookie that makes the browser keep the session for this many seconds; return the response."""
    response.headers["set-cookie"] = session_cookie(session, seconds, secure=request.url.scheme == "https")
    return response


def session_of(headers: Headers) -> str | None:
    """Return the browser's session, if the request is the page's own.

    The cookie alone is not enough, since other sites' pages can make a browser send it. But they can't set the header,
    nor make the browser say that the request has the same origin.
    """
    if SESSION_HEADER not in headers or headers.get("sec-fetch-site", SAME_ORIGIN) != SAME_ORIGIN:
        return None
    return cookie_parser(headers.get("cookie", "")).get(SESSION_COOKIE) or None


def session_cookie(session: str, max_age_s: int, *, secure: bool) -> str:
    """Return the value of the header that stores the session in a browser, where scripts can't read it; with 0 seconds,
    of the header that deletes it."""
    text = f"{SESSION_COOKIE}={session}; Max-Age={max_age_s}; Path=/v1; HttpOnly; SameSite=Strict"
    return f"{text}; Secure" if secure else text


def _start(core: Components, session_days: float) -> Part:
    # `core.clock` can't be set back, so people stay signed in, and codes don't live longer, if the machine's clock is.
    database, sealer, now = core.store.database, core.sealer, core.clock.now
    codes, invitations = SignInCodes(database, sealer, now), Invitations(database, sealer, now)
    sessions = Sessions(database, sealer, session_days, now)

    def link(url: str, key: str) -> str:
        return SIGN_IN_LINK.format(url=url, code=codes.make(key).text)

    async def session_key(scope: RequestScope) -> str | None:
        """Return the key of the request's session, if it has one. Raises InvalidInput (``session_ended``)."""
        session = session_of(Headers(scope=scope))
        if session is None:
            return None
        scope["session"] = session
        return sessions.recall(session) or await core.guard.attempt(lambda: sessions.open(session), scope["address"])

    prunes = {"sign-in codes": codes.prune, "invitations": invitations.prune, "sessions": sessions.prune}
    return Part(
        {"codes": codes, "invitations": invitations, "sessions": sessions, "sign_in_link": link},
        tasks=[PeriodicTask(PRUNE_S, name, prune, at_once=True) for name, prune in prunes.items()],
        session_keys=[session_key],
    )


FEATURE = Feature([router], _start, settings=("session_days",))
