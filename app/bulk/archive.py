"""Export of a gallery into one signed file, and its import.

The file is a tar with, in this order: `manifest.json`, `signature.json` (Ed25519 over the manifest's bytes), and the
files that the manifest lists with size and SHA-256: `subjects.jsonl`, `faces.jsonl`, `templates.npy`; with crops,
`crops.bin`, the JPEGs one after the other with the lengths in `faces.jsonl`; and if there are any, `corrections.jsonl`
and `dismissals.jsonl`, the findings of reviews that were called right.
Faces and templates have the same order.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.bulk import json_lines, npy
from app.bulk.import_batch import Batch, BulkContext, Row, Upload, face_of, gallery_of, refuse
from app.bulk.json_lines import CorrectionLine, DismissalLine, FaceLine, SubjectLine
from app.bulk.npy import RowReader
from app.bulk.sealed_files import PieceReader, SealedWriter, read_sealed
from app.bulk.tar_stream import TAR_END, Entry, header, padding, truncated
from app.choices import LivenessMode
from app.db import signing
from app.db.encryption import Sealer
from app.errors import InvalidInput, PackageMismatch, Unusable
from app.gallery import dismissals
from app.gallery.enrolling import BulkSubject
from app.gallery.faces import decode_crop
from app.gallery.records import Consent, Gallery, StoredFace
from app.gallery.subjects import brief_subjects, drop_unnamed
from app.gallery.templates import is_unit
from app.gallery.text import is_unnamed
from app.jobs.records import Result
from app.jobs.runner import Running
from app.recognition.corrections import StoredCorrection
from app.timestamps import utc_now

FORMAT, VERSION = "likeness-gallery", 1
MANIFEST, SIGNATURE = "manifest.json", "signature.json"
SUBJECTS, FACES, TEMPLATES, CROPS = "subjects.jsonl", "faces.jsonl", "templates.npy", "crops.bin"
CORRECTIONS, DISMISSALS = "corrections.jsonl", "dismissals.jsonl"
MEDIA_TYPE = "application/x-tar"
PURPOSE = b"gallery archive"
MAX_MANIFEST = 64 * 1024
ROWS_AT_ONCE = 1_000
WRITTEN_AT_ONCE = 5_000
T = TypeVar("T")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Member(_Document):
    name: str
    size: int = Field(ge=0)
    sha256: str


class Manifest(_Document):
    format: str
    version: int
    created_at: str
    gallery: str
    metadata: dict[str, Any]
    store: str
    package: str
    package_sha256: str | None
    dimension: int
    population: list[str] = Field(default=[], exclude_if=lambda declared: not declared)
    liveness: LivenessMode = Field(default="off", exclude_if=lambda mode: mode == "off")
    """Absent where none was declared, so that servers that don't know the field read the archive."""
    subjects: int = Field(ge=0)
    faces: int = Field(ge=0)
    members: list[Member]


class Signature(_Document):
    algorithm: str
    public_key: str
    signature: str


# ---------------------------------------------------------------- export


def export_gallery(tools: BulkContext, job: Running) -> None:
    """Write the archive. A resumed job begins again: an archive holds the gallery as of one moment."""
    secret = job.secret
    if secret is None:
        raise Unusable("The key of the job's file is gone.", code="upload_missing")
    with ExitStack() as stack:

        def begin() -> SealedWriter:
            writer = SealedWriter(tools.files.draft(), secret)
            stack.callback(writer.abort)
            return writer

        written = _write_parts(tools, job, begin)
        if written is None:
            return
        gallery, parts = written
        manifest = _manifest(tools, gallery, job, parts)
        signature = _sign(tools.signer, manifest)
        whole = begin()
        for name, content in ((MANIFEST, manifest), (SIGNATURE, signature)):
            whole.write(header(name, len(content)) + content + padding(len(content)))
        for name, part in parts.items():
            whole.write(header(name, part.size))
            for piece in read_sealed(part.path, Sealer([secret])):
                whole.write(piece)
            whole.write(padding(part.size))
            if job.cancelled:
                return
        whole.write(TAR_END)
        whole.finish(tools.files.result(job.job.id))
        job.result = Result(whole.size, whole.sha256, MEDIA_TYPE, f"{gallery.id}.tar")


def _write_parts(
    tools: BulkContext, job: Running, begin: Callable[[], SealedWriter]
) -> tuple[Gallery, Mapping[str, SealedWriter]] | None:
    """Write the files of the archive. Return them with the gallery as of that moment, or None if cancelled."""
    crops = bool(job.params["crops"])
    parts = {name: begin() for name in (SUBJECTS, FACES, TEMPLATES, *((CROPS,) if crops else ()))}
    with tools.galleries.store.everything(gallery_of(tools, job), crops=crops) as found:
        for subjects in _chunks(found.subjects, ROWS_AT_ONCE):
            parts[SUBJECTS].write(b"".join(json_lines.write(asdict(one)) for one in subjects))
        parts[TEMPLATES].write(npy.head(found.counts.faces, found.gallery.dimension))
        done = 0
        job.progress(0, found.counts.faces)
        for rows in _chunks(found.faces, ROWS_AT_ONCE):
            parts[FACES].write(b"".join(json_lines.write(_face_line(one)) for one in rows))
            parts[TEMPLATES].write(b"".join(one.template for one in rows))
            if crops:
                parts[CROPS].write(b"".join(one.crop or b"" for one in rows))
            done += len(rows)
            job.progress(done)
            if job.cancelled:
                return None
        job.counts["subjects"], job.counts["faces"] = found.counts.subjects, found.counts.faces
        job.counts["left_out"] = found.left_out
    corrections = map(_correction_line, tools.corrections.read_all(found.gallery, crops=crops))
    right = map(asdict, dismissals.read(tools.galleries.store.database, found.gallery))
    for name, lines in ((CORRECTIONS, list(corrections)), (DISMISSALS, list(right))):
        if lines:
            parts[name] = begin()
            parts[name].write(b"".join(map(json_lines.write, lines)))
    for part in parts.values():
        part.finish()
    job.checkpoint({})
    return found.gallery, parts


def _correction_line(one: StoredCorrection) -> dict[str, Any]:
    binary = {"template": one.template, "crop": one.crop}
    coded = {name: data and base64.b64encode(data).decode() for name, data in binary.items()}
    return asdict(one) | coded


def _face_line(one: StoredFace) -> dict[str, Any]:
    return {
        "face_id": one.face_id,
        "subject": one.subject,
        "quality": one.quality.score,
        "reasons": list(one.quality.reasons),
        "box": [one.box.x, one.box.y, one.box.width, one.box.height],
        "created_at": one.created_at,
        "crop": None if one.crop is None else len(one.crop),
        "origin": None if one.origin is None else asdict(one.origin),
    }


def _manifest(tools: BulkContext, gallery: Gallery, job: Running, parts: Mapping[str, SealedWriter]) -> bytes:
    document = Manifest(
        format=FORMAT,
        version=VERSION,
        created_at=utc_now(precision="seconds"),
        gallery=gallery.id,
        metadata=dict(gallery.metadata),
        store=gallery.store,
        package=gallery.embedder,
        package_sha256=tools.package_sha256(gallery.embedder),
        dimension=gallery.dimension,
        population=list(gallery.population),
        liveness=gallery.liveness,
        subjects=job.counts["subjects"],
        faces=job.counts["faces"],
        members=[Member(name=name, size=part.size, sha256=part.sha256) for name, part in parts.items()],
    )
    return json.dumps(document.model_dump(), ensure_ascii=False, indent=1).encode()


def _sign(signer: signing.Signer, manifest: bytes) -> bytes:
    document = Signature(
        algorithm=signing.ALGORITHM,
        public_key=signing.encode(signer.public_key),
        signature=signing.encode(signer.sign(manifest, PURPOSE)),
    )
    return json.dumps(document.model_dump(), indent=1).encode()


# ---------------------------------------------------------------- import


def import_archive(tools: BulkContext, job: Running) -> None:
    """Enroll the content of an archive, after all of it is checked: signature, signer, checksums, order, package."""
    upload = Upload(tools, job)
    gallery = gallery_of(tools, job)
    if not job.saved:
        manifest = _verify(upload, tools, str(job.params["trust"]))
        _check_fit(manifest, gallery, tools)
        job.progress(0, manifest.subjects + manifest.faces)
        names = {one.name for one in manifest.members}
        extra = {"crops": CROPS in names} | {name: 0 for name in (CORRECTIONS, DISMISSALS) if name in names}
        job.checkpoint({"subjects": 0, "faces": 0, "first_subject": manifest.faces} | extra)
    write = partial(_write_subjects, tools, job, gallery)
    _import_lines(job, upload, SUBJECTS, "subjects", write, at_once=WRITTEN_AT_ONCE)
    if not job.cancelled:
        _import_faces(tools, job, upload, gallery)
    _drop_faceless(tools, upload, gallery)
    for name, restore in ((CORRECTIONS, _restore_corrections), (DISMISSALS, _restore_dismissals)):
        if not job.cancelled and name in job.saved:
            _import_lines(job, upload, name, name, partial(restore, tools, job, gallery))


def _import_lines(
    job: Running,
    upload: Upload,
    name: str,
    saved_as: str,
    write: Callable[[list[bytes], dict[str, Any]], None],
    *,
    at_once: int = ROWS_AT_ONCE,
) -> None:
    """Read a file of lines; `write` takes some of them, and what the job then has to save in the same transaction."""
    at = int(job.saved[saved_as])
    found = islice(json_lines.split(upload.member(name).pieces()), at, None)
    weighed = ((line, len(line) * json_lines.PARSED_WEIGHT) for line in found)
    for lines in json_lines.batches(weighed, at_once):
        at += len(lines)
        write(lines, {**job.saved, saved_as: at})
        if job.cancelled:
            return


def _write_subjects(
    tools: BulkContext, job: Running, gallery: Gallery, lines: list[bytes], saved: dict[str, Any]
) -> None:
    batch = Batch()
    first = int(job.saved.get("first_subject", 0)) + job.saved["subjects"]  # the report numbers the faces first
    for item, line in enumerate(lines, first):
        subject = _subject(json_lines.parse(line, SubjectLine))
        if (kept := _visible(tools, job, item, subject)) is not None:
            batch.subjects.append(kept)
    job.progress(saved["subjects"])
    batch.write(tools, job, gallery, gallery.embedder, saved)


def _subject(line: SubjectLine) -> BulkSubject:
    consent = None if line.consent is None else Consent(line.consent.note, line.consent.given_at)
    return BulkSubject(**line.model_dump(exclude={"consent"}), consent=consent)


def _visible(tools: BulkContext, job: Running, item: int, subject: BulkSubject) -> BulkSubject | None:
    """Return the subject; without its name, or None, if that or the id holds characters that nobody sees.

    The report says so. Raises InvalidInput as `Store.check_subject` does for everything else.
    """
    try:
        tools.galleries.store.check_subject(subject)
    except InvalidInput as error:
        if error.code not in {"invalid_id", "invalid_name"}:
            raise
        refuse(job, item, subject.id, error)
        return replace(subject, name=None) if error.code == "invalid_name" else None
    return subject


def _import_faces(tools: BulkContext, job: Running, upload: Upload, gallery: Gallery) -> None:
    at = int(job.saved["faces"])
    rows = RowReader(PieceReader(upload.member(TEMPLATES).pieces()), gallery.dimension)
    rows.skip(at)
    crops = PieceReader(upload.member(CROPS).pieces()) if job.saved["crops"] else None
    lines = _face_lines(upload)
    for done, _ in islice(lines, at):
        _crop(crops, done)
    for faces in json_lines.batches(lines, WRITTEN_AT_ONCE):
        vectors = rows.read(len(faces))
        if not is_unit(vectors).all():
            raise InvalidInput("A template does not have length 1.", code="invalid_template")
        batch = Batch()
        for place, one in enumerate(faces):
            crop = _crop(crops, one)
            kept = crop if gallery.store == "crop" else None
            name = one.face_id or one.subject
            try:
                tools.galleries.store.check_subject(BulkSubject(one.subject))
                if kept is not None:
                    _check_crop(kept)
            except InvalidInput as error:
                refuse(job, at + place, name, error)
                continue
            face = face_of(one, vectors[place].astype("<f4").tobytes(), kept)
            batch.rows.append(Row(at + place, name, face))
        at += len(faces)
        job.progress(int(job.saved["subjects"]) + at)
        batch.write(tools, job, gallery, gallery.embedder, {**job.saved, "faces": at})
        if job.cancelled:
            return


def _drop_faceless(tools: BulkContext, upload: Upload, gallery: Gallery) -> None:
    """Delete the archive's unnamed subjects whose face was not imported: it was rejected, or is here as another's."""
    lines = json_lines.split(upload.member(SUBJECTS).pieces())
    unnamed = (one.id for line in lines if is_unnamed((one := json_lines.parse(line, SubjectLine)).id))
    for some in _chunks(unnamed, WRITTEN_AT_ONCE):
        with tools.galleries.change(gallery.id) as change:
            found = brief_subjects(change.connection, change.gallery, some)
            drop_unnamed(change, [row.key for row in found.values()])


def _restore_corrections(
    tools: BulkContext, job: Running, gallery: Gallery, lines: list[bytes], saved: dict[str, Any]
) -> None:
    some = [_correction(json_lines.parse(line, CorrectionLine), gallery) for line in lines]
    job.counts["corrections"] += len(some)
    tools.corrections.restore(gallery, some, partial(job.checkpoint, saved))


def _restore_dismissals(
    tools: BulkContext, job: Running, gallery: Gallery, lines: list[bytes], saved: dict[str, Any]
) -> None:
    some = [dismissals.Dismissal(**json_lines.parse(line, DismissalLine).model_dump()) for line in lines]
    dismissals.restore(tools.galleries.store.database, gallery, some, partial(job.checkpoint, saved))


def _correction(line: CorrectionLine, gallery: Gallery) -> StoredCorrection:
    """Return a correction of an archive. Raises InvalidInput ``invalid_template``, ``invalid_image``."""
    vector = np.frombuffer(line.template, "<f4") if len(line.template) == 4 * gallery.dimension else None
    if vector is None or not is_unit(vector[None]).all():
        raise InvalidInput("A correction's template is not a unit vector of its package.", code="invalid_template")
    if line.crop is not None:
        _check_crop(line.crop)
    crop = line.crop if gallery.store == "crop" else None
    return StoredCorrection(line.id, line.subject, line.template, crop, line.created_at, line.expires_at)


def _face_lines(upload: Upload) -> Iterator[tuple[FaceLine, int]]:
    """Yield each face with the memory that it takes with its crop."""
    for line in json_lines.split(upload.member(FACES).pieces()):
        face = json_lines.parse(line, FaceLine)
        yield face, len(line) * json_lines.PARSED_WEIGHT + (face.crop or 0)


def _crop(crops: PieceReader | None, face: FaceLine) -> bytes | None:
    """Read the next crop, if the face has one in the archive."""
    if crops is None or face.crop is None:
        return None
    crop = crops.read(face.crop)
    if len(crop) != face.crop:
        raise InvalidInput(f"{CROPS} does not match {FACES}.", code="invalid_archive")
    return crop


def _check_crop(data: bytes) -> None:
    """Raise InvalidInput ``invalid_image`` unless the crop is one as the service writes them."""
    try:
        decode_crop(data)
    except InvalidInput:
        raise InvalidInput("The crop is not a JPEG of 112x112 pixels.", code="invalid_image") from None


def read_manifest(entries: Iterator[Entry]) -> tuple[Manifest, bytes, Signature]:
    """Read the first two entries, without checking the signature. Raises InvalidInput ``invalid_archive``."""
    raw, signature = (_document(entries, name) for name in (MANIFEST, SIGNATURE))
    try:
        manifest, signed = Manifest.model_validate_json(raw), Signature.model_validate_json(signature)
    except ValidationError:
        raise InvalidInput("The archive's manifest or signature can't be read.", code="invalid_archive") from None
    if manifest.format != FORMAT or manifest.version != VERSION or signed.algorithm != signing.ALGORITHM:
        message = f"The archive is not of the format {FORMAT}, version {VERSION}."
        raise InvalidInput(message, code="invalid_archive")
    return manifest, raw, signed


def _verify(upload: Upload, tools: BulkContext, trust: str) -> Manifest:
    """Check the whole archive. Raises InvalidInput ``invalid_archive``, ``signature_wrong``, ``unknown_signer``."""
    entries = upload.entries()
    manifest, raw, signed = read_manifest(entries)
    try:
        public_key, signature = signing.decode(signed.public_key), signing.decode(signed.signature)
        signing.verify(public_key, signature, raw, PURPOSE)
    except Unusable as error:
        raise InvalidInput("The archive's signature is wrong: the archive was altered.", code=error.code) from None
    if not _is_trusted(public_key, trust, tools.signer):
        message = (
            f"The archive was signed by another server, whose key has the SHA-256 {signing.fingerprint(public_key)}. "
            "If you trust it, give that as `trust`."
        )
        raise InvalidInput(message, code="unknown_signer")
    for member in manifest.members:
        entry = next(entries, None)
        if entry is None:
            raise truncated()
        digest = hashlib.sha256()
        for piece in entry.pieces() if entry.problem is None else ():
            digest.update(piece)
        if (entry.name, entry.size, digest.hexdigest()) != (member.name, member.size, member.sha256):
            message = f"{member.name} does not match the archive's manifest: the file or the order was altered."
            raise InvalidInput(message, code="invalid_archive")
    if next(entries, None) is not None:
        raise InvalidInput("The archive holds more than its manifest lists.", code="invalid_archive")
    return manifest


def _is_trusted(public_key: bytes, trust: str, own: signing.Signer) -> bool:
    return hmac.compare_digest(public_key, own.public_key) or signing.is_named(public_key, trust)


def _check_fit(manifest: Manifest, gallery: Gallery, tools: BulkContext) -> None:
    """Raise PackageMismatch or InvalidInput ``invalid_archive`` if the templates don't fit the gallery."""
    here = tools.package_sha256(gallery.embedder)
    other_file = None not in {here, manifest.package_sha256} and here != manifest.package_sha256
    if manifest.package != gallery.embedder or other_file:
        message = f"Gallery {gallery.id!r} takes templates of {gallery.embedder}, the archive's are of another package."
        raise PackageMismatch(message)
    names = [member.name for member in manifest.members]
    optional = [name for name in (CROPS, CORRECTIONS, DISMISSALS) if name in names]
    if names != [SUBJECTS, FACES, TEMPLATES, *optional]:
        raise InvalidInput("The archive does not hold the files of its format.", code="invalid_archive")
    if manifest.dimension != gallery.dimension:
        raise InvalidInput("The archive's templates have another length.", code="invalid_archive")


def _document(entries: Iterator[Entry], name: str) -> bytes:
    entry = next(entries, None)
    if entry is None or entry.name != name or entry.problem is not None or entry.size > MAX_MANIFEST:
        raise InvalidInput(f"The archive does not begin with {MANIFEST} and {SIGNATURE}.", code="invalid_archive")
    return entry.read()


def _chunks(items: Iterator[T], count: int) -> Iterator[list[T]]:
    while chunk := list(islice(items, count)):
        yield chunk
