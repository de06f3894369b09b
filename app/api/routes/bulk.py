"""Bulk work: many faces in, a whole gallery out. Bodies go to the data folder, sealed, as they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from python_multipart import MultipartParser
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header

from app.api import openapi, schemas
from app.api.body import FORM_TYPE, RAW_TYPE, invalid_request
from app.api.paths import GalleryId
from app.api.routes import jobs
from app.api.service import GrantDep, ServiceDep
from app.bulk.archive import MEDIA_TYPE
from app.bulk.service import Arrival, ImportTerms
from app.errors import InvalidInput, NotFound

router = APIRouter(prefix="/v1", tags=["jobs"])

GZIP_TYPES = ("application/gzip", "application/x-gzip")
TYPES = (MEDIA_TYPE, *GZIP_TYPES, RAW_TYPE, FORM_TYPE)
MAX_PART_HEADER = 8 * 1024
PART = "archive"
"""The form's one field."""
_FILE = {"type": "string", "format": "binary", "description": "A tar, or tar.gz."}
_FORM = {"type": "object", "properties": {PART: _FILE}, "required": [PART]}
UPLOAD_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": _FORM if kind == FORM_TYPE else _FILE} for kind in TYPES},
    }
}
RESULT_ANSWER: openapi.Responses = {
    200: {"description": "The file.", "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
}
UPLOAD_CODES = ("unsupported_media_type", "payload_too_large", "body_timeout", "invalid_multipart", "empty_upload")


@router.post(
    "/galleries/{gallery}/import",
    status_code=202,
    summary="Import many faces",
    responses=openapi.answer(schemas.Job, 202)
    | openapi.call_errors(*UPLOAD_CODES, "gallery_not_found", "invalid_id", "package_mismatch", "two_packages"),
    openapi_extra=UPLOAD_BODY,
)
async def import_faces(
    request: Request,
    service: ServiceDep,
    grant: GrantDep,
    gallery: GalleryId,
    query: Annotated[schemas.ImportParams, Query()],
) -> schemas.Job:
    """Takes a tar (or tar.gz) of photos in a folder a person, of templates made elsewhere, or of an exported gallery,
    and answers with the job that enrolls them. What it refuses is in the job's report."""
    terms = ImportTerms(query.content, query.quality, query.package, query.normalize, query.trust)
    home, arrival = await service.run(lambda: service.bulk.receive(gallery, terms))
    try:
        async with aclosing(_upload(request, service.limits.seconds)) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(arrival.writer.write, piece)
        job = await asyncio.to_thread(service.bulk.begin_import, home, terms, arrival, grant.key_id)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(_abort, arrival))
        raise
    return jobs.answer(job)


@router.post(
    "/galleries/{gallery}/export",
    status_code=202,
    summary="Export a gallery",
    responses=openapi.answer(schemas.Job, 202) | openapi.call_errors("gallery_not_found", "invalid_id"),
)
async def export_gallery(
    service: ServiceDep, grant: GrantDep, gallery: GalleryId, query: Annotated[schemas.ExportParams, Query()]
) -> schemas.Job:
    """Answers with the job that writes the gallery, as it is when the job begins, into one signed archive, to be
    fetched from `/v1/jobs/{job}/result`."""

    def begin() -> schemas.Job:
        return jobs.answer(service.bulk.begin_export(gallery, grant.key_id, crops=query.crops))

    return await service.run(begin)


@router.get(
    "/jobs/{job}/result",
    summary="Fetch what a job has left",
    response_class=StreamingResponse,
    responses=RESULT_ANSWER | openapi.call_errors("job_not_found", "result_not_found"),
)
async def get_result(service: ServiceDep, grant: GrantDep, job: jobs.JobId) -> StreamingResponse:
    """The file that the job has made; it is kept as long as the job."""
    found = await service.run(lambda: jobs.find_job(service, grant, job))
    pieces = await service.run(lambda: service.bulk.result(found))
    if found.result is None:
        raise NotFound("The job has left nothing to be fetched.", code="result_not_found", job=job)
    name = quote(found.result.name, safe="")
    headers = {
        "content-length": str(found.result.size),
        "content-disposition": f"attachment; filename*=UTF-8''{name}",
        "x-content-sha256": found.result.sha256,
    }
    return StreamingResponse(pieces, media_type=found.result.media_type, headers=headers)


def _abort(arrival: Arrival) -> None:
    arrival.writer.abort()


async def _upload(request: Request, seconds: float) -> AsyncGenerator[bytes, None]:
    """The archive in the body as it comes: each piece within `seconds`, all of them in any time.

    Raises InvalidInput (``unsupported_media_type``, ``body_timeout``, ``invalid_multipart``).
    """
    kind, options = parse_options_header(request.headers.get("content-type"))
    media_type = kind.decode("latin-1").lower()
    if media_type not in TYPES or request.headers.get("content-encoding", "identity").lower() != "identity":
        raise InvalidInput(f"send one of {', '.join(TYPES)}", code="unsupported_media_type", supported=list(TYPES))
    form = _Form(options.get(b"boundary", b"")) if media_type == FORM_TYPE else None
    stream = request.stream()
    while True:
        try:
            piece = await asyncio.wait_for(anext(stream, None), seconds)
        except TimeoutError:
            raise InvalidInput("the body did not arrive in time", code="body_timeout") from None
        if piece is None:
            break
        if form is None:
            yield piece
        elif part := form.feed(piece):
            yield part
    if form is not None:
        form.finish()


class _Form:
    """The one file in a form, taken out as it comes."""

    def __init__(self, boundary: bytes) -> None:
        if not boundary:
            raise InvalidInput("the content type names no boundary", code="invalid_multipart")
        self._parts: list[bytes] = []
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = b""
        self._count = 0
        self._complete = False
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: self._collect(self._header, data[start:end]),
            "on_header_value": lambda data, start, end: self._collect(self._value, data[start:end]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_part_data": lambda data, start, end: self._parts.append(data[start:end]),
            "on_end": self._end,
        }
        self._parser = MultipartParser(boundary, callbacks)

    def feed(self, piece: bytes) -> bytes:
        """What of the file is in it."""
        self._call(lambda: self._parser.write(piece))
        found = b"".join(self._parts)
        self._parts.clear()
        return found

    def finish(self) -> None:
        self._call(self._parser.finalize)
        if not self._complete or not self._count:
            raise InvalidInput("the form is cut short, or empty", code="invalid_multipart")

    def _call(self, step: Callable[[], object]) -> None:
        try:
            step()
        except FormParserError:
            raise InvalidInput("the body is not a well-formed form", code="invalid_multipart") from None

    def _collect(self, into: bytearray, data: bytes) -> None:
        into += data
        if len(into) > MAX_PART_HEADER:
            raise InvalidInput("a part's head is too long", code="invalid_multipart")

    def _begin(self) -> None:
        self._disposition = b""
        self._count += 1
        if self._count > 1:
            raise InvalidInput(f"a form has one part here, `{PART}`", code="invalid_multipart")

    def _end_header(self) -> None:
        if bytes(self._header).lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _end_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name != PART:
            raise invalid_request([{"loc": (name,), "msg": "There is no such field"}], "body")

    def _end(self) -> None:
        self._complete = True
