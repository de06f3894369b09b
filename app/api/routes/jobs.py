"""Jobs: work that outlasts a request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import StreamingResponse

from app.access.grants import Grant
from app.api import openapi, schemas
from app.api.service import GrantDep, Service, ServiceDep, entry_of
from app.errors import NotFound
from app.gallery.text import clean_id
from app.jobs import records
from app.jobs.store import REPORT_ROWS

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

JOB_CODES = ("job_not_found",)
LINES_TYPE, CSV_TYPE = "application/x-ndjson", "text/csv"
REPORT_FIELDS = ("item", "name", "code", "message", "reasons")
FORMULA_SIGNS = tuple("=+-@\t\r")
"""What a spreadsheet takes for the beginning of a formula; the names were made up by whoever sent the items."""
JobId = Annotated[
    str,
    Path(
        min_length=1,
        max_length=schemas.MAX_ID_LENGTH,
        description="The job's id.",
        examples=["0c9d7f0e4b8f4f0f9a3e0c6d7b8a9f10"],
    ),
]
REPORT_ANSWER: openapi.Responses = {
    200: {
        "description": "A refused item a line.",
        "content": {LINES_TYPE: {"schema": {"type": "string"}}, CSV_TYPE: {"schema": {"type": "string"}}},
    }
}


@router.get(
    "",
    summary="List the jobs",
    responses=openapi.answer(schemas.JobPage) | openapi.call_errors("invalid_cursor", "invalid_id"),
)
async def list_jobs(
    service: ServiceDep, grant: GrantDep, query: Annotated[schemas.JobPageParams, Query()]
) -> schemas.JobPage:
    """The jobs of the galleries that the key may see, the newest first, page by page. Finished ones are kept for
    `LIKENESS_JOB_DAYS`."""

    def read() -> schemas.JobPage:
        gallery = None if query.gallery is None else clean_id(query.gallery, "gallery")
        page = service.jobs.jobs(query.cursor, query.limit, only=grant.galleries, gallery=gallery, state=query.state)
        return schemas.JobPage(jobs=[answer(job) for job in page.items], next_cursor=page.next_cursor)

    return await service.run(read)


@router.get("/{job}", summary="Show a job", responses=openapi.answer(schemas.Job) | openapi.call_errors(*JOB_CODES))
async def get_job(service: ServiceDep, grant: GrantDep, job: JobId) -> schemas.Job:
    """How far it is, what it counted, and how it ended."""
    return answer(await service.run(lambda: find_job(service, grant, job)))


@router.post(
    "/{job}/cancel", summary="Cancel a job", responses=openapi.answer(schemas.Job) | openapi.call_errors(*JOB_CODES)
)
async def cancel_job(request: Request, service: ServiceDep, grant: GrantDep, job: JobId) -> schemas.Job:
    """A job that waits is cancelled at once, one that runs within seconds; what it has done stays done. One that has
    finished stays as it is."""

    def cancel() -> records.Job:
        entry_of(request).gallery = find_job(service, grant, job).gallery
        return service.jobs.cancel(job)

    return answer(await service.run(cancel))


@router.get(
    "/{job}/report",
    summary="See what a job refused",
    response_class=StreamingResponse,
    responses=REPORT_ANSWER | openapi.call_errors(*JOB_CODES),
)
async def get_report(
    service: ServiceDep, grant: GrantDep, job: JobId, query: Annotated[schemas.ReportParams, Query()]
) -> StreamingResponse:
    """Every item that was not taken, so far: its number, the name it came under, code, message and reasons; as lines
    of JSON, or as CSV."""
    found = await service.run(lambda: find_job(service, grant, job))
    as_csv = query.format == "csv"
    lines = _pages(service, found, _csv_lines if as_csv else _json_lines, _csv_head() if as_csv else b"")
    return StreamingResponse(lines, media_type=CSV_TYPE if as_csv else LINES_TYPE)


def find_job(service: Service, grant: Grant, job_id: str) -> records.Job:
    """Raises NotFound (``job_not_found``) also for a job that the key may not see: one of another gallery, or of none
    where the key is restricted to some."""
    job = service.jobs.job(job_id)
    if grant.galleries is not None and (job.gallery is None or not grant.sees(job.gallery)):
        raise NotFound(f"There is no job {job_id!r}.", code="job_not_found", job=job_id)
    return job


def answer(job: records.Job) -> schemas.Job:
    error = None
    if job.error_code is not None:
        error = {"code": job.error_code, "message": job.error_message or ""}
    return schemas.Job.model_validate(
        {
            "id": job.id,
            "kind": job.kind,
            "gallery": job.gallery,
            "state": job.state.value,
            "done": job.done,
            "total": job.total,
            "counts": dict(job.counts),
            "error": error,
            "has_result": job.result is not None,
            "key": job.who,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
        }
    )


async def _pages(
    service: Service, job: records.Job, write: Callable[[Sequence[records.Refusal]], bytes], head: bytes
) -> AsyncIterator[bytes]:
    if head:
        yield head
    after = -1
    while some := await service.run(lambda: service.jobs.refusals(job, after, REPORT_ROWS)):  # noqa: B023 (awaited here)
        yield write(some)
        after = some[-1].item


def _json_lines(some: Sequence[records.Refusal]) -> bytes:
    return b"".join(json.dumps(asdict(one), ensure_ascii=False).encode() + b"\n" for one in some)


def _csv_head() -> bytes:
    return ",".join(REPORT_FIELDS).encode() + b"\r\n"


def _csv_lines(some: Sequence[records.Refusal]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    for one in some:
        cells = (one.name, one.code, one.message, " ".join(one.reasons))
        writer.writerow([one.item, *(_harmless(cell) for cell in cells)])
    return file.getvalue().encode()


def _harmless(cell: str) -> str:
    return "'" + cell if cell.startswith(FORMULA_SIGNS) else cell
