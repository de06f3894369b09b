"""Middleware around every request: its id, security headers, log and metrics, and an answer to remaining errors."""

from __future__ import annotations

import logging
import re
import secrets
import time
from collections.abc import Sequence
from urllib.parse import unquote

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.api.metrics import METHODS, OTHER, Metrics
from app.api.wire import CLIENT_GONE, WireFormat, error_answer, expected, wire_of
from app.errors import InvalidInput
from app.logs import LOGGER

ID_HEADER = "x-request-id"
_ID_NAME = ID_HEADER.encode()
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_PORT = re.compile(r":[0-9]*$")
HEAD = "HEAD"
"""The method that is answered like GET, but without the body (RFC 9110, 9.3.2)."""
_ERROR_STATUS = 500
CSP = "content-security-policy"
ANSWER_POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; sandbox"
"""Lets a browser show an answer, but nothing else. Pages have their own policy."""
HEADERS = {
    "cache-control": "no-store",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
CORS_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
CORS_HEADERS = (
    "authorization",
    "x-api-key",
    "content-type",
    "x-request-id",
)
CORS_EXPOSED = ("x-request-id", "retry-after")
MAX_QUERY = 100
"""Maximum parameters in a query; no operation has a third as many."""
PREFLIGHT_S = 600
"""Seconds that a browser may cache the answer to a preflight request."""
_RAW = tuple((name.encode(), value.encode()) for name, value in (HEADERS | {CSP: ANSWER_POLICY}).items())

log = logging.getLogger(LOGGER)


class RequestMiddleware:
    """Gives a request an id and its answer the missing security headers; logs and counts both.

    From here on the scope has the request's ``request_id``, the caller's ``address``, which is empty if unknown, and
    the answer's ``status``, which is CLIENT_GONE until the answer begins.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, method = time.perf_counter(), scope["method"]
        given = Headers(scope=scope).get(ID_HEADER, "")
        scope["request_id"] = request_id = given if _SANE_ID.fullmatch(given) else secrets.token_hex(16)
        scope["address"] = (scope.get("client") or ("",))[0]
        if method == HEAD:
            scope = {**scope, "method": "GET"}  # a copy: the server's own scope stays HEAD, so that it sends no body
        scope["status"] = CLIENT_GONE

        async def answer(message: Message) -> None:
            """Forward the answer with the request's id and the security headers."""
            if message["type"] == "http.response.start":
                scope["status"] = message["status"]
                headers = message.get("headers", ())
                names = dict(headers)  # in lower case, as Starlette writes them
                added = [header for header in _RAW if header[0] not in names]
                message["headers"] = [*headers, (_ID_NAME, request_id.encode()), *added]
            elif method == HEAD:
                await send({**message, "body": b"", "more_body": False})
                if message.get("more_body"):
                    raise ClientDisconnect  # the client wanted only the head and has it; a stream may have no end
                return
            await send(message)

        try:
            _check_head(scope)
            await self._app(scope, receive, answer)
        except ClientDisconnect:
            pass
        except Exception as error:  # noqa: BLE001 (a request's edge: the client gets an answer)
            if response := error_answer(expected(error, request_id), wire_of(scope), scope):
                await response(scope, receive, answer)
        finally:
            _count_request(scope, method, time.perf_counter() - start)


def _check_head(scope: Scope) -> None:
    """Reject a wrong path, a query with too many parameters before anything reads them, and a request with another
    server's name, by which a page may have led a browser here (DNS rebinding).

    From here on the path is as it was sent, so that routes match it segment by segment: `%2F` within an id is not a
    separator. Therefore path parameters arrive percent-encoded, and `OperationRoute.handle` decodes them.
    """
    raw = scope.get("raw_path")
    try:
        scope["path"] = raw.decode("ascii") if raw else scope["path"]
        unquote(scope["path"], errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("The path is not percent-encoded UTF-8.", code="invalid_path") from None
    if scope["query_string"].count(b"&") >= MAX_QUERY:
        raise InvalidInput(f"The query has more than {MAX_QUERY} parameters.", code="invalid_request", limit=MAX_QUERY)
    allowed: tuple[str, ...] = scope["app"].state.hosts
    if not allowed:
        return
    host = _PORT.sub("", Headers(scope=scope).get("host", "")).lower()
    arrived_at = scope.get("server") or ("",)
    if host not in allowed and host.strip("[]") != arrived_at[0]:
        raise InvalidInput("This server does not go by the name in the header Host.", code="host_not_allowed")


def _count_request(scope: Scope, method: str, seconds: float) -> None:
    """Log and count a request by its route's template, never by its path, which may contain people's ids."""
    route, status = getattr(scope.get("route"), "path", None), scope["status"]
    method = method if method in METHODS else OTHER  # a client may send any word as its method
    metrics: Metrics = scope["app"].state.metrics
    metrics.requests.labels(method, route or OTHER, str(status)).inc()
    metrics.seconds.labels(method, route or OTHER).observe(seconds)
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


def add_middleware(app: FastAPI, origins: Sequence[str], wires: Sequence[WireFormat]) -> None:
    """Put the middleware around ``app``.

    ``origins`` are the exact origins whose pages may read answers and send requests that need a browser's permission;
    by default no other site's pages may. Cookies and stored passwords are never allowed.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=CORS_METHODS,
            allow_headers=[*CORS_HEADERS, *(name for wire in wires for name in wire.sent_headers)],
            expose_headers=[*CORS_EXPOSED, *(name for wire in wires for name in wire.answer_headers)],
            max_age=PREFLIGHT_S,
        )
    app.add_middleware(RequestMiddleware)
