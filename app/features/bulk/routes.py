"""Importing many people, exporting a gallery, and the file of an export."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from app.access.grants import Grant, Scope
from app.api import body
from app.api.body import ARCHIVE, TAR_TYPE, BodyLimits, File
from app.api.components import Components, GalleryId, JobId
from app.api.feature import Feature, Part
from app.api.operation import GALLERY, NO_JOB
from app.api.route import Router
from app.api.routes import jobs as job_routes
from app.api.routes.jobs import JOB, find_job
from app.api.schemas import Job
from app.concurrency.admission import Admission
from app.concurrency.pool import WorkerPool
from app.errors import InvalidInput
from app.features.bulk.service import BulkService, ExportParams, ImportParams
from app.jobs.store import JobStore

galleries = Router("galleries")
jobs = Router("jobs")


@galleries.operation(
    "POST",
    f"{GALLERY}/import",
    scope=Scope.ADMIN,
    name="import",
    changes=True,
    status=202,
    upload=ARCHIVE,
    codes=("package_mismatch", "two_packages", "gallery_restricted"),
)
async def import_faces(
    request: Request,
    bulk: BulkService,
    admission: Admission,
    workers: WorkerPool,
    limits: BodyLimits,
    grant: Grant,
    gallery: GalleryId,
    query: Annotated[ImportParams, Query()],
) -> Job:
    """Import many faces.

    Takes a tar (or tar.gz) of photos with one folder per person, of templates computed elsewhere, or of an exported
    gallery, and answers with the job that enrolls them. The job's report lists what it rejects.
    """
    if query.trust is not None and grant.galleries is not None:
        message = "Only a key that is not restricted to galleries may say whose archives to trust."
        raise InvalidInput(message, code="gallery_restricted")
    home, file = await workers.run(lambda: bulk.receive(gallery, query, grant.key_id))
    try:
        upload = body.read_upload(request, ARCHIVE, limits.seconds)
        admission.receive()
        async with aclosing(upload) as pieces:
            async for piece in pieces:
                await asyncio.to_thread(file.write, piece)
        job = await asyncio.to_thread(bulk.begin_import, home, query, file, grant.key_id)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(file.abort))
        raise
    finally:
        bulk.end_upload(grant.key_id)
    return job_routes.answer(job)


@galleries.operation("POST", f"{GALLERY}/export", scope=Scope.ADMIN, name="export", changes=True, status=202)
def export_gallery(bulk: BulkService, grant: Grant, gallery: GalleryId, query: Annotated[ExportParams, Query()]) -> Job:
    """Export a gallery.

    Answers with the job that writes the gallery, as it is when the job begins, to one signed archive. Fetch it from
    `/v1/jobs/{job}/result`.
    """
    return job_routes.answer(bulk.begin_export(gallery, grant.key_id, crops=query.crops))


@jobs.operation(
    "GET",
    f"{JOB}/result",
    scope=Scope.ADMIN,
    name="fetch_result",
    file=File((TAR_TYPE,), "The file."),
    codes=(*NO_JOB, "result_not_found"),
)
def get_result(jobs: JobStore, bulk: BulkService, grant: Grant, job: JobId) -> StreamingResponse:
    """Fetch a job's result.

    The file that the job has made. It is kept as long as the job.
    """
    result, pieces = bulk.result(find_job(jobs, grant, job))
    headers = {
        "content-length": str(result.size),
        "content-disposition": f"attachment; filename*=UTF-8''{quote(result.name, safe='')}",
        "x-content-sha256": result.sha256,
    }
    return StreamingResponse(pieces, media_type=result.media_type, headers=headers)


def _start(core: Components) -> Part:
    bulk = BulkService(core)
    return Part({"bulk": bulk}, bulk.works())


FEATURE = Feature([galleries, jobs], _start)
