"""Errors in Rekognition's form: `__type` and `Message`, with the statuses of its API reference (2016-06-27).

Rekognition's errors have status 400, its two faults status 500. Names that all AWS services share are those of the page
"Common errors".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.api.wire import answer_problem
from app.error_codes import BY_CODE, About
from app.errors import InvalidInput, LikenessError

INVALID_PARAMETER = "InvalidParameterException"
INVALID_IMAGE = "InvalidImageFormatException"
IMAGE_TOO_LARGE = "ImageTooLargeException"
INVALID_S3 = "InvalidS3ObjectException"
INVALID_TOKEN = "InvalidPaginationTokenException"  # noqa: S105 (the name of an error)
NOT_FOUND = "ResourceNotFoundException"
EXISTS = "ResourceAlreadyExistsException"
CONFLICT = "ConflictException"
MISMATCH = "IdempotentParameterMismatchException"
NOT_READY = "ResourceNotReadyException"
QUOTA = "ServiceQuotaExceededException"
ACCESS_DENIED = "AccessDeniedException"
THROUGHPUT = "ProvisionedThroughputExceededException"
THROTTLING = "ThrottlingException"
INTERNAL = "InternalServerError"
MISSING_TOKEN = "MissingAuthenticationTokenException"  # noqa: S105 (the name of an error)
INCOMPLETE = "IncompleteSignatureException"
INVALID_SIGNATURE = "InvalidSignatureException"
EXPIRED = "RequestExpired"
UNKNOWN_CLIENT = "UnrecognizedClientException"
UNKNOWN_OPERATION = "UnknownOperationException"
SERIALIZATION = "SerializationException"
FAULTS = frozenset({THROTTLING, INTERNAL})
"""Names of the server's errors, which have status 500; clients retry after them."""


class RekognitionError(InvalidInput):
    """An error with Rekognition's name and message; ``code`` is this service's own."""

    def __init__(self, name: str, message: str, *, code: str = "invalid_request", **details: object) -> None:
        super().__init__(message, code=code, **details)
        self.name = name


@dataclass(frozen=True, slots=True)
class WireError:
    status: int
    name: str
    message: str


NAMES: Mapping[str, str] = MappingProxyType(
    {
        "missing_key": MISSING_TOKEN,
        "wrong_key": UNKNOWN_CLIENT,
        "expired_key": UNKNOWN_CLIENT,
        "revoked_key": UNKNOWN_CLIENT,
        "gallery_not_found": NOT_FOUND,
        "subject_not_found": NOT_FOUND,
        "gallery_exists": EXISTS,
        "subject_exists": CONFLICT,
        "invalid_cursor": INVALID_TOKEN,
        "empty_image": INVALID_IMAGE,
        "invalid_image": INVALID_IMAGE,
        "unsupported_image": INVALID_IMAGE,
        "image_too_small": INVALID_PARAMETER,
        "image_too_large": IMAGE_TOO_LARGE,
        "payload_too_large": IMAGE_TOO_LARGE,
        "invalid_json": SERIALIZATION,
        "unsupported_media_type": SERIALIZATION,
        "not_found": UNKNOWN_OPERATION,
        "rate_limited": THROUGHPUT,
        "liveness_unavailable": NOT_READY,
        "liveness_not_measured": NOT_READY,
    }
)
"""Rekognition's names for our error codes. For other codes, what the error is about decides (BY_ABOUT), or else its
status."""
BY_ABOUT = {About.KEY: ACCESS_DENIED, About.BUSY: THROTTLING}


def answer_of(error: LikenessError) -> WireError:
    if isinstance(error, RekognitionError):
        return WireError(500 if error.name in FAULTS else 400, error.name, error.message)
    ours = answer_problem(error, "")
    kind = BY_CODE.get(error.code)
    by_status = INVALID_PARAMETER if ours.status < 500 else INTERNAL
    name = NAMES.get(error.code) or (BY_ABOUT.get(kind.about, by_status) if kind else by_status)
    # `answer_problem` replaces messages that only the log may contain.
    return WireError(500 if name in FAULTS else 400, name, ours.body.error.message)
