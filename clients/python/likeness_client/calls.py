"""A function for each operation that returns its call. Nothing is sent here.

Written by clients/python/generate.py from the server's declarations: change those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import NoneType
from typing import Any

from likeness_client import answers
from likeness_client.call import Call, Image, Tar, call, given, part, parts, tar_of


def detect(image: Image, *, explain: bool | None = None) -> Call[answers.DetectAnswer]:
    """Find the faces in a photo.

    Each face has its box, five landmarks and quality; the best detector score comes first. The list
    is empty if there is no face. Faces may be as small as 20 pixels or larger than the frame, and
    turned by any angle. A face whose landmarks can't be measured has none, and the reason
    `unalignable`."""
    return call("POST", "/v1/detect", answers.DetectAnswer, params=given(explain=explain), files=[part("image", image)])


def embed(image: Image, *, model: str | None = None, explain: bool | None = None) -> Call[answers.EmbedAnswer]:
    """Turn the faces in a photo into vectors.

    The same as detect, each face with its embedding: a vector of length 1 whose dot product with
    another of the same `model` is the score. It is null for a face whose landmarks can't be
    measured."""
    return call(
        "POST",
        "/v1/embed",
        answers.EmbedAnswer,
        params=given(model=model, explain=explain),
        files=[part("image", image)],
    )


def verify(
    image1: Image | Sequence[Image],
    image2: Image | Sequence[Image],
    *,
    track: bool | None = None,
    quality: str | None = None,
    liveness: str | None = None,
    model: str | None = None,
    population: str | None = None,
    explain: bool | None = None,
    fmr: float | None = None,
    face1: int | None = None,
    face2: int | None = None,
    liveness_of: str | None = None,
) -> Call[answers.VerifyAnswer]:
    """Do two photos show the same person?

    Compares the most prominent face of each photo (large, and near the middle), or the faces at
    `face1` and `face2`, at the operating point of `fmr`, and decides: known, uncertain or unknown.
    With `track=true`, both `image1` and `image2` may be several images of one person, as in
    `identify`."""
    return call(
        "POST",
        "/v1/verify",
        answers.VerifyAnswer,
        params=given(
            track=track,
            quality=quality,
            liveness=liveness,
            model=model,
            population=population,
            explain=explain,
            fmr=fmr,
            face1=face1,
            face2=face2,
            liveness_of=liveness_of,
        ),
        files=[*parts("image1", image1), *parts("image2", image2)],
    )


def identify(
    gallery: str,
    image: Image | Sequence[Image],
    *,
    track: bool | None = None,
    quality: str | None = None,
    liveness: str | None = None,
    population: str | None = None,
    explain: bool | None = None,
    limit: int | None = None,
    fmr: float | None = None,
    fpir: float | None = None,
) -> Call[answers.IdentifyAnswer]:
    """Who is in this photo?

    Searches the gallery for every face of the photo, and decides for each: known, uncertain or
    unknown. A subject is given to at most one face of the photo, the best-scoring one. Without
    `fmr` or `fpir` the server's defaults for both hold, or the strictest measured operating point
    if the gallery is too large. Unless the key has the scope `templates`, scores are rounded down
    without changing a decision, and candidates below the most lenient operating point are left out,
    because enough exact scores would reveal the enrolled templates.

    With `track=true`, several images of one person, as from a camera, are one probe. The answer has
    one face, that of the best image, or none if no image shows a face of the `quality`."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/identify",
        answers.IdentifyAnswer,
        gallery=gallery,
        params=given(
            track=track,
            quality=quality,
            liveness=liveness,
            population=population,
            explain=explain,
            limit=limit,
            fmr=fmr,
            fpir=fpir,
        ),
        files=parts("image", image),
    )


def verify_subject(
    gallery: str,
    subject: str,
    image: Image | Sequence[Image],
    *,
    track: bool | None = None,
    quality: str | None = None,
    liveness: str | None = None,
    population: str | None = None,
    explain: bool | None = None,
    fmr: float | None = None,
) -> Call[answers.SubjectVerifyAnswer]:
    """Is this person the subject?

    Compares the photo's most prominent face with the subject's enrolled faces; the best score
    counts. Scores are rounded as `identify` says, and null below the most lenient operating point.
    `track=true`: as in `identify`."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/verify",
        answers.SubjectVerifyAnswer,
        gallery=gallery,
        subject=subject,
        params=given(track=track, quality=quality, liveness=liveness, population=population, explain=explain, fmr=fmr),
        files=parts("image", image),
    )


def enroll(
    gallery: str,
    subject: str,
    images: Sequence[Image],
    *,
    liveness: str | None = None,
    explain: bool | None = None,
    quality: str | None = None,
    expires_at: datetime | None = None,
    consent: str | None = None,
    face: int | None = None,
    on_conflict: str | None = None,
    track: bool | None = None,
) -> Call[answers.EnrollAnswer]:
    """Enroll photos of a person.

    Adds each photo's face to the subject, which is created if it is missing. At the time of the
    answer, the faces are in the database and searches find them. Photos without a face, with
    several equally prominent ones, or of too low quality are listed in `rejected` with their
    reasons, and the others are enrolled. If no photo is good enough, nothing changes and the answer
    is an error.

    Unless `on_conflict` is `allow`, each face is first compared with those enrolled. In its row,
    `duplicate` is the same photo, saved again or not, and `conflict` a face of another subject that
    it matches at an FPIR of 0.001. With `track=true` the mean of all faces that are good enough is
    compared once, and its conflict is in each row. Keys with the scope `recognize` also see
    `unlike`: the most alike of the subject's own faces, if it has two or more and the new one looks
    like none of them (FMR 0.001). Two requests at the same moment may miss each other's faces.
    These rows tell a key with `enroll` alone whether a face is enrolled and, by trying ids, whose:
    a face of its own subject is no `conflict`. In a gallery that says `allow`, asking for another
    policy needs `recognize` too."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/faces",
        answers.EnrollAnswer,
        gallery=gallery,
        subject=subject,
        params=given(
            liveness=liveness,
            explain=explain,
            quality=quality,
            expires_at=expires_at,
            consent=consent,
            face=face,
            on_conflict=on_conflict,
            track=track,
        ),
        files=[part("images", image) for image in images],
    )


def faces(gallery: str, subject: str, *, limit: int | None = None, cursor: str | None = None) -> Call[answers.FacePage]:
    """List a subject's faces.

    Lists them in the order of their enrollment, page by page."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/subjects/{subject}/faces",
        answers.FacePage,
        gallery=gallery,
        subject=subject,
        params=given(limit=limit, cursor=cursor),
    )


def galleries(*, limit: int | None = None, cursor: str | None = None) -> Call[answers.GalleryPage]:
    """List galleries.

    Lists the galleries that the key may see, with their counts, in the order of their creation,
    page by page."""
    return call("GET", "/v1/galleries", answers.GalleryPage, params=given(limit=limit, cursor=cursor))


def create_gallery(
    gallery: str,
    *,
    embedder: str | None = None,
    store: str | None = None,
    search: str | None = None,
    on_conflict: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    population: Sequence[str] | None = None,
    liveness: str | None = None,
    force: bool | None = None,
    accept_non_commercial: bool | None = None,
) -> Call[answers.Gallery]:
    """Create a gallery.

    Creates an empty gallery. It will hold templates of one model package, which may be any
    installed one."""
    return call(
        "POST",
        "/v1/galleries",
        answers.Gallery,
        json=given(
            id=gallery,
            embedder=embedder,
            store=store,
            search=search,
            on_conflict=on_conflict,
            metadata=metadata,
            population=population,
            liveness=liveness,
            force=force,
            accept_non_commercial=accept_non_commercial,
        ),
    )


def gallery(gallery: str) -> Call[answers.Gallery]:
    """Show a gallery.

    Answers the gallery with the number of its subjects and faces."""
    return call("GET", "/v1/galleries/{gallery}", answers.Gallery, gallery=gallery)


def update_gallery(gallery: str, changes: Mapping[str, Any]) -> Call[answers.Gallery]:
    """Change how a gallery is searched, what decides in it, its duplicates, its liveness, or whom it
    is for.

    An absent field stays as it is. Every kind of search gives the same answers. The index is
    rebuilt in memory, here at once and in other servers of the same database soon after. With
    `calibration` set to `gallery` its operating points are measured soon, and decide from then on."""
    return call("PATCH", "/v1/galleries/{gallery}", answers.Gallery, gallery=gallery, json=dict(changes))


def delete_gallery(gallery: str) -> Call[None]:
    """Delete a gallery with everyone in it.

    Deletes the gallery, its subjects, their faces, stored crops and vectors. This can't be undone."""
    return call("DELETE", "/v1/galleries/{gallery}", NoneType, gallery=gallery)


def subjects(
    gallery: str,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    search: str | None = None,
    expires_before: datetime | None = None,
    offset: int | None = None,
) -> Call[answers.SubjectPage]:
    """List the subjects of a gallery.

    Lists them in the order of their creation, page by page; with `search` only those whose id or
    name contains it."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/subjects",
        answers.SubjectPage,
        gallery=gallery,
        params=given(limit=limit, cursor=cursor, search=search, expires_before=expires_before, offset=offset),
    )


def create_subject(
    gallery: str,
    subject: str | None,
    *,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
    consent: Mapping[str, Any] | None = None,
) -> Call[answers.Subject]:
    """Create a subject.

    Creates a subject without faces. The server makes an id unless one is given. Enrolling also
    creates a missing subject; this is for giving it a name first."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects",
        answers.Subject,
        gallery=gallery,
        json=given(id=subject, name=name, metadata=metadata, expires_at=expires_at, consent=consent),
    )


def subject(gallery: str, subject: str) -> Call[answers.Subject]:
    """Show a subject.

    Answers the subject with its name, metadata and number of faces."""
    return call("GET", "/v1/galleries/{gallery}/subjects/{subject}", answers.Subject, gallery=gallery, subject=subject)


def update_subject(gallery: str, subject: str, changes: Mapping[str, Any]) -> Call[answers.Subject]:
    """Change a subject's id, name, metadata, expiry, consent or cover.

    A given field replaces the old value as a whole (metadata too), an absent field stays as it is,
    null removes it. Faces, corrections and sightings follow a new id; the audit log has it beside
    the old one."""
    return call(
        "PATCH",
        "/v1/galleries/{gallery}/subjects/{subject}",
        answers.Subject,
        gallery=gallery,
        subject=subject,
        json=dict(changes),
    )


def delete_subject(gallery: str, subject: str) -> Call[None]:
    """Delete a subject with its faces.

    Deletes the subject, its faces, their stored crops and vectors. This can't be undone."""
    return call("DELETE", "/v1/galleries/{gallery}/subjects/{subject}", NoneType, gallery=gallery, subject=subject)


def face(gallery: str, subject: str, face_id: str) -> Call[answers.StoredFace]:
    """Show a face.

    Answers where the face was in its photo, its quality, and the model that computed its template."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}",
        answers.StoredFace,
        gallery=gallery,
        subject=subject,
        face_id=face_id,
    )


def delete_face(gallery: str, subject: str, face_id: str) -> Call[None]:
    """Delete a face.

    Deletes the face, its stored crop and its vector. The subject stays, even without faces, unless
    it is unnamed."""
    return call(
        "DELETE",
        "/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}",
        NoneType,
        gallery=gallery,
        subject=subject,
        face_id=face_id,
    )


def face_crop(gallery: str, subject: str, face_id: str) -> Call[bytes]:
    """Show a face's crop.

    Answers the aligned 112x112 crop that the template was computed from, as JPEG, if the gallery
    keeps crops."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}/crop",
        bytes,
        gallery=gallery,
        subject=subject,
        face_id=face_id,
    )


def own_key() -> Call[answers.OwnKey]:
    """Show what this key may do.

    Answers the id, scopes and galleries of the request's own key, so that a program can offer only
    what the key allows. Any key may call this."""
    return call("GET", "/v1/key", answers.OwnKey)


def jobs(
    *, limit: int | None = None, cursor: str | None = None, gallery: str | None = None, state: str | None = None
) -> Call[answers.JobPage]:
    """List the jobs.

    Lists the jobs of the galleries that the key may see, newest first, page by page. Finished jobs
    are kept for `LIKENESS_JOB_DAYS`."""
    return call(
        "GET", "/v1/jobs", answers.JobPage, params=given(limit=limit, cursor=cursor, gallery=gallery, state=state)
    )


def job(job: str) -> Call[answers.Job]:
    """Show a job.

    Answers its progress, its counts, and how it ended."""
    return call("GET", "/v1/jobs/{job}", answers.Job, job=job)


def cancel_job(job: str) -> Call[answers.Job]:
    """Cancel a job.

    A queued job is cancelled at once, a running one within seconds; what it has done stays done. A
    finished job stays as it is."""
    return call("POST", "/v1/jobs/{job}/cancel", answers.Job, job=job)


def job_report(job: str, *, format_: str | None = None) -> Call[bytes]:
    """Read a job's report.

    Lists every item that was rejected so far, or enrolled with a warning, as lines of JSON or as
    CSV: its number, name, code, message, reasons and whether it was enrolled."""
    return call("GET", "/v1/jobs/{job}/report", bytes, job=job, params=given(format=format_))


def ready() -> Call[answers.Health]:
    """Does the server take requests?

    200 when models are warm and galleries can be searched; 503 before that, and while the server
    stops. If vectors are searched in Milvus, also 503 while Milvus can't be reached; this is
    checked every 2 seconds. Also 503 after a failed write to the database or to
    `LIKENESS_AUDIT_SINK`, as on a full disk, until one succeeds; this is tried every 2 seconds.
    `warnings` lists problems that do not keep it from answering, and is renewed every minute."""
    return call("GET", "/readyz", answers.Health)


def version() -> Call[answers.Version]:
    """Show the server's version.

    Answers the name of the program and its version."""
    return call("GET", "/version", answers.Version)


def models() -> Call[answers.ModelList]:
    """List the model packages.

    Lists every package in the models folder: its licence, SHA-256, measured operating points, and
    whether it is running. Folders whose manifest can't be used are in `skipped`."""
    return call("GET", "/v1/models", answers.ModelList)


def add_model(
    tar: Tar,
    *,
    name: str | None = None,
    preset: str | None = None,
    licence: str | None = None,
    non_commercial: bool | None = None,
) -> Call[answers.Job]:
    """Add a model.

    Takes a face embedder's ONNX file, with `name`, `preset` and `licence`, or the tar of a model
    package: its folder with `manifest.json` and the file that the manifest names. Answers with the
    job that checks and adds the model, in a process with limits of memory and time. An archive's
    operating points are accepted without a check."""
    return call(
        "POST",
        "/v1/models",
        answers.Job,
        params=given(name=name, preset=preset, licence=licence, non_commercial=non_commercial),
        content=tar_of(tar),
    )


def keys(*, limit: int | None = None, cursor: str | None = None) -> Call[answers.KeyPage]:
    """List the keys.

    Lists all keys, including revoked ones, in the order of their creation, page by page. Secrets
    are never shown."""
    return call("GET", "/v1/keys", answers.KeyPage, params=given(limit=limit, cursor=cursor))


def create_key(
    scopes: Sequence[str],
    *,
    key_id: str | None = None,
    name: str | None = None,
    galleries: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    rate: str | None = None,
    aws: bool | None = None,
) -> Call[answers.NewKey]:
    """Create a key.

    The `secret` is in this answer and never shown again: the server stores only its hash. With
    `aws` it also stores the secret, encrypted with the data folder's `vault.key`, since it needs
    the secret to check signatures. Only a key with the scope `templates` can give this scope."""
    return call(
        "POST",
        "/v1/keys",
        answers.NewKey,
        json=given(id=key_id, name=name, scopes=scopes, galleries=galleries, expires_at=expires_at, rate=rate, aws=aws),
    )


def key(key: str) -> Call[answers.Key]:
    """Show a key.

    Answers what the key may do and whether it was revoked, but never its secret."""
    return call("GET", "/v1/keys/{key}", answers.Key, key=key)


def revoke_key(key: str) -> Call[None]:
    """Revoke a key.

    Revokes the key for good: at once in this process, within a second in others. The key stays
    listed, and its id can't be used again."""
    return call("DELETE", "/v1/keys/{key}", NoneType, key=key)


def rotate_key(key: str, *, grace_seconds: int | None = None) -> Call[answers.NewKey]:
    """Give a key a new secret.

    The new `secret` is in this answer and never shown again. The previous secret works for
    `grace_seconds` more; older ones stop working. Only a key with the scope `templates` can rotate
    a key that has it."""
    return call("POST", "/v1/keys/{key}/rotate", answers.NewKey, key=key, json=given(grace_seconds=grace_seconds))


def server_key() -> Call[answers.ServerKey]:
    """Show the server's public key.

    Keep this key to check documents that the server has signed. All servers of a database have the
    same key."""
    return call("GET", "/v1/server-key", answers.ServerKey)


def create_sign_in_code(*, valid: str | None = None) -> Call[answers.SignInCode]:
    """Make a sign-in code.

    The page's address with `#code=` and the code appended is a link that signs a browser in with
    the request's own key. It works once, within a minute, or within a day if it is meant for
    somebody else. So the link that stays in a browser's history is useless."""
    return call("POST", "/v1/sign-in-codes", answers.SignInCode, params=given(valid=valid))


def begin_session() -> Call[answers.Session]:
    """Stay signed in.

    Gives the browser a session of the request's own key, in a cookie that scripts can't read. With
    this cookie and the header `x-likeness-session`, the page's requests need no key. The session
    ends after `LIKENESS_SESSION_DAYS`, when its key ends, or by signing out."""
    return call("POST", "/v1/session", answers.Session)


def end_session() -> Call[None]:
    """Sign out.

    Ends the request's session, and deletes its cookie in the browser."""
    return call("DELETE", "/v1/session", NoneType)


def audit(
    *,
    limit: int | None = None,
    cursor: str | None = None,
    key: str | None = None,
    operation: str | None = None,
    gallery: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    changes: bool | None = None,
    order: str | None = None,
) -> Call[answers.AuditPage]:
    """Read the audit log.

    Answers which key did what, when, to which gallery and subject, with which result. Entries
    contain ids, but never images, vectors or metadata. Changes are recorded before they begin; all
    other entries appear within a second."""
    return call(
        "GET",
        "/v1/audit",
        answers.AuditPage,
        params=given(
            limit=limit,
            cursor=cursor,
            key=key,
            operation=operation,
            gallery=gallery,
            subject=subject,
            since=since,
            until=until,
            changes=changes,
            order=order,
        ),
    )


def erase_subject(gallery: str, subject: str, *, rewrite: bool | None = None) -> Call[answers.Receipt]:
    """Erase a subject for good.

    Deletes the subject with everything about it, clears what the disk may still contain of it, and
    answers with a signed receipt that says what was erased and what the server can't reach."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/erase",
        answers.Receipt,
        gallery=gallery,
        subject=subject,
        params=given(rewrite=rewrite),
    )


def receipts(*, limit: int | None = None, cursor: str | None = None) -> Call[answers.ReceiptPage]:
    """List the receipts of erasures.

    Lists all complete receipts, in the order of the erasures, page by page. They are kept forever."""
    return call("GET", "/v1/receipts", answers.ReceiptPage, params=given(limit=limit, cursor=cursor))


def receipt(receipt: str) -> Call[answers.Receipt]:
    """Show the receipt of an erasure.

    The answer is the signed document. Save it as a file, and `likeness receipts verify` checks it
    without a server."""
    return call("GET", "/v1/receipts/{receipt}", answers.Receipt, receipt=receipt)


def corrections(gallery: str, subject: str) -> Call[answers.CorrectionList]:
    """List a subject's corrections.

    Lists the corrections that have not expired, oldest first."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/subjects/{subject}/corrections",
        answers.CorrectionList,
        gallery=gallery,
        subject=subject,
    )


def add_correction(
    gallery: str,
    subject: str,
    image: Image,
    *,
    face: int | None = None,
    expires_at: datetime | None = None,
    confirm: bool | None = None,
) -> Call[answers.Correction]:
    """Say that a photo does not show the subject.

    Send the photo of a wrong answer again. The template of its face is kept, and its crop if the
    gallery keeps crops. From then on, a probe that is more similar to this face than to the
    subject's own faces is neither `known` as the subject nor a match; `explain` lists the subjects
    that corrections ruled out. A correction expires; it is erased with its subject, and dropped
    when the subject is merged into another. Unless `confirm` is given, the photo is first compared
    with the subject, for which the key also needs the scope `recognize`."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/corrections",
        answers.Correction,
        gallery=gallery,
        subject=subject,
        params=given(face=face, expires_at=expires_at, confirm=confirm),
        files=[part("image", image)],
    )


def delete_correction(gallery: str, subject: str, correction: str) -> Call[None]:
    """Delete a correction.

    The correction no longer counts when people are identified."""
    return call(
        "DELETE",
        "/v1/galleries/{gallery}/subjects/{subject}/corrections/{correction}",
        NoneType,
        gallery=gallery,
        subject=subject,
        correction=correction,
    )


def merge_subject(gallery: str, subject: str, into: str) -> Call[answers.MergedSubject]:
    """Merge a subject into another one.

    In one step, the other subject gets all faces, which keep their ids, and this subject is
    deleted. The other subject keeps its name, metadata and consent, and gets those that it lacks;
    the earlier expiry counts. If the request is repeated within a day, it changes nothing and gets
    the same answer. To undo it, move `faces` back."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/merge",
        answers.MergedSubject,
        gallery=gallery,
        subject=subject,
        json=given(into=into),
    )


def move_face(gallery: str, subject: str, face_id: str, to: str) -> Call[answers.StoredFace]:
    """Move a face to another subject.

    The face keeps its id, template, quality and crop. After the answer, searches find it under its
    new subject. The old subject stays, even if it has no face left."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/faces/{face_id}/move",
        answers.StoredFace,
        gallery=gallery,
        subject=subject,
        face_id=face_id,
        json=given(subject=to),
    )


def move_faces(
    gallery: str, subject: str, to: str, faces: Sequence[str], *, create: bool | None = None
) -> Call[answers.Subject]:
    """Move several faces to another subject.

    Moves all faces or none, in the same way as a single face. Answers with the new subject."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/subjects/{subject}/faces/move",
        answers.Subject,
        gallery=gallery,
        subject=subject,
        json=given(subject=to, faces=faces, create=create),
    )


def check_gallery(gallery: str) -> Call[answers.GalleryCheck]:
    """Check a gallery.

    Checks that the database and the search index contain the same faces with the same vectors, and
    that the gallery's model package is the one that made the vectors."""
    return call("GET", "/v1/galleries/{gallery}/check", answers.GalleryCheck, gallery=gallery)


def calibrate_gallery(gallery: str) -> Call[answers.GalleryCalibration]:
    """Measure a gallery's own operating points.

    Starts a job that compares faces of different subjects, and finds the threshold at each false
    match rate that their pairs support. Subjects who may be one person are left out and listed.
    Decisions change only where the gallery's `calibration` is `gallery`."""
    return call("POST", "/v1/galleries/{gallery}/calibration", answers.GalleryCalibration, gallery=gallery)


def calibration(gallery: str) -> Call[answers.GalleryCalibration]:
    """Show a gallery's own operating points.

    Answers the points with their intervals, the package's points, the false match rates found in
    the gallery at these, and subjects who may be one person."""
    return call("GET", "/v1/galleries/{gallery}/calibration", answers.GalleryCalibration, gallery=gallery)


def create_challenge(gallery: str, operation: str, *, subject: str | None = None) -> Call[answers.Challenge]:
    """Ask a person to follow steps.

    The server picks the order of the steps. Show them one after the other, take a frame of each,
    and send all frames with `answer` within two minutes. This rejects most photos that are held up
    to the camera. It does not reject a film of the right steps, replayed or generated, or photos of
    all the poses. To enroll, the key also needs the scope `enroll`."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/challenges",
        answers.Challenge,
        gallery=gallery,
        json=given(operation=operation, subject=subject),
    )


def answer_challenge(
    gallery: str, images: Sequence[Image], *, challenge: str | None = None
) -> Call[answers.ChallengeAnswer]:
    """Answer a challenge with a frame for each step; then verify, identify or enroll the first frame.

    Each frame must show its step, and all frames the same person; `challenge_failed` names the
    first step that fails. The operation decides at the server's error rates, and judges liveness if
    the gallery requires it. No frame is kept. A challenge can't be answered again, even if it
    failed."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/challenges/answer",
        answers.ChallengeAnswer,
        gallery=gallery,
        params=given(challenge=challenge),
        files=[part("images", image) for image in images],
    )


def start_review(gallery: str) -> Call[answers.Job]:
    """Review a gallery.

    Starts a job that compares every face with the whole gallery and lists what is probably wrong:
    people enrolled twice, faces of another person, poor faces. It also measures how well the
    gallery tells its people apart. If a review is running already, the answer is its job."""
    return call("POST", "/v1/galleries/{gallery}/review", answers.Job, gallery=gallery)


def review(
    gallery: str,
    *,
    limit: int | None = None,
    cursor: str | None = None,
    kind: str | None = None,
    dismissed: bool | None = None,
) -> Call[answers.Review]:
    """List a review's findings.

    Lists the last finished review's findings that were not dismissed, strongest first, page by
    page. A finding disappears when one of its faces is moved or deleted."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/review",
        answers.Review,
        gallery=gallery,
        params=given(limit=limit, cursor=cursor, kind=kind, dismissed=dismissed),
    )


def dismiss_finding(gallery: str, finding: str) -> Call[None]:
    """Mark a finding as right.

    The finding leaves the list, and later reviews don't list it again unless they find the same
    with other faces."""
    return call("POST", "/v1/galleries/{gallery}/review/{finding}/dismiss", NoneType, gallery=gallery, finding=finding)


def reopen_finding(gallery: str, finding: str) -> Call[None]:
    """Reopen a finding.

    The finding is in the list again, and later reviews list it too."""
    return call(
        "DELETE", "/v1/galleries/{gallery}/review/{finding}/dismiss", NoneType, gallery=gallery, finding=finding
    )


def reembed(
    gallery: str,
    embedder: str,
    *,
    without_crop: str | None = None,
    keep_days: float | None = None,
    force: bool | None = None,
    accept_non_commercial: bool | None = None,
) -> Call[answers.Reembedding]:
    """Move the gallery to another model package.

    Starts a job that embeds every face's stored crop with the other package and then switches the
    gallery to it in one step. The gallery answers requests throughout. Call it again for the same
    package to resume a stopped move, or to switch again after a rollback."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/reembed",
        answers.Reembedding,
        gallery=gallery,
        json=given(
            embedder=embedder,
            without_crop=without_crop,
            keep_days=keep_days,
            force=force,
            accept_non_commercial=accept_non_commercial,
        ),
    )


def reembedding(gallery: str) -> Call[answers.Reembedding]:
    """Show the gallery's move.

    Answers from which package to which the gallery moves, the progress, and until when a rollback
    is possible."""
    return call("GET", "/v1/galleries/{gallery}/reembed", answers.Reembedding, gallery=gallery)


def cancel_reembedding(gallery: str) -> Call[answers.Reembedding]:
    """Cancel the gallery's move.

    Possible before the switch, or after a rollback: the gallery stays with the source package, and
    the target's templates are deleted."""
    return call("DELETE", "/v1/galleries/{gallery}/reembed", answers.Reembedding, gallery=gallery)


def roll_back_reembedding(gallery: str) -> Call[answers.Reembedding]:
    """Go back to the previous model package.

    The source package answers again at once, also for faces enrolled since the switch."""
    return call("POST", "/v1/galleries/{gallery}/reembed/rollback", answers.Reembedding, gallery=gallery)


def finish_reembedding(gallery: str) -> Call[answers.Reembedding]:
    """Finish the gallery's move.

    Deletes the source package's templates, and the faces that have no others. After this, no
    rollback is possible. The server does this by itself after `keep_until`."""
    return call("POST", "/v1/galleries/{gallery}/reembed/finish", answers.Reembedding, gallery=gallery)


def import_faces(
    gallery: str,
    tar: Tar,
    *,
    content: str | None = None,
    quality: str | None = None,
    on_conflict: str | None = None,
    package: str | None = None,
    normalize: bool | None = None,
    trust: str | None = None,
) -> Call[answers.Job]:
    """Import many faces.

    Takes a tar (or tar.gz) of photos with one folder per person, of templates computed elsewhere,
    or of an exported gallery, and answers with the job that enrolls them. The job's report lists
    what it rejects."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/import",
        answers.Job,
        gallery=gallery,
        params=given(
            content=content, quality=quality, on_conflict=on_conflict, package=package, normalize=normalize, trust=trust
        ),
        content=tar_of(tar),
    )


def group_photos(gallery: str, tar: Tar) -> Call[answers.Job]:
    """Group photos by face.

    Takes a tar (or tar.gz) of photos without names, and answers with the job that groups their
    faces by person, with the gallery's model. Nobody is enrolled: name the groups, and enroll those
    you want."""
    return call("POST", "/v1/galleries/{gallery}/group", answers.Job, gallery=gallery, content=tar_of(tar))


def groups(gallery: str, job: str) -> Call[answers.PhotoGroups]:
    """Show the groups of photos.

    Answers the progress of a grouping that this key started and, when it has ended, the faces of
    each person, by photo and box."""
    return call("GET", "/v1/galleries/{gallery}/group/{job}", answers.PhotoGroups, gallery=gallery, job=job)


def export_gallery(gallery: str, *, crops: bool | None = None) -> Call[answers.Job]:
    """Export a gallery.

    Answers with the job that writes the gallery, as of the job's start, to one signed archive.
    Fetch it from `/v1/jobs/{job}/result`."""
    return call("POST", "/v1/galleries/{gallery}/export", answers.Job, gallery=gallery, params=given(crops=crops))


def pullable() -> Call[answers.PullableModels]:
    """List the models that can be pulled.

    Lists the models that this version knows by name, with licence, measurements, size, and where
    their files are."""
    return call("GET", "/v1/models/pullable", answers.PullableModels)


def pull_model(name: str, *, accept_non_commercial: bool | None = None, sha256: str | None = None) -> Call[answers.Job]:
    """Pull a model.

    Answers with the job that downloads the model, checks its SHA-256 and adds it as a package. If
    the server can't reach the network, the job's `error` says which files to copy to it. A gallery
    uses the package if it names it as its `embedder`."""
    return call(
        "POST",
        "/v1/models/pull",
        answers.Job,
        json=given(name=name, accept_non_commercial=accept_non_commercial, sha256=sha256),
    )


def remove_model(package: str) -> Call[None]:
    """Remove a model.

    Deletes a package that was added here, with its downloaded and prepared files. Fails if
    galleries have templates of the package, are moving to it or can go back to it, or if the server
    uses it. Operating points measured here stay, and are used again if the same package is added
    again."""
    return call("DELETE", "/v1/models/{package}", NoneType, package=package)


def tell_sighting(
    gallery: str,
    sighting: str,
    images: Sequence[Image],
    *,
    camera: str | None = None,
    zone: str | None = None,
    first_at: datetime | None = None,
    last_at: datetime | None = None,
    ended: bool | None = None,
) -> Call[answers.Sighting]:
    """Report a track.

    Takes up to 8 photos of one person's face, the best of a visit so far. The caller chooses the
    id, and uses it again for later reports on the same track. The usable faces are fused and
    decided once. A later decision that contradicts the first one replaces it, at most once."""
    return call(
        "PUT",
        "/v1/galleries/{gallery}/sightings/{sighting}",
        answers.Sighting,
        gallery=gallery,
        sighting=sighting,
        params=given(camera=camera, zone=zone, first_at=first_at, last_at=last_at, ended=ended),
        files=[part("images", image) for image in images],
    )


def hear_sighting(gallery: str, sighting: str, changes: Mapping[str, Any]) -> Call[answers.Sighting]:
    """Report that a track goes on, or has ended.

    A track without a report for a minute has ended."""
    return call(
        "PATCH",
        "/v1/galleries/{gallery}/sightings/{sighting}",
        answers.Sighting,
        gallery=gallery,
        sighting=sighting,
        json=dict(changes),
    )


def sighting(gallery: str, sighting: str) -> Call[answers.Sighting]:
    """Show a sighting.

    Answers whom it shows, the score, and the rate that the decision was made at."""
    return call(
        "GET", "/v1/galleries/{gallery}/sightings/{sighting}", answers.Sighting, gallery=gallery, sighting=sighting
    )


def delete_sighting(gallery: str, sighting: str) -> Call[None]:
    """Delete a sighting.

    Deletes it with its crop and its events."""
    return call("DELETE", "/v1/galleries/{gallery}/sightings/{sighting}", NoneType, gallery=gallery, sighting=sighting)


def sightings(
    gallery: str,
    *,
    camera: str | None = None,
    decision: str | None = None,
    subject: str | None = None,
    stranger: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[answers.SightingPage]:
    """List sightings.

    Lists who was in front of which camera and when, newest first, page by page."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/sightings",
        answers.SightingPage,
        gallery=gallery,
        params=given(
            camera=camera,
            decision=decision,
            subject=subject,
            stranger=stranger,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
        ),
    )


def delete_sightings(
    gallery: str,
    *,
    camera: str | None = None,
    decision: str | None = None,
    subject: str | None = None,
    stranger: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Call[answers.Deleted]:
    """Delete sightings.

    Deletes the sightings that the parameters select, by default all of the gallery, with their
    crops and events."""
    return call(
        "DELETE",
        "/v1/galleries/{gallery}/sightings",
        answers.Deleted,
        gallery=gallery,
        params=given(camera=camera, decision=decision, subject=subject, stranger=stranger, since=since, until=until),
    )


def sighting_crop(gallery: str, sighting: str) -> Call[bytes]:
    """Show a sighting's crop.

    Answers the best aligned face, as JPEG, as long as it is kept."""
    return call("GET", "/v1/galleries/{gallery}/sightings/{sighting}/crop", bytes, gallery=gallery, sighting=sighting)


def say_who(
    gallery: str, sighting: str, *, subject: str | None = None, enroll: bool | None = None
) -> Call[answers.Sighting]:
    """Say who a sighting shows.

    With a subject, the sighting shows this subject from now on. With null, it does not show the
    person it was taken for, and a correction is recorded. Nobody is enrolled from a sighting unless
    this request asks for it."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/sightings/{sighting}/who",
        answers.Sighting,
        gallery=gallery,
        sighting=sighting,
        json=given(subject=subject, enroll=enroll),
    )


def tell_cameras(gallery: str, cameras: Sequence[Mapping[str, Any]]) -> Call[None]:
    """Report the state of cameras.

    Takes whether a camera sends pictures, and what they have shown in the last hour."""
    return call("PUT", "/v1/galleries/{gallery}/cameras", NoneType, gallery=gallery, json=given(cameras=cameras))


def cameras(gallery: str) -> Call[answers.CameraList]:
    """List cameras.

    Lists each camera's state, as its watcher reports it, and how many sightings it had in the last
    hour."""
    return call("GET", "/v1/galleries/{gallery}/cameras", answers.CameraList, gallery=gallery)


def strangers(
    gallery: str, *, limit: int | None = None, cursor: str | None = None, ignored: bool | None = None
) -> Call[answers.StrangerPage]:
    """List strangers.

    Lists unknown people who were seen well, each once, newest first, if `LIKENESS_STRANGER_DAYS` is
    set."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/strangers",
        answers.StrangerPage,
        gallery=gallery,
        params=given(limit=limit, cursor=cursor, ignored=ignored),
    )


def stranger(gallery: str, stranger: str) -> Call[answers.Stranger]:
    """Show a stranger.

    Answers how often, when and where the stranger was seen. To list the sightings, pass `stranger`
    to their list."""
    return call(
        "GET", "/v1/galleries/{gallery}/strangers/{stranger}", answers.Stranger, gallery=gallery, stranger=stranger
    )


def edit_stranger(gallery: str, stranger: str, changes: Mapping[str, Any]) -> Call[answers.Stranger]:
    """Ignore a stranger, or note who it may be.

    An ignored stranger, such as the postman, causes no events."""
    return call(
        "PATCH",
        "/v1/galleries/{gallery}/strangers/{stranger}",
        answers.Stranger,
        gallery=gallery,
        stranger=stranger,
        json=dict(changes),
    )


def forget_stranger(gallery: str, stranger: str) -> Call[None]:
    """Forget a stranger.

    Deletes all sightings of the stranger, with crops, templates and events."""
    return call("DELETE", "/v1/galleries/{gallery}/strangers/{stranger}", NoneType, gallery=gallery, stranger=stranger)


def resembling_sightings(gallery: str, stranger: str) -> Call[answers.ResemblingList]:
    """Look for a stranger in other sightings.

    Lists sightings that could be named together with the stranger: a person chooses."""
    return call(
        "GET",
        "/v1/galleries/{gallery}/strangers/{stranger}/resembling",
        answers.ResemblingList,
        gallery=gallery,
        stranger=stranger,
    )


def name_stranger(
    gallery: str, stranger: str, subject: str, *, also: Sequence[str] | None = None
) -> Call[answers.Named]:
    """Name a stranger.

    Enrolls the stranger's best crops as the subject, which is created if missing; all sightings
    become the subject's."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/strangers/{stranger}/name",
        answers.Named,
        gallery=gallery,
        stranger=stranger,
        json=given(subject=subject, also=also),
    )


def merge_strangers(gallery: str, stranger: str, into: str) -> Call[answers.Stranger]:
    """Merge a stranger into another one.

    The two are one person; later groupings don't separate them."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/strangers/{stranger}/merge",
        answers.Stranger,
        gallery=gallery,
        stranger=stranger,
        json=given(into=into),
    )


def part_stranger(
    gallery: str, stranger: str, sightings: Sequence[str], *, alike: bool | None = None
) -> Call[answers.Stranger]:
    """Split a stranger.

    The given sightings are of another person, who becomes a new stranger; later groupings don't
    join them."""
    return call(
        "POST",
        "/v1/galleries/{gallery}/strangers/{stranger}/part",
        answers.Stranger,
        gallery=gallery,
        stranger=stranger,
        json=given(sightings=sightings, alike=alike),
    )


def webhooks() -> Call[answers.WebhookList]:
    """List webhooks.

    Lists each webhook with the number of the last event sent to it, and its problem if it has one."""
    return call("GET", "/v1/webhooks", answers.WebhookList)


def create_webhook(
    url: str,
    *,
    kinds: Sequence[str] | None = None,
    galleries: Sequence[str] | None = None,
    cameras: Sequence[str] | None = None,
    subjects: Sequence[Mapping[str, Any]] | None = None,
    quiet_s: float | None = None,
) -> Call[answers.WebhookMade]:
    """Make a webhook.

    Events from now on are posted to the address, in order, each at least once. They are signed with
    a secret that only this answer contains. Private addresses need `LIKENESS_WEBHOOK_NETWORKS`.
    `subjects` stay the same people when an id changes or subjects are merged. Deleted people are
    removed from the list; when it is empty, nothing more is sent."""
    return call(
        "POST",
        "/v1/webhooks",
        answers.WebhookMade,
        json=given(url=url, kinds=kinds, galleries=galleries, cameras=cameras, subjects=subjects, quiet_s=quiet_s),
    )


def webhook(webhook: str) -> Call[answers.Webhook]:
    """Show a webhook.

    Answers where it sends which events, and whether that succeeds."""
    return call("GET", "/v1/webhooks/{webhook}", answers.Webhook, webhook=webhook)


def delete_webhook(webhook: str) -> Call[None]:
    """Delete a webhook.

    Nothing more is sent to it."""
    return call("DELETE", "/v1/webhooks/{webhook}", NoneType, webhook=webhook)


def resume_webhook(webhook: str) -> Call[answers.Webhook]:
    """Resume a webhook.

    A webhook that was set aside continues where it stopped, as far as the events are still kept."""
    return call("POST", "/v1/webhooks/{webhook}/resume", answers.Webhook, webhook=webhook)
