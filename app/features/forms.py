"""Read the text fields of forms before or without the images; replay bodies that were read before their handler
runs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Message, Receive

from app.api.body import FORM_TYPE, MAX_TEXT_FIELD, Body, form_parts
from app.errors import InvalidInput

URLENCODED_TYPE = "application/x-www-form-urlencoded"
BYTES = "latin-1"
"""An encoding in which each byte is a character."""
MAX_PARTS = 64
"""Maximum parts of a form, including images."""


def texts(body: Body, names: Collection[str], longest: int = MAX_TEXT_FIELD) -> dict[str, str]:
    """Return the text fields with these names from a form, multipart or urlencoded; none if the body is not a form.

    Raises InvalidInput: ``invalid_multipart``, ``payload_too_large`` for a field longer than ``longest`` bytes or too
    many fields, and ``invalid_request`` for a field that is given twice.
    """
    found: dict[str, bytes] = {}
    for name, data in _pieces(body):
        if name not in names:
            continue
        if name in found:
            raise InvalidInput(f"{name}: given twice.", errors=[])
        if len(data) > longest:
            raise InvalidInput(f"{name}: longer than {longest} bytes.", code="payload_too_large")
        found[name] = data
    try:
        return {name: data.decode() for name, data in found.items()}
    except UnicodeDecodeError:
        raise InvalidInput("A form field is not UTF-8.", code="invalid_multipart") from None


def form_of(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a form's part of the OpenAPI document, made from the schemas of its fields, for forms without a model."""
    form = {"type": "object", "properties": fields, "required": list(fields)}
    return {"requestBody": {"required": True, "content": {FORM_TYPE: {"schema": form}}}}


def _pieces(body: Body) -> list[tuple[str, bytes]]:
    if body.media_type == URLENCODED_TYPE:
        if body.data.count(b"&") >= MAX_PARTS:
            raise InvalidInput(f"A form has at most {MAX_PARTS} parts here.", code="payload_too_large")
        # `parse_qsl` accepts bytes too, but then rejects everything beyond ASCII, escaped or not.
        listed = parse_qsl(body.data.decode(BYTES), keep_blank_values=True, encoding=BYTES)
        return [(name.encode(BYTES).decode("utf-8", "replace"), value.encode(BYTES)) for name, value in listed]
    if body.media_type != FORM_TYPE:
        return []
    return form_parts(body, MAX_PARTS)


def read_again(body: Body) -> Receive:
    """Return an ASGI receive function that gives the whole body again."""
    messages: list[Message] = [{"type": "http.request", "body": body.data, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
