"""Read and verify signatures of AWS Signature Version 4.

The client writes a request in canonical form, hashes it, and signs the hash with a key derived from the secret, the
day, the region and the service (AWS General Reference, "Create a signed AWS API request"). This module works on the
request's bytes as they were sent: nothing is decoded and encoded again unless the canonical form requires it.
"""

from __future__ import annotations

import calendar
import hashlib
import hmac
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from app.features.rekognition import errors
from app.features.rekognition.errors import RekognitionError

ALGORITHM = "AWS4-HMAC-SHA256"
TERMINATOR = "aws4_request"
SERVICE = "rekognition"
SKEW_S = 300
"""Maximum seconds by which the client's clock and ours may differ."""
EXPIRED_S = 900
"""Age in seconds from which on the request is reported as expired, as AWS does; a younger one has an expired
signature."""
MAX_SIGNED_HEADERS = 64
_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
_TIME = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_FIELDS = ("Credential", "SignedHeaders", "Signature")
_REGION = re.compile(r"[a-z0-9-]{0,64}")
"""Matches a region. It may be empty, since AWS's SDK for Go signs an empty one for custom endpoints without a
region."""
_SIGNATURE = re.compile(r"[0-9a-f]{64}")
_UNRESERVED = "-_.~"


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """A request. Header names are in lower case; ``path`` and ``query`` are percent-encoded."""

    method: str
    path: str
    query: bytes
    headers: Mapping[str, Sequence[bytes]]

    @classmethod
    def of(cls, method: str, path: str, query: bytes, headers: Iterable[tuple[bytes, bytes]]) -> SignedRequest:
        """Return the request; ``headers`` are as in ASGI."""
        by_name: dict[str, list[bytes]] = {}
        for name, value in headers:
            by_name.setdefault(name.decode("latin-1").lower(), []).append(value)
        return cls(method, path, query, by_name)

    def header(self, name: str) -> str:
        """Return a header's values joined by commas; empty if there are none."""
        return b",".join(_trimmed(value) for value in self.headers.get(name, ())).decode("latin-1")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who signed a request, when, and what the signature covers: what the request claims, not verified yet."""

    access_key: str
    date: str
    region: str
    timestamp: str
    at: float
    """Seconds since 1970."""
    signed_headers: tuple[str, ...]
    signature: str

    @property
    def scope(self) -> str:
        return f"{self.date}/{self.region}/{SERVICE}/{TERMINATOR}"


def read_claim(request: SignedRequest, now: float) -> Claim:
    """Return a request's claim, after comparing its time with ``now``, in seconds since 1970.

    Raises RekognitionError: MissingAuthenticationTokenException, IncompleteSignatureException,
    InvalidSignatureException, RequestExpired, UnrecognizedClientException (if there is a session token, which our keys
    don't have).
    """
    fields = _authorization(request.header("authorization"))
    access_key, date, region = _credential(fields["Credential"])
    timestamp, at = _signed_at(request)
    signed = tuple(fields["SignedHeaders"].split(";"))
    _check_coverage(request, signed)
    if not _SIGNATURE.fullmatch(fields["Signature"]):
        raise _incomplete("'Signature' is not 64 hexadecimal digits.")
    if timestamp[:8] != date:
        raise _invalid(f"Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date: {date}")
    _check_clock(timestamp, at, now)
    if "x-amz-security-token" in request.headers:
        raise unknown_client()
    return Claim(access_key, date, region, timestamp, at, signed, fields["Signature"])


def signing_key(secret: str, date: str, region: str) -> bytes:
    """Return the key, 32 bytes, that signs a day's requests to a region."""
    key = f"AWS4{secret}".encode()
    for part in (date, region, SERVICE, TERMINATOR):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def is_signed_with(key: bytes, claim: Claim, request: SignedRequest, body_hash: str) -> bool:
    """Return whether the claim's signature of this request and body hash (SHA-256, hexadecimal) was made with ``key``.
    Takes the same time for any signature."""
    hashed = hashlib.sha256(canonical_request(request, claim.signed_headers, body_hash)).hexdigest()
    text = f"{ALGORITHM}\n{claim.timestamp}\n{claim.scope}\n{hashed}"
    return hmac.compare_digest(hmac.digest(key, text.encode(), "sha256"), bytes.fromhex(claim.signature))


def check_body(request: SignedRequest, body_hash: str) -> None:
    """Compare the body's hash with the hash that the request states, if it does; `UNSIGNED-PAYLOAD` is not accepted.

    Raises RekognitionError (InvalidSignatureException).
    """
    stated = request.header("x-amz-content-sha256")
    if stated and not hmac.compare_digest(stated.encode("latin-1"), body_hash.encode()):
        raise _invalid("The value of X-Amz-Content-Sha256 is not the hash of the request's body.")


def canonical_request(request: SignedRequest, signed_headers: Iterable[str], body_hash: str) -> bytes:
    names = tuple(signed_headers)
    lines = [
        request.method.encode(),
        quote(unquote_to_bytes(request.path), safe="/~").encode(),
        canonical_query(request.query),
        *(name.encode() + b":" + b",".join(map(_trimmed, request.headers.get(name, ()))) for name in names),
        b"",
        ";".join(names).encode(),
        body_hash.encode(),
    ]
    return b"\n".join(lines)


def canonical_query(query: bytes) -> bytes:
    """Return the query in canonical form: decoded, percent-encoded again, and sorted."""
    pairs = []
    for pair in query.split(b"&") if query else ():
        name, _, value = pair.partition(b"=")
        pairs.append((_encoded(name), _encoded(value)))
    return "&".join(f"{name}={value}" for name, value in sorted(pairs)).encode()


def _encoded(text: bytes) -> str:
    return quote(unquote_to_bytes(text), safe=_UNRESERVED)


def _trimmed(value: bytes) -> bytes:
    """Return the value without spaces at its ends, and with single spaces inside."""
    return b" ".join(value.split())


def _authorization(text: str) -> dict[str, str]:
    if not text:
        raise RekognitionError(errors.MISSING_TOKEN, "Missing Authentication Token", code="missing_key")
    algorithm, _, rest = text.partition(" ")
    if algorithm != ALGORITHM:
        raise _incomplete(f"Unsupported AWS 'algorithm': send {ALGORITHM}.")
    fields: dict[str, str] = {}
    for part in rest.split(","):
        name, separator, value = part.strip().partition("=")
        if name not in _FIELDS or not separator or name in fields:
            raise _incomplete("Authorization header is not Credential, SignedHeaders and Signature, each once.")
        fields[name] = value
    for name in _FIELDS:
        if not fields.get(name):
            raise _incomplete(f"Authorization header requires '{name}' parameter.")
    return fields


def _credential(text: str) -> tuple[str, str, str]:
    """Return a credential's access key, day and region."""
    parts = text.split("/")
    if len(parts) != 5 or not parts[0]:
        raise _incomplete("Credential must have exactly 5 slash-delimited elements.")
    access_key, date, region, service, terminator = parts
    if service != SERVICE or terminator != TERMINATOR or not _REGION.fullmatch(region):
        raise _invalid(f"Credential should be scoped to a region, the service {SERVICE!r} and {TERMINATOR!r}.")
    return access_key, date, region


def _signed_at(request: SignedRequest) -> tuple[str, float]:
    text = request.header("x-amz-date")
    if not text:
        raise _incomplete("Authorization header requires existence of an 'X-Amz-Date' header.")
    malformed = _incomplete("Date must be in ISO-8601 'basic format'.")
    if not _TIME.fullmatch(text):
        raise malformed
    try:
        return text, float(calendar.timegm(time.strptime(text, _TIME_FORMAT)))
    except ValueError:
        raise malformed from None


def _check_coverage(request: SignedRequest, signed: tuple[str, ...]) -> None:
    """Check that the signature covers the host and every AWS header."""
    if len(signed) > MAX_SIGNED_HEADERS or tuple(sorted(set(signed))) != signed:
        raise _incomplete("SignedHeaders must be sorted, each once.")
    needed = {"host", *(name for name in request.headers if name.startswith("x-amz-"))}
    if left_out := sorted(needed.difference(signed)):
        raise _invalid(f"There were headers present in the request which were not signed: {', '.join(left_out)[:200]}")
    if any(name not in request.headers for name in signed):
        raise _invalid("SignedHeaders names a header that did not come with the request.")


def _check_clock(timestamp: str, at: float, now: float) -> None:
    apart = now - at
    if abs(apart) <= SKEW_S:
        return
    server = time.strftime(_TIME_FORMAT, time.gmtime(now))
    if abs(apart) > EXPIRED_S:
        message = f"The request was signed at {timestamp}, more than 15 minutes from the server's clock: {server}"
        raise RekognitionError(errors.EXPIRED, message, code="wrong_key")
    word = "expired" if apart > 0 else "not yet current"
    raise _invalid(f"Signature {word}: {timestamp} is more than 5 minutes from the server's clock: {server}")


def unknown_client() -> RekognitionError:
    return RekognitionError(
        errors.UNKNOWN_CLIENT, "The security token included in the request is invalid.", code="wrong_key"
    )


def _incomplete(message: str) -> RekognitionError:
    return RekognitionError(errors.INCOMPLETE, message, code="missing_key")


def _invalid(message: str) -> RekognitionError:
    return RekognitionError(errors.INVALID_SIGNATURE, message, code="wrong_key")
