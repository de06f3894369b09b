"""Copies of indexes on disk, so that a start doesn't have to read every template from SQL.

A snapshot is one file a gallery, named by the gallery's key: a header of HEADER_BYTES (JSON, padded with spaces, and
its CRC-32), the faces' keys and subjects (int64), vectors (float32), qualities (float32), and the CRC-32 of every PIECE
of that, all little endian. It appears whole or not at all (written beside, flushed, renamed), and is never trusted:
whatever is odd about it means that the index is made from SQL.

With a key, that is sealed as a stream, which proves itself whole and needs no check sums.

The file is mapped, checked and then copied; a sealed one is opened into memory instead. Searching the mapping itself
would save the copy, but FAISS aborts when such an index is changed, and whatever happened to the file later would
happen to the answers of a running server.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import time
import zlib
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from app.db.encryption import KEY_ID_BYTES, STREAM_FORMAT, Sealer
from app.errors import Unusable
from app.files import replacing
from app.gallery.records import FaceBlock, Gallery, IndexKey, Position, Snapshotted

HEADER_BYTES = 4096
PIECE = 16 * 1024 * 1024
"""Bytes with a check sum of their own, so that several threads can share the checking."""
CHECK_THREADS = 2
MIN_FACES = 10_000
"""Smaller galleries are read from SQL about as fast: no reason to keep their templates twice."""
SUFFIX = ".snapshot"
DRAFT = ".draft"
LOCK_FILE = "writer.lock"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``faces`` are views of the mapped file."""

    faces: FaceBlock
    position: Position


class Snapshots:
    """The snapshots of one folder. One process writes there at a time, any number may read."""

    def __init__(self, folder: Path, *, min_faces: int = MIN_FACES, sealer: Sealer | None = None) -> None:
        """`sealer`, where given, seals them; others' are left aside then, and plain ones too."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self._min_faces = min_faces
        self._sealer = sealer
        self._lock: int | None = None
        self._last: dict[int, IndexKey] = {}  # whose the file is that this process last wrote or read, by gallery

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def claim(self) -> bool:
        """Whether this process is the one that writes here; the kernel frees the claim when the process ends."""
        if self._lock is not None:
            return True
        handle = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        for draft in self._folder.glob("*" + DRAFT):  # of a process that was killed
            draft.unlink(missing_ok=True)
        self.discard_others()
        return True

    def wants(self, count: int) -> bool:
        """Whether a gallery of so many faces is worth a snapshot."""
        return count >= self._min_faces

    def open(self, gallery: Gallery) -> Snapshot | None:
        """The gallery's snapshot, mapped and checked; None where there is none, or, with a warning, none to trust."""
        path = self._path(gallery.key)
        try:
            if not self._fits(path):
                return None  # plain where it is to be sealed, or under a key that went: made anew
            with path.open("rb") as file:
                if self._sealer:
                    found = _read(_unsealed(self._sealer, file, gallery), gallery, sums=False)
                else:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # freed with the last view of it
                    found = _read(memoryview(mapped), gallery)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, Unusable) as error:
            _log.warning("The snapshot %s is not used, the index is made from the database: %s", path, error)
            return None
        self._last[gallery.key] = gallery.index_key
        return found

    def write(self, gallery: Gallery, faces: FaceBlock, position: Position) -> None:
        """Replaces the gallery's snapshot, all at once. Raises OSError."""
        path = self._path(gallery.key)
        with replacing(path, draft=path.with_suffix(DRAFT)) as file:
            if self._sealer:
                header = _header(gallery, len(faces.faces), position, 0)
                content: list[bytes | memoryview] = [header, *(column.data for column in _columns(faces))]
                for piece in self._sealer.seal_stream(content, _purpose(gallery)):
                    file.write(piece)
            else:
                _write_plain(file, gallery, faces, position)
        self._last[gallery.key] = gallery.index_key

    def is_of(self, gallery: Gallery) -> bool:
        """Whether what this process last wrote or read was this one of the gallery's indexes."""
        return self._last.get(gallery.key) == gallery.index_key

    def kept(self) -> Snapshotted:
        """What lies in the folder now, whoever wrote it. Raises OSError."""
        found = []
        for path in self._folder.glob("*" + SUFFIX):
            with suppress(FileNotFoundError):  # discarded meanwhile
                found.append(path.stat())
        oldest_s = max(0.0, time.time() - min(one.st_mtime for one in found)) if found else None
        return Snapshotted(len(found), sum(one.st_size for one in found), oldest_s)

    def is_being_written(self, gallery_key: int) -> bool:
        return self._path(gallery_key).with_suffix(DRAFT).exists()

    def discard(self, gallery_key: int) -> None:
        """Removes the gallery's snapshot, where there is one."""
        self._path(gallery_key).unlink(missing_ok=True)

    def discard_others(self) -> int:
        """Removes the snapshots that are not sealed as they would be now; says how many."""
        others = [path for path in self._folder.glob("*" + SUFFIX) if not self._fits(path)]
        for path in others:
            path.unlink(missing_ok=True)
        return len(others)

    def _fits(self, path: Path) -> bool:
        """Whether the file is sealed with the sealing key, or plain where there is none."""
        try:
            with path.open("rb") as file:
                head = file.read(1 + KEY_ID_BYTES)
        except FileNotFoundError:
            return True
        if self._sealer is None:
            return head[:1] != bytes([STREAM_FORMAT])
        return head == bytes([STREAM_FORMAT]) + bytes.fromhex(self._sealer.key_ids[0])

    def keep_only(self, gallery_keys: Collection[int]) -> None:
        """Removes the snapshots of all other galleries."""
        for path in self._folder.glob("*" + SUFFIX):
            if path.stem not in {str(key) for key in gallery_keys}:
                path.unlink(missing_ok=True)

    def _path(self, gallery_key: int) -> Path:
        return self._folder / f"{gallery_key}{SUFFIX}"


def _columns(faces: FaceBlock) -> tuple[NDArray[Any], ...]:
    return (
        np.ascontiguousarray(faces.faces, "<i8"),
        np.ascontiguousarray(faces.subjects, "<i8"),
        np.ascontiguousarray(faces.vectors, "<f4"),
        np.ascontiguousarray(faces.qualities, "<f4"),
    )


def _purpose(gallery: Gallery) -> bytes:
    return f"snapshot\0{gallery.key}".encode()


def _unsealed(sealer: Sealer, file: BufferedReader, gallery: Gallery) -> memoryview:
    """What is in a sealed file, whole and unaltered. Raises Unusable ``sealed_unreadable``."""
    plain = bytearray(os.fstat(file.fileno()).st_size)
    end = 0
    for piece in sealer.open_stream(file, _purpose(gallery)):
        plain[end : end + len(piece)] = piece
        end += len(piece)
    return memoryview(plain)[:end].toreadonly()


def _write_plain(file: BinaryIO, gallery: Gallery, faces: FaceBlock, position: Position) -> None:
    file.seek(HEADER_BYTES)
    for column in _columns(faces):
        file.write(column.data)
    file.flush()
    sums = _sums(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))[HEADER_BYTES:])
    file.write(sums.data)
    file.seek(0)
    file.write(_header(gallery, len(faces.faces), position, zlib.crc32(sums.data)))


def _sums(data: memoryview) -> NDArray[np.uint32]:
    """The CRC-32 of each PIECE."""
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        return np.fromiter(pool.map(zlib.crc32, pieces), "<u4", len(pieces))


class _Header(BaseModel):
    """What the file says about itself; no names, which would outlive their erasure."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    magic: Literal["likeness-index"] = "likeness-index"
    format: Literal[1] = 1
    gallery: int
    package: str
    generation: int = 0
    """See `Gallery.generation`; 0 in files from before there were any."""
    dimension: int
    count: NonNegativeInt
    number: NonNegativeInt
    stamp: int
    sums: int
    """CRC-32 of the pieces' check sums."""


def _header(gallery: Gallery, count: int, position: Position, sums: int) -> bytes:
    header = _Header(
        gallery=gallery.key,
        package=gallery.embedder,
        generation=gallery.generation,
        dimension=gallery.dimension,
        count=count,
        number=position.number,
        stamp=position.stamp,
        sums=sums,
    )
    text = header.model_dump_json().encode().ljust(HEADER_BYTES - 4)
    return text + zlib.crc32(text).to_bytes(4, "little")


def _read(data: memoryview, gallery: Gallery, *, sums: bool = True) -> Snapshot:
    """`sums`: with check sums at its end. Raises ValueError, saying what is wrong."""
    text = bytes(data[: HEADER_BYTES - 4])
    if len(data) < HEADER_BYTES or zlib.crc32(text) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        raise ValueError("its header is damaged")
    header = _Header.model_validate_json(text)
    wanted = (*gallery.index_key, gallery.dimension)
    if (header.gallery, header.package, header.generation, header.dimension) != wanted:
        raise ValueError("it is another gallery's, or of templates that the gallery has no more")
    count, dimension = header.count, gallery.dimension
    sizes = [count * 8, count * 8, count * dimension * 4, count * 4]
    end = HEADER_BYTES + sum(sizes)
    if len(data) != end + (4 * -(-sum(sizes) // PIECE) if sums else 0):
        raise ValueError("its length is wrong")
    found = np.frombuffer(data[end:], "<u4")
    if sums and (zlib.crc32(data[end:]) != header.sums or (found != _sums(data[HEADER_BYTES:end])).any()):
        raise ValueError("its check sums are wrong")
    starts = np.cumsum([HEADER_BYTES, *sizes])
    faces, subjects, vectors, qualities = (
        np.frombuffer(data[start : start + size], kind)
        for start, size, kind in zip(starts, sizes, ("<i8", "<i8", "<f4", "<f4"), strict=False)
    )
    block = FaceBlock(faces, subjects, qualities, vectors.reshape(count, dimension))
    return Snapshot(block, Position(header.number, header.stamp))
