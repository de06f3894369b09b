"""Import of photos: a tar with a folder for each person, through the same stages and rules as enrollment.

The job's progress is written in the transaction of the faces. A resumed job reads the upload from its beginning and
skips the photos that are done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from app.bulk import json_lines
from app.bulk.import_batch import Batch, BulkContext, Row, Upload, gallery_of, refuse
from app.bulk.json_lines import PhotoLine
from app.bulk.tar_stream import Entry
from app.errors import ImageTooLarge, InvalidInput
from app.face.quality import QualityLevel
from app.gallery.enrolling import BulkSubject, crop_to_keep
from app.gallery.records import Gallery, NewFace
from app.jobs.runner import Running
from app.recognition.completing import complete, retried

PEOPLE = "people.jsonl"
"""The subjects of photos whose folder doesn't name them."""
PHOTOS_AT_ONCE = 16
MAX_PEOPLE_BYTES = 64 * 1024 * 1024
MAX_PEOPLE = 1_000_000
"""Lines of `people.jsonl`, which is held in memory: 64 MiB of text and about 200 bytes a line."""
PROBLEMS = {
    "not_a_file": "The entry is a link, a device or something else that is not a file.",
    "unsafe_path": "The path is absolute, leads to a parent folder, or holds control characters.",
    "no_subject": "The photo is in no folder, and people.jsonl does not name its subject.",
}


@dataclass(frozen=True, slots=True)
class Photo:
    item: int
    name: str
    content: bytes
    problem: InvalidInput | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The face of a photo, and the subject to enroll it for."""

    photo: Photo
    subject: BulkSubject
    face: NewFace


def import_photos(tools: BulkContext, job: Running) -> None:
    """Enroll the photos of an upload. Raises InvalidInput ``invalid_archive`` before anything is written."""
    upload = Upload(tools, job)
    gallery = gallery_of(tools, job)
    people = _people(upload)
    if not job.saved:  # read all of it once, so that a truncated tar is rejected as a whole
        job.progress(0, sum(1 for _ in _photos(upload)))
        job.checkpoint({"next": 0})
    examine = partial(_examine, tools, gallery, QualityLevel(job.params["quality"]), people)
    with ThreadPoolExecutor(tools.threads, thread_name_prefix="import") as pool:
        weighed = _weighed(upload, job.saved["next"], tools.max_image_bytes)
        for photos in json_lines.batches(weighed, PHOTOS_AT_ONCE):
            good: list[Found] = []
            for photo, found in zip(photos, pool.map(examine, photos), strict=True):
                if isinstance(found, Found):
                    good.append(found)
                else:
                    refuse(job, photo.item, photo.name, found)
            last = photos[-1].item + 1
            job.progress(last)
            retried(_write)(tools, job, gallery, good, last)
            if job.cancelled:
                return


def _write(tools: BulkContext, job: Running, gallery: Gallery, good: Sequence[Found], last: int) -> None:
    """Write one batch. Raises Conflict ``package_mismatch`` if the gallery changed its packages meanwhile."""
    batch = Batch()
    package = gallery.embedder
    current = tools.galleries.store.gallery(gallery.id)
    faces = complete(tools.embedders, current, [one.face for one in good]) if good else []
    for one, face in zip(good, faces, strict=True):
        package = face.template.package
        batch.subjects.append(one.subject)
        kept = face.stored(one.subject.id, crop_to_keep(gallery, face))
        batch.rows.append(Row(one.photo.item, one.photo.name, kept))
    batch.write(tools, job, gallery, package, {"next": last})


def _examine(
    tools: BulkContext, gallery: Gallery, level: QualityLevel, people: Mapping[str, bytes], photo: Photo
) -> Found | InvalidInput:
    """Return the face to enroll, or why there is none."""
    if photo.problem is not None:
        return photo.problem
    try:
        subject = _subject(photo.name, people)
        tools.galleries.store.check_subject(subject)
        return Found(photo, subject, tools.operations.examine(gallery.id, photo.content, level))
    except InvalidInput as error:
        return error


def _subject(name: str, people: Mapping[str, bytes]) -> BulkSubject:
    """Return the subject of a photo. Raises InvalidInput ``no_subject``."""
    if (text := people.get(name)) is not None:
        line = json_lines.parse(text, PhotoLine)
        return BulkSubject(line.subject, line.name, line.metadata)
    folder, _, rest = name.partition("/")
    if not rest:
        raise InvalidInput(PROBLEMS["no_subject"], code="no_subject")
    return BulkSubject(folder)


def _people(upload: Upload) -> dict[str, bytes]:
    """Read people.jsonl, if it is the first file: its lines by photo, checked but not parsed, which takes less memory.

    Raises InvalidInput ``invalid_archive``, ``invalid_item``.
    """
    first = next(upload.entries(), None)
    if first is None or _plain(first.name) != PEOPLE or first.problem is not None:
        return {}
    if first.size > MAX_PEOPLE_BYTES:
        raise InvalidInput(f"{PEOPLE} is larger than {MAX_PEOPLE_BYTES} bytes.", code="payload_too_large")
    people: dict[str, bytes] = {}
    for number, line in enumerate(json_lines.split(first.pieces())):
        if number == MAX_PEOPLE:
            raise InvalidInput(f"{PEOPLE} has more than {MAX_PEOPLE} lines.", code="payload_too_large")
        people[_plain(json_lines.parse(line, PhotoLine).photo)] = line
    return people


def _photos(upload: Upload) -> Iterator[tuple[int, Entry]]:
    """Yield the entries with their numbers, without `people.jsonl` and hidden files (`.DS_Store`, `._x`)."""
    item = 0
    for place, entry in enumerate(upload.entries()):
        name = _plain(entry.name)
        hidden = entry.problem is None and any(part.startswith(".") for part in name.split("/"))
        if not hidden and not (place == 0 and name == PEOPLE):
            yield item, entry
            item += 1


def _weighed(upload: Upload, begin: int, max_image_bytes: int) -> Iterator[tuple[Photo, int]]:
    """Yield the photos from that one on, with the bytes that they hold."""
    for item, entry in _photos(upload):
        if item >= begin:
            photo = _read(item, entry, max_image_bytes)
            yield photo, len(photo.content)


def _read(item: int, entry: Entry, max_image_bytes: int) -> Photo:
    name = _plain(entry.name).encode("utf-8", "replace").decode()
    if entry.problem is not None:
        return Photo(item, name, b"", InvalidInput(PROBLEMS[entry.problem], code=entry.problem))
    if entry.size > max_image_bytes:
        return Photo(item, name, b"", ImageTooLarge(f"The photo is larger than {max_image_bytes} bytes."))
    return Photo(item, name, entry.read())


def _plain(name: str) -> str:
    return name.removeprefix("./")
