"""Keep copies of indexes on disk, so that a start needn't read every template from the database.

A snapshot is one file per gallery, named by the gallery's key: a header of HEADER_BYTES (JSON, padded with spaces, and
its CRC-32), the faces' keys and subjects (int64), vectors (float32), qualities (float32), and the CRC-32 of every PIECE
of these, all little endian. It is written to a draft, flushed and renamed, so it is complete or missing. It is checked
before use: a damaged, truncated or outdated snapshot is skipped with a warning, and the index built from the database.

With a key, the content is sealed as a stream, which is authenticated and needs no check sums.

The file is mapped, checked and copied; a sealed one is opened into memory. Searching the mapping itself would save the
copy, but a change of the file would then change the answers of a running server.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import time
import zlib
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, NonNegativeInt

from app.db.encryption import KEY_ID_BYTES, STREAM_FORMAT, Sealer
from app.errors import Unusable
from app.files import DRAFT, replacing
from app.search.index import PIECE_ROWS, View
from app.search.types import FaceBlock, IndexKey, IndexSpec, LogPosition, Snapshotted

HEADER_BYTES = 4096
PIECE = 16 * 1024 * 1024
"""Bytes with one check sum, so that several threads can check a file."""
CHECK_THREADS = 2
MIN_FACES = 10_000
"""Smaller galleries load from the database about as fast."""
SUFFIX = ".snapshot"
LOCK_FILE = "writer.lock"
COLUMNS = ("<i8", "<i8", "<f4", "<f4")
"""Types of the columns: faces' keys, subjects, vectors and qualities."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An index as of a position in its change log; ``faces`` are views of the mapped file."""

    faces: FaceBlock
    position: LogPosition


class Snapshots:
    """The snapshots in one folder. One process at a time writes there, any number may read."""

    def __init__(self, folder: Path, *, min_faces: int = MIN_FACES, sealer: Sealer | None = None) -> None:
        """With a `sealer`, snapshots are sealed, and plain ones and those with other keys are not used."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder
        self.min_faces = min_faces
        """Minimum faces of a gallery to be worth a snapshot."""
        self._sealer = sealer
        self._lock: int | None = None
        self._last: dict[int, IndexKey] = {}  # the index that this process last wrote or read, by gallery

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def is_there(self) -> bool:
        """Return whether the folder still exists."""
        return self._folder.is_dir()

    def claim(self) -> bool:
        """Return whether this process may write here. The claim ends with the process. Raises OSError."""
        if self._lock is not None:
            return True
        handle = os.open(self._folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        for draft in self._folder.glob("*" + DRAFT):  # left by a killed process
            draft.unlink(missing_ok=True)
        self.discard_others()
        return True

    def open(self, spec: IndexSpec) -> Snapshot | None:
        """Return the index's snapshot; None if there is none, or, with a warning, if it can't be used."""
        path = self._path(spec.key.gallery)
        try:
            if not self._fits(path):
                return None  # plain though it should be sealed, or sealed with another key
            with path.open("rb") as file:
                if self._sealer:
                    snapshot = _read(_unsealed(self._sealer, file, spec), spec, sums=False)
                else:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)  # freed with the last view of it
                    snapshot = _read(memoryview(mapped), spec)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, Unusable) as error:
            _log.warning("Snapshot %s is skipped, the index is built from the database: %s", path, error)
            return None
        self._last[spec.key.gallery] = spec.key
        return snapshot

    def write(self, spec: IndexSpec, faces: View, position: LogPosition) -> None:
        """Replace the gallery's snapshot atomically by a frozen view, which is read piece by piece. Raises OSError."""
        path, header = self._path(spec.key.gallery), partial(_header, spec, faces, position)
        with replacing(path, draft=path.with_suffix(DRAFT)) as file:
            if self._sealer:
                for piece in self._sealer.seal_stream(chain([header(0)], _content(faces)), _purpose(spec)):
                    file.write(piece)
            else:
                file.seek(HEADER_BYTES)
                sums = _summed(file, _content(faces))
                file.write(sums.data)
                file.seek(0)
                file.write(header(zlib.crc32(sums.data)))
        self._last[spec.key.gallery] = spec.key

    def is_of(self, spec: IndexSpec) -> bool:
        """Return whether the snapshot that this process last wrote or read is of this index of the gallery."""
        return self._last.get(spec.key.gallery) == spec.key

    def measure(self) -> Snapshotted:
        """Measure the folder's snapshots, whichever process wrote them. Raises OSError."""
        files = []
        for path in self._folder.glob("*" + SUFFIX):
            with suppress(FileNotFoundError):  # discarded meanwhile
                files.append(path.stat())
        oldest_s = max(0.0, time.time() - min(file.st_mtime for file in files)) if files else None
        return Snapshotted(len(files), sum(file.st_size for file in files), oldest_s)

    def mark_complete(self, gallery: int) -> None:
        """Note that the gallery's snapshot is complete now, so that its age counts from here."""
        with suppress(OSError):
            os.utime(self._path(gallery))

    def is_being_written(self, gallery: int) -> bool:
        return self._path(gallery).with_suffix(DRAFT).exists()

    def discard(self, gallery: int) -> None:
        """Remove the gallery's snapshot if there is one."""
        with suppress(NotADirectoryError):  # a file is in the folder's place, so there are no snapshots
            self._path(gallery).unlink(missing_ok=True)

    def discard_others(self) -> int:
        """Remove the snapshots that aren't sealed as new ones would be; return their number."""
        others = [path for path in self._folder.glob("*" + SUFFIX) if not self._fits(path)]
        for path in others:
            path.unlink(missing_ok=True)
        return len(others)

    def _fits(self, path: Path) -> bool:
        """Return whether the file is sealed with the current key, or plain if there is none."""
        try:
            with path.open("rb") as file:
                head = file.read(1 + KEY_ID_BYTES)
        except FileNotFoundError:
            return True
        if self._sealer is None:
            return head[:1] != bytes([STREAM_FORMAT])
        return head == bytes([STREAM_FORMAT]) + bytes.fromhex(self._sealer.key_ids[0])

    def keep_only(self, galleries: Collection[int]) -> None:
        """Remove the snapshots of all galleries except these."""
        for path in self._folder.glob("*" + SUFFIX):
            if path.stem not in {str(key) for key in galleries}:
                path.unlink(missing_ok=True)

    def _path(self, gallery: int) -> Path:
        return self._folder / f"{gallery}{SUFFIX}"


def _content(faces: View) -> Iterator[memoryview]:
    """Yield the columns of the present faces, in pieces."""
    columns: tuple[NDArray[Any], ...] = (faces.faces, faces.subjects, faces.vectors, faces.weights)
    for column, kind in zip(columns, COLUMNS, strict=True):
        for start in range(0, faces.count, PIECE_ROWS):
            rows = slice(start, start + PIECE_ROWS)
            present = np.ascontiguousarray(column[rows][faces.there[rows]], kind)
            if len(present):
                yield present.data.cast("B")


def _summed(file: BinaryIO, content: Iterator[memoryview]) -> NDArray[np.uint32]:
    """Write the content; return the CRC-32 of each PIECE."""
    sums: list[int] = []
    room = 0  # bytes that the last piece lacks
    for part in content:
        file.write(part)
        done = 0
        while done < len(part):
            if not room:
                sums.append(0)
                room = PIECE
            chunk = part[done : done + room]
            sums[-1] = zlib.crc32(chunk, sums[-1])
            done, room = done + len(chunk), room - len(chunk)
    return np.array(sums, "<u4")


def _purpose(spec: IndexSpec) -> bytes:
    return f"snapshot\0{spec.key.gallery}".encode()


def _unsealed(sealer: Sealer, file: BufferedReader, spec: IndexSpec) -> memoryview:
    """Return the authenticated content of a sealed file. Raises Unusable ``sealed_unreadable``."""
    plain = bytearray(os.fstat(file.fileno()).st_size)
    end = 0
    for piece in sealer.open_stream(file, _purpose(spec)):
        plain[end : end + len(piece)] = piece
        end += len(piece)
    return memoryview(plain)[:end].toreadonly()


def _sums(data: memoryview) -> NDArray[np.uint32]:
    """Return the CRC-32 of each PIECE."""
    pieces = [data[start : start + PIECE] for start in range(0, len(data), PIECE)]
    with ThreadPoolExecutor(CHECK_THREADS) as pool:
        return np.fromiter(pool.map(zlib.crc32, pieces), "<u4", len(pieces))


class _Header(BaseModel):
    """The file's header. It contains no names, which would outlive their erasure."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    magic: Literal["likeness-index"] = "likeness-index"
    format: Literal[1] = 1
    gallery: int
    package: str
    generation: int = 0
    """Generation of the package's templates (see `IndexKey`); 0 in files of earlier formats."""
    dimension: int
    count: NonNegativeInt
    number: NonNegativeInt
    stamp: int
    sums: int
    """CRC-32 of the pieces' check sums."""


def _header(spec: IndexSpec, faces: View, position: LogPosition, sums: int) -> bytes:
    count = int(np.count_nonzero(faces.there))
    facts = {**spec.key._asdict(), **asdict(position), "dimension": spec.dimension, "count": count, "sums": sums}
    header = _Header.model_validate(facts)
    text = header.model_dump_json().encode().ljust(HEADER_BYTES - 4)
    return text + zlib.crc32(text).to_bytes(4, "little")


def _read(data: memoryview, spec: IndexSpec, *, sums: bool = True) -> Snapshot:
    """Read a snapshot, which ends with check sums if `sums`. Raises ValueError if it can't be used."""
    text = bytes(data[: HEADER_BYTES - 4])
    if len(data) < HEADER_BYTES or zlib.crc32(text) != int.from_bytes(data[HEADER_BYTES - 4 : HEADER_BYTES], "little"):
        raise ValueError("its header is damaged")
    header = _Header.model_validate_json(text)
    wanted = (*spec.key, spec.dimension)
    if (header.gallery, header.package, header.generation, header.dimension) != wanted:
        raise ValueError("it belongs to another gallery, or to templates that the gallery no longer has")
    count, dimension = header.count, spec.dimension
    sizes = [count * 8, count * 8, count * dimension * 4, count * 4]
    end = HEADER_BYTES + sum(sizes)
    if len(data) != end + (4 * -(-sum(sizes) // PIECE) if sums else 0):
        raise ValueError("its length is wrong")
    stored = np.frombuffer(data[end:], "<u4")
    if sums and (zlib.crc32(data[end:]) != header.sums or (stored != _sums(data[HEADER_BYTES:end])).any()):
        raise ValueError("its check sums are wrong")
    starts = np.cumsum([HEADER_BYTES, *sizes])
    faces, subjects, vectors, qualities = (
        np.frombuffer(data[start : start + size], kind)
        for start, size, kind in zip(starts, sizes, COLUMNS, strict=False)
    )
    block = FaceBlock(faces, subjects, qualities, vectors.reshape(count, dimension))
    return Snapshot(block, LogPosition(header.number, header.stamp))
