"""Rekognition's wire format: requests are signed, no signature is accepted twice, and errors have a type.

Signing keys derived from secrets are cached, so that checking a known caller takes one HMAC and no database access. The
secret's validity is checked each time (`ApiKeys.recall`, `ApiKeys.check`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import ClassVar, Generic, TypeVar

from fastapi import Request
from starlette.responses import Response
from starlette.types import Receive, Scope

from app.access.grants import Grant
from app.access.keys import ApiKeys, Guard, digest_of
from app.api.body import read_body
from app.api.components import Components
from app.api.operation import Operation
from app.api.wire import WireFormat, callers_of
from app.errors import LikenessError
from app.features.access_keys import signing_tokens
from app.features.forms import read_again
from app.features.one_time import SeenSignatures
from app.features.rekognition import errors
from app.features.rekognition.errors import RekognitionError, answer_of
from app.features.rekognition.sigv4 import (
    Claim,
    SignedRequest,
    check_body,
    is_signed_with,
    read_claim,
    signing_key,
    unknown_client,
)
from app.features.unproven import UNPROVEN_S, unproven_of

PATH = "/"
MEDIA_TYPE = "application/x-amz-json-1.1"
TARGET_HEADER = "x-amz-target"
CONTENT_HASH = "x-amz-content-sha256"
"""Header with the body's hash. It must be signed, as all headers of AWS's."""
MAX_JSON = 256 * 1024
"""Maximum bytes of a body without images: enough for 4,096 face ids."""
HASHED_HERE = 64 * 1024
"""Maximum bytes of a body to hash in the event loop; larger ones are hashed in a thread."""
CLAIM = "rekognition_claim"
MAX_CACHED = 10_000
K = TypeVar("K")
V = TypeVar("V")


class _Cache(Generic[K, V]):
    """Keeps the MAX_CACHED values that were put last. Safe to share between threads."""

    def __init__(self) -> None:
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            return self._values.get(key)

    def put(self, key: K, value: V) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > MAX_CACHED:
                self._values.popitem(last=False)


class SignatureChecker:
    """Checks signatures. Safe to share between threads."""

    def __init__(self, keys: ApiKeys, guard: Guard) -> None:
        self._keys, self._guard = keys, guard
        self._derived: _Cache[tuple[str, str, str], tuple[tuple[str, bytes], ...]] = _Cache()
        self._proven: _Cache[tuple[str, str], str] = _Cache()

    def is_proven(self, claim: Claim, address: str) -> str | None:
        """Return the id of the claim's key if the key has sent a valid signature from this address before; None
        otherwise."""
        return self._proven.get((claim.access_key, address))

    def prove(self, claim: Claim, address: str, key_id: str) -> None:
        """Note that the key has sent a valid signature from this address."""
        self._proven.put((claim.access_key, address), key_id)

    async def require_key(self, claim: Claim, address: str) -> None:
        """Check that the claim's key exists; skipped if it has signed before. Raises RekognitionError
        (UnrecognizedClientException)."""
        if self._derived.get(_name(claim)) is None:
            await self._guard.attempt(lambda: self._tokens(claim), address)

    async def grant(self, claim: Claim, request: SignedRequest, body_hash: str, address: str) -> Grant:
        """Return what the key that signed the request may do. Reads the database unless the signing key is cached.

        Raises RekognitionError: UnrecognizedClientException, InvalidSignatureException; InvalidInput ``expired_key``,
        ``revoked_key``; Overloaded.
        """
        token = _signer(self._derived.get(_name(claim)) or (), claim, request, body_hash)
        grant = None if token is None else self._keys.recall(digest_of(token))
        if grant is None:
            known = token is not None
            grant = await self._guard.attempt(lambda: self._check(claim, request, body_hash), address, known=known)
        self._guard.count_request(grant)
        return grant

    def _check(self, claim: Claim, request: SignedRequest, body_hash: str) -> Grant:
        secrets = [(token, token.split("_", 2)[2]) for token in self._tokens(claim)]
        derived = tuple((token, signing_key(secret, claim.date, claim.region)) for token, secret in secrets)
        token = _signer(derived, claim, request, body_hash)
        if token is None:
            message = (
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method."
            )
            raise RekognitionError(errors.INVALID_SIGNATURE, message, code="wrong_key")
        self._derived.put(_name(claim), derived)
        return self._keys.check(token)

    def _tokens(self, claim: Claim) -> list[str]:
        tokens = signing_tokens(self._keys, claim.access_key)
        if not tokens:
            raise unknown_client()
        return tokens


def _name(claim: Claim) -> tuple[str, str, str]:
    return claim.access_key, claim.date, claim.region


def _signer(derived: tuple[tuple[str, bytes], ...], claim: Claim, request: SignedRequest, body_hash: str) -> str | None:
    """Return the token whose key made the signature. All keys are tried, so that the time taken reveals nothing."""
    signers = [token for token, key in derived if is_signed_with(key, claim, request, body_hash)]
    return signers[0] if signers else None


REPEAT_S = 2.0
ATTEMPT_HEADERS = ("amz-sdk-invocation-id", "amz-sdk-request")
"""Headers in which AWS's clients name a call and number its attempts. Some clients don't sign them."""
MAX_ATTEMPT = 100


def use_once(signatures: SeenSignatures, claim: Claim, request_headers: Mapping[str, str], *, changes: bool) -> None:
    """Accept a signature, and note its use; reject one that was used before.

    A changing operation's signature is accepted once. SigV4 counts whole seconds, so a request sent twice within a
    second has the same signature twice: the client gets ThrottlingException, and then signs its next attempt anew. But
    a client that numbers its attempts in signed headers never repeats a signature, so here somebody else does, who gets
    InvalidSignatureException. A reading operation's signature may be repeated within REPEAT_S of the first use, with
    other ATTEMPT_HEADERS or none: an eavesdropper who repeats it already has the answer.

    Raises RekognitionError (InvalidSignatureException, ThrottlingException).
    """
    named = [name for name in ATTEMPT_HEADERS if request_headers.get(name)]
    attempt = ""
    if not changes:
        attempt = " ".join(request_headers[name][:MAX_ATTEMPT] for name in named) or uuid.uuid4().hex
    if signatures.use(claim.signature, attempt, repeat_s=REPEAT_S):
        return
    message = "This signature was used already: sign the request again."
    if changes and not (named and set(named) <= set(claim.signed_headers)):
        raise RekognitionError(errors.THROTTLING, message, code="overloaded")
    raise RekognitionError(errors.INVALID_SIGNATURE, message, code="wrong_key")


class Rekognition(WireFormat):
    """The format of `POST /`. A signature covers the body's hash. If a header states the hash, the signature is checked
    before the body is read, otherwise after that."""

    name = "Amazon Rekognition"
    security = ("aws_sigv4",)
    sent_headers = (
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        "x-amz-target",
        "x-amz-user-agent",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
    )
    answer_headers = ("x-amzn-requestid", "x-amzn-errortype")
    forms = False
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
        """Check the signature; return what its key may do, and the body that was read. Raises RekognitionError or
        InvalidInput if the signature is invalid, Overloaded if the key sends too many requests."""
        request = SignedRequest.of(scope["method"], scope["path"], scope["query_string"], scope["headers"])
        claim = read_claim(request, time.time())
        signatures: SignatureChecker = components.parts["signature_checker"]
        operation: Operation = scope["operation"]
        address: str = scope["address"]
        admission, limits = components.admission, components.limits
        limit = limits.most(operation.images) if operation.images else MAX_JSON
        stated = request.header(CONTENT_HASH)
        grant = await signatures.grant(claim, request, stated, address) if stated else None
        proven = signatures.is_proven(claim, address)
        if grant is None and not proven:
            await signatures.require_key(claim, address)  # the body of an unknown key's request is not read
            components.guard.require_few_failures(address)
        async with AsyncExitStack() as stack:
            count_bytes: Callable[[int], None] = admission.count_bytes
            if grant is not None:
                stack.enter_context(admission.admit(*callers_of(grant.key_id, address)))
            else:
                place = unproven_of(components).admit(callers_of("", address)[1], proven)
                count_bytes = await stack.enter_async_context(place)
            seconds = limits.seconds if grant or proven else min(limits.seconds, UNPROVEN_S)
            body = await read_body(Request(scope, receive), limit, seconds, count_bytes)
        body_hash = await _hash(body.data)
        check_body(request, body_hash)
        grant = grant or await signatures.grant(claim, request, body_hash, address)
        signatures.prove(claim, address, grant.key_id)
        scope[CLAIM] = claim
        return grant, read_again(body)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (there is one path)
        answer = answer_of(error)
        content = {"__type": answer.name, "message": answer.message, "Message": answer.message}
        headers = headers_of(request_id) | {"x-amzn-ErrorType": answer.name}
        return Response(json.dumps(content), answer.status, headers, MEDIA_TYPE)


REKOGNITION = Rekognition()


def headers_of(request_id: str) -> dict[str, str]:
    return {"x-amzn-RequestId": request_id}


async def _hash(body: bytes) -> str:
    if len(body) <= HASHED_HERE:
        return hashlib.sha256(body).hexdigest()
    return await asyncio.to_thread(lambda: hashlib.sha256(body).hexdigest())
