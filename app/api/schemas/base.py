"""Types and bases that the models of several resources share."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from app.access.grants import Scope
from app.choices import IndexKind
from app.gallery.text import MAX_CONSENT, MAX_TEXT, to_nfc
from app.types import utc_text

MAX_ID_LENGTH = MAX_TEXT
ID_PATTERN = r"^[^\x00-\x1f\x7f]+$"
"""Pattern of ids that callers choose, for PHP's clients too; `app.gallery.text` rejects a few more characters."""
MAX_NOTE_LENGTH = MAX_CONSENT
MAX_CANDIDATES = 100
MAX_PAGE = 1000
FIRST_YEAR, LAST_YEAR = 1970, 9998
# Values in examples
TIME = "2026-01-31T12:00:00Z"
PHOTO = "/9j/4AAQSkZJRgABAQAAAQABAAD..."
"""The beginning of a JPEG in base64."""
MODEL = "sface@1.0.0"
FACE_ID = "6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10"
PUBLIC_KEY = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
Example: TypeAlias = dict[str, Any]
"""A model's ``example`` is a request or an answer for the OpenAPI document; an answer's may lack fields."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")

COMPOSED = BeforeValidator(lambda value: to_nfc(value) if isinstance(value, str) else value)
"""Puts a text into NFC, in which its characters are counted."""
Id: TypeAlias = Annotated[
    str,
    COMPOSED,
    Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no "
        "control characters. Percent-encode it in paths (`/` as `%2F`).",
        examples=["collins"],
        json_schema_extra={"pattern": ID_PATTERN},
    ),
]
Name: TypeAlias = Annotated[str, COMPOSED, Field(min_length=1, max_length=MAX_ID_LENGTH, examples=["Eileen Collins"])]
AskedId: TypeAlias = Annotated[str, COMPOSED, Field(max_length=MAX_ID_LENGTH)]
"""An id, or a part of one, to search a list for."""
Metadata: TypeAlias = dict[str, JsonValue]
Base64: TypeAlias = Annotated[
    str, Field(description="An image file as base64 (RFC 4648), or as a data URL (`data:image/jpeg;base64,...`).")
]
AskedRate: TypeAlias = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _time(value: object) -> str:
    """Return a time, given as RFC 3339 text, as the database stores it. Numbers are rejected, though pydantic would
    accept them."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("give a time with its zone, such as 2026-01-31T12:00:00Z")
    time = datetime.fromisoformat(value)
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise ValueError(f"give a year from {FIRST_YEAR} to {LAST_YEAR}")
    return utc_text(time)


Note: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NOTE_LENGTH,
        description="A short note, e.g. where the signed form is.",
        examples=["form of 31 January, folder 12"],
    ),
]
Time: TypeAlias = Annotated[
    str, BeforeValidator(_time), WithJsonSchema({"type": "string", "format": "date-time"}, mode="validation")
]


def words(closed_set: type[StrEnum]) -> WithJsonSchema:
    """Return the annotation that makes the document list an enum's values in the field, not as a separate type."""
    return WithJsonSchema({"enum": [word.value for word in closed_set], "type": "string"})


def _scope(word: str) -> Scope:
    try:
        return Scope(word)
    except ValueError:
        raise PydanticCustomError("enum", "Input should be one of {words}", {"words": ", ".join(Scope)}) from None


ScopeWord: TypeAlias = Annotated[Scope, BeforeValidator(_scope), words(Scope)]
"""A scope, read from its name, which strict reading of JSON would reject, since JSON has no enums."""
GALLERY_LIVENESS = (
    "What verification, identification and enrollment of photos ask of liveness unless a request asks for something "
    "else. `require` holds whatever a request asks."
)
ON_CONFLICT = (
    "What to do with a new face that is enrolled already, or that matches another subject. `warn`: enroll it, and say "
    "so in its row. `reject`: don't enroll it. `allow`: don't look."
)
CALIBRATION_SOURCES = (
    "Whose operating points decide: the model package's, or those measured among the gallery's own subjects, where "
    "these support the rate."
)
SEARCH_KINDS = (
    "How the vectors are searched; the answers are the same. `fp32`: as they are. `int8`: first by a copy of a quarter "
    "of their size, then the best are scored exactly; faster, but uses a quarter more memory."
)


def _not_removed(kind: object) -> object:
    if kind in ("fp16", "approximate"):
        message = (
            f"{kind!r} was removed: use 'int8' (exact answers too), or Milvus past one machine (docs/how-to/milvus.md)"
        )
        raise ValueError(message)
    return kind


Population: TypeAlias = Annotated[
    str,  # repeats the manifest's pattern, since importing that module would double a command's start
    Field(pattern=r"^[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?$", max_length=100),
]
Populations: TypeAlias = Annotated[list[Population], Field(max_length=20)]
POPULATIONS = (
    "The groups of people that this gallery is for, by their names in the `bias_card` of its model "
    "(`GET /v1/models`), e.g. `children-4-12`. Answers then carry `warnings` where the stated false match rate was "
    "seen not to hold for them."
)
AskedSearchKind: TypeAlias = Annotated[IndexKind, BeforeValidator(_not_removed)]

NextCursor: TypeAlias = Annotated[
    str | None, Field(description="Send it as `cursor` for the next page; null on the last page.")
]


is_none = partial(operator.is_, None)
"""Leaves a field out of an answer if it is None (`Field`'s ``exclude_if``)."""

SHOWN: Mapping[str, Any] = {
    "challenge": "AQx1c3...Zg==",
    "changed": 0.02,
    "code": "low_quality",
    "complete": True,
    "completed_at": TIME,
    "created": True,
    "description": "128-d face templates.",
    "device": "cpu",
    "dimension": 128,
    "embedder": MODEL,
    "embedding": [0.0132, -0.0871, 0.0456],
    "erased_at": TIME,
    "face_id": FACE_ID,
    "fmr": 0.0001,
    "fpir": 0.01,
    "galleries": ["staff"],
    "gallery": "staff",
    "id": "0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10",
    "index": 0,
    "index_copies": "removed",
    "key": "door",
    "key_id": "21fe31dfa154a261",
    "kind": "import",
    "landmarks": [[204.1, 113.6], [244.9, 111.2], [227.8, 137.5], [209.3, 158.8], [243.7, 156.9]],
    "loaded": True,
    "match": True,
    "measured_on": "LFW View 1",
    "merged": "eileen",
    "message": "Quality 21 is below 35, the least for `medium`.",
    "metadata": {"team": "STS-114"},
    "model": MODEL,
    "name": "Eileen Collins",
    "note": "form of 31 January, folder 12",
    "ok": True,
    "operation": "identify",
    "providers": ["CPUExecutionProvider"],
    "public_key": PUBLIC_KEY,
    "quality": 81.5,
    "rate": "10/s",
    "request_id": "4f1d8f0c2b7e4c4f8a55f3b1f0e7d9aa",
    "scopes": ["recognize"],
    "score": 0.871,
    "secret": "lk_door_Vq3zTq9bZ0mJ6cXyqk1o7sJ8b2nPzq4wRrT5uYh6eLk",
    "sha256": "fb143eea07838aa532d1c95df5f69899974ea0140e1fba05e94204be13ed74ee",
    "source": "carrier",
    "status": 200,
    "steps": ["ahead", "right", "nearer", "left"],
    "subject": "collins",
    "tables": "overwritten",
    "task": "embed",
    "template_score": 0.884,
    "threshold": 0.412,
    "threshold_uncertain": 0.371,
    "title": "SFace",
    "version": "1.0.0",
    "write_ahead_log": "emptied",
}
"""Values for fields with these names in examples of answers, if the field has no example."""
_OF_TYPE: Mapping[Any, Any] = {str: "...", bool: False, int: 1, float: 0.5, datetime: TIME, list: [], dict: {}}


def _shown(name: str, field: FieldInfo) -> Any:
    """Return the value of this field in an answer's example."""
    if field.examples:
        return field.examples[0]
    if not field.is_required():
        return field.get_default(call_default_factory=True)
    kind, inner = field.annotation, get_args(field.annotation)
    models = [model for model in (kind, *inner) if isinstance(model, type) and issubclass(model, Wire)]
    if models:
        return [models[0].example] if get_origin(kind) is list else models[0].example
    if get_origin(kind) is Literal:
        return inner[0]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return next(iter(kind)).value
    return SHOWN.get(name, None if type(None) in inner else _OF_TYPE.get(get_origin(kind) or kind))


class Wire(BaseModel):
    """Base of all answers. Unknown fields and NaN are errors for server and client alike."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        from_attributes=True,
        validate_by_name=True,
        validate_by_alias=True,
    )
    example: ClassVar[Example]
    """An answer for the document, made from its fields' examples, names and types, and the class's own declaration."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        fields = {name: field for name, field in cls.model_fields.items() if field.exclude_if is None}
        declared = vars(cls).get("example", {})
        cls.example = {name: _shown(name, field) for name, field in fields.items() if name not in declared} | declared

    @classmethod
    def of(cls, record: object = None, /, **given: object) -> Self:
        """Return the answer with the given fields, and all others from the record, which must have them by name."""
        return cls.model_validate({name: getattr(record, name) for name in cls.model_fields.keys() - given} | given)


class Params(BaseModel):
    """Base of parameters and request bodies. Parameters are in the query, or are form fields or JSON fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PageParams(Params):
    limit: int = Field(default=100, ge=1, le=MAX_PAGE, description="The most rows on a page.")
    cursor: str | None = Field(default=None, max_length=2048, description="The previous page's `next_cursor`.")
