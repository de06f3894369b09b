"""Import photos: a tar with a folder for each person, by the same stages and rules as enrollment.

A folder's photos are written together, so that a turned head is accepted beside a good photo of the same person.

The job's progress is written in the transaction of the faces. A resumed job reads the upload from its beginning and
skips the photos that are already done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from app.db.engine import again_if_overtaken
from app.errors import ImageTooLarge, InvalidInput
from app.face.quality import QualityLevel
from app.features.bulk import json_lines
from app.features.bulk.imports import Batch, FaceRow, Import
from app.features.bulk.json_lines import PhotoLine
from app.features.bulk.rows import BulkSubject
from app.features.photos import examine
from app.features.tar_stream import TarEntry
from app.gallery.records import Gallery, Origin, StoredFace
from app.gallery.text import to_nfc
from app.jobs.runner import Running
from app.photo_folders import is_skipped
from app.recognition.operations import origin_of, to_store
from app.types import Face

if TYPE_CHECKING:
    from app.api.components import Components

PEOPLE = "people.jsonl"
"""The subjects of photos whose folder doesn't name them."""
PHOTOS_AT_ONCE = 16
THREADS = 4
"""Maximum threads for an import's photos; the others are left to requests."""
MAX_PEOPLE_BYTES = 64 * 1024 * 1024
MAX_PEOPLE = 1_000_000
"""Maximum lines of `people.jsonl`, which is held in memory: 64 MiB of text and about 200 bytes per line."""
PROBLEMS = {
    "not_a_file": "The entry is a link, a device or something else that is not a file.",
    "unsafe_path": "The path is absolute, leads to a parent folder, or holds control characters.",
    "no_subject": "The photo is in no folder, and people.jsonl does not name its subject.",
}


@dataclass(frozen=True, slots=True)
class UploadedPhoto:
    item: int
    name: str
    content: bytes | InvalidInput


@dataclass(frozen=True, slots=True)
class Examined:
    """The face of a photo, and the subject to enroll it for."""

    photo: UploadedPhoto
    subject: BulkSubject
    face: Face
    origin: Origin
    poor: InvalidInput | None
    """The error that rejects a turned head, unless it matches a good face of its subject."""


def import_photos(core: Components, job: Running) -> None:
    """Enroll the photos of an upload. Raises InvalidInput ``invalid_archive`` before anything is written."""
    run = Import(core, job)
    people = _people(run)
    if not job.saved:  # reads the whole tar first, so that nothing of a truncated tar is imported
        job.progress(0, sum(1 for _ in _photos(run, people)))
        job.checkpoint({"next": 0})
    examine = partial(_examine, run, QualityLevel(job.params["quality"]), people)
    with ThreadPoolExecutor(min(core.workers.share, THREADS), thread_name_prefix="import") as pool:
        weighed = photos_of(run, people, job.saved["next"])
        for photos in json_lines.batches(weighed, PHOTOS_AT_ONCE, together=_are_of_one_folder):
            good: list[Examined] = []
            for photo, examined in zip(photos, pool.map(examine, photos), strict=True):
                if isinstance(examined, Examined):
                    good.append(examined)
                else:
                    run.refuse(photo.item, photo.name, examined)
            last = photos[-1].item + 1
            job.progress(last)
            again_if_overtaken(partial(_write, run, good, last))
            if job.cancelled:
                return


def _write(run: Import, good: Sequence[Examined], last: int) -> None:
    """Write one batch. Raises Conflict ``package_mismatch`` if the gallery changed its packages meanwhile."""
    batch, package = Batch(), None
    current = run.core.store.gallery(run.gallery.id)
    given = [(examined.subject.id, examined.face, examined.origin) for examined in good]
    faces = list(zip(good, to_store(run.core.embedders, current, given), strict=True))
    with run.job.attempt():
        alone = _without_good(run, current, faces)
        for examined, face in faces:
            if examined.poor and examined.photo.item in alone:
                run.refuse(examined.photo.item, examined.photo.name, examined.poor)
                continue
            package = face.template.package
            batch.subjects.append(examined.subject)
            batch.rows.append(FaceRow(examined.photo.item, examined.photo.name, face))
        run.write(batch, {"next": last}, package)


def _without_good(run: Import, gallery: Gallery, faces: Sequence[tuple[Examined, StoredFace]]) -> set[int]:
    """Return the numbers of the photos that show a turned head and match no good face of their subject."""
    alone: set[int] = set()
    for subject in {examined.subject.id for examined, _ in faces if examined.poor}:
        mine = [(examined, face.template) for examined, face in faces if examined.subject.id == subject]
        turned = {examined.photo.item: template for examined, template in mine if examined.poor}
        good = [template for examined, template in mine if not examined.poor]
        matched = run.core.operations.matches_good(gallery, subject, list(turned.values()), good)
        alone.update(item for item, is_match in zip(turned, matched, strict=True) if not is_match)
    return alone


def _examine(
    run: Import, level: QualityLevel, people: Mapping[str, bytes], photo: UploadedPhoto
) -> Examined | InvalidInput:
    """Return the face to enroll, or the error that says why there is none."""
    if isinstance(photo.content, InvalidInput):
        return photo.content
    folder, _, rest = photo.name.partition("/")
    try:
        if (text := people.get(to_nfc(photo.name))) is not None:
            line = json_lines.parse(text, PhotoLine)
            subject = BulkSubject(line.subject, line.name, line.metadata)
        elif rest:
            subject = BulkSubject(folder)
        else:
            return InvalidInput(PROBLEMS["no_subject"], code="no_subject")
        run.check(subject)
        chosen = examine(run.core.operations, run.gallery, photo.content, level)
        return Examined(photo, subject, chosen.face, origin_of(chosen.photo, chosen.face), chosen.poor)
    except InvalidInput as error:
        return error


def _people(run: Import) -> dict[str, bytes]:
    """Return the lines of people.jsonl, if it is the first file, by the photo's name in NFC (macOS writes names in
    another form). Lines are checked but kept as text, since parsed lines would take more memory.

    Raises InvalidInput ``invalid_archive``, ``invalid_item``.
    """
    first = next(run.entries(), None)
    if first is None or _plain(first.name) != PEOPLE or first.problem is not None:
        return {}
    if first.size > MAX_PEOPLE_BYTES:
        raise InvalidInput(f"{PEOPLE} is larger than {MAX_PEOPLE_BYTES} bytes.", code="payload_too_large")
    people: dict[str, bytes] = {}
    for number, line in enumerate(json_lines.split(first.pieces())):
        if number == MAX_PEOPLE:
            raise InvalidInput(f"{PEOPLE} has more than {MAX_PEOPLE} lines.", code="payload_too_large")
        people[to_nfc(_plain(json_lines.parse(line, PhotoLine).photo))] = line
    return people


def _photos(run: Import, people: Collection[str]) -> Iterator[tuple[int, TarEntry]]:
    """Yield the entries of photos with their numbers. `people.jsonl` is left out, and so are files for which
    `is_skipped` is true and that ``people`` doesn't name; the latter are counted as ``skipped``."""
    item = skipped = 0
    for place, entry in enumerate(run.entries()):
        name = _plain(entry.name)
        if place == 0 and name == PEOPLE:
            continue
        if entry.problem is None and to_nfc(name) not in people and any(map(is_skipped, name.split("/"))):
            skipped += 1
            continue
        yield item, entry
        item += 1
    if skipped:
        run.job.counts["skipped"] = skipped


def photos_of(run: Import, people: Collection[str] = (), begin: int = 0) -> Iterator[tuple[UploadedPhoto, int]]:
    """Yield the photos from number ``begin`` on, with their sizes in bytes. ``people``: as in `_photos`."""
    most = run.core.limits.image_bytes
    for item, entry in _photos(run, people):
        if item < begin:
            continue
        name = _plain(entry.name).encode("utf-8", "replace").decode()
        if entry.problem is not None:
            yield UploadedPhoto(item, name, InvalidInput(PROBLEMS[entry.problem], code=entry.problem)), 0
        elif entry.size > most:
            yield UploadedPhoto(item, name, ImageTooLarge(f"The photo is larger than {most} bytes.")), 0
        else:
            yield UploadedPhoto(item, name, entry.read()), entry.size


def _are_of_one_folder(photo: UploadedPhoto, other: UploadedPhoto) -> bool:
    return photo.name.partition("/")[0] == other.name.partition("/")[0]


def _plain(name: str) -> str:
    return name.replace("\\", "/").removeprefix("./")
