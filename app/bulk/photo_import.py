"""Importing photos: a tar with a folder a person, through the same stages and rules as enrollment.

How far the work is, is written in the transaction of the faces themselves; a resumed job reads the upload from its
beginning and passes over what is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from app.bulk import json_lines
from app.bulk.import_batch import Batch, BulkContext, Upload, gallery_of, refuse
from app.bulk.json_lines import PhotoLine
from app.bulk.tar_stream import Entry
from app.errors import ImageTooLarge, InvalidInput
from app.face.quality import QualityLevel
from app.gallery.bulk import BulkSubject, bulk_face
from app.gallery.records import Gallery, NewFace
from app.gallery.service import crop_to_keep
from app.jobs.runner import Running
from app.operations import retried

PEOPLE = "people.jsonl"
"""Whose photos are, where their folders don't say it."""
PHOTOS_AT_ONCE = 16
BYTES_AT_ONCE = 64 * 1024 * 1024
MAX_PEOPLE_BYTES = 256 * 1024 * 1024
PROBLEMS = {
    "not_a_file": "a link, a device or something else that is no file",
    "unsafe_path": "the path is absolute, leads upwards, or holds what no path should",
    "no_subject": "the photo is in no folder, and people.jsonl does not name it",
}


@dataclass(frozen=True, slots=True)
class Photo:
    item: int
    name: str
    content: bytes
    problem: InvalidInput | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """A photo's face, and whose it is to be."""

    photo: Photo
    whose: BulkSubject
    face: NewFace


def import_photos(tools: BulkContext, job: Running) -> None:
    upload = Upload(tools, job)
    gallery = gallery_of(tools, job)
    people = _people(upload)
    if not job.saved:  # read through once: what is cut short or no tar is refused as a whole
        job.progress(0, sum(1 for _ in _photos(upload)))
        job.checkpoint({"next": 0})
    look = partial(_look, tools, gallery, QualityLevel(job.params["quality"]), people)
    with ThreadPoolExecutor(tools.threads, thread_name_prefix="import") as pool:
        for some in _batches(upload, job.saved["next"], tools.max_image_bytes):
            found = list(zip(some, pool.map(look, some), strict=True))
            for photo, one in found:
                if isinstance(one, InvalidInput):
                    refuse(job, photo.item, photo.name, one)
            good = [
                Found(photo, _whose(photo.name, people), one)
                for photo, one in found
                if not isinstance(one, InvalidInput)
            ]
            last = some[-1].item + 1
            job.progress(last)
            retried(partial(_write, tools, job, gallery, good, last))
            if job.cancelled:
                return


def _write(tools: BulkContext, job: Running, gallery: Gallery, good: Sequence[Found], last: int) -> None:
    """Raises Conflict ``package_mismatch`` where the gallery changed its packages meanwhile."""
    batch = Batch()
    package = gallery.embedder
    faces = tools.operations.complete(gallery.id, [one.face for one in good]) if good else []
    for one, face in zip(good, faces, strict=True):
        package = face.template.package
        batch.subjects.append(one.whose)
        kept = bulk_face(one.whose.id, face, crop_to_keep(gallery, face))
        batch.add(one.photo.item, one.photo.name, kept, face.template.vector)
    batch.write(tools, job, gallery, package, {"next": last})


def _look(
    tools: BulkContext, gallery: Gallery, level: QualityLevel, people: Mapping[str, PhotoLine], photo: Photo
) -> NewFace | InvalidInput:
    if photo.problem is not None:
        return photo.problem
    try:
        tools.galleries.store.check_subject(_whose(photo.name, people))
        return tools.operations.examine(gallery.id, photo.content, level)
    except InvalidInput as error:
        return error


def _whose(name: str, people: Mapping[str, PhotoLine]) -> BulkSubject:
    """Raises InvalidInput ``no_subject``."""
    if (told := people.get(name)) is not None:
        return BulkSubject(told.subject, told.name, told.metadata)
    folder, _, rest = name.partition("/")
    if not rest:
        raise InvalidInput(PROBLEMS["no_subject"], code="no_subject")
    return BulkSubject(folder)


def _people(upload: Upload) -> dict[str, PhotoLine]:
    """By photo; only where it is the first file. Raises InvalidInput ``invalid_archive``, ``invalid_item``."""
    first = next(upload.entries(), None)
    if first is None or _plain(first.name) != PEOPLE or first.problem is not None:
        return {}
    if first.size > MAX_PEOPLE_BYTES:
        raise InvalidInput(f"{PEOPLE} is larger than {MAX_PEOPLE_BYTES} bytes.", code="payload_too_large")
    told = (json_lines.parse(line, PhotoLine) for line in json_lines.split(first.pieces()))
    return {_plain(one.photo): one for one in told}


def _photos(upload: Upload) -> Iterator[tuple[int, Entry]]:
    """The entries that count, numbered; hidden files don't (`.DS_Store`, `._x`), nor does `people.jsonl`."""
    item = 0
    for place, entry in enumerate(upload.entries()):
        name = _plain(entry.name)
        hidden = entry.problem is None and any(part.startswith(".") for part in name.split("/"))
        if not hidden and not (place == 0 and name == PEOPLE):
            yield item, entry
            item += 1


def _batches(upload: Upload, begin: int, max_image_bytes: int) -> Iterator[list[Photo]]:
    """A few photos at a time, few enough for memory."""
    some: list[Photo] = []
    held = 0
    for item, entry in _photos(upload):
        if item < begin:
            continue
        photo = _read(item, entry, max_image_bytes)
        some.append(photo)
        held += len(photo.content)
        if len(some) == PHOTOS_AT_ONCE or held > BYTES_AT_ONCE:
            yield some
            some, held = [], 0
    if some:
        yield some


def _read(item: int, entry: Entry, max_image_bytes: int) -> Photo:
    name = _plain(entry.name).encode("utf-8", "replace").decode()
    if entry.problem is not None:
        return Photo(item, name, b"", InvalidInput(PROBLEMS[entry.problem], code=entry.problem))
    if entry.size > max_image_bytes:
        return Photo(item, name, b"", ImageTooLarge(f"larger than {max_image_bytes} bytes"))
    return Photo(item, name, entry.read())


def _plain(name: str) -> str:
    return name.removeprefix("./")
