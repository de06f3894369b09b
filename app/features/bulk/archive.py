"""Export a gallery into one signed file, and import such a file.

The file is a tar with, in this order: `manifest.json`, `signature.json` (Ed25519 over the manifest's bytes), and the
files that the manifest lists with size and SHA-256: `subjects.jsonl`, `faces.jsonl` and `templates.npy`; with crops,
also `crops.bin`, all JPEGs one after the other, whose lengths are in `faces.jsonl`; and `corrections.jsonl` and
`dismissals.jsonl` (findings that a person has marked as right), if there are any. Faces and templates are in the same
order.
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
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from app.choices import LivenessMode
from app.db.encryption import Sealer
from app.errors import InvalidInput, PackageMismatch, Unusable
from app.features import dismissals, signatures
from app.features.bulk import json_lines, npy
from app.features.bulk.imports import FACES, TEMPLATES, Batch, FaceRow, Import, face_of
from app.features.bulk.json_lines import CorrectionLine, DismissalLine, FaceLine, SubjectLine
from app.features.bulk.rows import BulkSubject, everything
from app.features.corrected import Correction, read_corrections, restore_corrections
from app.features.sealed_files import SealedWriter, read_sealed
from app.features.signatures import Signer
from app.features.stored import decode_crop, is_unit
from app.features.tar_stream import TAR_END, PieceReader, TarEntry, header, padding, truncated
from app.gallery.records import Consent, Gallery, StoredFace, brief_subjects, to_bytes
from app.gallery.subjects import drop_unnamed
from app.gallery.text import is_unnamed
from app.jobs.records import Result
from app.jobs.runner import Running
from app.types import Template, utc_now

if TYPE_CHECKING:
    from app.api.components import Components

FORMAT, VERSION = "likeness-gallery", 1
MANIFEST, SIGNATURE = "manifest.json", "signature.json"
SUBJECTS, CROPS = "subjects.jsonl", "crops.bin"
CORRECTIONS, DISMISSALS = "corrections.jsonl", "dismissals.jsonl"
MEDIA_TYPE = "application/x-tar"
PURPOSE = b"gallery archive"
MAX_MANIFEST = 64 * 1024
ROWS_AT_ONCE = 1_000
WRITTEN_AT_ONCE = 5_000
T = TypeVar("T")


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArchiveMember(_Document):
    name: str
    size: int = Field(ge=0)
    sha256: str


class ArchiveManifest(_Document):
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
    """Left out if it is `off`, so that servers that don't know this field yet can read the archive."""
    subjects: int = Field(ge=0)
    faces: int = Field(ge=0)
    members: list[ArchiveMember]


class ArchiveSignature(_Document):
    algorithm: str
    public_key: str
    signature: str


# ---------------------------------------------------------------- export


def export_gallery(core: Components, job: Running) -> None:
    """Write the archive. A resumed job starts over, because an archive contains the gallery as of one moment."""
    secret = job.secret
    with ExitStack() as stack:

        def begin() -> SealedWriter:
            writer = SealedWriter(core.files.draft(), secret)
            stack.callback(writer.abort)
            return writer

        written = _write_parts(core, job, begin)
        if written is None:
            return
        gallery, parts = written
        manifest = _json(_manifest(core, gallery, job, parts))
        signer = Signer.of(core.secrets)
        signature = ArchiveSignature(
            algorithm=signatures.ALGORITHM,
            public_key=signatures.encode(signer.public_key),
            signature=signatures.encode(signer.sign(manifest, PURPOSE)),
        )
        whole = begin()
        for name, content in ((MANIFEST, manifest), (SIGNATURE, _json(signature))):
            whole.write(header(name, len(content)) + content + padding(len(content)))
        for name, part in parts.items():
            whole.write(header(name, part.size))
            for piece in read_sealed(part.path, Sealer([secret])):
                whole.write(piece)
            whole.write(padding(part.size))
            if job.cancelled:
                return
        whole.write(TAR_END)
        job.checkpoint(job.saved)  # raises if the job was taken away, since another process may have begun it again
        whole.finish(core.files.result(job.job.id))
        job.result = Result(whole.size, whole.sha256, MEDIA_TYPE, f"{gallery.id}.tar")


def _write_parts(
    core: Components, job: Running, begin: Callable[[], SealedWriter]
) -> tuple[Gallery, Mapping[str, SealedWriter]] | None:
    """Write the files of the archive. Return the gallery as it was at that moment and the files; None if cancelled."""
    crops, gallery = bool(job.params["crops"]), core.store.gallery(job.job.gallery or "")
    parts = {name: begin() for name in (SUBJECTS, FACES, TEMPLATES, *((CROPS,) if crops else ()))}
    with everything(core.store, gallery, crops=crops) as contents:
        for subjects in _chunks(contents.subjects, ROWS_AT_ONCE):
            parts[SUBJECTS].write(b"".join(json_lines.write(asdict(subject)) for subject in subjects))
        parts[TEMPLATES].write(npy.head(contents.counts.faces, contents.gallery.dimension))
        job.progress(0, contents.counts.faces)
        for faces in _chunks(contents.faces, ROWS_AT_ONCE):
            parts[FACES].write(b"".join(json_lines.write(_face_line(face)) for face in faces))
            parts[TEMPLATES].write(b"".join(to_bytes(face.template) for face in faces))
            if crops:
                parts[CROPS].write(b"".join(face.crop or b"" for face in faces))
            job.progress(job.done + len(faces))
            if job.cancelled:
                return None
        job.counts["subjects"], job.counts["faces"] = contents.counts.subjects, contents.counts.faces
        job.counts["left_out"] = contents.left_out
    corrections = map(_correction_line, read_corrections(core.store, contents.gallery, crops=crops))
    right = map(asdict, dismissals.read(core.store.database, contents.gallery))
    for name, lines in ((CORRECTIONS, list(corrections)), (DISMISSALS, list(right))):
        if lines:
            parts[name] = begin()
            parts[name].write(b"".join(map(json_lines.write, lines)))
    for part in parts.values():
        part.finish()
    job.checkpoint(job.saved)
    return contents.gallery, parts


def _correction_line(correction: Correction) -> dict[str, Any]:
    binary = {"template": correction.template, "crop": correction.crop}
    coded = {name: data and base64.b64encode(data).decode() for name, data in binary.items()}
    line = asdict(correction) | coded
    del line["package"]  # the manifest names the package, once for all faces
    return line


def _face_line(face: StoredFace) -> dict[str, Any]:
    return {
        "face_id": face.face_id,
        "subject": face.subject,
        "quality": face.quality.score,
        "reasons": list(face.quality.reasons),
        "box": [face.box.x, face.box.y, face.box.width, face.box.height],
        "created_at": face.created_at,
        "crop": None if face.crop is None else len(face.crop),
        "origin": None if face.origin is None else asdict(face.origin),
    }


def _manifest(core: Components, gallery: Gallery, job: Running, parts: Mapping[str, SealedWriter]) -> ArchiveManifest:
    return ArchiveManifest(
        format=FORMAT,
        version=VERSION,
        created_at=utc_now(precision="seconds"),
        gallery=gallery.id,
        metadata=dict(gallery.metadata),
        store=gallery.store,
        package=gallery.embedder,
        package_sha256=_package_sha256(core, gallery.embedder),
        dimension=gallery.dimension,
        population=list(gallery.population),
        liveness=gallery.liveness,
        subjects=job.counts["subjects"],
        faces=job.counts["faces"],
        members=[ArchiveMember(name=name, size=part.size, sha256=part.sha256) for name, part in parts.items()],
    )


def _json(document: BaseModel) -> bytes:
    return json.dumps(document.model_dump(), ensure_ascii=False, indent=1).encode()


def _package_sha256(core: Components, package_id: str) -> str | None:
    """Return the SHA-256 of the package's file; None if it isn't installed."""
    package = core.embedders.packages().get(package_id)
    return None if package is None else core.embedders.checked(package).manifest.sha256


# ---------------------------------------------------------------- import


def import_archive(core: Components, job: Running) -> None:
    """Check a whole archive (signature, signer, checksums, order, package), then enroll its content."""
    run = Import(core, job)
    if not job.saved:
        manifest = _verify(run, str(job.params["trust"]))
        _check_fit(manifest, run)
        job.progress(0, manifest.subjects + manifest.faces)
        names = {member.name for member in manifest.members}
        extra = {"crops": CROPS in names} | {name: 0 for name in (CORRECTIONS, DISMISSALS) if name in names}
        job.checkpoint({"subjects": 0, "faces": 0, "first_subject": manifest.faces} | extra)
    _import_lines(run, SUBJECTS, "subjects", _write_subjects, at_once=WRITTEN_AT_ONCE)
    if not job.cancelled:
        _import_faces(run)
    _drop_faceless(run)
    for name, restore in ((CORRECTIONS, _restore_corrections), (DISMISSALS, _restore_dismissals)):
        if not job.cancelled and name in job.saved:
            _import_lines(run, name, name, restore)


def _import_lines(
    run: Import,
    name: str,
    saved_as: str,
    write: Callable[[Import, list[bytes], dict[str, Any]], None],
    *,
    at_once: int = ROWS_AT_ONCE,
) -> None:
    """Read a file of lines in batches. `write` gets each batch, and the progress that it saves in the same
    transaction."""
    at = int(run.job.saved[saved_as])
    unread = islice(json_lines.split(run.member(name).pieces()), at, None)
    weighed = ((line, len(line) * json_lines.PARSED_WEIGHT) for line in unread)
    for lines in json_lines.batches(weighed, at_once):
        at += len(lines)
        write(run, lines, {**run.job.saved, saved_as: at})
        if run.job.cancelled:
            return


def _write_subjects(run: Import, lines: list[bytes], saved: dict[str, Any]) -> None:
    batch, before = Batch(), run.job.saved
    # In the report, faces are numbered before subjects.
    first = int(before.get("first_subject", 0)) + before["subjects"]
    for item, line in enumerate(lines, first):
        parsed = json_lines.parse(line, SubjectLine)
        consent = None if parsed.consent is None else Consent(parsed.consent.note, parsed.consent.given_at)
        subject = BulkSubject(**parsed.model_dump(exclude={"consent"}), consent=consent)
        try:
            run.check(subject)
        except InvalidInput as error:  # For example, a name or id has invisible characters; the job's report lists it.
            if error.code not in {"invalid_id", "invalid_name"}:
                raise
            run.refuse(item, subject.id, error)
            if error.code == "invalid_id":
                continue
            subject = replace(subject, name=None)
        batch.subjects.append(subject)
    run.job.progress(saved["subjects"])
    run.write(batch, saved)


def _import_faces(run: Import) -> None:
    job, at = run.job, int(run.job.saved["faces"])
    rows = run.templates(at)
    crops = PieceReader(run.member(CROPS).pieces()) if job.saved["crops"] else None
    lines = _face_lines(run)
    for done, _ in islice(lines, at):
        _crop(crops, done)
    for faces in json_lines.batches(lines, WRITTEN_AT_ONCE):
        vectors = rows.read(len(faces))
        if not is_unit(vectors).all():
            raise InvalidInput("A template does not have length 1.", code="invalid_template")
        batch = Batch()
        for item, (face, vector) in enumerate(zip(faces, vectors, strict=True), at):
            crop = _crop(crops, face)
            kept = crop if run.gallery.store == "crop" else None
            name = face.face_id or face.subject
            try:
                run.check(BulkSubject(face.subject))
                if kept is not None:
                    _check_crop(kept)
            except InvalidInput as error:
                run.refuse(item, name, error)
                continue
            batch.rows.append(FaceRow(item, name, face_of(face, Template(vector, run.gallery.embedder), kept)))
        at += len(faces)
        job.progress(int(job.saved["subjects"]) + at)
        run.write(batch, {**job.saved, "faces": at})
        if job.cancelled:
            return


def _drop_faceless(run: Import) -> None:
    """Delete the archive's unnamed subjects that have no face, because it was rejected or belongs to another subject
    here."""
    lines = json_lines.split(run.member(SUBJECTS).pieces())
    ids = (json_lines.parse(line, SubjectLine).id for line in lines)
    for part in _chunks(filter(is_unnamed, ids), WRITTEN_AT_ONCE):
        with run.core.galleries.change(run.core.store.gallery(run.gallery.id)) as change:
            subjects = brief_subjects(change.connection, change.gallery, part)
            drop_unnamed(change, [row.key for row in subjects.values()])


def _restore_corrections(run: Import, lines: list[bytes], saved: dict[str, Any]) -> None:
    """Restore corrections. Raises InvalidInput ``invalid_template``, ``invalid_image``."""
    gallery = run.gallery
    corrections = []
    for line in lines:
        parsed = json_lines.parse(line, CorrectionLine)
        template, crop = parsed.template, parsed.crop
        vector = np.frombuffer(template, "<f4") if len(template) == 4 * gallery.dimension else None
        if vector is None or not is_unit(vector[None]).all():
            raise InvalidInput("A correction's template is not a unit vector of its package.", code="invalid_template")
        if crop is not None:
            _check_crop(crop)
        kept = crop if gallery.store == "crop" else None
        times = parsed.created_at, parsed.expires_at
        corrections.append(Correction(parsed.id, parsed.subject, gallery.embedder, template, kept, *times))
    run.job.counts["corrections"] += len(corrections)
    restore_corrections(run.core.store, gallery, corrections, partial(run.job.checkpoint, saved))


def _restore_dismissals(run: Import, lines: list[bytes], saved: dict[str, Any]) -> None:
    dismissed = [dismissals.Dismissal(**json_lines.parse(line, DismissalLine).model_dump()) for line in lines]
    dismissals.restore(run.core.store.database, run.gallery, dismissed, partial(run.job.checkpoint, saved))


def _face_lines(run: Import) -> Iterator[tuple[FaceLine, int]]:
    """Yield each face, and the bytes of memory that it and its crop take."""
    for line in json_lines.split(run.member(FACES).pieces()):
        face = json_lines.parse(line, FaceLine)
        yield face, len(line) * json_lines.PARSED_WEIGHT + (face.crop or 0)


def _crop(crops: PieceReader | None, face: FaceLine) -> bytes | None:
    """Return the face's crop, the next one of the file; None if it has none in the archive. Raises InvalidInput
    ``invalid_archive``."""
    if crops is None or face.crop is None:
        return None
    crop = crops.read(face.crop)
    if len(crop) != face.crop:
        raise InvalidInput(f"{CROPS} does not match {FACES}.", code="invalid_archive")
    return crop


def _check_crop(data: bytes) -> None:
    """Raise InvalidInput ``invalid_image`` unless the crop is a JPEG as the service writes it."""
    try:
        decode_crop(data)
    except InvalidInput:
        raise InvalidInput("The crop is not a JPEG of 112x112 pixels.", code="invalid_image") from None


def read_manifest(entries: Iterator[TarEntry]) -> tuple[ArchiveManifest, bytes, ArchiveSignature]:
    """Return the manifest, its bytes and the signature, from the first two entries. The signature is not checked.
    Raises InvalidInput ``invalid_archive``."""
    raw, signature = (_document(entries, name) for name in (MANIFEST, SIGNATURE))
    try:
        manifest, signed = ArchiveManifest.model_validate_json(raw), ArchiveSignature.model_validate_json(signature)
    except ValidationError:
        raise InvalidInput("The archive's manifest or signature can't be read.", code="invalid_archive") from None
    if manifest.format != FORMAT or manifest.version != VERSION or signed.algorithm != signatures.ALGORITHM:
        message = f"The archive is not of the format {FORMAT}, version {VERSION}."
        raise InvalidInput(message, code="invalid_archive")
    return manifest, raw, signed


def _verify(run: Import, trust: str) -> ArchiveManifest:
    """Check the whole archive and return its manifest. Raises InvalidInput ``invalid_archive``, ``signature_wrong``,
    ``unknown_signer``."""
    entries = run.entries()
    manifest, raw, signed = read_manifest(entries)
    try:
        public_key, signature = signatures.decode(signed.public_key), signatures.decode(signed.signature)
        signatures.verify(public_key, signature, raw, PURPOSE)
    except Unusable as error:
        raise InvalidInput("The archive's signature is wrong: the archive was altered.", code=error.code) from None
    server_key = Signer.of(run.core.secrets).public_key
    if not (hmac.compare_digest(public_key, server_key) or signatures.is_named(public_key, trust)):
        message = (
            "The archive was signed by another server, whose key has the SHA-256 "
            f"{signatures.fingerprint(public_key)}. If you trust it, give that as `trust`."
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


def _check_fit(manifest: ArchiveManifest, run: Import) -> None:
    """Raise PackageMismatch or InvalidInput ``invalid_archive`` if the templates don't fit the gallery."""
    gallery, here = run.gallery, _package_sha256(run.core, run.gallery.embedder)
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


def _document(entries: Iterator[TarEntry], name: str) -> bytes:
    entry = next(entries, None)
    if entry is None or entry.name != name or entry.problem is not None or entry.size > MAX_MANIFEST:
        raise InvalidInput(f"The archive does not begin with {MANIFEST} and {SIGNATURE}.", code="invalid_archive")
    return entry.read()


def _chunks(items: Iterator[T], count: int) -> Iterator[list[T]]:
    while chunk := list(islice(items, count)):
        yield chunk
