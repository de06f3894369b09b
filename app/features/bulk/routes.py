"""The REST operations that import many people, group photos, export a gallery, and fetch a job's file."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request
from fastapi.responses import StreamingResponse
from pydantic import Field

from app.access.grants import Grant, Scope
from app.api import schemas
from app.api.body import JSON_TYPE, TAR_TYPE, File
from app.api.components import Components, GalleryId, JobId
from app.api.feature import Feature, Part
from app.api.operation import GALLERY_PATH, NO_JOB
from app.api.route import Router
from app.api.routes import jobs as job_routes
from app.api.routes.jobs import JOB_PATH, find_job
from app.api.schemas import Job
from app.api.schemas.base import Wire
from app.errors import InvalidInput, NotFound
from app.features.bulk.service import GROUP, BulkService, ExportParams, ImportParams
from app.features.sealed_files import SealedWriter
from app.features.uploads import ARCHIVE, receive_upload
from app.gallery.records import Gallery
from app.jobs import records
from app.jobs.store import JobStore

galleries = Router("galleries")
jobs = Router("jobs")


@galleries.operation(
    "POST",
    f"{GALLERY_PATH}/import",
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
    components: Components,
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

    def begin(home: Gallery, file: SealedWriter) -> records.Job:
        return bulk.begin_import(home, query, file, grant.key_id)

    return await _receive(request, components, bulk, gallery, query, grant.key_id, begin)


class GroupedFace(Wire):
    photo: int = Field(examples=[0], description="Its photo's place in the archive, from 0.")
    name: str = Field(examples=["holiday/0017.jpg"], description="Its photo's name in the archive.")
    face: int = Field(examples=[0], description="Its index among the photo's faces, as enrollment takes it.")
    box: schemas.Box
    quality: float = Field(ge=0, le=100, examples=[81.0])


class PhotoGroups(Wire):
    """The groups of faces that a grouping has found. There are none until its job has ended."""

    job: schemas.Job
    groups: list[list[GroupedFace]] = Field(
        description="The faces of each person; the person with the most faces comes first."
    )
    without: int = Field(examples=[3], description="Photos without a usable face.")


@galleries.operation(
    "POST", f"{GALLERY_PATH}/group", scope=Scope.ENROLL, name="group_photos", changes=True, status=202, upload=ARCHIVE
)
async def group_photos(
    request: Request, bulk: BulkService, components: Components, grant: Grant, gallery: GalleryId
) -> Job:
    """Group photos by face.

    Takes a tar (or tar.gz) of photos without names, and answers with the job that groups their faces by person, with
    the gallery's model. Nobody is enrolled: name the groups, and enroll those you want.
    """

    def begin(home: Gallery, file: SealedWriter) -> records.Job:
        return bulk.begin_group(home, file, grant.key_id)

    return await _receive(request, components, bulk, gallery, ImportParams(), grant.key_id, begin)


async def _receive(
    request: Request,
    core: Components,
    bulk: BulkService,
    gallery: str,
    params: ImportParams,
    who: str,
    begin: Callable[[Gallery, SealedWriter], records.Job],
) -> Job:
    """Receive an archive for a gallery, and answer with the job that `begin` makes of it.

    Raises what `BulkService.receive`, `receive_upload` and `begin` raise.
    """
    home, file = await core.workers.run(lambda: bulk.receive(gallery, params, who))
    try:
        start = partial(begin, home, file)
        job = await receive_upload(request, ARCHIVE, file, start, admission=core.admission, limits=core.limits)
    finally:
        bulk.end_upload(who)
    return job_routes.job_answer(job)


@galleries.operation(
    "GET",
    f"{GALLERY_PATH}/group/{{job}}",
    scope=Scope.ENROLL,
    name="show_groups",
    codes=(*NO_JOB, "result_not_found"),
)
def show_groups(bulk: BulkService, jobs: JobStore, grant: Grant, gallery: GalleryId, job: JobId) -> PhotoGroups:
    """Show the groups of photos.

    Answers the progress of a grouping that this key started and, when it has ended, the faces of each person, by photo
    and box.
    """
    grouping = find_job(jobs, grant, job)
    if (grouping.kind, grouping.gallery, grouping.who) != (GROUP, gallery, grant.key_id):
        raise NotFound(f"There is no grouping {job!r}.", code="job_not_found", job=job)
    found = b"".join(bulk.result(grouping)[1]) if grouping.result else b"{}"
    return PhotoGroups.model_validate(
        {"job": job_routes.job_answer(grouping), "groups": [], "without": 0, **json.loads(found)}
    )


@galleries.operation("POST", f"{GALLERY_PATH}/export", scope=Scope.ADMIN, name="export", changes=True, status=202)
def export_gallery(bulk: BulkService, grant: Grant, gallery: GalleryId, query: Annotated[ExportParams, Query()]) -> Job:
    """Export a gallery.

    Answers with the job that writes the gallery, as of the job's start, to one signed archive. Fetch it from
    `/v1/jobs/{job}/result`.
    """
    return job_routes.job_answer(bulk.begin_export(gallery, grant.key_id, crops=query.crops))


@jobs.operation(
    "GET",
    f"{JOB_PATH}/result",
    scope=Scope.ADMIN,
    name="fetch_result",
    file=File((TAR_TYPE, JSON_TYPE), "The file."),
    codes=(*NO_JOB, "result_not_found"),
)
def get_result(jobs: JobStore, bulk: BulkService, grant: Grant, job: JobId) -> StreamingResponse:
    """Fetch a job's result.

    Answers the file that the job has made. It is kept as long as the job.
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
