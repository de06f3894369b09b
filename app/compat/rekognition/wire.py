"""Rekognition's wire format: requests are signed, and errors have a type."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import AsyncExitStack
from typing import ClassVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from app.access.grants import Grant
from app.api.body import read_body
from app.api.components import Components
from app.api.operation import Operation
from app.api.wire import WireFormat, address_of, callers_of
from app.compat.rekognition.errors import answer_of
from app.compat.rekognition.signatures import SignatureChecker
from app.compat.rekognition.sigv4 import Claim, SignedRequest, check_body, read_claim
from app.errors import LikenessError

PATH = "/"
MEDIA_TYPE = "application/x-amz-json-1.1"
TARGET_HEADER = "x-amz-target"
CONTENT_HASH = "x-amz-content-sha256"
"""Signed, as all of AWS's headers must be."""
MAX_JSON = 256 * 1024
"""Bytes of a body without images: enough for 4,096 face ids."""
HASHED_HERE = 64 * 1024
"""Larger bodies are hashed in a thread."""
UNPROVEN_S = 10.0
"""Within which a body must arrive while no signature of this key and address was valid yet: 6 Mbit/s for the largest
photo."""
CLAIM = "rekognition_claim"


class Rekognition(WireFormat):
    """`POST /`. The signature covers the body's hash: where a header states that, the signature is checked before the
    body is read, elsewhere after it."""

    name = "Amazon Rekognition"
    security = ("aws_sigv4",)
    security_schemes: ClassVar = {
        "aws_sigv4": {
            "type": "apiKey",
            "in": "header",
            "name": "Authorization",
            "description": "An AWS Signature Version 4, made with a key that was created with `aws`.",
        }
    }
    description = "Amazon Rekognition's API, for clients written for it (docs/reference/drop-ins.md)."

    def speaks(self, scope: Scope) -> bool:
        return (scope["method"], scope["path"]) == ("POST", PATH)

    async def authenticate(self, scope: Scope, receive: Receive, components: Components) -> tuple[Grant, Receive]:
        """Check the signature. Raises Refused or InvalidInput if it is invalid, Overloaded if the key sends too many
        requests."""
        request = SignedRequest.of(scope["method"], scope["path"], scope["query_string"], scope["headers"])
        claim = read_claim(request, time.time())
        signatures: SignatureChecker = components.parts[SignatureChecker]
        operation: Operation = scope["operation"]
        address = address_of(scope)
        admission, guard, limits = components.admission, components.guard, components.limits
        limit = limits.most(operation.images) if operation.images else MAX_JSON
        stated = request.header(CONTENT_HASH)
        grant = await _grant_of(signatures, components, claim, request, stated, address) if stated else None
        proven = signatures.is_proven(claim, address)
        if grant is None and not proven:
            if not signatures.is_known(claim):  # do not read the body of an unknown key
                await guard.attempt(lambda: signatures.require_key(components.keys, claim), address)
            guard.require_few_failures(address)
        async with AsyncExitStack() as stack:
            if grant is not None:
                stack.enter_context(admission.admit(*callers_of(grant.key_id, scope)))
            else:
                place = admission.admit_unproven(callers_of("", scope)[1], proven)
                await stack.enter_async_context(place)
            seconds = limits.seconds if grant or proven else min(limits.seconds, UNPROVEN_S)
            body = (await read_body(Request(scope, receive), limit, seconds, admission.take)).data
        body_hash = await _hash(body)
        check_body(request, body_hash)
        grant = grant or await _grant_of(signatures, components, claim, request, body_hash, address)
        signatures.prove(claim, address, grant.key_id)
        scope[CLAIM] = claim
        return grant, _again(body)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (there is one path)
        answer = answer_of(error)
        content = {"__type": answer.name, "message": answer.message, "Message": answer.message}
        headers = headers_of(request_id) | {"x-amzn-ErrorType": answer.name}
        return Response(json.dumps(content), answer.status, headers, MEDIA_TYPE)


REKOGNITION = Rekognition()


def headers_of(request_id: str) -> dict[str, str]:
    return {"x-amzn-RequestId": request_id}


async def _grant_of(
    signatures: SignatureChecker,
    components: Components,
    claim: Claim,
    request: SignedRequest,
    body_hash: str,
    address: str,
) -> Grant:
    token = signatures.recall(claim, request, body_hash)
    return await components.guard.admit(
        None if token is None else components.keys.recall(token),
        lambda: signatures.check(components.keys, claim, request, body_hash),
        address,
        known=token is not None,
    )


async def _hash(body: bytes) -> str:
    if len(body) <= HASHED_HERE:
        return hashlib.sha256(body).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())


def _again(body: bytes) -> Receive:
    """Return a receiver of a body that was read already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive
