"""What happens around every request, in this order: security headers, request id, log and metrics, authentication,
authorization, the limit of requests in progress, the audit log, and errors as answers."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import ExitStack
from urllib.parse import unquote

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.audit import AuditLog
from app.access.audit_store import AuditEntry, fit_id
from app.access.grants import Grant
from app.api.auth import OPEN_PATHS, authorize, is_page
from app.api.body import invalid_request
from app.api.dependencies import Service, find_service
from app.api.metrics import METHODS, OTHER, Metrics
from app.api.operation import MatchedOperation
from app.api.protocols import callers_of, protocol_of
from app.concurrency.overload import Why
from app.errors import InvalidInput, LikenessError, NotFound, Overloaded
from app.logs import LOGGER

ID_HEADER = "x-request-id"
_ID_NAME = ID_HEADER.encode()
CLIENT_GONE = 499
"""The log's status for a client that left before its answer, as in nginx."""
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = re.compile(r":[0-9]*$")
_ERROR_STATUS = 500
_BAD_KEY = frozenset({"expired_key", "revoked_key"})
_NOT_RECORDED = frozenset({429})
"""A request that was told to try again later did nothing; a flood of them must not become a flood of rows."""

CSP = "content-security-policy"
ANSWER_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""A browser may show an answer and nothing else. Pages have a policy of their own."""
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
CORS_METHODS = ("GET", "POST", "PATCH", "DELETE")
CORS_HEADERS = ("authorization", "x-api-key", "content-type", "x-request-id")
CORS_EXPOSED = ("x-request-id", "retry-after")
PREFLIGHT_S = 600
"""How long a browser may cache which requests it may send."""
_RAW = tuple((name.encode(), value.encode()) for name, value in (HEADERS | {CSP: ANSWER_POLICY}).items())

log = logging.getLogger(LOGGER)


class RequestMiddleware:
    """ASGI middleware around all routes.

    It also makes routes match the path as it was sent, segment by segment: `%2F` within an id is not a separator.
    Therefore path parameters arrive percent-encoded, and `app.api.dependencies` decodes them.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = _request_id(Headers(scope=scope))
        answer = _Answer(send, scope["request_id"])
        start = time.perf_counter()
        try:
            await self._enter(scope, receive, answer)
        finally:
            if answer.record:
                answer.record.leave(answer.status)
            _count_request(scope, answer.status, time.perf_counter() - start)

    async def _enter(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            _keep_encoded(scope)
            _check_host(scope)
            if scope["path"] in OPEN_PATHS or is_page(scope["method"], scope["path"]):
                await self._app(scope, receive, answer)
            else:
                await self._call(scope, receive, answer, find_service(scope["app"].state))
        except LikenessError as error:
            if answer.record:
                answer.record.refuse(error)
            await _problem(scope, error)(scope, receive, answer)
        except ClientDisconnect:
            answer.status = CLIENT_GONE
        except Exception as error:
            log.exception("internal error", extra={"fields": {"request_id": scope["request_id"]}})
            if answer.status == CLIENT_GONE:
                await _problem(scope, _unforeseen(error))(scope, receive, answer)

    async def _call(self, scope: Scope, receive: Receive, answer: _Answer, service: Service) -> None:
        protocol = protocol_of(scope)
        asked = protocol.match(scope)
        matched = None if asked is not None and asked.operation.monitoring else asked
        record = _Record(service.audit, matched, scope["request_id"])
        answer.record = record
        with ExitStack() as stack:
            grant, receive = await protocol.authenticate(scope, receive, service)
            record.know(grant)
            scope["grant"] = grant
            if asked is not None:
                authorize(grant, asked)
            if matched is not None:
                stack.enter_context(service.admission.admit(*callers_of(grant.key_id, scope)))
            scope["audit"] = await record.begin()
            await self._app(scope, receive, answer)


class _Record:
    """One request's entry in the audit log.

    An operation that changes something is written before it begins, and again before the answer goes out; any other is
    noted at its end. Refusals are noted too if the key is known or was wrong.
    """

    def __init__(self, audit: AuditLog, matched: MatchedOperation | None, request_id: str) -> None:
        self._audit = audit
        self._entry = audit.entry(None, matched.operation.name if matched else "", request_id)
        if matched:
            self._entry.gallery, self._entry.subject = fit_id(matched.gallery), fit_id(matched.subject)
            self._entry.target = fit_id(matched.target)
        self._changes = matched is not None and matched.operation.changes
        self._begun = False
        self._finished = matched is None

    def know(self, grant: Grant) -> None:
        self._entry.key = grant.key_id

    async def begin(self) -> AuditEntry:
        """Write the entry if the operation changes something; raise what the database raises, so that no change goes
        unrecorded."""
        if self._changes:
            await asyncio.wrap_future(self._audit.write(self._entry))
            self._begun = True
        return self._entry

    async def finish(self, status: int) -> None:
        """Add the outcome. If the database fails now, the work is done, and the entry stays without outcome."""
        if not self._begun or self._finished:
            return
        self._entry.status = status
        self._finished = True
        try:
            await asyncio.wrap_future(self._audit.write(self._entry))
        except LikenessError:
            self._audit.note(self._entry)

    def refuse(self, error: LikenessError) -> None:
        """Note a refusal. Requests without a key are not recorded: nothing limits how many there are."""
        if error.code in _BAD_KEY:
            self._entry.key = str(error.details["key"])
        is_try_again = isinstance(error, Overloaded) and not self._begun  # its status differs between protocols
        self._finished = self._finished or is_try_again or error.code == "missing_key"

    def leave(self, status: int) -> None:
        if self._finished or status in _NOT_RECORDED:
            return
        self._entry.status = status
        self._finished = True
        self._audit.note(self._entry)


class _Answer:
    """Sends an answer on; remembers its status and adds the request id."""

    def __init__(self, send: Send, request_id: str) -> None:
        self._send = send
        self._request_id = request_id
        self.status = CLIENT_GONE
        self.record: _Record | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.record:
                await self.record.finish(self.status)
            message["headers"] = [*message.get("headers", ()), (_ID_NAME, self._request_id.encode())]
        await self._send(message)


def answer_error(request: Request, error: Exception) -> Response:
    """Answer an error that FastAPI or a handler raised."""
    if isinstance(error, RequestValidationError):
        error = invalid_request([{**one} for one in error.errors()])
    headers = {}
    if isinstance(error, HTTPException):
        headers = dict(error.headers or {})
        error = _translated(error)
    if not isinstance(error, LikenessError):
        raise error
    return _problem(request.scope, error, headers)


def _translated(error: HTTPException) -> LikenessError:
    if error.status_code == 404:
        return NotFound("There is no such route.")
    if error.status_code == 405:
        return InvalidInput("The route does not take this method.", code="method_not_allowed")
    return InvalidInput(str(error.detail))


def _problem(scope: Scope, error: LikenessError, headers: dict[str, str] | None = None) -> Response:
    answer = protocol_of(scope).error_response(error, scope["request_id"], scope["path"])
    answer.headers.update(headers or {})
    return answer


def _unforeseen(error: Exception) -> LikenessError:
    if isinstance(error, MemoryError):
        return Why.MEMORY.error()
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return Why.CONNECTIONS.error()
    return LikenessError("Something went wrong; the log has it under this request id.")


def _keep_encoded(scope: Scope) -> None:
    raw = scope.get("raw_path")
    try:
        path = raw.decode("ascii") if raw else scope["path"]
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("The path is not percent-encoded UTF-8.", code="invalid_path") from None
    scope["path"] = path


def _check_host(scope: Scope) -> None:
    """Refuse a request for another server's name, which a browser may have been led here by (DNS rebinding)."""
    allowed: tuple[str, ...] = scope["app"].state.hosts
    if not allowed:
        return
    host = _PORT.sub("", Headers(scope=scope).get("host", "")).lower()
    arrived_at = scope.get("server") or ("",)
    if host not in allowed and host.strip("[]") != arrived_at[0]:
        raise InvalidInput("This server does not go by the name in the header Host.", code="host_not_allowed")


def _request_id(headers: Headers) -> str:
    given = headers.get(ID_HEADER, "")
    return given if _SANE_ID.fullmatch(given) else secrets.token_hex(16)


def _count_request(scope: Scope, status: int, seconds: float) -> None:
    """Log and count a request by its route's template, never by its path, which may hold people's ids."""
    route = getattr(scope.get("route"), "path", None)
    method = scope["method"] if scope["method"] in METHODS else OTHER  # a client may make one up
    metrics: Metrics = scope["app"].state.metrics
    metrics.request(method, route, status, seconds)
    level = logging.ERROR if status == _ERROR_STATUS else logging.INFO
    if not log.isEnabledFor(level):
        return
    fields = {
        "method": method,
        "route": route,
        "status": status,
        "ms": round(seconds * 1000, 1),
        "request_id": scope["request_id"],
    }
    log.log(level, "request", extra={"fields": fields})


class SecurityHeaders:
    """ASGI middleware around everything else: adds the security headers that an answer does not set itself."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                said = message.get("headers", ())
                names = {name.lower() for name, _ in said}
                message["headers"] = [*said, *(one for one in _RAW if one[0] not in names)]
            await send(message)

        await self._app(scope, receive, add)


def install(app: FastAPI, origins: Sequence[str]) -> None:
    """Put the middleware around ``app``.

    ``origins`` are the exact origins whose pages may read answers and send requests that need a browser's permission;
    without any, no other site's page can. Cookies and stored passwords are never allowed.
    """
    app.add_middleware(RequestMiddleware)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=CORS_METHODS,
            allow_headers=CORS_HEADERS,
            expose_headers=CORS_EXPOSED,
            max_age=PREFLIGHT_S,
        )
    app.add_middleware(SecurityHeaders)
