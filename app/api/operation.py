"""One operation of the HTTP interface as a value: everything that is said about it, said once.

Authorization, the audit log, the OpenAPI document, the access tests and the Python client's paths all read it. This
module and `app.api.endpoints`, which declares every operation, import no web framework.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote, unquote

from pydantic import BaseModel

from app.access.grants import Scope

Answer = TypeVar("Answer")

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
JSON_CODES = ("invalid_json", "unsupported_media_type", "payload_too_large", "body_timeout")
FORM_CODES = (*JSON_CODES, "invalid_multipart", "invalid_base64", "missing_image", "too_many_images")
IMAGE_CODES = (*FORM_CODES, "empty_image", "invalid_image", "unsupported_image", "image_too_large", "image_too_small")
UPLOAD_CODES = ("unsupported_media_type", "payload_too_large", "body_timeout", "invalid_multipart", "empty_upload")


@dataclass(frozen=True, slots=True)
class ImageFields:
    """The image fields of a body: these names, each once; or, if ``many``, one name any number of times."""

    names: tuple[str, ...]
    many: bool = False

    @property
    def raw(self) -> bool:
        """Return whether the body may be the image itself."""
        return len(self.names) == 1


ONE_IMAGE = ImageFields(("image",))
TWO_IMAGES = ImageFields(("image1", "image2"))
MANY_IMAGES = ImageFields(("images",), many=True)


@dataclass(frozen=True, slots=True)
class File:
    """A body or an answer that is a file, in one of ``media_types``."""

    media_types: tuple[str, ...]
    description: str
    field: str | None = None
    """A body's name in a multipart form."""


@dataclass(frozen=True, slots=True)
class Operation(Generic[Answer]):
    """The declaration of one operation. ``name`` is its word in the audit log, ``path`` a template.

    Its handler's docstring has the rest of what the OpenAPI document says: summary and description.
    """

    name: str
    method: str
    path: str
    answer: type[Answer]
    """A pydantic model; `bytes` for a file; `NoneType` for an empty answer."""
    scope: Scope | None
    """None: every key may call it."""
    changes: bool = False
    """Whether it changes something: the audit log then records it before it begins."""
    unrestricted: bool = False
    """Whether keys that are restricted to galleries may not call it."""
    status: int = 200
    body: type[BaseModel] | None = None
    images: ImageFields | None = None
    """The fields of ``body`` that are images; they may also come as multipart fields or as the raw body."""
    upload: File | None = None
    file: File | None = None
    """What the answer is, where it is a file."""
    codes: tuple[str, ...] = ()
    """Error codes beside those that follow from the fields above."""
    monitoring: bool = False
    """Whether it is about the server alone: counts as no request in progress, and is not audited."""
    public: bool = False
    """Whether it needs no key."""
    by_code: bool = False
    """Whether it takes a sign-in code where others take a key."""
    more_models: tuple[type[BaseModel], ...] = ()
    """Further models of bodies that the OpenAPI document refers to."""
    compat: str | None = None
    """The other service whose wire format, and form of errors, it has."""

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """The models of its body."""
        return (*self.more_models, *((self.body,) if self.body else ()))

    @property
    def error_codes(self) -> tuple[str, ...]:
        """All error codes, each once."""
        if self.public:
            return OPEN_CODES
        found = [*KEYED_CODES]
        if not self.monitoring:
            found += CALL_CODES
        if self.unrestricted:
            found.append("gallery_restricted")
        if "{gallery}" in self.path:
            found += ("gallery_not_found", "invalid_id")
        if self.images:
            found += IMAGE_CODES
        elif self.body:
            found += JSON_CODES
        elif self.upload:
            found += UPLOAD_CODES
        return tuple(dict.fromkeys((*found, *self.codes)))

    def fill(self, **ids: str) -> str:
        """The path with these ids, percent-encoded: ``/v1/galleries/{gallery}`` and ``a/b`` -> ``…/a%2Fb``."""
        return self.path.format(**{name: quote(value, safe="") for name, value in ids.items()})


AnyOperation: TypeAlias = Operation[Any]


@dataclass(frozen=True, slots=True)
class MatchedOperation:
    """The operation a request is for, and the ids in its path: decoded, in NFC."""

    operation: AnyOperation
    gallery: str | None = None
    subject: str | None = None
    target: str | None = None
    """The id of a face, key, job or receipt."""


class OperationTable:
    """Finds the operation of a request by its method and path."""

    def __init__(self, operations: Iterable[AnyOperation] = ()) -> None:
        self.operations: list[AnyOperation] = []
        self._patterns: dict[tuple[str, int], list[tuple[AnyOperation, re.Pattern[str]]]] = defaultdict(list)
        for operation in operations:
            self.add(operation)

    def add(self, operation: AnyOperation) -> None:
        self.operations.append(operation)
        pattern = re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", operation.path))
        self._patterns[operation.method, operation.path.count("/")].append((operation, pattern))

    def match(self, method: str, path: str) -> MatchedOperation | None:
        """The first operation that fits. ``path`` is as it was sent, percent-encoded: an id holds no slash in it."""
        for operation, pattern in self._patterns.get((method, path.count("/")), ()):
            if found := pattern.fullmatch(path):
                ids = {name: unicodedata.normalize("NFC", unquote(text)) for name, text in found.groupdict().items()}
                gallery, subject = ids.pop("gallery", None), ids.pop("subject", None)
                return MatchedOperation(operation, gallery, subject, next(iter(ids.values()), None))
        return None
