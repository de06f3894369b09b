"""Types and bases that the models of several resources share."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue

from app.choices import IndexKind

MAX_ID_LENGTH = 255
MAX_NOTE_LENGTH = 1000
MAX_CANDIDATES = 100
MAX_PAGE = 1000
MAX_GRACE_S = 30 * 24 * 3600
FIRST_YEAR, LAST_YEAR = 1970, 9998
# Values in examples
TIME = "2026-01-31T12:00:00Z"
PHOTO = "/9j/4AAQSkZJRgABAQAAAQABAAD..."
"""The beginning of a JPEG in base64."""
MODEL = "sface@1.0.0"
FACE_ID = "6f1f2d5f0f0c4c3a9a3e0c6d7b8a9f10"
PUBLIC_KEY = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
Example: TypeAlias = dict[str, Any]
"""A model's ``example`` is one request or answer, for the OpenAPI document."""

_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)")


Id: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_ID_LENGTH,
        description="An id in any script, 1 to 255 characters, kept in Unicode's form NFC; neither `.` nor `..`, no "
        "control characters. Percent-encode it in paths (`/` as `%2F`).",
        examples=["collins"],
    ),
]
Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=MAX_ID_LENGTH, examples=["Eileen Collins"])]
Metadata: TypeAlias = dict[str, JsonValue]
Base64: TypeAlias = Annotated[
    str, Field(description="An image file as base64 (RFC 4648), or as a data URL (`data:image/jpeg;base64,...`).")
]
Rate: TypeAlias = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]


def _time(value: object) -> object:
    """Accept RFC 3339 text, and nothing else that pydantic would take for a time, such as numbers."""
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise ValueError("give a time with its zone, such as 2026-01-31T12:00:00Z")
    time = datetime.fromisoformat(value)
    if not FIRST_YEAR <= time.year <= LAST_YEAR:
        raise ValueError(f"give a year from {FIRST_YEAR} to {LAST_YEAR}")
    return time


Note: TypeAlias = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NOTE_LENGTH,
        description="A short note, e.g. where the signed form is.",
        examples=["form of 31 January, folder 12"],
    ),
]
Time: TypeAlias = Annotated[AwareDatetime, BeforeValidator(_time)]
KeyIdText: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$",
        max_length=63,
        description="A key's id: 1 to 63 of a-z, 0-9 and inner hyphens.",
        examples=["door"],
    ),
]
RateText: TypeAlias = Annotated[
    str,
    Field(
        max_length=32,
        description="Requests per second or minute, and optionally a burst: `10/s`, `600/m:20`, or `unlimited`.",
        examples=["10/s"],
    ),
]
ScopeName: TypeAlias = Literal["read", "recognize", "enroll", "admin", "delete", "metrics", "templates"]
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
    str,  # as in a manifest, which is not imported here: it would double a command's start
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


class Wire(BaseModel):
    """Base of all answers. Unknown fields and NaN are errors for server and client alike."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, from_attributes=True)

    @classmethod
    def of(cls, *records: object, **given: object) -> Self:
        """Return the answer with the given fields, and every other field from the first record that has it."""
        names = cls.model_fields.keys() - given.keys()
        found = {name: getattr(record, name) for record in reversed(records) for name in names if hasattr(record, name)}
        return cls.model_validate(found | given)


class Params(BaseModel):
    """Base of parameters and request bodies: parameters come in the query, as form fields or as JSON fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PageParams(Params):
    limit: int = Field(default=100, ge=1, le=MAX_PAGE, description="The most rows on a page.")
    cursor: str | None = Field(default=None, max_length=2048, description="The previous page's `next_cursor`.")
