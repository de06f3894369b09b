"""DeepStack's wire format: the key is a field of the form, and errors are `{"success": false, "error", "code"}`."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from typing import ClassVar

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.api.body import QUICK_BYTES, Body, read_body
from app.api.components import Components
from app.api.operation import Operation
from app.api.wire import WireFormat, answer_problem, callers_of, given_key
from app.errors import InvalidInput, LikenessError
from app.features.forms import read_again, texts
from app.features.unproven import UNPROVEN_S, unproven_of

PREFIX = "/v1/vision/"
KEY_FIELDS = ("api_key", "admin_key")
MESSAGES = {
    "missing_image": "No valid image file found",
    "no_face": "no face detected",
    "wrong_key": "Incorrect api key",
    "missing_key": "Incorrect api key",
}
"""DeepStack's messages, by our codes, for the errors that it has too. Other errors keep our message, which says
more."""
KEPT, BAD_REQUEST = frozenset({401, 403, 404, 429}), 400
"""Our statuses that are answered unchanged, and the status that replaces all others below 500, since DeepStack's
clients know 400, 403 and 500."""
SERVER_ERROR = 500


class DeepStack(WireFormat):
    """The format of everything below `/v1/vision/`.

    A key in a header is checked before the body is read, a key in the form afterwards.
    """

    name = "DeepStack"
    security = ("api_key", "bearer", "basic")
    security_schemes: ClassVar = {
        "basic": {"type": "http", "scheme": "basic", "description": "The key as password: `http://any:KEY@host`."},
    }
    description = (
        "DeepStack's and CodeProject.AI's face interface, for clients written for it. The key may also be the field "
        "`api_key` of the form."
    )

    def speaks(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith(PREFIX)

    async def authenticate(self, scope: Scope, receive: Receive, components: Components) -> tuple[Grant, Receive]:
        """Return what the key may do, and the body. The key is in a header, the password of HTTP Basic, or a field of
        the form.

        Raises InvalidInput (``missing_key``), and what `Guard.check` raises.
        """
        headers, address = Headers(scope=scope), scope["address"]
        key = given_key(headers, scope["path"]) or _password(headers)
        operation: Operation | None = scope.get("operation")
        if key is None and operation is not None:
            components.guard.require_few_failures(address)
            limits = components.limits
            async with unproven_of(components).admit(callers_of("", address)[1]) as count_bytes:
                seconds = min(limits.seconds, UNPROVEN_S)
                body = await read_body(Request(scope, receive), limits.most(operation.images), seconds, count_bytes)
            receive = read_again(body)
            key = _form_key(body) if len(body.data) <= QUICK_BYTES else await asyncio.to_thread(_form_key, body)
        if key is None:
            raise InvalidInput("Send the key as the field `api_key`.", code="missing_key")
        return await components.guard.check(key, address), receive

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (not in it)
        ours = answer_problem(error, "")
        status = ours.status if ours.status in KEPT or ours.status >= SERVER_ERROR else BAD_REQUEST
        problem = ours.body.error
        content = {"success": False, "error": MESSAGES.get(problem.code, problem.message), "code": status}
        headers = {name: value for name, value in ours.headers.items() if name == "retry-after"}
        return Response(json.dumps(content, ensure_ascii=False), status, headers, "application/json")


DEEPSTACK = DeepStack()


def _form_key(body: Body) -> str | None:
    fields = texts(body, KEY_FIELDS)
    return next((fields[name] for name in KEY_FIELDS if fields.get(name)), None)


def _password(headers: Headers) -> str | None:
    """Return the password of HTTP Basic; None if there is none. It is ignored if the request has the header `Origin`,
    since another site's page may have made the browser send it."""
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or "origin" in headers:
        return None
    try:
        return base64.b64decode(rest, validate=True).decode().partition(":")[2] or None
    except (binascii.Error, UnicodeDecodeError):
        return None
