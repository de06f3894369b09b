"""A function for each REST operation on photos and galleries that returns its call. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from app.api import endpoints, schemas
from app.client.call import Call, Image, Tar, call, given, part, tar_of


def detect(image: Image, *, explain: bool | None = None) -> Call[schemas.DetectAnswer]:
    """Find the faces in a photo."""
    return call(endpoints.DETECT, params=given(explain=explain), files=[part("image", image)])


def embed(image: Image, *, model: str | None = None, explain: bool | None = None) -> Call[schemas.EmbedAnswer]:
    """Find the faces in a photo and compute their templates, with the default package or ``model``."""
    return call(endpoints.EMBED, params=given(model=model, explain=explain), files=[part("image", image)])


def verify(
    image1: Image,
    image2: Image,
    *,
    fmr: float | None = None,
    model: str | None = None,
    population: str | None = None,
    face1: int | None = None,
    face2: int | None = None,
    liveness: str | None = None,
    liveness_of: str | None = None,
    explain: bool | None = None,
) -> Call[schemas.VerifyAnswer]:
    """Compare two photos (1:1), with the default package or ``model``.

    ``face1`` and ``face2`` are indexes in the list of `detect`; absent: the most prominent face. ``liveness`` is
    ``off``, ``report`` or ``require``, here and below; ``liveness_of`` ``both``, ``image1`` or ``image2``.
    """
    files = [part("image1", image1), part("image2", image2)]
    params = given(
        fmr=fmr,
        model=model,
        population=population,
        face1=face1,
        face2=face2,
        liveness=liveness,
        liveness_of=liveness_of,
        explain=explain,
    )
    return call(endpoints.VERIFY, params=params, files=files)


def verify_subject(
    gallery: str,
    subject: str,
    image: Image,
    *,
    fmr: float | None = None,
    population: str | None = None,
    liveness: str | None = None,
    explain: bool | None = None,
) -> Call[schemas.SubjectVerifyAnswer]:
    """Compare a photo with a subject (1:1)."""
    return call(
        endpoints.VERIFY_SUBJECT,
        gallery=gallery,
        subject=subject,
        params=given(fmr=fmr, population=population, liveness=liveness, explain=explain),
        files=[part("image", image)],
    )


def identify(
    gallery: str,
    image: Image,
    *,
    limit: int | None = None,
    fmr: float | None = None,
    fpir: float | None = None,
    population: str | None = None,
    liveness: str | None = None,
    explain: bool | None = None,
) -> Call[schemas.IdentifyAnswer]:
    """Find the subjects of a gallery in a photo (1:N)."""
    params = given(limit=limit, fmr=fmr, fpir=fpir, population=population, liveness=liveness, explain=explain)
    return call(endpoints.IDENTIFY, gallery=gallery, params=params, files=[part("image", image)])


def enroll(
    gallery: str,
    subject: str,
    images: Sequence[Image],
    *,
    quality: str | None = None,
    liveness: str | None = None,
    expires_at: datetime | None = None,
    consent: str | None = None,
    face: int | None = None,
    on_conflict: str | None = None,
    explain: bool | None = None,
) -> Call[schemas.EnrollAnswer]:
    """Add photos of one person; a new subject is created. Refused photos are in ``rejected``.

    ``expires_at`` has a time zone; ``consent`` is a note. ``face`` picks a face of a single photo, by its index in the
    list of `detect`. ``on_conflict`` is ``warn``, ``reject`` or ``allow``.
    """
    files = [part("images", image) for image in images]
    params = given(
        quality=quality,
        liveness=liveness,
        expires_at=expires_at,
        consent=consent,
        face=face,
        on_conflict=on_conflict,
        explain=explain,
    )
    return call(endpoints.ENROLL_FACES, gallery=gallery, subject=subject, params=params, files=files)


def create_challenge(gallery: str, operation: str, *, subject: str | None = None) -> Call[schemas.Challenge]:
    """Return steps for a person in front of a camera, before ``operation``: ``verify``, ``identify`` or ``enroll``."""
    body = given(operation=operation, subject=subject)
    return call(endpoints.CREATE_CHALLENGE, gallery=gallery, json=body)


def answer_challenge(gallery: str, challenge: str, frames: Sequence[Image]) -> Call[schemas.ChallengeAnswer]:
    """Send a frame for each step, in their order; return what the operation answers on the first."""
    files = [part("images", frame) for frame in frames]
    params = given(challenge=challenge)
    return call(endpoints.ANSWER_CHALLENGE, gallery=gallery, params=params, files=files)


def galleries(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.GalleryPage]:
    """Return one page of the galleries."""
    return call(endpoints.LIST_GALLERIES, params=given(limit=limit, cursor=cursor))


def create_gallery(
    gallery: str,
    *,
    embedder: str | None = None,
    store: str | None = None,
    search: str | None = None,
    on_conflict: str | None = None,
    population: Sequence[str] | None = None,
    liveness: str | None = None,
    force: bool | None = None,
    accept_non_commercial: bool | None = None,
) -> Call[schemas.Gallery]:
    """Create a gallery. ``population``: whom it is for, groups of the model's bias card. ``force`` takes a model
    without operating points, ``accept_non_commercial`` one that may not be used commercially."""
    body = given(
        id=gallery,
        embedder=embedder,
        store=store,
        search=search,
        on_conflict=on_conflict,
        population=population,
        liveness=liveness,
        force=force,
        accept_non_commercial=accept_non_commercial,
    )
    return call(endpoints.CREATE_GALLERY, json=body)


def gallery(gallery: str) -> Call[schemas.Gallery]:
    """Return one gallery, with its counts."""
    return call(endpoints.SHOW_GALLERY, gallery=gallery)


def update_gallery(gallery: str, changes: Mapping[str, Any]) -> Call[schemas.Gallery]:
    """Change the settings: ``search``, ``on_conflict``, ``population``, ``liveness``, ``calibration`` (whose operating
    points decide), ``allow_laxer``."""
    return call(endpoints.UPDATE_GALLERY, gallery=gallery, json=dict(changes))


def delete_gallery(gallery: str) -> Call[None]:
    """Delete a gallery with everybody in it."""
    return call(endpoints.DELETE_GALLERY, gallery=gallery)


def check_gallery(gallery: str) -> Call[schemas.GalleryCheck]:
    """Check that database and index hold the same faces."""
    return call(endpoints.CHECK_GALLERY, gallery=gallery)


def calibrate_gallery(gallery: str) -> Call[schemas.GalleryCalibration]:
    """Measure a gallery's own operating points, as a job."""
    return call(endpoints.CALIBRATE_GALLERY, gallery=gallery)


def calibration(gallery: str) -> Call[schemas.GalleryCalibration]:
    """Return a gallery's own operating points, beside the package's."""
    return call(endpoints.SHOW_CALIBRATION, gallery=gallery)


def start_review(gallery: str) -> Call[schemas.Job]:
    """Return the job that looks for what is probably wrong in a gallery."""
    return call(endpoints.REVIEW_GALLERY, gallery=gallery)


def review(
    gallery: str,
    *,
    kind: str | None = None,
    dismissed: bool | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[schemas.Review]:
    """Return the last finished review of a gallery, with one page of its findings."""
    params = given(kind=kind, dismissed=dismissed, limit=limit, cursor=cursor)
    return call(endpoints.SHOW_REVIEW, gallery=gallery, params=params)


def dismiss_finding(gallery: str, finding: str) -> Call[None]:
    """Call a finding right: it is not asked about again."""
    return call(endpoints.DISMISS_FINDING, gallery=gallery, finding=finding)


def reopen_finding(gallery: str, finding: str) -> Call[None]:
    """Take back that a finding is right."""
    return call(endpoints.REOPEN_FINDING, gallery=gallery, finding=finding)


def reembed(
    gallery: str,
    embedder: str,
    *,
    without_crop: str | None = None,
    keep_days: float | None = None,
    force: bool | None = None,
    accept_non_commercial: bool | None = None,
) -> Call[schemas.Reembedding]:
    """Move a gallery to another model package, as a job; ``without_crop`` is ``refuse`` or ``drop``."""
    body = given(
        embedder=embedder,
        without_crop=without_crop,
        keep_days=keep_days,
        force=force,
        accept_non_commercial=accept_non_commercial,
    )
    return call(endpoints.REEMBED_GALLERY, gallery=gallery, json=body)


def reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Return the state of a gallery's move."""
    return call(endpoints.SHOW_REEMBEDDING, gallery=gallery)


def cancel_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Cancel a gallery's move, before the switch or after a rollback."""
    return call(endpoints.CANCEL_REEMBEDDING, gallery=gallery)


def roll_back_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Switch back to the gallery's previous package."""
    return call(endpoints.ROLL_BACK_REEMBEDDING, gallery=gallery)


def finish_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Delete the templates of the gallery's previous package."""
    return call(endpoints.FINISH_REEMBEDDING, gallery=gallery)


def subjects(
    gallery: str,
    *,
    search: str | None = None,
    expires_before: datetime | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[schemas.SubjectPage]:
    """Return one page of a gallery's subjects. ``expires_before`` has a time zone."""
    params = given(search=search, expires_before=expires_before, limit=limit, cursor=cursor)
    return call(endpoints.LIST_SUBJECTS, gallery=gallery, params=params)


def create_subject(
    gallery: str,
    subject: str,
    *,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
    consent: Mapping[str, Any] | None = None,
) -> Call[schemas.Subject]:
    """Create a subject without faces.

    ``expires_at`` has a time zone; ``consent`` has ``note`` and, unless it was given now, ``given_at``.
    """
    body = given(id=subject, name=name, metadata=metadata, expires_at=expires_at, consent=consent)
    return call(endpoints.CREATE_SUBJECT, gallery=gallery, json=body)


def subject(gallery: str, subject: str) -> Call[schemas.Subject]:
    """Return one subject."""
    return call(endpoints.SHOW_SUBJECT, gallery=gallery, subject=subject)


def update_subject(gallery: str, subject: str, changes: Mapping[str, Any]) -> Call[schemas.Subject]:
    """Change the fields of a subject that ``changes`` has, for example ``name`` and ``metadata``."""
    return call(endpoints.UPDATE_SUBJECT, gallery=gallery, subject=subject, json=dict(changes))


def delete_subject(gallery: str, subject: str) -> Call[None]:
    """Delete a subject with all faces."""
    return call(endpoints.DELETE_SUBJECT, gallery=gallery, subject=subject)


def merge_subject(gallery: str, subject: str, into: str) -> Call[schemas.MergedSubject]:
    """Give all faces of a subject to another one, ``into``, and delete the first."""
    return call(endpoints.MERGE_SUBJECT, gallery=gallery, subject=subject, json={"into": into})


def faces(gallery: str, subject: str, *, limit: int | None = None, cursor: str | None = None) -> Call[schemas.FacePage]:
    """Return one page of a subject's faces."""
    return call(endpoints.LIST_FACES, gallery=gallery, subject=subject, params=given(limit=limit, cursor=cursor))


def face(gallery: str, subject: str, face_id: str) -> Call[schemas.StoredFace]:
    """Return one enrolled face."""
    return call(endpoints.SHOW_FACE, gallery=gallery, subject=subject, face_id=face_id)


def face_crop(gallery: str, subject: str, face_id: str) -> Call[bytes]:
    """Return the aligned crop of an enrolled face, a JPEG file."""
    return call(endpoints.SHOW_CROP, gallery=gallery, subject=subject, face_id=face_id)


def move_face(gallery: str, subject: str, face_id: str, to: str) -> Call[schemas.StoredFace]:
    """Move an enrolled face to another subject of the gallery, ``to``."""
    return call(endpoints.MOVE_FACE, gallery=gallery, subject=subject, face_id=face_id, json={"subject": to})


def move_faces(
    gallery: str, subject: str, faces: Sequence[str], to: str, *, create: bool = False
) -> Call[schemas.Subject]:
    """Move enrolled faces to another subject of the gallery, ``to``, all or none; ``create`` it if it is missing."""
    body = given(faces=faces, subject=to, create=create)
    return call(endpoints.MOVE_FACES, gallery=gallery, subject=subject, json=body)


def delete_face(gallery: str, subject: str, face_id: str) -> Call[None]:
    """Delete one enrolled face."""
    return call(endpoints.DELETE_FACE, gallery=gallery, subject=subject, face_id=face_id)


def corrections(gallery: str, subject: str) -> Call[schemas.CorrectionList]:
    """Return the probes that were said not to be the subject."""
    return call(endpoints.LIST_CORRECTIONS, gallery=gallery, subject=subject)


def add_correction(
    gallery: str,
    subject: str,
    image: Image,
    *,
    face: int | None = None,
    expires_at: datetime | None = None,
    confirm: bool = False,
) -> Call[schemas.Correction]:
    """Say that a photo, or the face of this index in it, does not show the subject, `confirm` even beyond doubt."""
    params = given(face=face, expires_at=expires_at, confirm=confirm or None)
    return call(endpoints.ADD_CORRECTION, gallery=gallery, subject=subject, params=params, files=[part("image", image)])


def delete_correction(gallery: str, subject: str, correction: str) -> Call[None]:
    """Delete a correction, which no longer counts."""
    return call(endpoints.DELETE_CORRECTION, gallery=gallery, subject=subject, correction=correction)


def import_faces(
    gallery: str,
    tar: Tar,
    *,
    content: str = "photos",
    quality: str | None = None,
    package: str | None = None,
    normalize: bool | None = None,
    trust: str | None = None,
    on_conflict: str | None = None,
) -> Call[schemas.Job]:
    """Send a tar of ``photos``, ``templates`` or an exported ``archive``, and return the job that enrolls them."""
    params = given(
        content=content, quality=quality, package=package, normalize=normalize, trust=trust, on_conflict=on_conflict
    )
    return call(endpoints.IMPORT_FACES, gallery=gallery, params=params, content=tar_of(tar))


def export_gallery(gallery: str, *, crops: bool | None = None) -> Call[schemas.Job]:
    """Return the job that writes a gallery into one archive."""
    return call(endpoints.EXPORT_GALLERY, gallery=gallery, params=given(crops=crops))


def erase_subject(gallery: str, subject: str, *, rewrite: bool = False) -> Call[schemas.Receipt]:
    """Erase a subject for good, and return the signed receipt."""
    return call(endpoints.ERASE_SUBJECT, gallery=gallery, subject=subject, params=given(rewrite=rewrite or None))
