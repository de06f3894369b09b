"""Sizes in a HEIF container (HEIC, AVIF), read before anything is decoded.

Box layouts: ISO/IEC 14496-12 (meta, iloc, iinf, iref) and ISO/IEC 23008-12 (ispe, ipma). A decoder allocates what the
coded stream says, whatever the container says, so AV1 sequence headers are read as well (AV1 specification, 5.5);
libheif itself refuses HEVC streams that are larger than their container says.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Size: TypeAlias = tuple[int, int]
"""Width and height in pixels."""
MAX_ITEMS = 4096
"""Items of one container, tiles included. A 48-megapixel photo of a phone has about 200."""
REPEATABLE = frozenset({b"ipma", b"free", b"skip", b"uuid"})
"""Boxes that may stand more than once among others."""
SEQUENCE_HEADER = 1
"""obu_type of a sequence header (AV1 specification, 6.2.2)."""


@dataclass(slots=True)
class Container:
    """The facts of a container's items, by item id."""

    types: dict[int, bytes] = field(default_factory=dict)
    sizes: dict[int, Size] = field(default_factory=dict)
    parts: dict[int, list[int]] = field(default_factory=dict)
    """The items that an item is composed of: the tiles of a grid."""
    content: dict[int, bytes] = field(default_factory=dict)
    """The coded data of AV1 items."""
    moving: bool = False
    """Whether there is a track of pictures beside the items."""

    def coded_sizes(self) -> Iterator[Size]:
        """Yield the size of every item and of every AV1 stream. Raises ValueError for a stream without a size."""
        yield from self.sizes.values()
        for content in self.content.values():
            yield from _stream_sizes(content)

    def largest_part(self) -> int:
        """Return the pixels of the largest item that others are composed of; 0 without one."""
        sizes = (self.sizes.get(part, (0, 0)) for parts in self.parts.values() for part in parts)
        return max((width * height for width, height in sizes), default=0)

    def pixels(self) -> int:
        """Return the most pixels that decoding one item takes, its parts included. Raises ValueError for a cycle."""
        known: dict[int, int] = {}
        return max((self._pixels(item, known, ()) for item in {*self.sizes, *self.parts}), default=0)

    def _pixels(self, item: int, known: dict[int, int], above: tuple[int, ...]) -> int:
        if item in above or len(above) > 8:
            raise ValueError("an item is part of itself")
        if item not in known:
            width, height = self.sizes.get(item, (0, 0))
            parts = sum(self._pixels(part, known, (*above, item)) for part in self.parts.get(item, ()))
            known[item] = width * height + parts
        return known[item]


def read_container(data: bytes) -> Container:
    """Read the items of a HEIF file. Raises ValueError and struct.error where it is damaged."""
    container = Container()
    meta = None
    for kind, start, end in _boxes(data, 0, len(data), strict=False):
        container.moving = container.moving or kind == b"moov"
        if kind == b"meta":
            if meta is not None:
                raise ValueError("two meta boxes")
            meta = (start + 4, end)
    if meta is None:
        raise ValueError("no meta box")
    boxes = _children(data, *meta)
    _read_types(data, boxes, container)
    _read_sizes(data, boxes, container)
    _read_parts(data, boxes, container)
    _read_content(data, boxes, container)
    return container


def _boxes(data: bytes, start: int, end: int, *, strict: bool = True) -> Iterator[tuple[bytes, int, int]]:
    """Yield kind, start and end of the content of each box; unless ``strict``, stop at the first that isn't one."""
    at = start
    while at + 8 <= end:
        size, kind = struct.unpack_from(">I4s", data, at)
        head = 8
        if size == 1 and at + 16 <= end:
            (size,) = struct.unpack_from(">Q", data, at + 8)
            head = 16
        elif size == 0:
            size = end - at
        if size < head or at + size > end:
            if strict:
                raise ValueError("a box is longer than what holds it")
            return
        yield kind, at + head, at + size
        at += size


def _children(data: bytes, start: int, end: int) -> dict[bytes, tuple[int, int]]:
    """Return start and end of each box by kind. Raises ValueError for two of a kind: readers differ in which counts."""
    boxes: dict[bytes, tuple[int, int]] = {}
    for kind, begin, stop in _boxes(data, start, end):
        if kind in boxes and kind not in REPEATABLE:
            raise ValueError("two boxes of one kind")
        boxes[kind] = begin, stop
    return boxes


class _Reader:
    """Reads big-endian numbers one after the other."""

    def __init__(self, data: bytes, start: int, end: int) -> None:
        self._data, self._at, self._end = data, start, end
        self.version, self.flags = 0, 0

    def header(self) -> None:
        """Read version and flags of a full box."""
        self.version = self.number(1)
        self.flags = self.number(3)

    def number(self, size: int) -> int:
        if self._at + size > self._end:
            raise ValueError("a box is cut short")
        self._at += size
        return int.from_bytes(self._data[self._at - size : self._at], "big")

    def count(self, size: int) -> int:
        """Read a number of entries. Raises ValueError for more than MAX_ITEMS."""
        value = self.number(size)
        if value > MAX_ITEMS:
            raise ValueError("too many items")
        return value


def _read_types(data: bytes, boxes: dict[bytes, tuple[int, int]], container: Container) -> None:
    start, end = boxes.get(b"iinf", (0, 0))
    if not end:
        return
    version = data[start]
    for kind, begin, stop in _boxes(data, start + (6 if version == 0 else 8), end):
        if kind != b"infe":
            continue
        entry = _Reader(data, begin, stop)
        entry.header()
        item = entry.number(4 if entry.version == 3 else 2)
        entry.number(2)
        container.types[item] = entry.number(4).to_bytes(4, "big")
        if len(container.types) > MAX_ITEMS:
            raise ValueError("too many items")


def _read_sizes(data: bytes, boxes: dict[bytes, tuple[int, int]], container: Container) -> None:
    """Read the `ispe` property of each item."""
    start, end = boxes.get(b"iprp", (0, 0))
    inner = _children(data, start, end)
    properties: list[Size | None] = []
    for kind, begin, _ in _boxes(data, *inner.get(b"ipco", (0, 0))):
        properties.append(struct.unpack_from(">II", data, begin + 4) if kind == b"ispe" else None)
    for kind, begin, stop in _boxes(data, start, end):
        if kind == b"ipma":
            _read_associations(_Reader(data, begin, stop), properties, container)


def _read_associations(box: _Reader, properties: list[Size | None], container: Container) -> None:
    box.header()
    for _ in range(box.count(4)):
        item = box.number(2 if box.version == 0 else 4)
        for _ in range(box.number(1)):
            index = box.number(2) & 0x7FFF if box.flags & 1 else box.number(1) & 0x7F
            size = properties[index - 1] if 1 <= index <= len(properties) else None
            if size is not None:
                container.sizes[item] = max(size, container.sizes.get(item, (0, 0)), key=math.prod)


def _read_parts(data: bytes, boxes: dict[bytes, tuple[int, int]], container: Container) -> None:
    start, end = boxes.get(b"iref", (0, 0))
    if not end:
        return
    width = 2 if data[start] == 0 else 4
    for kind, begin, stop in _boxes(data, start + 4, end):
        if kind == b"dimg":
            entry = _Reader(data, begin, stop)
            item = entry.number(width)
            container.parts.setdefault(item, []).extend(entry.number(width) for _ in range(entry.count(2)))


def _read_content(data: bytes, boxes: dict[bytes, tuple[int, int]], container: Container) -> None:
    """Read the coded data of AV1 items, from the file or the `idat` box."""
    if b"av01" not in container.types.values():
        return
    box = _Reader(data, *boxes.get(b"iloc", (0, 0)))
    box.header()
    sizes = box.number(2)
    offset_size, length_size, base_size, index_size = ((sizes >> shift) & 15 for shift in (12, 8, 4, 0))
    inside, _ = boxes.get(b"idat", (0, 0))
    total = 0
    for _ in range(box.count(2 if box.version < 2 else 4)):
        item = box.number(2 if box.version < 2 else 4)
        method = box.number(2) & 15 if box.version else 0
        box.number(2)
        base = box.number(base_size)
        pieces = []
        for _ in range(box.count(2)):
            if box.version and index_size:
                box.number(index_size)
            start = base + box.number(offset_size) + (inside if method == 1 else 0)
            length = box.number(length_size)
            pieces.append(data[start : start + length if length else len(data)])
            total += len(pieces[-1])
            if total > 2 * len(data):
                raise ValueError("the items are longer than the file")
        if container.types.get(item) == b"av01":
            container.content[item] = b"".join(pieces)


def _stream_sizes(stream: bytes) -> Iterator[Size]:
    """Yield the size that each sequence header of an AV1 stream allows. Raises ValueError where there is none."""
    at, some = 0, False
    while at < len(stream):
        head = stream[at]
        at += 2 if head & 4 else 1
        size = len(stream) - at
        if head & 2:
            size, at = _leb128(stream, at)
        if (head >> 3) & 15 == SEQUENCE_HEADER:
            some = True
            yield _sequence_size(stream[at : at + size])
        at += size
    if not some:
        raise ValueError("no sequence header")


def _leb128(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at ``at``, and where the next byte is (AV1 specification, 4.10.5)."""
    value = 0
    for index in range(8):
        if at >= len(data):
            raise ValueError("a stream is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << (7 * index)
        if not byte & 0x80:
            return value, at
    raise ValueError("a number is too long")


class _Bits:
    """Reads a bit string from its highest bit on."""

    def __init__(self, data: bytes) -> None:
        self._value, self._left = int.from_bytes(data, "big"), len(data) * 8

    def read(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise ValueError("a sequence header is cut short")
        return (self._value >> self._left) & ((1 << count) - 1)


MAX_HEADER = 512
"""Bytes of a sequence header that are read; the longest possible one has fewer than 300."""


def _sequence_size(data: bytes) -> Size:
    """Return the largest frame that a sequence header allows (AV1 specification, 5.5.1)."""
    bits = _Bits(data[:MAX_HEADER])
    bits.read(4)  # seq_profile, still_picture
    reduced = bits.read(1)
    if reduced:
        bits.read(5)  # seq_level_idx
    else:
        _skip_operating_points(bits)
    widths = bits.read(4) + 1, bits.read(4) + 1
    size = bits.read(widths[0]) + 1, bits.read(widths[1]) + 1
    if reduced:
        return size
    # A frame may give its own size, in as many bits. Encoders use no more bits than the largest frame needs, so that a
    # side is at most twice what is returned here; a header with more bits counts as that much larger.
    return max(size[0], 1 << widths[0] >> 1), max(size[1], 1 << widths[1] >> 1)


def _skip_operating_points(bits: _Bits) -> None:
    delay_bits = 0
    if bits.read(1):  # timing_info_present_flag
        bits.read(64)
        if bits.read(1):  # equal_picture_interval, then uvlc()
            zeros = 0
            while not bits.read(1):
                zeros += 1
            bits.read(min(zeros, 32))
        if bits.read(1):  # decoder_model_info_present_flag
            delay_bits = bits.read(5) + 1
            bits.read(42)
    initial_delays = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if initial_delays and bits.read(1):
            bits.read(4)
