"""CompreFace's wire format. Errors have a status, and `{"message", "code"}` with a numeric code.

Numbers and statuses are those of CompreFace's `CommonExceptionCode` and exception handler (version 1.2). For errors
that CompreFace doesn't have, RULES choose by our status and what the error is about. Any other error keeps our status
and has the number 0, CompreFace's "undefined".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType

from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope

from app.api.route import OperationRoute
from app.api.wire import WireFormat, answer_problem
from app.error_codes import BY_CODE, About
from app.errors import FaceNotFound, InvalidInput, LikenessError, SubjectNotFound

UNDEFINED = 0
ACCESS_DENIED = 1
EMPTY_FIELD = 5
SERVICE_NOT_FOUND = 10
MISSING_HEADER = 20
UNAVAILABLE_FILE = 21
VALIDATION = 26
NO_FACES = 28
TOO_MANY_FACES = 31
MISSING_PARAMETER = 33
MISSING_PART = 34
INCORRECT_ARGUMENT = 36
SUBJECT_NOT_FOUND = 42
SUBJECT_EXISTS = 43
IMAGE_NOT_FOUND = 44


class CompreFaceError(InvalidInput):
    """An error with CompreFace's own number and message, and status 400."""

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.number = number


@dataclass(frozen=True, slots=True)
class Kind:
    """The status, number and message of an error. ``message`` is CompreFace's; None to answer our message, if it says
    more."""

    status: int
    number: int
    message: str | None = None


NAMED: Mapping[str, Kind] = MappingProxyType(
    {
        "missing_key": Kind(400, MISSING_HEADER, "Missing header: x-api-key"),
        "wrong_key": Kind(404, SERVICE_NOT_FOUND, "Service with this API Key not found"),
        "gallery_not_found": Kind(404, SERVICE_NOT_FOUND),
        "no_face": Kind(400, NO_FACES, "No face is found in the given image"),
        "face_unalignable": Kind(400, NO_FACES),
        "ambiguous_face": Kind(400, TOO_MANY_FACES, "More than one face in the source image"),
        "subject_exists": Kind(400, SUBJECT_EXISTS, "Subject already exists"),
        "missing_image": Kind(400, MISSING_PART),
        "invalid_base64": Kind(400, UNAVAILABLE_FILE, "Provided value is not Base64"),
        "unsupported_image": Kind(400, UNAVAILABLE_FILE),
        "invalid_image": Kind(400, UNAVAILABLE_FILE),
        "empty_image": Kind(400, UNAVAILABLE_FILE),
        "image_too_small": Kind(400, NO_FACES),
        "too_many_images": Kind(400, VALIDATION),
        "invalid_template": Kind(400, INCORRECT_ARGUMENT),
        "method_not_allowed": Kind(404, UNDEFINED),
    }
)
"""The kinds of our error codes for which CompreFace has a number."""
RULES: Mapping[tuple[int, About], Kind] = MappingProxyType(
    {
        (400, About.REQUEST): Kind(400, UNDEFINED),
        (401, About.KEY): Kind(404, SERVICE_NOT_FOUND),
        (403, About.KEY): Kind(403, ACCESS_DENIED),
        (422, About.REQUEST): Kind(400, VALIDATION),
    }
)
"""The kinds of other errors, by our status and what the error is about (both from the table of codes)."""


def answer_of(error: LikenessError) -> tuple[Kind, str, dict[str, str]]:
    """Return how an error of ours is answered: its kind, its message and further headers."""
    ours = answer_problem(error, "")
    if isinstance(error, CompreFaceError):
        return Kind(400, error.number), error.message, {}
    if isinstance(error, SubjectNotFound):
        return Kind(404, SUBJECT_NOT_FOUND), f"Subject {error.details.get('subject', '')} not found", {}
    if isinstance(error, FaceNotFound):
        return Kind(404, IMAGE_NOT_FOUND), f"Image {uuid.UUID(str(error.details['face_id']))} not found", {}
    row = BY_CODE.get(error.code)
    kind = NAMED.get(error.code) or (RULES.get((row.status, row.about)) if row else None)
    # `answer_problem` replaces messages that only the log may contain
    message = error.message if error.code in NAMED else ours.body.error.message
    headers = {name: value for name, value in ours.headers.items() if name == "retry-after"}
    kind = kind or Kind(ours.status, UNDEFINED)
    return kind, kind.message or message, headers


PREFIX = "/api/v1/"
MANY = attrgetter("request_bytes")
"""Returns the maximum bytes of a JSON body with many embeddings or image ids: the limit of any body."""


class CompreFace(WireFormat):
    """The format of everything below `/api/v1/`. Only callers with a key get 404 for an unknown path."""

    name = "CompreFace"
    security = ("api_key",)
    description = "CompreFace's REST interface, for clients written for it (docs/reference/drop-ins.md)."

    def speaks(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.startswith(PREFIX)

    def error_response(self, error: LikenessError, request_id: str, path: str) -> Response:  # noqa: ARG002 (not in it)
        kind, message, headers = answer_of(error)
        content = json.dumps({"message": message, "code": kind.number}, ensure_ascii=False)
        return Response(content, kind.status, headers, "application/json")


COMPREFACE = CompreFace()


class CompreFaceRoute(OperationRoute):
    """A path that is served with and without a slash at its end, as Spring does."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        return super().matches({**scope, "path": path[:-1]} if path.endswith("/") else scope)
