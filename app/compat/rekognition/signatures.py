"""Signature checks: which key signed a request, and that no signature is used twice.

Signing keys derived from secrets are cached, so that a known caller costs one HMAC and no database access; whether the
secret is still valid is checked each time (`Keys.recall`, `Keys.check`).
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from typing import Generic, TypeVar

from app.access.grants import Grant
from app.access.keys import Keys
from app.access.one_time import SeenSignatures
from app.compat.rekognition import errors
from app.compat.rekognition.errors import Refused
from app.compat.rekognition.sigv4 import Claim, SignedRequest, is_signed_with, signing_key

Key = TypeVar("Key")
Value = TypeVar("Value")

MAX_CACHED = 10_000


class _Cache(Generic[Key, Value]):
    """Keeps the last MAX_CACHED values that were put in. Safe to share between threads."""

    def __init__(self) -> None:
        self._values: OrderedDict[Key, Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Key) -> Value | None:
        with self._lock:
            return self._values.get(key)

    def put(self, key: Key, value: Value) -> None:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            if len(self._values) > MAX_CACHED:
                self._values.popitem(last=False)


class SignatureChecker:
    """Checks signatures. Safe to share between threads."""

    def __init__(self) -> None:
        self._derived: _Cache[tuple[str, str, str], tuple[tuple[str, bytes], ...]] = _Cache()
        self._proven: _Cache[tuple[str, str], str] = _Cache()

    def is_proven(self, claim: Claim, address: str) -> str | None:
        """Return the id of the claim's key if a signature of it from this address was valid before."""
        return self._proven.get((claim.access_key, address))

    def prove(self, claim: Claim, address: str, key_id: str) -> None:
        """Note that the key has signed a request from this address."""
        self._proven.put((claim.access_key, address), key_id)

    def is_known(self, claim: Claim) -> bool:
        """Whether the claim's key has signed before."""
        return self._derived.get(_name(claim)) is not None

    def require_key(self, keys: Keys, claim: Claim) -> None:
        """Look the claim's key up in the database. Raises Refused (UnrecognizedClientException) if none signs."""
        if not keys.signing_tokens(claim.access_key):
            raise _unknown_key()

    def recall(self, claim: Claim, request: SignedRequest, body_hash: str) -> str | None:
        """Return the token of the key that signed the request, if its signing key is cached. Reads no database."""
        return _signer(self._derived.get(_name(claim)) or (), claim, request, body_hash)

    def check(self, keys: Keys, claim: Claim, request: SignedRequest, body_hash: str) -> Grant:
        """Look up the key that signed the request in the database, and return what it allows.

        Raises Refused: UnrecognizedClientException, InvalidSignatureException; InvalidInput ``expired_key``,
        ``revoked_key``.
        """
        tokens = keys.signing_tokens(claim.access_key)
        if not tokens:
            raise _unknown_key()
        secrets = [token.split("_", 2)[2] for token in tokens]
        derived = tuple(
            (token, signing_key(secret, claim.date, claim.region))
            for token, secret in zip(tokens, secrets, strict=True)
        )
        token = _signer(derived, claim, request, body_hash)
        if token is None:
            message = (
                "The request signature we calculated does not match the signature you provided. "
                "Check your AWS Secret Access Key and signing method."
            )
            raise Refused(errors.INVALID_SIGNATURE, message, code="wrong_key")
        self._derived.put(_name(claim), derived)
        return keys.check(token)


def _unknown_key() -> Refused:
    return Refused(errors.UNKNOWN_CLIENT, "The security token included in the request is invalid.", code="wrong_key")


def _name(claim: Claim) -> tuple[str, str, str]:
    return claim.access_key, claim.date, claim.region


def _signer(derived: tuple[tuple[str, bytes], ...], claim: Claim, request: SignedRequest, body_hash: str) -> str | None:
    """Return the token that signed; all are tried, so that the time tells nothing."""
    signers = [token for token, key in derived if is_signed_with(key, claim, request, body_hash)]
    return signers[0] if signers else None


REPEAT_S = 2.0
ATTEMPT_HEADERS = ("amz-sdk-invocation-id", "amz-sdk-request")
"""AWS's clients name a call and count its attempts here, some without signing it."""
MAX_ATTEMPT = 100


def use_once(signatures: SeenSignatures, claim: Claim, request_headers: Mapping[str, str], *, changes: bool) -> None:
    """Note the use of a signature.

    One of a changing operation is used once, whatever else the request says. A client that sends the same request twice
    within a second signs it alike, since SigV4 counts whole seconds: if it is one of AWS's, it is told to try again
    (ThrottlingException), and signs anew. What changes nothing may be asked again for REPEAT_S after its first use,
    with other ATTEMPT_HEADERS or without any: who recorded it has its answer already.

    Raises Refused (InvalidSignatureException, ThrottlingException).
    """
    named = [name for name in ATTEMPT_HEADERS if request_headers.get(name)]
    attempt = ""
    if not changes:
        attempt = " ".join(request_headers[name][:MAX_ATTEMPT] for name in named) or uuid.uuid4().hex
    if signatures.use(claim.signature, attempt, repeat_s=REPEAT_S):
        return
    message = "This signature was used already: sign the request again."
    if changes and not set(named) <= set(claim.signed_headers):
        raise Refused(errors.THROTTLING, message, code="overloaded")
    raise Refused(errors.INVALID_SIGNATURE, message, code="wrong_key")
