"""What every request passes, in this order: an id, the log, the key and what it allows, room in the house, the audit
log; and errors on the way out."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from contextlib import ExitStack
from urllib.parse import unquote

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.access.audit import AuditLog
from app.access.grants import Grant
from app.access.records import AuditEntry, fit_id
from app.api.auth import OPEN_PATHS
from app.api.body import invalid_request
from app.api.logs import LOGGER
from app.api.metrics import METHODS, OTHER, Metrics
from app.api.page import is_page
from app.api.protocols import dialect_of
from app.api.rules import Visit, authorize
from app.api.service import Service, find_service
from app.errors import InvalidInput, LikenessError, NotFound, Overloaded

ID_HEADER = "x-request-id"
_ID_NAME = ID_HEADER.encode()
CLIENT_GONE = 499
"""What the log says, as nginx does, when the client left before its answer."""
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_ERROR_STATUS = 500
_BAD_KEY = frozenset({"expired_key", "revoked_key"})
_NOT_RECORDED = frozenset({429})
"""Who is told to come back later did nothing; a flood of such calls must not become a flood of rows."""

log = logging.getLogger(LOGGER)


class Door:
    """ASGI middleware around all routes.

    It also makes routes match the path as it was sent, segment by segment: `%2F` within an id is not a separator.
    Path parameters arrive percent-encoded therefore, and `app.api.paths` decodes them.
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
            if scope["path"] in OPEN_PATHS or is_page(scope["method"], scope["path"]):
                await self._app(scope, receive, answer)
            else:
                await self._visit(scope, receive, answer, find_service(scope["app"].state))
        except LikenessError as error:
            if answer.record:
                answer.record.refuse(error)
            await _problem(scope, error)(scope, receive, answer)
        except ClientDisconnect:
            answer.status = CLIENT_GONE
        except Exception:
            log.exception("internal error", extra={"fields": {"request_id": scope["request_id"]}})
            if answer.status == CLIENT_GONE:
                problem = LikenessError("something went wrong; the log has it under this request id")
                await _problem(scope, problem)(scope, receive, answer)

    async def _visit(self, scope: Scope, receive: Receive, answer: _Answer, service: Service) -> None:
        if scope["path"] in service.open_paths:
            await self._app(scope, receive, answer)
            return
        dialect = dialect_of(scope)
        visit = dialect.visit(scope)
        record = _Record(service.audit, visit, scope["request_id"])
        answer.record = record
        with ExitStack() as stack:
            if dialect.reads_first:
                stack.enter_context(service.workers.admit())
            grant, receive = await dialect.enter(scope, receive, service)
            record.know(grant)
            scope["grant"] = grant
            if visit is not None:
                authorize(grant, visit)
                if not dialect.reads_first:
                    stack.enter_context(service.workers.admit())
            scope["audit"] = await record.begin()
            await self._app(scope, receive, answer)


class _Record:
    """One request's entry in the audit log. What changes something is written before it begins, and again before the
    answer goes out; the rest is noted when all is over. Refusals are noted too, where the key is known or was wrong."""

    def __init__(self, audit: AuditLog, visit: Visit | None, request_id: str) -> None:
        self._audit = audit
        self._visit = visit
        self._entry = audit.entry(None, visit.rule.name if visit else "", request_id)
        if visit:
            self._entry.gallery, self._entry.subject = fit_id(visit.gallery), fit_id(visit.subject)
            self._entry.target = fit_id(visit.target)
        self._begun = False
        self._finished = visit is None

    def know(self, grant: Grant) -> None:
        self._entry.who = grant.key_id

    async def begin(self) -> AuditEntry:
        """Raises what the database does: nothing is changed that can't be recorded."""
        if self._visit and self._visit.rule.changes:
            await asyncio.wrap_future(self._audit.write(self._entry))
            self._begun = True
        return self._entry

    async def finish(self, status: int) -> None:
        """Where the database fails now, the work is done all the same, and an entry without outcome says so."""
        if not self._begun or self._finished:
            return
        self._entry.status = status
        self._finished = True
        try:
            await asyncio.wrap_future(self._audit.write(self._entry))
        except LikenessError:
            self._audit.note(self._entry)

    def refuse(self, error: LikenessError) -> None:
        """Nobody is named by a request without a key, and nothing limits such requests: they are not recorded."""
        if error.code in _BAD_KEY:
            self._entry.who = str(error.details["key"])
        is_try_again = isinstance(error, Overloaded) and not self._begun  # whatever status that has in its dialect
        self._finished = self._finished or is_try_again or error.code == "missing_key"

    def leave(self, status: int) -> None:
        if self._finished or status in _NOT_RECORDED:
            return
        self._entry.status = status
        self._finished = True
        self._audit.note(self._entry)


class _Answer:
    """Sends on, remembering the status and adding the headers that every answer has."""

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
    """The handler of errors that FastAPI or a route raises."""
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
        return NotFound("there is no such route")
    if error.status_code == 405:
        return InvalidInput("the route does not take this method", code="method_not_allowed")
    return InvalidInput(str(error.detail))


def _problem(scope: Scope, error: LikenessError, headers: dict[str, str] | None = None) -> Response:
    answer = dialect_of(scope).answer(error, scope["request_id"], scope["path"])
    answer.headers.update(headers or {})
    return answer


def _keep_encoded(scope: Scope) -> None:
    raw = scope.get("raw_path")
    try:
        path = raw.decode("ascii") if raw else scope["path"]
        unquote(path, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("the path is not percent-encoded UTF-8", code="invalid_path") from None
    scope["path"] = path


def _request_id(headers: Headers) -> str:
    given = headers.get(ID_HEADER, "")
    return given if _SANE_ID.fullmatch(given) else secrets.token_hex(16)


def _count_request(scope: Scope, status: int, seconds: float) -> None:
    """In the log and in the metrics: by the route's template, never by the path, which may hold people's ids."""
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
