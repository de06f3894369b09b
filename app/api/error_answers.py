"""Errors as answers, in the wire format of the request: the one place where an exception ends."""

from __future__ import annotations

import errno
import logging
from typing import NoReturn, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from app.api.body import invalid_request
from app.api.components import components_of
from app.api.wire import OWN, WireFormat
from app.concurrency.overload import Why
from app.errors import InvalidInput, LikenessError, NotFound
from app.logs import LOGGER

CLIENT_GONE = 499
"""The status of a request whose client left before its answer, as in nginx."""

log = logging.getLogger(LOGGER)


class Answer(Protocol):
    """Sends an answer on. ``status`` is CLIENT_GONE until it begins."""

    status: int

    async def send(self, message: Message) -> None: ...


def expected(error: Exception, request_id: str) -> LikenessError:
    """Return the error as one of ours; log one that nobody expected."""
    if isinstance(error, LikenessError):
        return error
    fields = {"fields": {"request_id": request_id}}
    log.error("internal error", exc_info=error, extra=fields)
    if isinstance(error, MemoryError):
        return Why.MEMORY.error()
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        return Why.CONNECTIONS.error()
    return LikenessError("Something went wrong; the log has it under this request id.")


async def send_error(error: LikenessError, wire: WireFormat, scope: Scope, receive: Receive, answer: Answer) -> None:
    """Send the error as the answer, unless one has begun: that one is cut short, which clients notice."""
    if answer.status != CLIENT_GONE:
        fields = {"request_id": scope["request_id"], "code": error.code, "error": error.message}
        log.warning("an answer was cut short", extra={"fields": fields})
    else:
        response = wire.error_response(error, scope["request_id"], scope["path"])
        await response(scope, receive, answer.send)


def wire_of(scope: Scope) -> WireFormat:
    """Return the wire format of a request that no operation took."""
    others: tuple[WireFormat, ...] = scope["app"].state.wires
    return next((wire for wire in others if wire.speaks(scope)), OWN)


def install(app: FastAPI) -> None:
    """Raise what Starlette and FastAPI refuse by themselves as errors of ours."""
    app.add_exception_handler(RequestValidationError, _refuse_invalid)
    app.add_exception_handler(HTTPException, _refuse_unrouted)


async def _refuse_invalid(_: Request, error: Exception) -> NoReturn:
    assert isinstance(error, RequestValidationError)  # noqa: S101 (registered for it alone)
    raise invalid_request([{**one} for one in error.errors()]) from None


async def _refuse_unrouted(request: Request, error: Exception) -> Response:
    """Refuse a request without a route, but tell nothing about routes to those without a key."""
    assert isinstance(error, HTTPException)  # noqa: S101 (the same)
    refusal: LikenessError = InvalidInput(str(error.detail))
    if error.status_code == 404:
        refusal = NotFound("There is no such route.")
    elif error.status_code == 405:
        refusal = InvalidInput("The route does not take this method.", code="method_not_allowed")
    if "grant" in request.scope:
        raise refusal
    wire = wire_of(request.scope)
    try:
        await wire.authenticate(request.scope, request.receive, components_of(request.app.state))
    except LikenessError as missing:
        refusal = missing
    response = wire.error_response(refusal, request.scope["request_id"], request.scope["path"])
    response.headers.update(error.headers or {})
    return response
