"""Send messages between the server and a worker: a head, and bytes that are sent without a copy.

A worker reads hostile photos, so the server doesn't trust its messages: answers are JSON and plain arrays, and become
values of declared types or an error. The server's messages may be pickled.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeAlias, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
R = TypeVar("R", bytes, int)
Array = NDArray[np.generic]

_SIZES = struct.Struct("<IQ")
"""The length of the head, and that of the bytes after it."""
MOST_HEAD = 64 * 1024**2
MOST_BYTES = 1024**3
FIRST_BYTES = 64 * 1024
"""Bytes of the first read: a photo of 250 pixels, or the faces in it."""
MOST_PARTS = 512
"""Maximum buffers sent by one call; Linux accepts 1,024."""


class Broken(Exception):
    """The other side has ended, or sent an invalid message."""


def send(peer: socket.socket, head: bytes, parts: Sequence[bytes | Array]) -> None:
    """Send a head and the bytes that belong to it. Raises OSError."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]  # type: ignore[arg-type]  # arrays are buffers
    left = [memoryview(_SIZES.pack(len(head), sum(len(view) for view in views)) + head), *views]
    while left:  # in one call, since each call hands over the GIL
        sent = peer.sendmsg(left[:MOST_PARTS])
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def receive(peer: socket.socket) -> tuple[bytes, bytearray]:
    """Receive a head and its bytes: one message, after which the other side waits. Raises Broken at the end of the
    stream, and OSError."""
    start = b""
    while len(start) < _SIZES.size:
        start += _received(peer.recv(FIRST_BYTES))  # usually all of it
    (length, size), rest = _SIZES.unpack_from(start), start[_SIZES.size :]
    if length > MOST_HEAD or size > MOST_BYTES:
        raise Broken("a message is too long")
    if len(rest) > length + size:
        raise Broken("bytes are left over")
    return bytes(_filled(peer, length, rest[:length])), _filled(peer, size, rest[length:])


def _filled(peer: socket.socket, size: int, start: bytes) -> bytearray:
    """Return ``size`` bytes, of which the first have already been received."""
    data, at = bytearray(size), len(start)
    view = memoryview(data)
    view[:at] = start
    while at < size:
        at += _received(peer.recv_into(view[at:], 0, socket.MSG_WAITALL))
    return data


def _received(got: R) -> R:
    if not got:
        raise Broken("the stream ended")
    return got


def encode(value: object) -> tuple[bytes, list[Array]]:
    """Return a value of plain types, dataclasses and arrays as JSON, and its arrays separately."""
    arrays: list[Array] = []
    return json.dumps(_plain(value, arrays)).encode(), arrays


def _plain(value: Any, arrays: list[Array]) -> object:
    if isinstance(value, np.ndarray):
        arrays.append(np.ascontiguousarray(value))
        return [value.dtype.name, list(value.shape)]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, arrays) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, arrays) for item in value]
    return value


def decode(kind: type[T], head: bytes, data: bytearray) -> T:
    """Return the value of type ``kind`` that `encode` wrote. Raises Broken if it isn't one."""
    arrays, declared = _Arrays(data), cast(Hashable, kind)
    try:
        value: T = _decoder(declared)(json.loads(head), arrays)
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
        raise Broken(f"no {kind.__name__}: {error}") from error
    if arrays.at != len(data):
        raise Broken(f"no {kind.__name__}: bytes are left over")
    return value


@dataclass(slots=True)
class _Arrays:
    """The arrays of a message, in order; they share its memory."""

    data: bytearray
    at: int = 0

    def take(self, dtype: np.dtype[Any], name: str, shape: list[int]) -> Array:
        if name != dtype.name or any(type(side) is not int or side < 0 for side in shape):
            raise ValueError("an array of another kind")
        count = math.prod(shape)
        start, self.at = self.at, self.at + count * dtype.itemsize
        if self.at > len(self.data):
            raise ValueError("an array is cut short")
        array = np.frombuffer(self.data, dtype, count, start).reshape(shape) if count else np.empty(shape, dtype)
        return array if dtype.itemsize == 1 else array.copy()  # aligned


Decoder: TypeAlias = Callable[[Any, _Arrays], Any]


@cache
def _decoder(kind: Any) -> Decoder:
    """Return a function that makes a value of type ``kind`` from its JSON; it is made once for each type."""
    if get_origin(kind) is not None:
        return _generic(get_origin(kind), get_args(kind))
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        parts = [(field.name, _decoder(hints[field.name])) for field in fields(kind)]
        build: Any = kind
        return lambda value, arrays: build(**{name: part(value[name], arrays) for name, part in parts})
    return lambda value, _: _plainly(kind, value)


def _generic(origin: Any, given: tuple[Any, ...]) -> Decoder:
    if alias := getattr(origin, "__value__", None):  # NDArray, from NumPy 2.5 on
        return _decoder(alias[given])
    if origin is np.ndarray:
        dtype = np.dtype(get_args(given[1])[0])
        return lambda value, arrays: arrays.take(dtype, *value)
    if origin is tuple:
        read_item, read_items = _decoder(given[0]), _decoder(list)
        return lambda value, arrays: tuple([read_item(item, arrays) for item in read_items(value, arrays)])
    if origin is dict:
        read_item, read_items = _decoder(given[1]), _decoder(dict)
        return lambda value, arrays: {name: read_item(item, arrays) for name, item in read_items(value, arrays).items()}
    (read,) = (_decoder(member) for member in given if member is not type(None))  # a union with None
    return lambda value, arrays: None if value is None else read(value, arrays)


def _plainly(kind: Any, value: Any) -> Any:
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value
