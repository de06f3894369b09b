"""Receive the uploads of imports and groupings, create their and exports' jobs, and return the jobs' results."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Self

from pydantic import Field, model_validator

from app.api.components import Components
from app.api.schemas.base import MAX_ID_LENGTH, ON_CONFLICT, Params
from app.choices import ImportContent, OnConflict, QualityName
from app.concurrency.overload import Why
from app.db.encryption import Sealer, new_key
from app.errors import InvalidInput, NotFound, Unusable
from app.features.bulk.archive import export_gallery, import_archive
from app.features.bulk.grouping import group_photos
from app.features.bulk.photo_import import import_photos
from app.features.bulk.rows import two_packages
from app.features.bulk.template_import import import_templates
from app.features.sealed_files import EXPORT, SealedWriter, read_sealed
from app.gallery.records import Gallery, package_mismatch
from app.jobs.records import Job, Result
from app.jobs.runner import Running, Work
from app.jobs.store import new_job_id

IMPORT, GROUP = "import", "group"
UPLOADS = 2
"""Maximum number of uploads of one API key that may arrive at the same time."""
_IMPORTS: Mapping[str, Callable[[Components, Running], None]] = {
    "photos": import_photos,
    "templates": import_templates,
    "archive": import_archive,
}


class ImportParams(Params):
    content: ImportContent = Field(
        default="photos",
        description="The content of the tar. `photos`: one folder per person; `templates`: `templates.npy` with "
        "`faces.jsonl` or `ids.txt`; `archive`: the result of an export.",
    )
    quality: QualityName = Field(default="medium", description="Photos: the least quality to accept.")
    on_conflict: OnConflict | None = Field(
        default=None,
        description=f"{ON_CONFLICT} Default: the gallery's for photos; `allow` for templates and archives, for "
        f"which this check takes longer than the rest of the import.",
    )
    package: str | None = Field(
        default=None, max_length=MAX_ID_LENGTH, description="Templates: the model package that computed them."
    )
    normalize: bool = Field(default=False, description="Templates: normalize them to length 1 first.")
    trust: str | None = Field(
        default=None,
        max_length=128,
        description="Archives: the public key of the server that signed it, base64, or that key's SHA-256.",
    )

    @model_validator(mode="after")
    def _package_named(self) -> Self:
        if self.content == "templates" and self.package is None:
            raise ValueError("name the package that computed the templates")
        return self


class ExportParams(Params):
    crops: bool = Field(default=True, description="Whether to include the stored crops.")


class BulkService:
    """Receives uploads, and creates the jobs of imports, groupings and exports."""

    def __init__(self, core: Components) -> None:
        self._core = core
        self._arriving: Counter[str] = Counter()
        self._lock = threading.Lock()

    def works(self) -> dict[str, Work]:
        return {
            IMPORT: lambda job: _IMPORTS[job.params["content"]](self._core, job),
            EXPORT: partial(export_gallery, self._core),
            GROUP: partial(group_photos, self._core),
        }

    def receive(self, gallery_id: str, terms: ImportParams, who: str) -> tuple[Gallery, SealedWriter]:
        """Begin to receive an upload of the API key `who`: return the gallery, and the file to write it to. The file is
        encrypted with a secret that only the job's row will contain.

        Call `end_upload` afterwards. Raises NotFound ``gallery_not_found``, Conflict ``package_mismatch``,
        ``two_packages``, Unusable ``upload_not_kept``; Overloaded if UPLOADS of this API key are arriving, or its
        uploads that wait for their jobs have as many bytes as one upload may have.
        """
        gallery = self._core.store.gallery(gallery_id)
        if terms.content == "templates" and terms.package != gallery.embedder:
            raise package_mismatch(gallery.index_spec, terms.package or "")
        if terms.content != "photos" and len(gallery.written) > 1:  # only photos can be embedded with both packages
            raise two_packages(gallery.id)
        files = self._core.files
        unfinished = [job_id for kind in (IMPORT, GROUP) for job_id in self._core.jobs.unfinished(kind, who)]
        waiting = sum(map(files.upload_bytes, unfinished))
        with self._lock:
            if self._arriving[who] >= UPLOADS or waiting >= self._core.limits.upload_bytes:
                raise Why.UPLOADS.error()
            self._arriving[who] += 1
        try:
            return gallery, SealedWriter(files.draft(), new_key(), self._core.limits.upload_bytes)
        except OSError as error:
            self.end_upload(who)
            raise Unusable(f"The upload can't be stored: {error.strerror}", code="upload_not_kept") from None

    def end_upload(self, who: str) -> None:
        """Note that an upload of the API key `who` has arrived or failed."""
        with self._lock:
            self._arriving[who] -= 1
            if not self._arriving[who]:
                del self._arriving[who]

    def begin_import(self, gallery: Gallery, terms: ImportParams, upload: SealedWriter, who: str) -> Job:
        """Create the job of an import. Raises InvalidInput ``empty_upload``, NotFound ``gallery_not_found``.

        Without ``on_conflict``, photos are checked for duplicates as the gallery's setting says, templates and archives
        not at all.
        """
        policy = terms.on_conflict or (gallery.on_conflict if terms.content == "photos" else "allow")
        params = terms.model_dump() | {"trust": terms.trust or "", "on_conflict": policy}
        return self._begin(IMPORT, gallery, params, upload, who)

    def begin_group(self, gallery: Gallery, upload: SealedWriter, who: str) -> Job:
        """Create the job that groups photos. Raises InvalidInput ``empty_upload``, NotFound ``gallery_not_found``."""
        return self._begin(GROUP, gallery, {}, upload, who)

    def _begin(self, kind: str, gallery: Gallery, params: Mapping[str, object], upload: SealedWriter, who: str) -> Job:
        if not upload.size:
            raise InvalidInput("The upload is empty.", code="empty_upload")
        job_id = new_job_id()
        target = self._core.files.upload(job_id)
        upload.finish(target)
        try:
            return self._core.jobs.create(
                kind, gallery, params, who=who, place=self._core.files.place, secret=upload.secret, job_id=job_id
            )
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def begin_export(self, gallery_id: str, who: str, *, crops: bool) -> Job:
        """Create the job of an export. Raises NotFound ``gallery_not_found``."""
        gallery = self._core.store.gallery(gallery_id)
        return self._core.jobs.create(
            EXPORT, gallery, {"crops": crops}, who=who, place=self._core.files.place, secret=new_key()
        )

    def result(self, job: Job) -> tuple[Result, Iterator[bytes]]:
        """Return the facts of the file that the job has made, and its content. Raises NotFound ``result_not_found``."""
        secret = self._core.jobs.secret(job)
        path = self._core.files.result(job.id)
        if job.result is None or secret is None:
            raise NotFound("The job has made no file.", code="result_not_found", job=job.id)
        if not path.exists():
            message = "The job's file is in the data folder of another server: ask that server."
            raise NotFound(message, code="result_not_found", job=job.id)
        return job.result, read_sealed(path, Sealer([secret]))
