"""Write uploads to the files of jobs as they arrive, and delete them if the job can't be created."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from enum import Enum, auto

from starlette.requests import Request

from app.api.body import (
    FORM_TYPE,
    GZIP_TYPES,
    MAX_PART_HEADER,
    TAR_TYPE,
    BodyLimits,
    File,
    content_type,
    cut_short,
    invalid_request,
    malformed,
    read_part_head,
    unsupported,
)
from app.concurrency.admission import Admission
from app.errors import InvalidInput
from app.features.sealed_files import SealedWriter
from app.jobs.records import Job


async def receive_upload(
    request: Request,
    wanted: File,
    file: SealedWriter,
    begin: Callable[[], Job],
    *,
    admission: Admission,
    limits: BodyLimits,
) -> Job:
    """Write the request's upload to ``file``; return the job that ``begin`` then creates, in a thread.

    Raises what `read_upload`, ``file.write`` and ``begin`` raise, after deleting the file.
    """
    try:
        admission.receive()
        async with aclosing(read_upload(request, wanted, limits.seconds)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
        return await asyncio.to_thread(begin)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(file.abort))
        raise


ARCHIVE = File(
    (TAR_TYPE, *GZIP_TYPES, "application/octet-stream", "multipart/form-data"), "A tar, or tar.gz.", field="archive"
)


async def read_upload(request: Request, upload: File, seconds: float) -> AsyncGenerator[bytes, None]:
    """Yield the pieces of an uploaded file as they arrive. The file is the whole body, or the only part of a form.

    Each piece must arrive within ``seconds``; the whole file may take any time.

    Raises InvalidInput (``unsupported_media_type``, ``body_timeout``, ``invalid_multipart``).
    """
    media_type, boundary = content_type(request)
    if media_type not in upload.media_types:
        raise unsupported(upload.media_types)
    form = FormReader(boundary) if media_type == FORM_TYPE else None
    stream = request.stream()
    while True:
        try:
            data = await asyncio.wait_for(anext(stream, None), seconds)
        except TimeoutError:
            raise InvalidInput("The body did not arrive in time.", code="body_timeout") from None
        if data is None:
            break
        for piece in form.feed(data) if form else [(0, upload.field, data)]:
            if content := _content_of(upload, *piece):
                yield content
    if form:
        form.finish()


def _content_of(upload: File, index: int, name: str | None, data: bytes) -> bytes:
    if index:
        raise InvalidInput(f"A form has one part here, `{upload.field}`.", code="invalid_multipart")
    if name != upload.field:
        message = f"There is no such field: the file goes into {upload.field}"
        raise invalid_request([{"loc": (name,), "msg": message}], "body")
    return data


class _FormPart(Enum):
    """The part of a form that is read next."""

    PREAMBLE = auto()
    """Before the first boundary: text that is ignored (RFC 2046, section 5.1.1)."""
    HEAD = auto()
    """After a boundary."""
    CONTENT = auto()
    END = auto()
    """After the last boundary."""


class FormReader:
    """Splits a multipart form while its bytes arrive; `app.api.body.form_parts` splits a complete one the same way."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise InvalidInput("The content type names no boundary.", code="invalid_multipart")
        self._first = re.compile(rb"(?:\A|\n)--" + re.escape(boundary))
        self._delimiter = b"\r\n--" + boundary
        self._place = _FormPart.PREAMBLE
        self._held = b""
        """Bytes that could not be parsed yet, since they may continue in the next ones."""
        self._index = -1
        self._name = ""

    def feed(self, data: bytes) -> list[tuple[int, str, bytes]]:
        """Return the pieces of parts in ``data``, each after its part's index and field name.

        Raises InvalidInput (``invalid_multipart``).
        """
        data, at = self._held + data, 0
        pieces: list[tuple[int, str, bytes]] = []
        while self._place is not _FormPart.END:
            if self._place is _FormPart.CONTENT:
                end = data.find(self._delimiter, at)
                whole = end if end >= 0 else max(at, len(data) - len(self._delimiter) + 1)
                pieces.append((self._index, self._name, data[at:whole]))
                at = whole
                if end < 0:
                    break
                at, self._place = end + len(self._delimiter), _FormPart.HEAD
            elif self._place is _FormPart.PREAMBLE:
                found = self._first.search(data, 0, MAX_PART_HEADER)
                if found is None and len(data) > MAX_PART_HEADER:
                    raise malformed()
                if found is None:
                    break
                at, self._place = found.end(), _FormPart.HEAD
            elif data.startswith(b"--", at):
                self._place = _FormPart.END
            elif (head := read_part_head(data, at)) is None:
                break
            else:
                (self._name, at), self._place = head, _FormPart.CONTENT
                self._index += 1
        self._held = data[at:] if self._place is not _FormPart.END else b""
        return pieces

    def finish(self) -> None:
        """Check that the form is complete. Raises InvalidInput (``invalid_multipart``)."""
        if self._place is not _FormPart.END:
            raise cut_short()
