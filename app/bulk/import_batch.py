"""What all imports share: the upload, and a batch that becomes one transaction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from app.bulk import tar_stream
from app.bulk.json_lines import FaceLine
from app.bulk.sealed_files import read_sealed
from app.choices import OnConflict
from app.db.encryption import Sealer
from app.db.signing import Signer
from app.errors import InvalidInput, Unusable
from app.gallery.enrolling import BulkSubject, write_many
from app.gallery.records import Gallery, Origin, StoredFace, from_bytes
from app.gallery.service import Galleries
from app.inference.embedders import Embedders
from app.jobs.files import JobFiles
from app.jobs.runner import Running
from app.recognition.corrections import Corrections
from app.recognition.duplicate_check import Findings
from app.recognition.operations import Operations
from app.recognition.photos import reasons_of
from app.types import Box, Quality, Template


@dataclass(frozen=True, slots=True)
class BulkContext:
    """The parts of the service that imports and exports use."""

    operations: Operations
    embedders: Embedders
    galleries: Galleries
    corrections: Corrections
    files: JobFiles
    max_image_bytes: int
    max_bytes: int
    """Largest upload, packed and unpacked."""
    threads: int
    package_sha256: Callable[[str], str | None]
    """Returns the SHA-256 of a package's file by the package's id, or None if it is not installed."""
    signer: Signer


class Upload:
    """The upload of a job: a tar that can be read any number of times."""

    def __init__(self, tools: BulkContext, job: Running) -> None:
        secret = job.secret
        if secret is None:
            raise Unusable("The key of the job's upload is gone.", code="upload_missing")
        self._path = tools.files.upload(job.job.id)
        self._sealer = Sealer([secret])
        self._max_bytes = tools.max_bytes

    def entries(self) -> Iterator[tar_stream.Entry]:
        return tar_stream.entries(lambda: read_sealed(self._path, self._sealer), self._max_bytes)

    def member(self, *names: str) -> tar_stream.Entry:
        """Return the first file of one of these names. Raises InvalidInput ``invalid_archive``."""
        for entry in self.entries():
            if entry.name.removeprefix("./") in names and entry.problem is None:
                return entry
        raise InvalidInput(f"The archive has no {' or '.join(names)}.", code="invalid_archive")


@dataclass(frozen=True, slots=True)
class Row:
    """A face to write, with its number within the job and its name there."""

    item: int
    name: str
    face: StoredFace


@dataclass(slots=True)
class Batch:
    """The content of one transaction."""

    subjects: list[BulkSubject] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def write(self, tools: BulkContext, job: Running, gallery: Gallery, package: str, saved: dict[str, Any]) -> None:
        """Write the faces and the job's progress in one transaction, after the look that the job asks for."""
        found = self._look(tools, job, gallery, package)

        def report() -> None:
            for row, one in found:
                if one.error is not None:
                    job.refuse(
                        row.item, row.name, one.error.code, one.error.message, _whom(one), enrolled=not one.refused
                    )

        if not self.rows and not self.subjects:
            report()
            job.checkpoint(saved)
            return

        with tools.galleries.change(gallery.id) as change:
            written = write_many(change, package, self.subjects, [row.face for row in self.rows])
            job.counts["enrolled"] += written.faces
            job.counts["new_subjects"] += written.subjects
            for place in written.taken:
                row = self.rows[place]
                job.refuse(row.item, row.name, "face_exists", "A face with this id exists already.")
            report()
            job.checkpoint(saved, change.connection)

    def _look(self, tools: BulkContext, job: Running, gallery: Gallery, package: str) -> list[tuple[Row, Findings]]:
        """Return what the faces resemble; leave out those that are refused, and subjects that have no others here."""
        policy: OnConflict = job.params.get("on_conflict", "allow")  # jobs of earlier versions have none
        faces = [(row.face.subject, Template(from_bytes(row.face.template), package)) for row in self.rows]
        found = list(zip(self.rows, tools.operations.look(gallery, faces, policy), strict=True))
        refused = {row.face.subject for row, one in found if one.refused}
        self.rows = [row for row, one in found if not one.refused]
        left = {row.face.subject for row in self.rows}
        self.subjects = [one for one in self.subjects if one.id in left or one.id not in refused]
        return found


def _whom(found: Findings) -> list[str]:
    """Return the subject and the score of what a face resembles, as text for a job's report."""
    one = found.conflict or found.duplicate
    return [] if one is None else [f"subject {one.subject}", f"score {math.floor((one.score or 0) * 100) / 100}"]


def gallery_of(tools: BulkContext, job: Running) -> Gallery:
    """Return the job's gallery. Raises NotFound ``gallery_not_found``."""
    return tools.galleries.store.gallery(job.job.gallery or "")


def refuse(job: Running, item: int, name: str, error: InvalidInput) -> None:
    """Add an item to the job's report of rejected items."""
    job.refuse(item, name, error.code, error.message, reasons_of(error))


def face_of(line: FaceLine, template: bytes, crop: bytes | None = None) -> StoredFace:
    """Return the face that a line of `faces.jsonl` describes."""
    face = StoredFace(
        subject=line.subject,
        template=template,
        quality=Quality(line.quality, tuple(line.reasons)),
        box=Box(*line.box),
        crop=crop,
        created_at=line.created_at,
        origin=None if line.origin is None else Origin(**line.origin.model_dump()),
    )
    return face if line.face_id is None else replace(face, face_id=line.face_id)
