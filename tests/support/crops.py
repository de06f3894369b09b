"""Draw aligned crops for tests, and write them as files of each kind."""

from __future__ import annotations

import io
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from PIL import Image

from app.types import Pixels
from training.data.drawn import ProceduralFaces
from training.data.formats.records import FIRST, FRAME, HEADER, LAST, LENGTH_BITS, MAGIC, MAGIC_BYTES, MIDDLE, WHOLE


def some_crops(count: int) -> Pixels:
    """Return (count, 112, 112, 3) uint8 RGB crops, the same every time on one machine."""
    drawn = ProceduralFaces(count, 1, 0)
    return np.stack([drawn[index][0] for index in range(count)])


def write_people(folder: Path, people: ProceduralFaces, border: int = 0) -> Path:
    """Write each person's crops, with a border that repeats their edges, into a folder; return ``folder``."""
    for place in range(len(people)):
        pixels, person = people[place]
        file = folder / f"p{person:02d}" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png_of(np.pad(pixels, ((border, border), (border, border), (0, 0)), mode="edge")))
    return folder


def png(value: int, side: int = 112) -> bytes:
    """Return a PNG file of one colour, whose red is `value`."""
    return png_of(np.full((side, side, 3), (value, 255 - value, 7), np.uint8))


def png_of(crop: Pixels) -> bytes:
    """Return a PNG file of an image."""
    file = io.BytesIO()
    Image.fromarray(crop).save(file, "PNG")
    return file.getvalue()


class RecordWriter:
    """Writer of ``<stem>.rec`` and ``<stem>.idx``; also a context manager."""

    def __init__(self, rec: Path) -> None:
        self._rec: BinaryIO = rec.open("wb")
        self._idx = rec.with_suffix(".idx").open("w", encoding="ascii", newline="\n")

    def write(self, key: int, payload: bytes) -> None:
        """Append one record, in parts if it contains the magic."""
        self._idx.write(f"{key}\t{self._rec.tell()}\n")
        parts = _cut(payload)
        for number, part in enumerate(parts):
            flag = WHOLE if len(parts) == 1 else FIRST if number == 0 else LAST if number == len(parts) - 1 else MIDDLE
            self._rec.write(FRAME.pack(MAGIC, flag << LENGTH_BITS | len(part)))
            self._rec.write(part + bytes(-len(part) % 4))

    def write_image(self, key: int, labels: Sequence[float], image: bytes) -> None:
        """Append an image; one label is kept in the header itself, several after it."""
        self.write(key, pack_header(labels, key) + image)

    def close(self) -> None:
        self._rec.close()
        self._idx.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _cut(payload: bytes) -> list[bytes]:
    """Return the parts between the magics at multiples of 4 bytes."""
    parts, start, place = [], 0, payload.find(MAGIC_BYTES)
    while place != -1:
        if place % 4 == 0:
            parts.append(payload[start:place])
            start = place + 4
        place = payload.find(MAGIC_BYTES, place + (4 if place % 4 == 0 else 1))
    return [*parts, payload[start:]]


def pack_header(labels: Sequence[float], key: int) -> bytes:
    """Return the bytes before an image."""
    if len(labels) == 1:
        return HEADER.pack(0, labels[0], key, 0)
    return HEADER.pack(len(labels), 0.0, key, 0) + struct.pack(f"<{len(labels)}f", *labels)


def write_pack(path: Path, images: list[bytes], same: list[bool]) -> None:
    """Write a verification pack: 2 P encoded images for P pairs."""
    if len(images) != 2 * len(same):
        raise ValueError(f"{len(same)} pairs need {2 * len(same)} images, not {len(images)}")
    path.write_bytes(pickle.dumps((images, same), protocol=4))
