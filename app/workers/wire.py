"""What passes between the server and a worker: a head, and bytes that are sent once and never copied into the head.

A worker reads hostile photos, so the server believes nothing of what it sends: answers are JSON and plain arrays, and
become values of declared types or an error. What the server sends may be pickled.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Array = NDArray[np.generic]

_SIZES = struct.Struct("<IQ")
"""Bytes of the head, and of what follows it."""
MOST_HEAD = 64 * 1024**2
MOST_BYTES = 1024**3


class Broken(Exception):
    """The other side has ended, or sends what it must not."""


def send(peer: socket.socket, head: bytes, parts: Sequence[bytes | Array]) -> None:
    """Send a head and the bytes that belong to it. Raises OSError."""
    views = [memoryview(part).cast("B") for part in parts if len(part)]  # type: ignore[arg-type]  # arrays are buffers
    peer.sendall(_SIZES.pack(len(head), sum(len(view) for view in views)) + head)
    for view in views:
        peer.sendall(view)


def receive(peer: socket.socket) -> tuple[bytes, bytearray]:
    """Receive a head and its bytes. Raises Broken at the end of the stream, and OSError."""
    length, size = _SIZES.unpack(_exactly(peer, _SIZES.size))
    if length > MOST_HEAD or size > MOST_BYTES:
        raise Broken("a message is too long")
    return bytes(_exactly(peer, length)), _exactly(peer, size)


def _exactly(peer: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = peer.recv_into(view[at:], 0, socket.MSG_WAITALL)
        if not got:
            raise Broken("the stream ended")
        at += got
    return data


def encode(value: object) -> tuple[bytes, list[Array]]:
    """Return a value of plain types, dataclasses and arrays as JSON, and its arrays apart."""
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
        return {str(key): _plain(each, arrays) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, arrays) for each in value]
    return value


def decode(kind: type[T], head: bytes, data: bytearray) -> T:
    """Return the value of type ``kind`` that `encode` wrote. Raises Broken if it is none."""
    arrays = _Arrays(data)
    try:
        value: T = _typed(kind, json.loads(head), arrays)
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


def _typed(kind: Any, value: Any, arrays: _Arrays) -> Any:
    if get_origin(kind) is not None:
        return _generic(get_origin(kind), get_args(kind), value, arrays)
    if isinstance(kind, type) and is_dataclass(kind):
        return kind(**{name: _typed(each, value[name], arrays) for name, each in _hints(kind).items()})
    if issubclass(kind, Enum):
        return kind(value)
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _generic(origin: Any, given: tuple[Any, ...], value: Any, arrays: _Arrays) -> Any:
    if origin is np.ndarray:
        name, shape = value
        return arrays.take(np.dtype(get_args(given[1])[0]), name, shape)
    if origin is tuple:
        return tuple(_typed(given[0], each, arrays) for each in _typed(list, value, arrays))
    if origin is dict:
        return {name: _typed(given[1], each, arrays) for name, each in _typed(dict, value, arrays).items()}
    if value is None and type(None) in given:  # a union with None
        return None
    (kind,) = (each for each in given if each is not type(None))
    return _typed(kind, value, arrays)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    known = get_type_hints(kind)
    return {field.name: known[field.name] for field in fields(kind)}
