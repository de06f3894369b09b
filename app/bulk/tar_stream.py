"""Tar streams from anywhere: read forward only, entry by entry, nothing ever unpacked to a disk."""

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
"""Bytes of an extended header (long names, attributes): `tarfile` holds it in memory."""
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
    """One entry, to be read before the next one is asked for. ``problem`` says why it is not taken, if it isn't."""

    name: str
    size: int
    is_file: bool
    problem: str | None
    _file: IO[bytes] | None = field(repr=False)

    def read(self) -> bytes:
        """All of it. Raises InvalidInput ``invalid_archive`` where the stream ends before."""
        return b"".join(self.pieces())

    def pieces(self) -> Iterator[bytes]:
        """Piece by piece. Raises as `read`."""
        left = self.size
        while left:
            with _reading():
                piece = self._file.read(min(left, READ_AT_ONCE)) if self._file else b""
            if not piece:
                raise cut_short()
            left -= len(piece)
            yield piece


class _Header(tarfile.TarInfo):
    """Refuses headers that would fill the memory."""

    def _proc_member(self, tar: tarfile.TarFile) -> Any:
        if self.type in _HEADERS and self.size > MAX_HEADER:
            raise tarfile.ReadError("an extended header is too long")
        if self.type == tarfile.GNUTYPE_SPARSE:
            raise tarfile.ReadError("sparse files are not taken")
        return super()._proc_member(tar)  # type: ignore[misc]  # not in the type stubs


def entries(open_stream: Callable[[], Iterator[bytes]], max_bytes: int) -> Iterator[Entry]:
    """The entries of a tar or tar.gz stream but its folders, of which at most `max_bytes` are read, compressed or not.

    Raises InvalidInput ``invalid_archive``, ``payload_too_large``.
    """
    packed = PieceReader(open_stream())
    zipped = PieceReader(open_stream()).read(2) == GZIP_MAGIC
    limited = _Limited(_Unzipped(packed) if zipped else packed, max_bytes)
    open_tar: Any = tarfile.open  # its stubs know files, and a stream needs no more than `read`
    with _reading():
        tar = open_tar(fileobj=limited, mode="r|", bufsize=READ_AT_ONCE, tarinfo=_Header, errors="surrogateescape")
    while True:
        with _reading():
            member = tar.next()
        if member is None:
            break
        tar.members.clear()  # it would remember them all
        if not member.isdir():
            regular = member.isreg() and not member.issparse()
            with _reading():
                file = tar.extractfile(member) if regular else None
            yield Entry(member.name, member.size, regular, _problem(member), file)
    if not limited.ended_well:
        raise cut_short()


def header(name: str, size: int) -> bytes:
    """What stands before a file in a tar; `padding` stands after it, and TAR_END at the end of all."""
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o600
    return info.tobuf(tarfile.PAX_FORMAT)


def padding(size: int) -> bytes:
    return bytes(-size % BLOCK)


def cut_short() -> InvalidInput:
    return InvalidInput("The archive is cut short.", code="invalid_archive")


def _problem(member: tarfile.TarInfo) -> str | None:
    """Why an entry is not taken whatever is in it."""
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
    """A gzip stream's content; several streams behind each other count as one."""

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
    """Ends a bomb, and knows whether the two empty blocks at a tar's end have been seen."""

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
            raise InvalidInput("The archive holds more than is taken.", code="payload_too_large")
        self._tail = (self._tail + piece)[-BLOCK:]
        return piece


class _reading:  # noqa: N801 (a context manager, used as a word)
    """tarfile's and zlib's errors as ours."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, tarfile.TarError | zlib.error | lzma.LZMAError | EOFError | ValueError | OverflowError):
            raise InvalidInput("This is no tar archive, or a damaged one.", code="invalid_archive") from error
