"""The common part of all imports: the gallery, the upload, and batches, each written in one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from app.choices import OnConflict
from app.db.encryption import Sealer
from app.errors import InvalidInput
from app.features import tar_stream
from app.features.bulk.json_lines import FaceLine
from app.features.bulk.npy import RowReader
from app.features.bulk.rows import BulkSubject, subject_columns, write_many
from app.features.sealed_files import read_sealed
from app.features.tar_stream import PieceReader
from app.gallery.records import Gallery, Origin, StoredFace
from app.gallery.text import check_visible
from app.jobs.runner import Running
from app.recognition.duplicates import Objections
from app.recognition.operations import reasons_of
from app.types import Box, Quality, Template

if TYPE_CHECKING:
    from app.api.components import Components

UNLIKE = "The face looks like none of the subject's others."
TEMPLATES, FACES = "templates.npy", "faces.jsonl"
"""Names of the file with one template per row, and of the file with a line about each template."""


@dataclass(frozen=True, slots=True)
class FaceRow:
    """A face to write. ``item`` and ``name`` are its number and its name in the job's report."""

    item: int
    name: str
    face: StoredFace


@dataclass(slots=True)
class Batch:
    """The content of one transaction."""

    subjects: list[BulkSubject] = field(default_factory=list)
    rows: list[FaceRow] = field(default_factory=list)


class Import:
    """A running import. Its upload is a tar, which can be read any number of times.

    Raises NotFound ``gallery_not_found``, Unusable ``upload_missing``.
    """

    def __init__(self, core: Components, job: Running) -> None:
        self.core = core
        self.job = job
        self.gallery = core.store.gallery(job.job.gallery or "")
        self._path = core.files.upload(job.job.id)
        self._sealer = Sealer([job.secret])

    def entries(self) -> Iterator[tar_stream.TarEntry]:
        return tar_stream.entries(lambda: read_sealed(self._path, self._sealer), self.core.limits.upload_bytes)

    def member(self, *names: str) -> tar_stream.TarEntry:
        """Return the tar's first file with one of these names. Raises InvalidInput ``invalid_archive`` if there is
        none."""
        for entry in self.entries():
            if entry.name.removeprefix("./") in names and entry.problem is None:
                return entry
        raise InvalidInput(f"The archive has no {' or '.join(names)}.", code="invalid_archive")

    def templates(self, skipped: int = 0) -> RowReader:
        """Return a reader of the templates, after the first ``skipped`` rows. Raises what `member` and RowReader
        raise."""
        rows = RowReader(PieceReader(self.member(TEMPLATES).pieces()), self.gallery.dimension)
        rows.skip(skipped)
        return rows

    def check(self, subject: BulkSubject) -> None:
        """Raise InvalidInput unless the subject can be stored."""
        check_visible(subject_columns(subject, self.core.store.max_metadata_bytes)[0], "subject id")

    def refuse(self, item: int, name: str, error: InvalidInput) -> None:
        self.job.refuse(item, name, error.code, error.message, reasons_of(error))

    def write(self, batch: Batch, saved: Mapping[str, Any], package: str | None = None) -> None:
        """Write the faces and the job's progress in one transaction, after the search for duplicates that the job asks
        for.

        The templates are of `package`, by default the gallery's.
        """
        job, package = self.job, package or self.gallery.embedder
        gallery = self.core.store.gallery(self.gallery.id)  # an import may outlast a re-embedding
        checked = self._check(gallery, batch)
        refused = {row.face.subject for row, objections in checked if objections.refused}
        rows = [row for row, objections in checked if not objections.refused]
        left = {row.face.subject for row in rows}
        subjects = [subject for subject in batch.subjects if subject.id in left or subject.id not in refused]
        if not rows and not subjects:
            self._report(checked)
            job.checkpoint(saved)
            return
        with self.core.galleries.change(gallery) as change:
            written = write_many(change, package, subjects, [row.face for row in rows])
            job.counts["enrolled"] += written.faces
            job.counts["new_subjects"] += written.subjects
            for row in (rows[place] for place in written.taken):
                job.refuse(row.item, row.name, "face_exists", "A face with this id exists already.")
            self._report(checked)
            job.checkpoint(saved, change.connection)

    def _check(self, gallery: Gallery, batch: Batch) -> list[tuple[FaceRow, Objections]]:
        policy: OnConflict = self.job.params.get("on_conflict", "allow")  # jobs of earlier versions lack this parameter
        faces = [(row.face.subject, row.face.template) for row in batch.rows]
        # Templates come in thousands, so this is not checked for them: a review finds misplaced ones later.
        photos = self.job.params.get("content") == "photos"
        return list(
            zip(batch.rows, self.core.operations.find_objections(gallery, faces, policy, unlike=photos), strict=True)
        )

    def _report(self, checked: list[tuple[FaceRow, Objections]]) -> None:
        """Add to the job's report the faces that resemble other subjects, with these subjects and the scores."""
        for row, objections in checked:
            alike = objections.conflict or objections.duplicate
            whom = [] if alike is None else [f"subject {alike.subject}"]
            whom += [] if alike is None or alike.score is None else [f"score {alike.score:g}"]
            if (error := objections.error) is not None:
                self.job.refuse(row.item, row.name, error.code, error.message, whom, enrolled=not objections.refused)
            elif objections.unlike is not None:
                self.job.refuse(row.item, row.name, "unlike", UNLIKE, enrolled=True)


def face_of(line: FaceLine, template: Template, crop: bytes | None = None) -> StoredFace:
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
