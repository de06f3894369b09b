"""An operation of the HTTP interface as a value, declared once, on its handler.

`app.api.route` makes it; authorization, the audit log, the OpenAPI document and the access tests read it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel

from app.access.grants import Scope
from app.api.body import BodyLimits, File, ImageFields
from app.api.wire import OWN_FORMAT, WireFormat

OPEN_CODES = ("host_not_allowed", "internal_error")
"""Error codes of every operation."""
KEYED_CODES = (
    "missing_key",
    "wrong_key",
    "expired_key",
    "revoked_key",
    "rate_limited",
    "too_many_failures",
    "invalid_path",
    "host_not_allowed",
    "internal_error",
    "not_ready",
)
"""Error codes of every operation that needs a key."""
CALL_CODES = (
    "missing_scope",
    "invalid_request",
    "overloaded",
    "request_timeout",
    "too_many_connections",
    "shutting_down",
    "database_busy",
    "database_unavailable",
    "index_unavailable",
    "sealed_unreadable",
    "unusable",
)
"""Further error codes of every operation that is not for monitoring."""
BODY_CODES = ("unsupported_media_type", "payload_too_large", "body_timeout")
JSON_CODES = ("invalid_json", *BODY_CODES)
FORM_CODES = (*JSON_CODES, "invalid_multipart", "invalid_base64", "missing_image", "too_many_images")
IMAGE_CODES = (
    *FORM_CODES,
    "empty_image",
    "invalid_image",
    "unsupported_image",
    "image_too_large",
    "image_too_small",
    "workers_unusable",
)
UPLOAD_CODES = (*BODY_CODES, "invalid_multipart", "empty_upload", "upload_not_kept")

# Codes that several operations share
RATE_CODES = ("operating_point_unavailable",)
PACKAGE = ("package_unknown", "package_ambiguous", "package_unavailable")
GALLERY_PACKAGE = (*PACKAGE, "package_not_measured", "licence_not_accepted")
LIVENESS = ("not_live", "liveness_unavailable", "liveness_not_measured")
TEMPLATES = ("package_mismatch", "package_unavailable")
SEARCH = ("search_unavailable",)
SUBJECT_FIELDS = ("invalid_name", "invalid_metadata", "invalid_expiry", "invalid_consent")
NO_SUBJECT = ("subject_not_found",)
NO_FACE = ("subject_not_found", "face_not_found")
NO_JOB = ("job_not_found",)
CURSOR = ("invalid_cursor",)


@dataclass(frozen=True, slots=True)
class Operation:
    """The declaration of one operation. ``name`` is its word in the audit log, ``path`` a template."""

    name: str
    method: str
    path: str
    scope: Scope | None
    """None: every key may call it."""
    answer: type[Any] | None = None
    """The model of its answer in JSON; None: an empty answer, or a file."""
    changes: bool = False
    """Whether it changes something: the audit log then records it before it begins."""
    unrestricted: bool = False
    """Whether keys that are restricted to galleries may not call it."""
    one_commit: bool = False
    """Whether its handler writes the audit entry with the change (`AuditEntry.insert`), so none is written before."""
    status: int = 200
    query: type[BaseModel] | None = None
    """Its parameters in the query."""
    body: type[BaseModel] | None = None
    images: ImageFields | None = None
    """The fields of ``body`` that are images; they may also come as multipart fields or as the raw body."""
    body_bytes: Callable[[BodyLimits], int] | None = None
    """Returns the maximum bytes of its body; None: `BodyLimits.most`."""
    upload: File | None = None
    file: File | None = None
    """The answer, if it is a file."""
    codes: tuple[str, ...] = ()
    """Error codes besides those that follow from the other fields."""
    monitoring: bool = False
    """Whether it is only about the server; then it does not count as a request in progress, and is not audited."""
    streams: bool = False
    """Whether its answer lasts as long as the client listens; then it does not count as a request in progress."""
    public: bool = False
    """Whether it needs no key."""
    wire: WireFormat = OWN_FORMAT

    @property
    def error_codes(self) -> tuple[str, ...]:
        """Return all error codes, each once."""
        if self.public:
            return OPEN_CODES
        of_call = () if self.monitoring else CALL_CODES
        of_key = ("gallery_restricted",) if self.unrestricted else ()
        of_path = ("gallery_not_found", "invalid_id") if "{gallery}" in self.path else ()
        of_body = IMAGE_CODES if self.images else JSON_CODES if self.body else UPLOAD_CODES if self.upload else ()
        return tuple(dict.fromkeys((*KEYED_CODES, *of_call, *of_key, *of_path, *of_body, *self.codes)))

    def fill(self, **ids: str) -> str:
        """Return the path with these ids, percent-encoded: ``/v1/galleries/{gallery}`` and ``a/b`` -> ``…/a%2Fb``."""
        return self.path.format(**{name: quote(value, safe="") for name, value in ids.items()})


GALLERIES_PATH = "/v1/galleries"
GALLERY_PATH = f"{GALLERIES_PATH}/{{gallery}}"
SUBJECTS_PATH = f"{GALLERY_PATH}/subjects"
SUBJECT_PATH = f"{SUBJECTS_PATH}/{{subject}}"
FACES_PATH = f"{SUBJECT_PATH}/faces"
