"""Wire formats: that of this service's own REST interface, or another service's in a feature.

A wire format says how clients send a key and what an error looks like. Everything else is the same for all: keys and
scopes, limits, the audit log, the operations.

All errors of the REST interface have the same shape: ``{"error": {"code", "message", "details"}, "request_id"}``. Only
this module turns exceptions into answers.
"""

from __future__ import annotations

import base64
import binascii
import errno
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.access.keys import address_group
from app.api.components import Components
from app.api.schemas import ErrorAnswer, Problem
from app.concurrency.overload import Why
from app.error_codes import BY_CODE
from app.errors import InvalidInput, LikenessError, NotFound, Overloaded, Unusable
from app.logs import LOGGER

BROWSER_PATHS = ("/docs", "/openapi.json")
"""Paths that also accept the key as the password of HTTP Basic, so that a browser can open them. Others don't, since
browsers send Basic credentials with requests that other sites make."""
RETRY_AFTER_S = 1.0
"""Seconds in the header `Retry-After` of an error that states none."""
CLIENT_GONE = 499
"""The status of a request whose client left before the answer, as in nginx."""

log = logging.getLogger(LOGGER)


@dataclass(frozen=True, slots=True)
class ProblemAnswer:
    """An error as HTTP: status, extra headers and JSON body."""

    status: int
    headers: dict[str, str]
    body: ErrorAnswer


def answer_problem(error: LikenessError, request_id: str) -> ProblemAnswer:
    """Return the HTTP answer to an error; a code that is not in the table is an internal error (500)."""
    kind = BY_CODE.get(error.code) or BY_CODE["unusable" if isinstance(error, Unusable) else "internal_error"]
    headers = {}
    if isinstance(error, Overloaded) or kind.status == 429:
        wait_s = error.details.get("retry_after")
        known_s = wait_s if isinstance(wait_s, (int, float)) and math.isfinite(wait_s) else 0
        headers["retry-after"] = str(math.ceil(max(RETRY_AFTER_S, known_s)))
    if kind.status == 401:
        headers["www-authenticate"] = 'Bearer realm="Likeness"'
    known = kind.code == error.code
    problem = Problem(
        code=kind.code,
        message=error.message if known else kind.meaning,
        details=plain(dict(error.details)) if known else {},
    )
    return ProblemAnswer(kind.status, headers, ErrorAnswer(error=problem, request_id=request_id))


def plain(value: Any) -> Any:
    """Return ``value`` in JSON's types; NaN becomes null, and bytes become their length."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes"
    return str(value)


class WireFormat(ABC):
    """How an interface sends keys and errors. In methods, ``scope["path"]`` is the path as sent, percent-encoded."""

    name: ClassVar[str | None] = None
    """The other service's name; None: this is our own format."""
    security: ClassVar[Sequence[str]]
    """Names, in the OpenAPI document, of the ways to send a key."""
    takes_keys: ClassVar[bool] = True
    """Whether callers send a key; if so, the document says which scope it needs."""
    security_schemes: ClassVar[Mapping[str, Any]] = {}
    """The security schemes that only this format has, for the document."""
    sent_headers: ClassVar[Sequence[str]] = ()
    answer_headers: ClassVar[Sequence[str]] = ()
    """Headers that pages of other origins may send and read, besides those of our own format."""
    description: ClassVar[str] = ""
    """Describes its operations in the document."""
    strict: ClassVar[bool] = False
    """Whether unknown and repeated parameters in the query are errors."""
    forms: ClassVar[bool] = True
    """Whether images may be the files of a form."""

    @abstractmethod
    def speaks(self, scope: Scope) -> bool:
        """Return whether a request without a route is in this format."""

    @abstractmethod
    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        """Return the error in this format."""

    async def authenticate(self, scope: Scope, receive: Receive, components: Components) -> tuple[Grant, Receive]:
        """Return what the request's key allows, and the function to read the body with.

        The key is ``scope["key"]`` from then on. Only requests in our own format may come in a session.
        Raises InvalidInput (``missing_key``), and what `Guard.check` raises.
        """
        key = given_key(Headers(scope=scope), scope["path"])
        for session_key in components.session_keys if key is None and self.name is None else ():
            key = key or await session_key(scope)
        if key is None:
            raise missing_key()
        scope["key"] = key
        return await components.guard.check(key, scope["address"]), receive


class OwnFormat(WireFormat):
    """This service's own REST interface."""

    security = ("bearer", "api_key")
    strict = True

    def speaks(self, scope: Scope) -> bool:  # noqa: ARG002 (every request that is in no other format)
        return True

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:
        problem = answer_problem(error, request_id)
        if problem.status == 401 and is_browser_path(path):
            problem.headers["www-authenticate"] = 'Basic realm="Likeness"'
        return Response(problem.body.model_dump_json(), problem.status, problem.headers, "application/json")


OWN_FORMAT = OwnFormat()


def missing_key() -> InvalidInput:
    return InvalidInput("Send the key: `Authorization: Bearer KEY` or `x-api-key: KEY`.", code="missing_key")


def given_key(headers: Headers, path: str) -> str | None:
    """Return the key that a request sends."""
    if key := headers.get("x-api-key"):
        return key
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and rest:
        return rest.strip()
    if scheme.lower() == "basic" and is_browser_path(path):
        try:
            return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return None


def is_browser_path(path: str) -> bool:
    """Return whether a browser may sign in here by HTTP Basic."""
    return any(path == open_path or path.startswith(open_path + "/") for open_path in BROWSER_PATHS)


def not_ready() -> LikenessError:
    """Return the error of a request before the application has started or after it has stopped."""
    return LikenessError("The server is starting or stopping.", code="not_ready")


def callers_of(key_id: str, address: str) -> tuple[str, str]:
    """Return the callers for whom a request is counted: its key and its address."""
    return key_id, f"@{address_group(address)}"


def expected(error: Exception, request_id: str) -> LikenessError:
    """Return the error as a LikenessError; log an unexpected one."""
    if isinstance(error, LikenessError):
        return error
    fields = {"fields": {"request_id": request_id}}
    log.error("internal error", exc_info=error, extra=fields)
    if isinstance(error, MemoryError):
        return Why.MEMORY.error()
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return Why.CONNECTIONS.error()
    return LikenessError("Something went wrong; the log has it under this request id.")


def error_answer(error: LikenessError, wire: WireFormat, scope: Scope) -> Response | None:
    """Return the error as an answer; None if an answer has begun: clients notice that it is cut off."""
    if scope["status"] == CLIENT_GONE:
        return wire.error_response(error, scope["request_id"], scope["path"])
    fields = {"request_id": scope["request_id"], "code": error.code, "error": error.message}
    log.warning("an answer was cut short", extra={"fields": fields})
    return None


def wire_of(scope: Scope) -> WireFormat:
    """Return the wire format of a request without an operation."""
    others: tuple[WireFormat, ...] = scope["app"].state.wires
    return next((wire for wire in others if wire.speaks(scope)), OWN_FORMAT)


def add_error_handlers(app: FastAPI) -> None:
    """Answer Starlette's own refusals as errors of this service."""
    app.add_exception_handler(HTTPException, _refuse_unrouted)


async def _refuse_unrouted(request: Request, error: Exception) -> Response:
    """Refuse a request without a route, but reveal nothing about routes to callers without a key."""
    assert isinstance(error, HTTPException)  # noqa: S101 (registered only for it)
    refusal: LikenessError = InvalidInput(str(error.detail))
    headers: dict[str, str] = dict(error.headers or {})
    if error.status_code == 404:
        refusal = NotFound("There is no such route. /docs shows those that there are; what is switched off has none.")
    elif error.status_code == 405:
        headers["allow"] = ", ".join(_allowed(request.scope))
        refusal = InvalidInput(f"The route takes {headers['allow']}.", code="method_not_allowed")
    if "grant" in request.scope:
        raise refusal
    wire = wire_of(request.scope)
    try:
        if (components := request.app.state.components) is None:
            raise not_ready()
        await wire.authenticate(request.scope, request.receive, components)
    except LikenessError as missing:
        refusal = missing
    response = wire.error_response(refusal, request.scope["request_id"], request.scope["path"])
    response.headers.update(headers)
    return response


def _allowed(scope: Scope) -> list[str]:
    """Return the methods of all routes of the path."""
    found: set[str] = set()
    for route in scope["app"].routes:
        if isinstance(route, Route) and route.matches(scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found | ({"HEAD"} if "GET" in found else set()))
