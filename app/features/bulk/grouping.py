"""Group the faces in a tar of photos without names by person. Somebody then names the groups.

Nobody is enrolled. The job's result contains boxes, but no pictures and no templates: the sender has the photos.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from app.errors import InvalidInput
from app.features.bulk import json_lines
from app.features.bulk.imports import Import
from app.features.bulk.photo_import import PHOTOS_AT_ONCE, THREADS, UploadedPhoto, photos_of
from app.features.grouping import MOST, USABLE, people_of
from app.features.photos import embed_for
from app.features.sealed_files import SealedWriter
from app.jobs.records import Result
from app.jobs.runner import Running

if TYPE_CHECKING:
    from app.api.components import Components
    from app.types import Face

MEDIA_TYPE: Final = "application/json"


@dataclass(frozen=True, slots=True)
class UsableFace:
    """A usable face of a photo. ``index`` is its place among the photo's faces."""

    photo: UploadedPhoto
    index: int
    face: Face

    def answer(self) -> dict[str, Any]:
        box = self.face.box
        sides = {"x": box.x, "y": box.y, "width": box.width, "height": box.height}
        place = {"photo": self.photo.item, "name": self.photo.name, "face": self.index}
        return place | {"box": sides, "quality": self.face.quality.score}


def group_photos(core: Components, job: Running) -> None:
    """Group the faces of an upload's photos by person. A resumed job starts over.

    Raises InvalidInput ``invalid_archive``, ``payload_too_large`` for more than MOST usable faces,
    OperatingPointUnavailable if the gallery's package has no operating points.
    """
    run = Import(core, job)
    # A gallery that is being re-embedded has two packages: use the same one for all photos.
    run.gallery = run.gallery.view(core.galleries.probed_by(run.gallery))
    job.counts.clear()
    seen: list[UsableFace] = []
    photos = list[int]()
    look = partial(_faces_of, run)
    with ThreadPoolExecutor(min(core.workers.share, THREADS), thread_name_prefix="group") as pool:
        for batch in json_lines.batches(photos_of(run), PHOTOS_AT_ONCE):
            for photo, found in zip(batch, pool.map(look, batch), strict=True):
                photos.append(photo.item)
                if isinstance(found, InvalidInput):
                    run.refuse(photo.item, photo.name, found)
                else:
                    seen += found
                    job.counts["without"] += not found
            if len(seen) > MOST:
                message = f"The photos show more than {MOST:,} usable faces: group fewer at once."
                raise InvalidInput(message, code="payload_too_large", limit=MOST)
            job.progress(len(photos))
            if job.cancelled:
                return
    groups = _grouped(core, run, seen)
    job.counts.update(people=len(groups), faces=len(seen))
    job.checkpoint({})
    _write(core, job, {"groups": groups, "without": job.counts["without"]})


def _faces_of(run: Import, photo: UploadedPhoto) -> list[UsableFace] | InvalidInput:
    """Return the usable faces of a photo, or the error if it can't be read."""
    if isinstance(photo.content, InvalidInput):
        return photo.content
    try:
        faces = embed_for(run.core.operations, run.gallery, photo.content).faces
    except InvalidInput as error:
        return error
    return [
        UsableFace(photo, index, face)
        for index, face in enumerate(faces)
        if face.template is not None and face.quality.score >= USABLE
    ]


def _grouped(core: Components, run: Import, seen: list[UsableFace]) -> list[list[dict[str, Any]]]:
    if not seen:
        return []
    vectors = np.stack([photo.face.template.vector for photo in seen if photo.face.template is not None])
    points = core.operations.thresholds_in(run.gallery, run.gallery.embedder).points
    return [[seen[row].answer() for row in rows] for rows in people_of(vectors, points)]


def _write(core: Components, job: Running, found: dict[str, Any]) -> None:
    writer = SealedWriter(core.files.draft(), job.secret)
    try:
        writer.write(json.dumps(found, ensure_ascii=False).encode())
        writer.finish(core.files.result(job.job.id))
    except BaseException:
        writer.abort()
        raise
    job.result = Result(writer.size, writer.sha256, MEDIA_TYPE, "groups.json")
