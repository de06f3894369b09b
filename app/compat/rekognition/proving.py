"""Whose request it is: the signature is checked with the secrets of the key that it names.

Keys derived from secrets are remembered, so that a known caller costs one HMAC and no look at the database; whether the
secret itself is still good is asked anew each time (`Keys.recall`, `Keys.check`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from app.access.grants import Grant
from app.access.keys import Keys
from app.compat.rekognition import errors
from app.compat.rekognition.errors import Refused
from app.compat.rekognition.sigv4 import Claim, SignedRequest, is_signed_with, signing_key

MAX_REMEMBERED = 10_000


class Prover:
    """Safe between threads."""

    def __init__(self, size: int = MAX_REMEMBERED) -> None:
        self._size = size
        self._derived: OrderedDict[tuple[str, str, str], tuple[tuple[str, bytes], ...]] = OrderedDict()
        self._lock = threading.Lock()

    def is_known(self, claim: Claim) -> bool:
        """Whether the key that the claim names has signed before."""
        with self._lock:
            return _name(claim) in self._derived

    def expect(self, keys: Keys, claim: Claim) -> None:
        """Raises Refused (UnrecognizedClientException) where no key of that name signs; asks the database."""
        if not keys.signing_tokens(claim.access_key):
            raise _nobody()

    def recall(self, claim: Claim, request: SignedRequest, body_hash: str) -> str | None:
        """The token of the key that signed the request, where its derived key is remembered; asks no database."""
        with self._lock:
            known = self._derived.get(_name(claim), ())
        return _signer(known, claim, request, body_hash)

    def prove(self, keys: Keys, claim: Claim, request: SignedRequest, body_hash: str) -> Grant:
        """What the key that signed the request allows; asks the database.

        Raises Refused: UnrecognizedClientException, InvalidSignatureException; InvalidInput ``expired_key``,
        ``revoked_key``.
        """
        tokens = keys.signing_tokens(claim.access_key)
        if not tokens:
            raise _nobody()
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
        with self._lock:
            self._derived[_name(claim)] = derived
            self._derived.move_to_end(_name(claim))
            while len(self._derived) > self._size:
                self._derived.popitem(last=False)
        return keys.check(token)


def _nobody() -> Refused:
    return Refused(errors.UNKNOWN_CLIENT, "The security token included in the request is invalid.", code="wrong_key")


def _name(claim: Claim) -> tuple[str, str, str]:
    return claim.access_key, claim.date, claim.region


def _signer(derived: tuple[tuple[str, bytes], ...], claim: Claim, request: SignedRequest, body_hash: str) -> str | None:
    """All are tried, whichever it is."""
    found = [token for token, key in derived if is_signed_with(key, claim, request, body_hash)]
    return found[0] if found else None
