"""The JSON lines of imports and exports, which describe subjects, faces and photos."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from app.choices import FindingKind
from app.errors import InvalidInput
from app.features.stored import CROP_LIMITS
from app.types import UNKNOWN_QUALITY, Reason, utc_text
from app.wording import found_wrong

MAX_LINE = 1024 * 1024
BATCH_WEIGHT = 64 * 1024 * 1024
"""Approximate maximum bytes of a batch in memory: photos, or parsed lines with their crops."""
PARSED_WEIGHT = 25
"""Maximum bytes of memory per byte of a parsed line: the three bytes `{},` become an object of 64 bytes and a
reference."""
MAX_SIDE = 2**31 - 1
"""Largest integer that every database stores."""


def _time(value: str) -> str:
    """Return an ISO 8601 time in the form that the database stores. Raises ValueError without a time zone."""
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError("a time needs its zone, such as Z or +01:00")
    return utc_text(time)


HexId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Time = Annotated[str, Field(max_length=40), AfterValidator(_time)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Line(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PhotoLine(Line):
    """The subject of a photo in the archive, for photos whose folder doesn't name it."""

    photo: str
    subject: str
    name: str | None = None
    metadata: dict[str, Any] | None = None


class OriginLine(Line):
    """The photo that a face was found in, as `app.gallery.records.Origin`."""

    image_id: HexId
    width: int = Field(ge=1, le=MAX_SIDE)
    height: int = Field(ge=1, le=MAX_SIDE)
    score: float = Field(ge=0, le=1, allow_inf_nan=False)
    external_id: str | None = Field(default=None, pattern=r"^[a-zA-Z0-9_.\-:]{1,255}$")


class FaceLine(Line):
    """The face that the template in the same row belongs to. ``crop`` is the length of its JPEG in bytes."""

    subject: str
    name: str | None = None
    metadata: dict[str, Any] | None = None
    quality: float = Field(default=UNKNOWN_QUALITY, ge=0, le=100, allow_inf_nan=False)
    reasons: list[Reason] = []
    box: tuple[Number, Number, Number, Number] = (0.0, 0.0, 0.0, 0.0)
    face_id: HexId | None = None
    created_at: Time | None = None
    crop: int | None = Field(default=None, ge=0, le=CROP_LIMITS.max_bytes)
    origin: OriginLine | None = None


class ConsentLine(Line):
    note: str
    given_at: Time


class SubjectLine(Line):
    id: str
    name: str | None
    metadata: dict[str, Any]
    created_at: Time
    updated_at: Time
    expires_at: Time | None = None
    consent: ConsentLine | None = None
    cover: HexId | None = None


class CorrectionLine(Line):
    """A probe that does not show the subject; template and crop are in base64."""

    id: HexId
    subject: str
    template: Base64Bytes
    crop: Annotated[Base64Bytes, Field(max_length=CROP_LIMITS.max_bytes)] | None
    created_at: Time
    expires_at: Time


class DismissalLine(Line):
    kind: FindingKind
    face_id: HexId
    other_face_id: HexId | None
    created_at: Time


AnyLine = TypeVar("AnyLine", bound=Line)
T = TypeVar("T")


def split(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that aren't empty, without a byte order mark at the beginning.

    Raises InvalidInput ``invalid_archive`` for a line longer than MAX_LINE.
    """
    rest, begun = b"", False
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        if whole and not begun:
            whole[0], begun = whole[0].removeprefix(codecs.BOM_UTF8), True
        for line in whole:
            if stripped := line.strip():
                yield _fit(stripped)
        _fit(rest)
    if stripped := (rest if begun else rest.removeprefix(codecs.BOM_UTF8)).strip():
        yield stripped


def parse(line: bytes, kind: type[AnyLine]) -> AnyLine:
    """Return the parsed line. Raises InvalidInput ``invalid_item`` with a message that doesn't quote the line."""
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(str(part)[:50] for part in first["loc"])
        raise InvalidInput(f"{place or 'line'}: {found_wrong(first)}", code="invalid_item") from None


def batches(
    items: Iterable[tuple[T, int]], count: int, *, together: Callable[[T, T], bool] = lambda *_: False
) -> Iterator[list[T]]:
    """Yield batches of `count` items; a batch ends earlier when its items exceed BATCH_WEIGHT bytes.

    Items come with their weights in bytes. A batch may get up to twice `count` items, as long as `together` is true of
    its last item and the next.
    """
    batch: list[T] = []
    held = 0
    for item, weight in items:
        most = 2 * count if batch and together(batch[-1], item) else count
        if len(batch) >= most or held > BATCH_WEIGHT:
            yield batch
            batch, held = [], 0
        batch.append(item)
        held += weight
    if batch:
        yield batch


def write(document: object) -> bytes:
    """Return the document as one line of JSON, with its line feed."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _fit(line: bytes) -> bytes:
    if len(line) > MAX_LINE:
        raise InvalidInput(f"A line is longer than {MAX_LINE} bytes.", code="invalid_archive")
    return line
