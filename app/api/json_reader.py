"""Read JSON from clients: count its values before making objects of them, and don't copy long strings.

Three bytes of JSON can become 72 bytes in Python, and parsing 60 MiB of it holds the GIL for seconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias

from app.errors import InvalidInput

MAX_VALUES = 250_000
"""Maximum values of one body, of at most 72 bytes each: 488 embeddings of 512 numbers, 18 MB."""
MAX_VALUES_BESIDE_IMAGES = 10_000
SMALL_BYTES = 64 * 1024
"""The values of JSON up to this size are not counted: there are at most 32,000, read in about a millisecond. A longer
string is taken for an image."""
BOM = b"\xef\xbb\xbf"
"""A byte order mark, which some Windows programs write before UTF-8."""
_WINDOW = 64 * 1024
"""Bytes whose values are counted at a time, so that other threads can run."""
_STRUCTURE = b"{[,:"
_LONG = "NaN"
"""Replaces a long string while the rest is parsed. It is not JSON, so clients can't send it outside a string."""
_LONE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

Span: TypeAlias = tuple[int, int]
"""Where a string begins and ends in the bytes, without its quotes."""


def load_json(data: bytes, max_values: int = MAX_VALUES) -> Any:
    """Read JSON.

    Raises InvalidInput: ``payload_too_large`` if it has more than ``max_values`` values; ``invalid_json``, also for NaN
    and lone surrogates, which some parsers take.
    """
    data = data.removeprefix(BOM)
    if len(data) > SMALL_BYTES:
        for _ in _strings(data, max_values):
            pass
    return _load(data, iter(()))


def load_with_images(data: bytes) -> tuple[Any, int]:
    """Read JSON that may contain images in base64. Return the value, and the number of images in it.

    A string without escapes, longer than SMALL_BYTES, is taken for an image: it is a view of ``data``, not a `str`.
    Raises what `load_json` raises; a field with such a long name is rejected as invalid.
    """
    data = data.removeprefix(BOM)
    if len(data) <= SMALL_BYTES:
        return _load(data, iter(())), 0
    view, short, images = memoryview(data), bytearray(), list[memoryview]()
    at = 0
    for start, end in _strings(data, MAX_VALUES_BESIDE_IMAGES):
        if end - start > SMALL_BYTES and data.find(b"\\", start, end) < 0:
            short += view[at : start - 1]
            short += _LONG.encode()
            images.append(view[start:end])
            at = end + 1
    short += view[at:]
    return _load(bytes(short), iter(images)), len(images)


def _load(data: bytes, long_strings: Iterator[memoryview]) -> Any:
    def constant(name: str) -> memoryview:
        long_string = next(long_strings, None) if name == _LONG else None
        if long_string is None:
            _refuse(name)
        return long_string

    try:
        value = json.loads(data.decode("utf-8"), parse_constant=constant, parse_float=_finite)
        if _LONE_SURROGATE.search(data):
            json.dumps(value, ensure_ascii=False, default=repr).encode()
    except (ValueError, RecursionError):  # UnicodeError and JSONDecodeError are ValueErrors
        raise InvalidInput("The body is not JSON: its texts need double quotes.", code="invalid_json") from None
    return value


def _strings(data: bytes, max_values: int) -> Iterator[Span]:
    """Yield each string's span. Raises InvalidInput if there are more than ``max_values`` values, or NaN."""
    left, at = max_values, 0
    while (start := data.find(b'"', at)) >= 0:
        left -= _count(data, at, start, left)
        end, quotes = _end_of_string(data, start + 1, left)
        left -= quotes
        if left < 0:
            _too_many(max_values)
        yield start + 1, end
        at = end + 1
    if _count(data, at, len(data), left) > left:
        _too_many(max_values)


def _count(data: bytes, start: int, end: int, most: int) -> int:
    """Count the values that begin between two strings; stop after more than ``most``."""
    values = 0
    for at in range(start, end, _WINDOW):
        until = min(at + _WINDOW, end)
        if data.find(b"N", at, until) >= 0:
            _invalid()
        values += sum(data.count(byte, at, until) for byte in _STRUCTURE)
        if values > most:
            break
    return values


def _end_of_string(data: bytes, start: int, most: int) -> Span:
    """Return the position of the string's closing quote, and the number of quotes up to it; stop after ``most``."""
    at = start
    for quotes in range(1, most + 2):
        end = data.find(b'"', at)
        if end < 0:
            _invalid()
        if data[end - 1] != ord("\\"):
            return end, quotes
        # An odd number of backslashes escapes the quote; all of them come after the previous quote.
        before = data[at:end]
        if (len(before) - len(before.rstrip(b"\\"))) % 2 == 0:
            return end, quotes
        at = end + 1
    return at, most + 1


def _too_many(max_values: int) -> NoReturn:
    message = f"The JSON has more than {max_values} values."
    raise InvalidInput(message, code="payload_too_large", limit=max_values)


def _refuse(name: str) -> NoReturn:
    message = f"{name} is not JSON"
    raise ValueError(message)


def _invalid() -> NoReturn:
    raise InvalidInput("The body is not JSON.", code="invalid_json")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value
