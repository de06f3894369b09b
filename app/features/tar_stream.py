"""Read tar streams that may be hostile: forward only, entry by entry, without unpacking to disk."""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Any

from app.errors import InvalidInput

BLOCK = 512
TAR_END = bytes(2 * BLOCK)
READ_AT_ONCE = 1024 * 1024
MAX_HEADER = 64 * 1024
"""Maximum bytes of an extended header (long names, attributes), which `tarfile` keeps in memory."""
MAX_LEVELS = 8
"""Maximum extended headers before one file, since `tarfile` recurses for each. Programs write at most three."""
MAX_DIGITS = 255
"""Maximum consecutive digits in an extended header, since `tarfile` takes quadratic time for them. A file name may have
as many."""
PACKED_AT_ONCE = 64 * 1024
"""Bytes given to zlib at once: after each gzip member it copies the rest of them, and members may be tiny."""
GZIP_MAGIC = b"\x1f\x8b"
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(slots=True)
class TarEntry:
    """An entry of a tar. It must be read before the next one is taken. ``problem``: the code that says why to reject
    it, or None."""

    name: str
    size: int
    is_file: bool
    problem: str | None
    _file: IO[bytes] | None = field(repr=False)

    def read(self) -> bytes:
        """Return the entry's content. Raises InvalidInput ``invalid_archive`` if the stream ends early."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield the entry's content in pieces. Raises what `read` raises."""
        left = self.size
        while left:
            with _reading():
                piece = self._file.read(min(left, READ_AT_ONCE)) if self._file else b""
            if not piece:
                raise truncated()
            left -= len(piece)
            yield piece


class _Tar(tarfile.TarFile):
    """A tar that counts the extended headers before the current file, and the bytes of global headers."""

    levels = 0
    shared_bytes = 0


class _TarHeader(tarfile.TarInfo):
    """A header that raises ReadError if reading it would take too much memory, stack or time."""

    def _proc_member(self, tar: _Tar) -> Any:
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("Sparse files are not supported.")
        if self.type not in _HEADERS:
            return super()._proc_member(tar)  # type: ignore[misc]  # not in the type stubs
        if self.type == tarfile.XGLTYPE:
            tar.shared_bytes += self.size
        if not 0 <= self.size <= MAX_HEADER or tar.shared_bytes > MAX_HEADER:
            raise tarfile.ReadError("An extended header is too long.")
        tar.levels += 1
        if tar.levels > MAX_LEVELS:
            raise tarfile.ReadError("There are too many extended headers before a file.")
        member = super()._proc_member(tar)  # type: ignore[misc]  # as above; calls itself for each header
        tar.levels = 0
        return member

    def _proc_pax(self, tar: Any) -> Any:
        stream = tar.fileobj
        content = stream.read(self._block(self.size))  # type: ignore[attr-defined]  # not in the type stubs
        digits = max(map(len, re.findall(rb"[0-9]+", content)), default=0)
        if digits > MAX_DIGITS or b"GNU.sparse." in content:
            raise tarfile.ReadError("An extended header has a number that is too long, or is of a sparse file.")
        tar.fileobj = _Again(tar, stream, content)
        return super()._proc_pax(tar)  # type: ignore[misc]  # as above


class _Again:
    """Takes the place of a tar's stream for one read, which returns bytes that were already read."""

    def __init__(self, tar: Any, stream: Any, content: bytes) -> None:
        self._tar, self._stream, self._content = tar, stream, content

    def read(self, _size: int) -> bytes:
        self._tar.fileobj = self._stream
        return self._content


def entries(open_stream: Callable[[], Iterator[bytes]], max_bytes: int) -> Iterator[TarEntry]:
    """Yield the entries of a tar or tar.gz stream, except folders. The unpacked stream may have `max_bytes` bytes at
    most.

    Raises InvalidInput ``invalid_archive``, ``payload_too_large``.
    """
    packed = PieceReader(open_stream())
    zipped = PieceReader(open_stream()).read(2) == GZIP_MAGIC
    limited = _Limited(_Unzipped(packed) if zipped else packed, max_bytes)
    open_tar: Any = _Tar.open  # the type stubs expect a file, but a stream needs only `read`
    with _reading():
        tar = open_tar(fileobj=limited, mode="r|", bufsize=READ_AT_ONCE, tarinfo=_TarHeader, errors="surrogateescape")
    while True:
        with _reading():
            member = tar.next()
            if member is not None and member.size < 0:
                raise tarfile.ReadError("A file has a negative size.")
        if member is None:
            break
        tar.members.clear()  # tarfile would keep all members in memory
        if not member.isdir():
            regular = member.isreg() and not member.issparse()
            with _reading():
                file = tar.extractfile(member) if regular else None
            yield TarEntry(_plain(member.name), member.size, regular, _problem(member), file)
    if not limited.ended_well:
        raise truncated()


def header(name: str, size: int) -> bytes:
    """Return the header of a file in a tar. `padding` follows each file, and TAR_END the last one."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """Return the zeros that fill up the last block of a file of this size."""
    return bytes(-size % BLOCK)


def truncated() -> InvalidInput:
    """Return the error of an archive that ends early."""
    return InvalidInput("The archive is truncated.", code="invalid_archive")


def _problem(member: tarfile.TarInfo) -> str | None:
    """Return the code that says why to reject an entry without reading it; None if there is no reason."""
    if not member.isreg() or member.issparse():
        return "not_a_file"
    name = _plain(member.name)
    try:
        name.encode()
    except UnicodeEncodeError:
        return "unsafe_path"
    absolute = name.startswith("/") or re.match("[A-Za-z]:", name)
    if absolute or ".." in name.split("/") or any(ord(c) < 32 for c in name):
        return "unsafe_path"
    return None


def _plain(name: str) -> str:
    """Return a name with slashes in place of Windows' backslashes."""
    return name.replace("\\", "/")


class PieceReader:
    """Reads an iterator of pieces as a file, forward only."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return the next `size` bytes, fewer only at the end."""
        parts: list[memoryview] = []
        while size:
            if not self._left:
                piece = next(self._pieces, None)
                if piece is None:
                    break
                self._left = memoryview(piece)
                continue
            part, self._left = self._left[:size], self._left[size:]
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Unzipped:
    """Reads the content of one gzip stream or of several in a row."""

    def __init__(self, source: PieceReader) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(wbits=31)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            if self._inflate.eof:
                self._waiting = self._inflate.unused_data or self._source.read(PACKED_AT_ONCE)
                if not self._waiting.strip(b"\0"):  # padding
                    break
                self._inflate = zlib.decompressobj(wbits=31)
            given = self._waiting or self._source.read(PACKED_AT_ONCE)
            if not given:
                break
            part = self._inflate.decompress(given, size)
            self._waiting = self._inflate.unconsumed_tail
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Limited:
    """A source of at most ``most`` bytes, then of InvalidInput, against decompression bombs. It notes whether the
    stream ended with empty blocks, as a tar must."""

    def __init__(self, source: PieceReader | _Unzipped, most: int) -> None:
        self._source = source
        self._left = most
        self._tail = b""

    @property
    def ended_well(self) -> bool:
        return len(self._tail) >= BLOCK and not self._tail.strip(b"\0")

    def read(self, size: int) -> bytes:
        piece = self._source.read(size)
        self._left -= len(piece)
        if self._left < 0:
            raise InvalidInput("The archive is larger than allowed.", code="payload_too_large")
        self._tail = (self._tail + piece)[-BLOCK:]
        return piece


@contextmanager
def _reading() -> Iterator[None]:
    """Raise InvalidInput ``invalid_archive`` in place of errors of tarfile and zlib."""
    try:
        yield
    except (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError) as error:
        raise InvalidInput("This is not a tar archive, or it is damaged.", code="invalid_archive") from error
