"""Import templates that were computed elsewhere with the gallery's package: `templates.npy`, and a file that names each
template's subject."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from app.errors import InvalidInput
from app.features.bulk import json_lines
from app.features.bulk.imports import FACES, Batch, FaceRow, Import, face_of
from app.features.bulk.json_lines import FaceLine
from app.features.bulk.rows import BulkSubject
from app.features.stored import is_unit
from app.gallery.records import package_mismatch
from app.jobs.runner import Running
from app.types import Template, Vector

if TYPE_CHECKING:
    from app.api.components import Components

IDS = "ids.txt"
"""Name of a file that may replace FACES: each line contains only the id of the row's subject."""
AT_ONCE = 2_000
"""Rows per transaction. Larger batches would leave more fragmented memory behind."""


def import_templates(core: Components, job: Running) -> None:
    """Enroll the templates of an upload. Templates that don't have length 1 are rejected, or normalized if the job asks
    for it. Raises Conflict ``package_mismatch`` and InvalidInput ``invalid_archive``."""
    run = Import(core, job)
    package = str(job.params["package"])
    if package != run.gallery.embedder:
        raise package_mismatch(run.gallery.index_spec, package)
    if not job.saved:
        _check(run)
    at = int(job.saved["next"])
    rows = run.templates(at)
    for lines in json_lines.batches(_lines(run, at), AT_ONCE):
        vectors = rows.read(len(lines))
        if job.params["normalize"]:
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            np.divide(vectors, lengths, out=vectors, where=lengths > 0)
        batch, units = Batch(), is_unit(vectors)
        for item, (line, vector, is_one) in enumerate(zip(lines, vectors, units, strict=True), at):
            error = _add(run, batch, item, line, vector if is_one else None)
            if error is not None:
                run.refuse(item, line.subject if isinstance(line, FaceLine) else "", error)
        at += len(lines)
        job.progress(at)
        run.write(batch, {"next": at})
        if job.cancelled:
            return


def _add(
    run: Import, batch: Batch, item: int, line: FaceLine | InvalidInput, vector: Vector | None
) -> InvalidInput | None:
    """Add a face to the batch and return None, or return the error that rejects it. ``vector`` is None if its length
    isn't 1."""
    if isinstance(line, InvalidInput):
        return line
    subject = BulkSubject(line.subject, line.name, line.metadata)
    try:
        run.check(subject)
    except InvalidInput as error:
        return error
    if vector is None:
        return InvalidInput("The template is not a vector of length 1.", code="invalid_template")
    if line.name is not None or line.metadata is not None:
        batch.subjects.append(subject)
    batch.rows.append(FaceRow(item, line.subject, face_of(line, Template(vector, run.gallery.embedder))))
    return None


def _check(run: Import) -> None:
    """Read the whole upload, so that nothing is imported from files that don't fit together. Raises InvalidInput
    ``invalid_archive``."""
    rows = run.templates()
    rows.skip(rows.count)
    total = sum(1 for _ in json_lines.split(run.member(FACES, IDS).pieces()))
    if total != rows.count:
        message = f"There are {rows.count} templates but {total} lines about them."
        raise InvalidInput(message, code="invalid_archive")
    run.job.progress(0, total)
    run.job.checkpoint({"next": 0})


def _lines(run: Import, begin: int) -> Iterator[tuple[FaceLine | InvalidInput, int]]:
    """Yield each line from number ``begin`` on, or its error, and the bytes of memory that it takes."""
    entry = run.member(FACES, IDS)
    ids_alone = entry.name.endswith(IDS)
    for line in islice(json_lines.split(entry.pieces()), begin, None):
        try:
            face = _plain_id(line) if ids_alone else json_lines.parse(line, FaceLine)
            yield face, len(line) * json_lines.PARSED_WEIGHT
        except InvalidInput as error:
            yield error, 0


def _plain_id(line: bytes) -> FaceLine:
    try:
        return FaceLine(subject=line.decode())
    except UnicodeDecodeError:
        raise InvalidInput("The id is not UTF-8.", code="invalid_id") from None
