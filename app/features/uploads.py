"""Write uploads for jobs to the job's file as they arrive, and delete them if the job can't be created."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from starlette.requests import Request

from app.api.body import (
    FORM_TYPE,
    GZIP_TYPES,
    TAR_TYPE,
    BodyLimits,
    File,
    FormReader,
    content_type,
    invalid_request,
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
    """Write the request's upload to ``file``, and return the job that ``begin`` then creates in a thread.

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
    """Yield an uploaded file, sent as the body or as a form's only part, as it arrives.

    Each piece must arrive within ``seconds``; the whole may take any time.

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
