"""Recognises and authenticates Rekognition's requests, and writes answers and errors in its form."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from app.access.grants import Grant
from app.api.body import read_body
from app.api.dependencies import Service, ServiceDep, entry_of, grant_of
from app.api.json_reader import load_json
from app.api.openapi import REKOGNITION
from app.api.operation import MatchedOperation
from app.api.protocols import WireProtocol, address_of, callers_of
from app.api.router import Router
from app.compat.rekognition import requests
from app.compat.rekognition.call import Call
from app.compat.rekognition.endpoints import CALL, MEDIA_TYPE, PATH, document, find_target
from app.compat.rekognition.errors import FAULTS, THROUGHPUT, answer_of
from app.compat.rekognition.signatures import SignatureChecker, use_once
from app.compat.rekognition.sigv4 import Claim, SignedRequest, check_body, read_claim
from app.errors import LikenessError, NotFound

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
JSON_COPIES = 3
"""Of a body while it is read: its text, the strings in it, and the largest of them in ASCII."""
CLAIM = "rekognition_claim"
_TRY_AGAIN = FAULTS | {THROUGHPUT}

router = Router(REKOGNITION)
ROUTERS = (router,)


class Rekognition(WireProtocol):
    """`POST /`. The signature covers the body's hash: where a header states that, the signature is checked before the
    body is read, elsewhere after it."""

    def __init__(self) -> None:
        self._signatures = SignatureChecker()

    def speaks(self, scope: Scope) -> bool:
        return (scope["method"], scope["path"]) == ("POST", PATH)

    def match(self, scope: Scope) -> MatchedOperation | None:
        target = find_target(Headers(scope=scope).get(TARGET_HEADER, ""))
        return None if target is None else MatchedOperation(target.operation)

    async def authenticate(self, scope: Scope, receive: Receive, service: Service) -> tuple[Grant, Receive]:
        """Check the signature. Raises Refused or InvalidInput if it is invalid, Overloaded if the key sends too many
        requests."""
        request = SignedRequest.of(scope["method"], scope["path"], scope["query_string"], scope["headers"])
        claim = read_claim(request, time.time())
        address = address_of(scope)
        target = find_target(request.header(TARGET_HEADER))
        limits = service.limits
        limit = limits.body_bytes(target.images) if target and target.images else MAX_JSON
        stated = request.header(CONTENT_HASH)
        grant = await self._grant_of(scope, service, claim, request, stated) if stated else None
        proven = self._signatures.is_proven(claim, address)
        if grant is None and not proven:
            if not self._signatures.is_known(claim):  # do not read the body of an unknown key
                await service.guard.attempt(lambda: self._signatures.require_key(service.keys, claim), address)
            service.guard.require_few_failures(address)
        async with AsyncExitStack() as stack:
            if grant is not None:
                stack.enter_context(service.admission.admit(*callers_of(grant.key_id, scope)))
            else:
                place = service.admission.admit_unproven(callers_of("", scope)[1], proven)
                await stack.enter_async_context(place)
            seconds = limits.seconds if grant or proven else min(limits.seconds, UNPROVEN_S)
            body = (await read_body(Request(scope, receive), limit, seconds, service.admission.take)).data
        body_hash = await _hash(body)
        check_body(request, body_hash)
        grant = grant or await self._grant_of(scope, service, claim, request, body_hash)
        self._signatures.prove(claim, address, grant.key_id)
        scope[CLAIM] = claim
        return grant, _again(body)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (there is one path)
        found = answer_of(error)
        content = {"__type": found.name, "message": found.message, "Message": found.message}
        headers = _headers(request_id) | {"x-amzn-ErrorType": found.name}
        return Response(json.dumps(content), found.status, headers, MEDIA_TYPE)

    async def _grant_of(
        self, scope: Scope, service: Service, claim: Claim, request: SignedRequest, body_hash: str
    ) -> Grant:
        token = self._signatures.recall(claim, request, body_hash)
        recalled = None if token is None else service.keys.recall(token)
        return await service.guard.admit(
            recalled,
            lambda: self._signatures.check(service.keys, claim, request, body_hash),
            address_of(scope),
            known=token is not None,
        )


@router.handles(CALL, openapi_extra=document())
async def call(request: Request, service: ServiceDep) -> Response:
    """Call an operation of Amazon Rekognition.

    The header `X-Amz-Target` names it. Request and answer have the shapes of AWS's API reference.
    """
    target = find_target(request.headers.get(TARGET_HEADER, ""))
    if target is None:
        raise NotFound("There is no such operation.")
    claim: Claim = request.scope[CLAIM]
    call_ = Call(service, grant_of(request), entry_of(request), claim.region)
    body = await request.body()
    service.admission.take(len(body))

    used = False

    def work() -> dict[str, Any]:
        nonlocal used
        use_once(service.signatures, claim, request.headers, changes=target.operation.changes)
        used = True
        with service.admission.budget.hold(JSON_COPIES * len(body), threads=0):
            values = requests.read(target.model, load_json(body) if body else {})
        return target.work(call_, values)

    try:
        answer = await service.run(work)
    except LikenessError as error:
        if used and answer_of(error).name in _TRY_AGAIN:
            # Clients retry, maybe within the same second.
            await service.run(lambda: service.signatures.release(claim.signature))
        raise
    content = json.dumps(answer, ensure_ascii=False, allow_nan=False)
    return Response(content, headers=_headers(request.scope["request_id"]), media_type=MEDIA_TYPE)


def _headers(request_id: str) -> dict[str, str]:
    return {"x-amzn-RequestId": request_id}


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
