"""Import of templates made elsewhere by the gallery's package: `templates.npy`, and a file that says whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from app.bulk import json_lines
from app.bulk.import_batch import Batch, BulkContext, Row, Upload, face_of, gallery_of, refuse
from app.bulk.json_lines import FaceLine
from app.bulk.npy import RowReader
from app.bulk.sealed_files import PieceReader
from app.errors import InvalidInput, PackageMismatch
from app.gallery.enrolling import BulkSubject
from app.gallery.records import Gallery
from app.gallery.templates import is_unit
from app.jobs.runner import Running
from app.types import Vector

TEMPLATES, FACES, IDS = "templates.npy", "faces.jsonl", "ids.txt"
"""The rows, and one line for each: JSON, or the subject's id alone."""
AT_ONCE = 2_000
"""Rows in one transaction. Larger batches leave more freed memory between objects that live on."""


def import_templates(tools: BulkContext, job: Running) -> None:
    """Enroll the templates of an upload; templates not of length 1 are rejected, or normalized if the job says so."""
    upload = Upload(tools, job)
    gallery = gallery_of(tools, job)
    package = str(job.params["package"])
    if package != gallery.embedder:
        message = f"Gallery {gallery.id!r} takes templates of {gallery.embedder}, not of {package}."
        raise PackageMismatch(message)
    if not job.saved:
        _check(upload, gallery, job)
    at = int(job.saved["next"])
    rows = _rows(upload, gallery)
    rows.skip(at)
    lines = _lines(upload, at)
    for some in json_lines.batches(lines, AT_ONCE):
        vectors = rows.read(len(some))
        if job.params["normalize"]:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        batch = Batch()
        units = is_unit(vectors)
        for place, one in enumerate(some):
            vector = vectors[place] if units[place] else None
            error = _add(tools, batch, at + place, one, vector)
            if error is not None:
                refuse(job, at + place, one.subject if isinstance(one, FaceLine) else "", error)
        at += len(some)
        job.progress(at)
        batch.write(tools, job, gallery, package, {"next": at})
        if job.cancelled:
            return


def _add(
    tools: BulkContext, batch: Batch, item: int, line: FaceLine | InvalidInput, vector: Vector | None
) -> InvalidInput | None:
    """Add a face to the batch, or return why it is rejected; ``vector`` is None if its length isn't 1."""
    if isinstance(line, InvalidInput):
        return line
    subject = BulkSubject(line.subject, line.name, line.metadata)
    try:
        tools.galleries.store.check_subject(subject)
    except InvalidInput as error:
        return error
    if vector is None:
        return InvalidInput("The template is not a vector of length 1.", code="invalid_template")
    if line.name is not None or line.metadata is not None:
        batch.subjects.append(subject)
    batch.rows.append(Row(item, line.subject, face_of(line, vector.astype("<f4").tobytes())))
    return None


def _check(upload: Upload, gallery: Gallery, job: Running) -> None:
    """Read all of the upload once, so that files that don't fit together are rejected as a whole."""
    rows = _rows(upload, gallery)
    rows.skip(rows.count)
    total = sum(1 for _ in json_lines.split(upload.member(FACES, IDS).pieces()))
    if total != rows.count:
        message = f"There are {rows.count} templates but {total} lines about them."
        raise InvalidInput(message, code="invalid_archive")
    job.progress(0, total)
    job.checkpoint({"next": 0})


def _rows(upload: Upload, gallery: Gallery) -> RowReader:
    return RowReader(PieceReader(upload.member(TEMPLATES).pieces()), gallery.dimension)


def _lines(upload: Upload, begin: int) -> Iterator[tuple[FaceLine | InvalidInput, int]]:
    """Yield each line from that one on, with the memory it takes."""
    entry = upload.member(FACES, IDS)
    plain = entry.name.endswith(IDS)
    for line in islice(json_lines.split(entry.pieces()), begin, None):
        weight = len(line) * json_lines.PARSED_WEIGHT
        try:
            yield _plain_id(line) if plain else json_lines.parse(line, FaceLine), weight
        except InvalidInput as error:
            yield error, 0


def _plain_id(line: bytes) -> FaceLine:
    try:
        return FaceLine(subject=line.decode())
    except UnicodeDecodeError:
        raise InvalidInput("The id is not UTF-8.", code="invalid_id") from None
