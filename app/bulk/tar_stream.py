"""Reads tar streams that may be hostile: forward only, entry by entry, without unpacking to a disk."""

from __future__ import annotations

import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from app.bulk.sealed_files import PieceReader
from app.errors import InvalidInput

BLOCK = 512
TAR_END = bytes(2 * BLOCK)
READ_AT_ONCE = 1024 * 1024
MAX_HEADER = 64 * 1024
"""Largest extended header (long names, attributes) in bytes: `tarfile` holds it in memory."""
GZIP_MAGIC = b"\x1f\x8b"
_HEADERS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


@dataclass(slots=True)
class Entry:
    """One entry, to be read before the next one. ``problem`` is the code of why it is rejected, if it is."""

    name: str
    size: int
    is_file: bool
    problem: str | None
    _file: IO[bytes] | None = field(repr=False)

    def read(self) -> bytes:
        """Return all of it. Raises InvalidInput ``invalid_archive`` if the stream ends early."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Yield it in pieces. Raises as `read`."""
        left = self.size
        while left:
            with _reading():
                piece = self._file.read(min(left, READ_AT_ONCE)) if self._file else b""
            if not piece:
                raise truncated()
            left -= len(piece)
            yield piece


class _Header(tarfile.TarInfo):
    """Rejects headers that would fill the memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _HEADERS and self.size > MAX_HEADER:
            raise tarfile.ReadError("An extended header is too long.")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("Sparse files are not supported.")
        return super()._proc_member(tar)  # type: ignore[misc]  # not in the type stubs


def entries(open_stream: Callable[[], Iterator[bytes]], max_bytes: int) -> Iterator[Entry]:
    """Yield the entries of a tar or tar.gz stream without its folders; read at most `max_bytes` of it, unpacked.

    Raises InvalidInput ``invalid_archive``, ``payload_too_large``.
    """
    packed = PieceReader(open_stream())
    zipped = PieceReader(open_stream()).read(2) == GZIP_MAGIC
    limited = _Limited(_Unzipped(packed) if zipped else packed, max_bytes)
    open_tar: Any = tarfile.open  # its stubs expect a file; a stream needs only `read`
    with _reading():
        tar = open_tar(fileobj=limited, mode="r|", bufsize=READ_AT_ONCE, tarinfo=_Header, errors="surrogateescape")
    while True:
        with _reading():
            member = tar.next()
        if member is None:
            break
        tar.members.clear()  # tarfile would keep them all
        if not member.isdir():
            regular = member.isreg() and not member.issparse()
            with _reading():
                file = tar.extractfile(member) if regular else None
            yield Entry(member.name, member.size, regular, _problem(member), file)
    if not limited.ended_well:
        raise truncated()


def header(name: str, size: int) -> bytes:
    """Return the bytes before a file in a tar; `padding` follows the file, and TAR_END the last one."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    """Return the zeros that fill a file's last block."""
    return bytes(-size % BLOCK)


def truncated() -> InvalidInput:
    """Return the error of an archive that ends early."""
    return InvalidInput("The archive is truncated.", code="invalid_archive")


def _problem(member: tarfile.TarInfo) -> str | None:
    """Return the code of why an entry is rejected without looking into it, or None."""
    if not member.isreg() or member.issparse():
        return "not_a_file"
    try:
        member.name.encode()
    except UnicodeEncodeError:
        return "unsafe_path"
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts or "\\" in member.name or any(ord(c) < 32 for c in member.name):
        return "unsafe_path"
    return None


class _Unzipped:
    """Reads the content of a gzip stream, or of several that follow each other."""

    def __init__(self, source: PieceReader) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(wbits=31)
        self._waiting = b""

    def read(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size:
            if self._inflate.eof:
                self._waiting = self._inflate.unused_data or self._source.read(READ_AT_ONCE)
                if not self._waiting.strip(b"\0"):  # padding
                    break
                self._inflate = zlib.decompressobj(wbits=31)
            given = self._waiting or self._source.read(READ_AT_ONCE)
            if not given:
                break
            part = self._inflate.decompress(given, size)
            self._waiting = self._inflate.unconsumed_tail
            parts.append(part)
            size -= len(part)
        return b"".join(parts)


class _Limited:
    """Stops decompression bombs, and knows whether the stream has ended as a tar does, with empty blocks."""

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


class _reading:  # noqa: N801 (a context manager, used as a word)
    """Turns errors of tarfile and zlib into InvalidInput."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, tarfile.TarError | zlib.error | lzma.LZMAError | EOFError | ValueError | OverflowError):
            raise InvalidInput("This is not a tar archive, or it is damaged.", code="invalid_archive") from error
