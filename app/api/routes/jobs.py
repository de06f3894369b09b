"""Jobs: work that outlasts a request."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Annotated

from fastapi import Query
from fastapi.responses import StreamingResponse

from app.access.audit import AuditEntry
from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.body import CSV_TYPE, LINES_TYPE, File
from app.api.components import JobId
from app.api.operation import NO_JOB
from app.api.route import Router
from app.concurrency.admission import WorkerPool
from app.errors import NotFound
from app.gallery.text import clean_id
from app.jobs import records
from app.jobs.store import REPORT_ROWS, JobStore

router = Router("jobs")

JOBS_PATH = "/v1/jobs"
JOB_PATH = f"{JOBS_PATH}/{{job}}"

REPORT_FIELDS = ("item", "name", "code", "message", "reasons", "enrolled")
FORMULA_SIGNS = tuple("=+-@\t\r")
"""A spreadsheet takes a cell that begins with one of these for a formula, and senders choose the items' names."""


@router.operation("GET", JOBS_PATH, scope=Scope.READ, codes=("invalid_cursor", "invalid_id"))
def list_jobs(jobs: JobStore, grant: Grant, query: Annotated[schemas.JobPageParams, Query()]) -> schemas.JobPage:
    """List the jobs.

    Lists the jobs of the galleries that the key may see, newest first, page by page. Finished jobs are kept for
    `LIKENESS_JOB_DAYS`.
    """
    gallery = None if query.gallery is None else clean_id(query.gallery, "gallery")
    page = jobs.jobs(query.cursor, query.limit, only=grant.galleries, gallery=gallery, state=query.state)
    return schemas.JobPage.of(page, jobs=[job_answer(job) for job in page.items])


@router.operation("GET", JOB_PATH, scope=Scope.READ, name="show_job", codes=NO_JOB)
def get_job(jobs: JobStore, grant: Grant, job: JobId) -> schemas.Job:
    """Show a job.

    Answers its progress, its counts, and how it ended.
    """
    return job_answer(find_job(jobs, grant, job))


@router.operation("POST", f"{JOB_PATH}/cancel", scope=Scope.ADMIN, changes=True, codes=NO_JOB)
def cancel_job(jobs: JobStore, entry: AuditEntry, grant: Grant, job: JobId) -> schemas.Job:
    """Cancel a job.

    A queued job is cancelled at once, a running one within seconds; what it has done stays done. A finished job stays
    as it is.
    """
    entry.gallery = find_job(jobs, grant, job).gallery
    return job_answer(jobs.cancel(job))


@router.operation(
    "GET",
    f"{JOB_PATH}/report",
    scope=Scope.READ,
    name="show_report",
    file=File((LINES_TYPE, CSV_TYPE), "One line for each rejected item."),
    codes=NO_JOB,
)
def get_report(
    jobs: JobStore, workers: WorkerPool, grant: Grant, job: JobId, query: Annotated[schemas.ReportParams, Query()]
) -> StreamingResponse:
    """Read a job's report.

    Lists every item that was rejected so far, or enrolled with a warning, as lines of JSON or as CSV: its number, name,
    code, message, reasons and whether it was enrolled.
    """
    reported = find_job(jobs, grant, job)
    as_csv = query.format == "csv"
    lines = _pages(workers, jobs, reported, as_csv=as_csv)
    return StreamingResponse(lines, media_type=CSV_TYPE if as_csv else LINES_TYPE)


def find_job(jobs: JobStore, grant: Grant, job_id: str) -> records.Job:
    """Return the job if the key may see it: a restricted key sees only the jobs of its galleries.

    Raises NotFound (``job_not_found``).
    """
    job = jobs.job(job_id)
    if grant.galleries is not None and (job.gallery is None or not grant.sees(job.gallery)):
        raise NotFound(
            f"There is no job {job_id!r}; `likeness jobs list` shows those that there are.",
            code="job_not_found",
            job=job_id,
        )
    return job


def job_answer(job: records.Job) -> schemas.Job:
    error = None
    if job.error_code is not None:
        error = {"code": job.error_code, "message": job.error_message or ""}
    return schemas.Job.of(job, counts=dict(job.counts), error=error, has_result=job.result is not None, key=job.who)


async def _pages(workers: WorkerPool, jobs: JobStore, job: records.Job, *, as_csv: bool) -> AsyncIterator[bytes]:
    if as_csv:
        yield ",".join(REPORT_FIELDS).encode() + b"\r\n"
    after = -1
    while refusals := await workers.run(lambda: jobs.refusals(job, after, REPORT_ROWS)):  # noqa: B023 (awaited here)
        yield _csv_lines(refusals) if as_csv else _json_lines(refusals)
        after = refusals[-1].item


def _json_lines(refusals: Sequence[records.Refusal]) -> bytes:
    return b"".join(json.dumps(asdict(refusal), ensure_ascii=False).encode() + b"\n" for refusal in refusals)


def _csv_lines(refusals: Sequence[records.Refusal]) -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    for refusal in refusals:
        cells = (refusal.name, refusal.code, refusal.message, " ".join(refusal.reasons))
        texts = ("'" + cell if cell.startswith(FORMULA_SIGNS) else cell for cell in cells)  # no spreadsheet's formulas
        writer.writerow([refusal.item, *texts, str(refusal.enrolled).lower()])
    return file.getvalue().encode()
