"""Imports and exports as the API sees them: receive an upload, start a job, fetch a result."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal, TypeAlias

from app.bulk.archive import export_gallery, import_archive
from app.bulk.import_batch import BulkContext
from app.bulk.photo_import import import_photos
from app.bulk.sealed_files import SealedWriter, read_sealed
from app.bulk.template_import import import_templates
from app.choices import OnConflict
from app.concurrency.overload import Why
from app.db.encryption import Sealer, new_key
from app.errors import InvalidInput, NotFound, Unusable
from app.gallery.records import Gallery, package_mismatch, two_packages
from app.jobs.records import Job
from app.jobs.runner import Running, Work
from app.jobs.store import JobStore, new_job_id

IMPORT, EXPORT = "import", "export"
UPLOADS = 2
"""Uploads of one key that may arrive at once."""
Content: TypeAlias = Literal["photos", "templates", "archive"]
_IMPORTS: Mapping[str, Callable[[BulkContext, Running], None]] = {
    "photos": import_photos,
    "templates": import_templates,
    "archive": import_archive,
}


@dataclass(frozen=True, slots=True)
class ImportTerms:
    """The terms of an import. Templates need ``package``; archives of other servers need ``trust``.

    Without ``on_conflict`` photos are treated as the gallery says, templates and archives are not looked at.
    """

    content: Content
    quality: str
    package: str | None
    normalize: bool
    trust: str | None
    on_conflict: OnConflict | None = None


class BulkService:
    """Creates the jobs of imports and exports."""

    def __init__(self, context: BulkContext, jobs: JobStore) -> None:
        self._context = context
        self._jobs = jobs
        self._arriving: Counter[str] = Counter()
        self._lock = threading.Lock()

    def works(self) -> dict[str, Work]:
        """Return the work that the runner does, by kind of job."""
        return {
            IMPORT: lambda job: _IMPORTS[job.params["content"]](self._context, job),
            EXPORT: partial(export_gallery, self._context),
        }

    def receive(self, gallery_id: str, terms: ImportTerms, who: str) -> tuple[Gallery, SealedWriter]:
        """Begin to receive an upload of the key `who`, encrypted with a key that only its job's row will hold.

        Call `end_upload` after it. Raises NotFound ``gallery_not_found``, Conflict ``package_mismatch``,
        ``two_packages``, Unusable ``upload_not_kept``; Overloaded if UPLOADS of the key arrive, or those that wait for
        their jobs have as many bytes together as one may have.
        """
        gallery = self._context.galleries.store.gallery(gallery_id)
        if terms.content == "templates" and terms.package != gallery.embedder:
            raise package_mismatch(gallery.index_spec, terms.package or "")
        if terms.content != "photos" and len(gallery.written) > 1:  # photos are embedded here, with both packages
            raise two_packages(gallery.id)
        files = self._context.files
        waiting = sum(files.upload_bytes(job_id) for job_id in self._jobs.unfinished(IMPORT, who))
        with self._lock:
            if self._arriving[who] >= UPLOADS or waiting >= self._context.max_bytes:
                raise Why.UPLOADS.error()
            self._arriving[who] += 1
        try:
            return gallery, SealedWriter(files.draft(), new_key(), self._context.max_bytes)
        except OSError as error:
            self.end_upload(who)
            raise Unusable(f"The upload can't be stored: {error.strerror}", code="upload_not_kept") from None

    def end_upload(self, who: str) -> None:
        """Note that an upload of the key `who` has arrived, or will not."""
        with self._lock:
            self._arriving[who] -= 1
            if not self._arriving[who]:
                del self._arriving[who]

    def begin_import(self, gallery: Gallery, terms: ImportTerms, upload: SealedWriter, who: str) -> Job:
        """Create the job of an import. Raises InvalidInput ``empty_upload``, NotFound ``gallery_not_found``."""
        if not upload.size:
            raise InvalidInput("The upload is empty.", code="empty_upload")
        job_id = new_job_id()
        target = self._context.files.upload(job_id)
        upload.finish(target)
        policy = terms.on_conflict or (gallery.on_conflict if terms.content == "photos" else "allow")
        params = asdict(terms) | {"trust": terms.trust or "", "on_conflict": policy}
        try:
            return self._jobs.create(
                IMPORT, gallery, params, who=who, place=self._context.files.place, secret=upload.secret, job_id=job_id
            )
        except BaseException:
            target.unlink(missing_ok=True)
            raise

    def begin_export(self, gallery_id: str, who: str, *, crops: bool) -> Job:
        """Create the job of an export. Raises NotFound ``gallery_not_found``."""
        gallery = self._context.galleries.store.gallery(gallery_id)
        return self._jobs.create(
            EXPORT, gallery, {"crops": crops}, who=who, place=self._context.files.place, secret=new_key()
        )

    def result(self, job: Job) -> Iterator[bytes]:
        """Yield the file that the job has made. Raises NotFound ``result_not_found``."""
        secret = self._jobs.secret(job)
        path = self._context.files.result(job.id)
        if job.result is None or secret is None:
            raise NotFound("The job has made no file.", code="result_not_found", job=job.id)
        if not path.exists():
            message = "The job's file is in the data folder of another server: ask that server."
            raise NotFound(message, code="result_not_found", job=job.id)
        return read_sealed(path, Sealer([secret]))
