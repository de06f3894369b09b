"""InsightFace's training sets, ``train.rec`` with ``train.idx``: MXNet's RecordIO, read without MXNet.

A record is ``magic u32, length u32, payload, padding to 4 bytes``, little endian; the upper 3 bits of ``length`` are a
part flag: 0 for a whole record. A payload that contains the magic at a multiple of 4 bytes is cut there, without the
magic, and its parts have the flags 1 (first), 2 (middle), 3 (last) (dmlc-core, ``recordio.h``). An image's payload is
the header ``flag u32, label f32, id u64, id2 u64``, then ``flag`` labels of f32 (with flag 0, the header's label
counts), then the image file. InsightFace's record 0 has two labels (a, b): images are the keys 1 to a - 1, and the keys
a to b - 1 hold, for each person, the first and one past the last of its images' keys.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from app.errors import InvalidInput
from training.data.formats import ImageBlock, Listing

MAGIC = 0xCED7230A
MAGIC_BYTES = struct.pack("<I", MAGIC)
LENGTH_BITS = 29
LENGTH_MASK = (1 << LENGTH_BITS) - 1
WHOLE, FIRST, MIDDLE, LAST = 0, 1, 2, 3
FRAME = struct.Struct("<II")
HEADER = struct.Struct("<IfQQ")
AT_ONCE = 1 << 16
"""Number of records parsed together."""
INDEX_BYTES = 1 << 20
"""Number of an index's bytes parsed together."""
LARGEST_LABEL = 2**24
"""float32 represents every integer up to here; beyond it, two people may have the same label."""


def unpack_header(payload: bytes) -> tuple[tuple[float, ...], bytes]:
    """Return a record's labels (``flag`` of them, one if the flag is 0) and its image. Raises InvalidInput if the
    record is shorter than its header."""
    if len(payload) < HEADER.size:
        raise _broken("a record is shorter than its header")
    flag, label, _, _ = HEADER.unpack_from(payload)
    if flag == 0:
        return (label,), payload[HEADER.size :]
    end = HEADER.size + 4 * flag
    if len(payload) < end:
        raise _broken("a record is shorter than its labels")
    return struct.unpack_from(f"<{flag}f", payload, HEADER.size), payload[end:]


def read_record(file: BinaryIO, offset: int) -> tuple[bytes, int]:
    """Return the payload at ``offset``, its parts joined, and the offset of the next record.

    Raises InvalidInput if there is no whole record.
    """
    parts: list[bytes] = []
    file.seek(offset)
    while True:
        frame = file.read(FRAME.size)
        if len(frame) < FRAME.size:
            raise _broken(f"the file ends within the record at {offset}")
        magic, length = FRAME.unpack(frame)
        if magic != MAGIC:
            raise _broken(f"there is no record at {offset}")
        flag, size = length >> LENGTH_BITS, length & LENGTH_MASK
        if flag > LAST or (flag in (WHOLE, FIRST)) != (not parts):
            raise _broken(f"the parts of the record at {offset} are out of order")
        padded = file.read(size + -size % 4)
        if len(padded) < size:
            raise _broken(f"the file ends within the record at {offset}")
        parts.append(padded[:size])
        if flag in (WHOLE, LAST):
            return MAGIC_BYTES.join(parts), file.tell()


def read_image(file: BinaryIO, offset: int) -> bytes:
    """Return the image in the record at ``offset``. Raises InvalidInput if there is none."""
    return unpack_header(read_record(file, offset)[0])[1]


def read_index(rec: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield keys and byte offsets, (n,) int64 each, from the ``.idx`` next to ``rec``, or from the file itself without
    one."""
    idx = rec.with_suffix(".idx")
    if not idx.is_file():
        yield from _walk(rec)
        return
    rest = b""
    with idx.open("rb") as file:
        while text := file.read(INDEX_BYTES):
            whole, newline, rest = (rest + text).rpartition(b"\n")
            yield _parse(idx, whole + newline)
    if rest:
        yield _parse(idx, rest)


def _parse(idx: Path, text: bytes) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    try:
        table = np.array([line.split(b"\t") for line in text.splitlines() if line], "S20").astype(np.int64)
        keys, offsets = table.reshape(-1, 2).T
    except ValueError as error:
        raise _broken(f"{idx} is no index of keys and offsets") from error
    return keys, offsets


def _walk(rec: Path) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    offsets: list[int] = []
    count, offset, end = 0, 0, rec.stat().st_size
    with rec.open("rb") as file:
        while offset < end:
            offsets.append(offset)
            _, offset = read_record(file, offset)
            if len(offsets) == AT_ONCE or offset >= end:
                yield np.arange(count, count + len(offsets), dtype=np.int64), np.array(offsets, np.int64)
                count, offsets = count + len(offsets), []


def list_records(rec: Path) -> Listing:
    """List a ``.rec`` file, with the ``.idx`` next to it if there is one; people's names are their labels' numbers.

    Raises InvalidInput ``dataset_not_found``, ``dataset_empty``.
    """
    if not rec.is_file():
        raise InvalidInput(f"{rec} is not a file.", code="dataset_not_found")
    if rec.stat().st_size == 0:
        raise InvalidInput(f"{rec} holds no records.", code="dataset_empty")
    return Listing("record", (rec,), lambda: (rec, rec.with_suffix(".idx")), lambda _folder: _blocks(rec))


def _blocks(rec: Path) -> Iterator[ImageBlock]:
    last = None  # one past the key of the last image, if record 0 says it
    for number, (all_keys, all_offsets) in enumerate(read_index(rec)):
        if number == 0 and len(all_keys) and all_keys[0] == 0:
            last = _last_image(rec, int(all_offsets[0]))
        images = slice(None) if last is None else (all_keys >= 1) & (all_keys < last)
        keys, offsets = all_keys[images], all_offsets[images]
        for start in range(0, len(keys), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            labels = _labels(rec, offsets[part])
            if labels.max(initial=0) > LARGEST_LABEL:
                raise _broken(f"labels above {LARGEST_LABEL} are not exact in float32: people may have run together")
            people = [str(label) for label in labels.tolist()]
            names = [f"key {key}" for key in keys[part].tolist()]
            yield ImageBlock(people, names, 0, offsets[part], np.zeros(len(people), np.int64))


def _last_image(rec: Path, offset: int) -> int | None:
    with rec.open("rb") as file:
        labels, _ = unpack_header(read_record(file, offset)[0])
    return int(labels[0]) if len(labels) > 1 else None


def _labels(rec: Path, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each record's first label, (N,), without reading images: usual headers at once, others one by one."""
    size = FRAME.size + HEADER.size + 4
    data = np.memmap(rec, np.uint8, "r")
    labels = np.full(len(offsets), -1, np.int64)
    odd = (offsets < 0) | (offsets + size > len(data))
    if len(data) >= size:
        rows = data[np.where(odd, 0, offsets)[:, None] + np.arange(size)]
        words = np.ascontiguousarray(rows).view("<u4")  # magic, length, flag, label, ids..., first of several labels
        numbers = np.where(words[:, 2] == 0, words[:, 3], words[:, 8]).astype("<u4").view("<f4")
        odd |= (words[:, 0] != MAGIC) | (words[:, 1] >> LENGTH_BITS != WHOLE)
        labels[~odd] = numbers[~odd]
    with rec.open("rb") as file:
        for index in np.flatnonzero(odd).tolist():
            labels[index] = int(unpack_header(read_record(file, int(offsets[index]))[0])[0][0])
    return labels


def _broken(problem: str) -> InvalidInput:
    return InvalidInput(f"The record file is damaged: {problem}.", code="dataset_invalid")
