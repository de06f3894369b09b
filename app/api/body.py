"""Read request bodies within a limit, and split them into images and parameters.

Images come as multipart fields, as base64 in JSON, or as the raw body; parameters beside them as form or JSON
fields. The body is never written to disk.
"""

from __future__ import annotations

import asyncio
import binascii
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, NoReturn, Self, TypeVar

from pydantic import BaseModel, RootModel, ValidationError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from app.api.json_reader import SMALL_BYTES, load_json, load_with_images
from app.errors import EmptyImage, InvalidInput, MissingImage
from app.wording import found_wrong, unknown_name, what_it_is

TAR_TYPE, GZIP_TYPES = "application/x-tar", ("application/gzip", "application/x-gzip")
LINES_TYPE, CSV_TYPE, JPEG_TYPE = "application/x-ndjson", "text/csv", "image/jpeg"


_INDEXED = re.compile(r"\[\d{0,4}\]$")


@dataclass(frozen=True, slots=True)
class ImageFields:
    """The image fields of a body: each of these names once, or with ``many``, one name any number of times.

    ``track``: a name may have several images only if they show one person.
    """

    names: tuple[str, ...]
    many: bool = False
    track: bool = False

    @property
    def raw(self) -> bool:
        """Return whether the body may be the image itself."""
        return len(self.names) == 1

    def field_of(self, name: str) -> str | None:
        """Return the field that a form's part names, or None. With ``many`` it may be written ``images[]`` or
        ``images[0]``."""
        plain = _INDEXED.sub("", name) if self.many else name
        return plain if plain in self.names else None


ONE_IMAGE = ImageFields(("image",))
TWO_IMAGES = ImageFields(("image1", "image2"), many=True, track=True)
MANY_IMAGES = ImageFields(("images",), many=True)
IMAGE_OR_TRACK = ImageFields(("image",), many=True, track=True)


@dataclass(frozen=True, slots=True)
class File:
    """A body or an answer that is a file, in one of ``media_types``."""

    media_types: tuple[str, ...]
    description: str
    field: str | None = None
    """For a body: the name of its field in a multipart form."""


ModelT = TypeVar("ModelT", bound=BaseModel)
ParamsT = TypeVar("ParamsT", bound=BaseModel)

FORM_OVERHEAD = 64 * 1024
"""Maximum bytes of a form besides the images: boundaries, headers, parameters."""
MAX_TEXT_FIELD = 4096
"""Maximum bytes of a parameter sent as a form field."""
MAX_TEXT_FIELDS = 16
"""Maximum form parts besides the images; no operation has as many parameters."""
MAX_PART_HEADER = 8 * 1024
HEAD_END = b"\r\n\r\n"
_HEADER = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:")
"""Matches the start of a line in a part's head (RFC 5322, section 2.2, with the characters of RFC 9110's tokens)."""
QUICK_BYTES = SMALL_BYTES
"""A form or JSON object up to this size is parsed at once, which takes less than a millisecond; larger ones wait for
their turn (`Components.parsing`)."""
COSTLY_BYTES = 2 * 1024**2
"""Bodies are parsed one at a time, at low priority, from these bytes on; smaller ones don't wait for them."""
PARSED_COPIES = 2
"""Copies of a body counted against the memory while it is parsed: a form takes one, JSON less than two."""
MAX_ERRORS = 10
"""Maximum wrong fields that an answer lists."""
JSON_TYPE = "application/json"
FORM_TYPE = "multipart/form-data"
RAW_TYPE = "application/octet-stream"

BASE64_PIECE = 128 * 1024
"""Bytes of base64 decoded at a time, a multiple of four; it takes half a millisecond."""
WHITESPACE = b" \t\n\r\v\f"
URL_SAFE = bytes.maketrans(b"-_", b"+/")
"""Translates base64's alphabet for URLs (RFC 4648, section 5) into the usual one."""
_DATA_URL = re.compile(rb"data:[^,]{0,255};base64,", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Maximum bytes of one image and of a whole body, and maximum images of one enrollment."""

    image_bytes: int
    request_bytes: int
    images: int
    seconds: float
    json_bytes: int
    """Maximum bytes of a body without images."""
    upload_bytes: int
    """Maximum bytes of an upload for a job, both packed and unpacked."""

    def most(self, wanted: ImageFields | None) -> int:
        """Return the maximum bytes of a body with these images, which base64 may lengthen by a third; without images,
        `json_bytes`."""
        if wanted is None:
            return self.json_bytes
        images = self.images if wanted.many else len(wanted.names)
        return min(self.request_bytes, images * (self.image_bytes * 4 // 3 + 4) + FORM_OVERHEAD)


@dataclass(frozen=True, slots=True)
class Body:
    """A body and its media type, in lower case without parameters."""

    data: bytes
    media_type: str
    boundary: bytes = b""


@dataclass(slots=True)
class Parts:
    """The content of a body: images by field name, and the other fields (``strict``: they have JSON types)."""

    images: dict[str, list[bytes]] = field(default_factory=dict)
    fields: dict[str, Any] = field(default_factory=dict)
    strict: bool = False


async def read_body(request: Request, limit: int, seconds: float, count_bytes: Callable[[int], None]) -> Body:
    """Read a body of at most ``limit`` bytes. ``count_bytes`` is called with the size of each piece as it arrives.

    Raises InvalidInput ``payload_too_large``, ``body_timeout``, ``unsupported_media_type``, and what
    ``count_bytes`` raises.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        _too_large(limit)
    kind = content_type(request)
    data = io.BytesIO()  # `getvalue` returns its buffer without a copy
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                if data.tell() + len(chunk) > limit:
                    _too_large(limit)
                count_bytes(len(chunk))
                data.write(chunk)
    except TimeoutError:
        raise InvalidInput("The body did not arrive in time.", code="body_timeout") from None
    return Body(data.getvalue(), *kind)


def content_type(request: Request) -> tuple[str, bytes]:
    """Return the media type in lower case, and a form's boundary.

    Raises InvalidInput (``unsupported_media_type``) for a compressed body.
    """
    if request.headers.get("content-encoding", "").strip().lower() not in {"", "identity"}:
        raise InvalidInput("Compressed bodies are not read.", code="unsupported_media_type")
    media_type, options = parse_options_header(request.headers.get("content-type"))
    return media_type.decode("latin-1").lower(), options.get(b"boundary", b"")


def unsupported(supported: Sequence[str]) -> InvalidInput:
    kinds = f"one of {', '.join(supported)}" if len(supported) > 1 else supported[0]
    message = f"Send {kinds}, and name it in the header Content-Type."
    return InvalidInput(message, code="unsupported_media_type", supported=list(supported))


def parse_images(
    body: Body, wanted: ImageFields, limits: BodyLimits, known: Collection[str] = (), *, ignore: bool = False
) -> Parts:
    """Split a body into images and parameters; a form may have the ``known`` fields beside the images.

    With ``ignore``, other fields of a form are ignored; otherwise they are an error.

    Raises InvalidInput: ``unsupported_media_type``, ``invalid_json``, ``invalid_multipart``, ``invalid_base64``,
    ``missing_image``, ``too_many_images``, ``payload_too_large``, ``invalid_request``.
    """
    if body.media_type == FORM_TYPE:
        parts = _parse_form(body, wanted, limits, known, ignore=ignore)
    elif body.media_type == JSON_TYPE:
        parts = _parse_json_images(body, wanted, limits)
    elif wanted.raw and (body.media_type == RAW_TYPE or body.media_type.startswith("image/")):
        parts = Parts(images={wanted.names[0]: [body.data]})
    elif not body.data:
        raise EmptyImage("The body is empty.")
    else:
        kinds = [FORM_TYPE, JSON_TYPE] + ([RAW_TYPE, "image/*"] if wanted.raw else [])
        raise unsupported(kinds)
    _check_images(parts.images, wanted, limits)
    return parts


@dataclass(frozen=True, slots=True)
class Sent(Generic[ParamsT]):
    """The images of a body, by the operation's image fields, and the parameters of the query and the body."""

    fields: Sequence[Sequence[bytes]]
    params: ParamsT

    @property
    def images(self) -> list[bytes]:
        """Return all images, in the order of the fields."""
        return [image for field in self.fields for image in field]

    @classmethod
    def parse(cls, body: Body, wanted: ImageFields, limits: BodyLimits, query: ParamsT) -> Self:
        """Return the content of a body.

        Raises what `parse_images` raises, and InvalidInput if a parameter has different values in the query and in
        the body. Equal ones are accepted, since generated clients send defaults in both.
        """
        model = type(query)
        parts = parse_images(body, wanted, limits, model.model_fields)
        images = [parts.images[name] for name in wanted.names]
        if not parts.fields:
            return cls(images, query)
        given = validate(model, parts.fields, "body", strict=parts.strict)
        asked = query.model_dump(mode="json", exclude_unset=True)
        added = given.model_dump(mode="json", exclude_unset=True)
        if twice := sorted(name for name in asked.keys() & added.keys() if asked[name] != added[name]):
            raise InvalidInput(f"{', '.join(twice)}: given in the query and in the body, and differently.", errors=[])
        return cls(images, validate(model, asked | added, "body", strict=False))


def parse_json(body: Body, model: type[ModelT]) -> ModelT:
    """Read a JSON body as ``model``, strictly typed. Raises what `parse_images` raises."""
    if body.media_type != JSON_TYPE:
        raise unsupported([JSON_TYPE])
    loaded = load_json(body.data)
    return validate(model, loaded if issubclass(model, RootModel) else _object(loaded), "body", strict=True)


def validate(model: type[ModelT], values: object, where: str, *, strict: bool) -> ModelT:
    try:
        return model.model_validate(values, strict=strict)
    except ValidationError as error:
        problems: list[dict[str, Any]] = [
            {**problem} for problem in error.errors(include_input=False, include_url=False)
        ]
        for problem in problems:
            if problem["type"] == "extra_forbidden" and len(problem["loc"]) == 1:
                said = unknown_name(str(problem["loc"][0]), model.model_fields, "field")
                problem.update(type="unknown_field", msg=said)
        raise invalid_request(problems, where) from None


def invalid_request(errors: list[dict[str, Any]], where: str = "") -> InvalidInput:
    """Return pydantic's errors as one InvalidInput with places and messages, but without the values that were sent."""
    listed = []
    for error in errors[:MAX_ERRORS]:
        place = ".".join(str(part)[:100] for part in ((where,) if where else ()) + tuple(error["loc"]))
        listed.append({"where": place, "what": found_wrong(error)})
    message = "; ".join(f"{problem['where']}: {problem['what']}" for problem in listed[:3])
    return InvalidInput(message or "The request is not valid.", errors=listed)


# ---------------------------------------------------------------- multipart


def _parse_form(body: Body, wanted: ImageFields, limits: BodyLimits, known: Collection[str], *, ignore: bool) -> Parts:
    parts, images = Parts(), limits.images if wanted.many else len(wanted.names)
    for name, data in form_parts(body, images + MAX_TEXT_FIELDS):
        if (field_name := wanted.field_of(name)) is not None:
            parts.images.setdefault(field_name, []).append(data)
            continue
        if name not in known and ignore:
            continue
        if name not in known:
            missing = " and ".join(needed for needed in wanted.names if needed not in parts.images)
            message = unknown_name(name, known, "field", missing or None)
            raise invalid_request([{"loc": (name,), "msg": message}], "body")
        if len(data) > MAX_TEXT_FIELD:
            raise InvalidInput(f"{name}: longer than {MAX_TEXT_FIELD} bytes.", code="payload_too_large")
        if name in parts.fields:
            raise InvalidInput(f"{name[:100]}: given twice.", errors=[])
        try:
            parts.fields[name] = data.decode()
        except UnicodeDecodeError:
            raise InvalidInput("A form field is not UTF-8.", code="invalid_multipart") from None
    return parts


def form_parts(body: Body, most: int) -> list[tuple[str, bytes]]:
    """Return the name and content of each part of a multipart form (RFC 2046, section 5.1), at most ``most``.

    Raises InvalidInput (``invalid_multipart``, ``payload_too_large``).
    """
    if not body.boundary:
        raise InvalidInput("The content type names no boundary.", code="invalid_multipart")
    data, first, delimiter = body.data, b"\n--" + body.boundary, b"\r\n--" + body.boundary
    found = (b"\n" + data[:MAX_PART_HEADER]).find(first)  # at the beginning of a line; text before it is ignored
    if found < 0:
        raise malformed() if len(data) > MAX_PART_HEADER else cut_short()
    at, parts = found + len(first) - 1, list[tuple[str, bytes]]()
    while not data.startswith(b"--", at):  # `--` follows the last boundary
        if len(parts) == most:
            raise InvalidInput(f"A form has at most {most} parts here.", code="payload_too_large")
        if (head := read_part_head(data, at)) is None:
            raise cut_short()
        name, begin = head
        if (end := data.find(delimiter, begin)) < 0:
            raise cut_short()
        parts.append((name, data[begin:end]))
        at = end + len(delimiter)
    return parts


def read_part_head(data: bytes, at: int) -> tuple[str, int] | None:
    """Return the field that a part's head names, and where the part's content begins; None if the head is incomplete.

    The head is the rest of the boundary's line, which ends before ``at``, and a line per header.
    Raises InvalidInput (``invalid_multipart``).
    """
    end = data.find(HEAD_END, at, at + MAX_PART_HEADER)
    if end < 0 and len(data) - at < MAX_PART_HEADER:
        return None
    if end < 0:
        raise InvalidInput("The head of a part is too long.", code="invalid_multipart")
    padding, *lines = data[at:end].split(b"\r\n")
    if padding.strip(b" \t") or not all(map(_HEADER.match, lines)):
        raise malformed()
    headers = {name.lower(): value for name, _, value in (line.partition(b":") for line in lines)}
    _, options = parse_options_header(headers.get(b"content-disposition", b"").strip())
    if b"name" not in options:
        raise InvalidInput("A part of the form has no name.", code="invalid_multipart")
    return options[b"name"].decode("utf-8", "replace"), end + len(HEAD_END)


def malformed() -> InvalidInput:
    return InvalidInput("The body is not a well-formed form.", code="invalid_multipart")


def cut_short() -> InvalidInput:
    return InvalidInput("The form is cut short.", code="invalid_multipart")


# ---------------------------------------------------------------- JSON


def _parse_json_images(body: Body, wanted: ImageFields, limits: BodyLimits) -> Parts:
    loaded, long_strings = load_with_images(body.data)
    fields = _object(loaded)
    parts = Parts(strict=True)
    for name in wanted.names:
        value = fields.pop(name, None)
        texts = value if isinstance(value, list) else [] if value is None else [value]
        if len(texts) > (limits.images if wanted.many else 1):
            _too_many(wanted, limits)
        long_strings -= sum(isinstance(text, memoryview) for text in texts)
        if texts:
            parts.images[name] = [_decode_base64(text, name, limits.image_bytes) for text in texts]
    if long_strings:
        message = f"Only images may have more than {SMALL_BYTES} bytes."
        raise InvalidInput(message, code="payload_too_large", limit=SMALL_BYTES)
    parts.fields = fields
    return parts


def _decode_base64(text: object, name: str, limit: int) -> bytes:
    if not isinstance(text, (str, memoryview)):
        raise InvalidInput(f"{name}: send base64 in a string.", code="invalid_base64", field=name)
    try:
        data = memoryview(text.encode("ascii")) if isinstance(text, str) else text
        if prefix := _DATA_URL.match(data):
            data = data[prefix.end() :]
        if len(data) > limit * 2:
            _too_large(limit)
        with suppress(binascii.Error):
            return decode_base64(data)
        plain = bytes(data).translate(URL_SAFE, WHITESPACE)
        return decode_base64(plain if plain.endswith(b"=") else plain + b"=" * (-len(plain) % 4))
    except (binascii.Error, UnicodeEncodeError):
        why = what_it_is(text) or "this is not base64."
        raise InvalidInput(f"{name}: {why}", code="invalid_base64", field=name) from None


def decode_base64(text: bytes | memoryview) -> bytes:
    """Decode base64 without white space, piece by piece, so that other threads can run: 12 MiB at once would hold the
    GIL for 30 ms.

    Raises binascii.Error.
    """
    if len(text) % 4:
        message = "Its length is not a multiple of four."
        raise binascii.Error(message)
    decoded = io.BytesIO()
    decoded.seek(len(text) // 4 * 3)
    decoded.write(b"\0")  # allocate all memory at once: growing would take an eighth more
    decoded.seek(0)
    for start in range(0, len(text), BASE64_PIECE):
        piece = binascii.a2b_base64(text[start : start + BASE64_PIECE], strict_mode=True)
        if start + BASE64_PIECE < len(text) and len(piece) < BASE64_PIECE // 4 * 3:
            message = "There is padding before the end."
            raise binascii.Error(message)
        decoded.write(piece)
    decoded.truncate()
    return decoded.getvalue()


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput("The body is not a JSON object, in braces.", errors=[])
    return value


# ---------------------------------------------------------------- limits


def _check_images(images: Mapping[str, Sequence[bytes]], wanted: ImageFields, limits: BodyLimits) -> None:
    for name in wanted.names:
        if not (given := images.get(name)):
            raise MissingImage(f"{name}: an image is required.", expected=list(wanted.names))
        if len(given) > (limits.images if wanted.many else 1):
            _too_many(wanted, limits)
    sizes = [len(image) for given in images.values() for image in given]
    if wanted.many and len(sizes) > limits.images:
        _too_many(wanted, limits)
    if max(sizes) > limits.image_bytes:
        _too_large(limits.image_bytes)


def _too_many(wanted: ImageFields, limits: BodyLimits) -> NoReturn:
    most = limits.images if wanted.many else 1
    raise InvalidInput(
        f"{' and '.join(wanted.names)}: at most {'one image each' if most == 1 else f'{most} images'}.",
        code="too_many_images",
        limit=most,
    )


def _too_large(limit: int) -> NoReturn:
    raise InvalidInput(f"At most {limit} bytes are accepted.", code="payload_too_large", limit=limit)
