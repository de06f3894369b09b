"""Each REST call as a value: what to send, and what type the answer has. Nothing is sent here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from app.api import schemas
from app.client.files import Tar, tar_of

Answer = TypeVar("Answer")

TAR_TYPE = "application/x-tar"
Image: TypeAlias = bytes | os.PathLike[str]
"""An image file's bytes, or where the file lies."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request; ``answer`` is the pydantic model its JSON is read as, ``bytes`` the body as it is, None nothing."""

    method: str
    path: str
    answer: type[Answer]
    params: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[tuple[str, tuple[str, bytes]]] = ()
    json: Mapping[str, Any] | None = None
    content: Callable[[], Iterator[bytes]] | None = None
    """A body that is sent as it is made."""

    def after(self, cursor: str) -> Call[Answer]:
        """The same call for the page from there on."""
        return replace(self, params={**self.params, "cursor": cursor})


def path_of(*segments: str) -> str:
    """``("galleries", "a/b")`` -> ``/v1/galleries/a%2Fb``: ids may hold any character."""
    return "/v1/" + "/".join(quote(segment, safe="") for segment in segments)


def read(image: Image) -> bytes:
    return image if isinstance(image, bytes) else Path(image).read_bytes()


def part(name: str, image: Image) -> tuple[str, tuple[str, bytes]]:
    """A multipart field. The file's own name stays at home: it may say more than its owner wants to tell."""
    return (name, ("image", read(image)))


def given(**params: Any) -> dict[str, Any]:
    """Those parameters that were given, booleans as JSON writes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in params.items()
        if value is not None
    }


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def detect(image: Image, *, explain: bool | None = None) -> Call[schemas.DetectAnswer]:
    """Finds the faces of a photo."""
    files = [part("image", image)]
    return Call("POST", path_of("detect"), schemas.DetectAnswer, given(explain=explain), files)


def embed(image: Image, *, model: str | None = None, explain: bool | None = None) -> Call[schemas.EmbedAnswer]:
    """Finds the faces of a photo and computes their templates, with the default package or ``model``."""
    files = [part("image", image)]
    return Call("POST", path_of("embed"), schemas.EmbedAnswer, given(model=model, explain=explain), files)


def verify(
    image1: Image, image2: Image, *, fmr: float | None = None, model: str | None = None, explain: bool | None = None
) -> Call[schemas.VerifyAnswer]:
    """Says whether two photos show the same person (1:1), by the default package or ``model``."""
    files = [part("image1", image1), part("image2", image2)]
    return Call("POST", path_of("verify"), schemas.VerifyAnswer, given(fmr=fmr, model=model, explain=explain), files)


def verify_subject(
    gallery: str, subject: str, image: Image, *, fmr: float | None = None, explain: bool | None = None
) -> Call[schemas.SubjectVerifyAnswer]:
    """Says whether a photo shows that subject (1:1)."""
    path = path_of("galleries", gallery, "subjects", subject, "verify")
    return Call("POST", path, schemas.SubjectVerifyAnswer, given(fmr=fmr, explain=explain), [part("image", image)])


def identify(
    gallery: str,
    image: Image,
    *,
    limit: int | None = None,
    fmr: float | None = None,
    fpir: float | None = None,
    explain: bool | None = None,
) -> Call[schemas.IdentifyAnswer]:
    """Says who of the gallery is in a photo (1:N), face by face."""
    params = given(limit=limit, fmr=fmr, fpir=fpir, explain=explain)
    path = path_of("galleries", gallery, "identify")
    return Call("POST", path, schemas.IdentifyAnswer, params, [part("image", image)])


def enroll(
    gallery: str,
    subject: str,
    images: Sequence[Image],
    *,
    quality: str | None = None,
    expires_at: datetime | None = None,
    consent: str | None = None,
    explain: bool | None = None,
) -> Call[schemas.EnrollAnswer]:
    """Adds photos of one person; makes the subject where it is new. Bad photos are in ``rejected``. ``expires_at``
    knows its time zone; ``consent`` is a note."""
    path = path_of("galleries", gallery, "subjects", subject, "faces")
    files = [part("images", image) for image in images]
    params = given(quality=quality, expires_at=_text(expires_at), consent=consent, explain=explain)
    return Call("POST", path, schemas.EnrollAnswer, params, files)


def galleries(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.GalleryPage]:
    """One page of the galleries."""
    return Call("GET", path_of("galleries"), schemas.GalleryPage, given(limit=limit, cursor=cursor))


def create_gallery(
    gallery: str, *, embedder: str | None = None, store: str | None = None, search: str | None = None
) -> Call[schemas.Gallery]:
    """Makes a gallery."""
    body = given(id=gallery, embedder=embedder, store=store, search=search)
    return Call("POST", path_of("galleries"), schemas.Gallery, json=body)


def gallery(gallery: str) -> Call[schemas.Gallery]:
    """One gallery, with its counts."""
    return Call("GET", path_of("galleries", gallery), schemas.Gallery)


def update_gallery(gallery: str, changes: Mapping[str, Any]) -> Call[schemas.Gallery]:
    """Replaces ``search`` where it is given: how the gallery's vectors are searched."""
    return Call("PATCH", path_of("galleries", gallery), schemas.Gallery, json=dict(changes))


def delete_gallery(gallery: str) -> Call[None]:
    """Deletes a gallery with everyone in it."""
    return Call("DELETE", path_of("galleries", gallery), type(None))


def check_gallery(gallery: str) -> Call[schemas.GalleryCheck]:
    """Whether database and index agree."""
    return Call("GET", path_of("galleries", gallery, "check"), schemas.GalleryCheck)


def reembed(
    gallery: str, embedder: str, *, without_crop: str | None = None, keep_days: float | None = None
) -> Call[schemas.Reembedding]:
    """Moves a gallery to another model package, as a job; ``without_crop`` is ``refuse`` or ``drop``."""
    body = given(embedder=embedder, without_crop=without_crop, keep_days=keep_days)
    return Call("POST", path_of("galleries", gallery, "reembed"), schemas.Reembedding, json=body)


def reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """How far a gallery's move is."""
    return Call("GET", path_of("galleries", gallery, "reembed"), schemas.Reembedding)


def cancel_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Gives a gallery's move up, before the switch or after a rollback."""
    return Call("DELETE", path_of("galleries", gallery, "reembed"), schemas.Reembedding)


def roll_back_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Has the gallery's package before answer again."""
    return Call("POST", path_of("galleries", gallery, "reembed", "rollback"), schemas.Reembedding)


def finish_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    """Removes the templates of the gallery's package before."""
    return Call("POST", path_of("galleries", gallery, "reembed", "finish"), schemas.Reembedding)


def subjects(
    gallery: str,
    *,
    search: str | None = None,
    expires_before: datetime | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[schemas.SubjectPage]:
    """One page of a gallery's subjects. ``expires_before`` knows its time zone."""
    params = given(search=search, expires_before=_text(expires_before), limit=limit, cursor=cursor)
    return Call("GET", path_of("galleries", gallery, "subjects"), schemas.SubjectPage, params)


def create_subject(
    gallery: str,
    subject: str,
    *,
    name: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    expires_at: datetime | None = None,
    consent: Mapping[str, Any] | None = None,
) -> Call[schemas.Subject]:
    """Makes a subject without faces. ``expires_at`` knows its time zone; ``consent`` has ``note`` and, if it was
    not given now, ``given_at``."""
    body = given(id=subject, name=name, expires_at=_text(expires_at))
    body |= {} if metadata is None else {"metadata": dict(metadata)}
    body |= {} if consent is None else {"consent": dict(consent)}
    return Call("POST", path_of("galleries", gallery, "subjects"), schemas.Subject, json=body)


def subject(gallery: str, subject: str) -> Call[schemas.Subject]:
    """One subject."""
    return Call("GET", path_of("galleries", gallery, "subjects", subject), schemas.Subject)


def update_subject(gallery: str, subject: str, changes: Mapping[str, Any]) -> Call[schemas.Subject]:
    """Replaces ``name`` and ``metadata``, those that are given."""
    return Call("PATCH", path_of("galleries", gallery, "subjects", subject), schemas.Subject, json=dict(changes))


def delete_subject(gallery: str, subject: str) -> Call[None]:
    """Deletes a subject with all of its faces."""
    return Call("DELETE", path_of("galleries", gallery, "subjects", subject), type(None))


def faces(gallery: str, subject: str, *, limit: int | None = None, cursor: str | None = None) -> Call[schemas.FacePage]:
    """One page of a subject's faces."""
    path = path_of("galleries", gallery, "subjects", subject, "faces")
    return Call("GET", path, schemas.FacePage, given(limit=limit, cursor=cursor))


def face(gallery: str, subject: str, face_id: str) -> Call[schemas.StoredFace]:
    """One enrolled face."""
    return Call("GET", path_of("galleries", gallery, "subjects", subject, "faces", face_id), schemas.StoredFace)


def face_crop(gallery: str, subject: str, face_id: str) -> Call[bytes]:
    """The aligned crop of an enrolled face, a JPEG file."""
    return Call("GET", path_of("galleries", gallery, "subjects", subject, "faces", face_id, "crop"), bytes)


def move_face(gallery: str, subject: str, face_id: str, to: str) -> Call[schemas.StoredFace]:
    """Gives an enrolled face to another subject of the gallery, ``to``."""
    path = path_of("galleries", gallery, "subjects", subject, "faces", face_id, "move")
    return Call("POST", path, schemas.StoredFace, json={"subject": to})


def delete_face(gallery: str, subject: str, face_id: str) -> Call[None]:
    """Deletes one enrolled face."""
    return Call("DELETE", path_of("galleries", gallery, "subjects", subject, "faces", face_id), type(None))


def keys(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.KeyPage]:
    """One page of the API keys, without their secrets."""
    return Call("GET", path_of("keys"), schemas.KeyPage, given(limit=limit, cursor=cursor))


def create_key(
    scopes: Sequence[str],
    *,
    key_id: str | None = None,
    name: str | None = None,
    galleries: Sequence[str] | None = None,
    expires_at: datetime | None = None,
    rate: str | None = None,
    aws: bool = False,
) -> Call[schemas.NewKey]:
    """Makes an API key; its ``secret`` is in this answer alone. ``expires_at`` knows its time zone; ``aws``: for
    AWS's clients too."""
    expires = None if expires_at is None else expires_at.isoformat()
    body = given(id=key_id, name=name, expires_at=expires, rate=rate) | {"scopes": list(scopes)}
    if aws:
        body["aws"] = True
    if galleries is not None:
        body["galleries"] = list(galleries)
    return Call("POST", path_of("keys"), schemas.NewKey, json=body)


def own_key() -> Call[schemas.OwnKey]:
    """What the key in use may do."""
    return Call("GET", path_of("key"), schemas.OwnKey)


def key(key_id: str) -> Call[schemas.Key]:
    """One API key, without its secret."""
    return Call("GET", path_of("keys", key_id), schemas.Key)


def rotate_key(key_id: str, *, grace_seconds: int = 0) -> Call[schemas.NewKey]:
    """Gives an API key a new secret; the last one works for ``grace_seconds`` more."""
    return Call("POST", path_of("keys", key_id, "rotate"), schemas.NewKey, json={"grace_seconds": grace_seconds})


def revoke_key(key_id: str) -> Call[None]:
    """Ends an API key for good."""
    return Call("DELETE", path_of("keys", key_id), type(None))


def audit(
    *,
    key: str | None = None,
    operation: str | None = None,
    gallery: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    order: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[schemas.AuditPage]:
    """One page of the audit log. Times know their time zone; ``order`` is ``newest`` or ``oldest`` first."""
    params = given(
        key=key,
        operation=operation,
        gallery=gallery,
        subject=subject,
        since=None if since is None else since.isoformat(),
        until=None if until is None else until.isoformat(),
        order=order,
        limit=limit,
        cursor=cursor,
    )
    return Call("GET", path_of("audit"), schemas.AuditPage, params)


def import_faces(
    gallery: str,
    tar: Tar,
    *,
    content: str = "photos",
    quality: str | None = None,
    package: str | None = None,
    normalize: bool | None = None,
    trust: str | None = None,
) -> Call[schemas.Job]:
    """Sends a tar of ``photos``, ``templates`` or an exported ``archive``; the job that enrolls them."""
    params = given(content=content, quality=quality, package=package, normalize=normalize, trust=trust)
    path = path_of("galleries", gallery, "import")
    return Call("POST", path, schemas.Job, params, content=tar_of(tar))


def export_gallery(gallery: str, *, crops: bool | None = None) -> Call[schemas.Job]:
    """The job that writes a gallery into one archive."""
    return Call("POST", path_of("galleries", gallery, "export"), schemas.Job, given(crops=crops))


def job_result(job_id: str) -> Call[bytes]:
    """What the job has left: of an export, the archive."""
    return Call("GET", path_of("jobs", job_id, "result"), bytes)


def jobs(
    *, gallery: str | None = None, state: str | None = None, limit: int | None = None, cursor: str | None = None
) -> Call[schemas.JobPage]:
    """One page of the jobs, the newest first."""
    params = given(gallery=gallery, state=state, limit=limit, cursor=cursor)
    return Call("GET", path_of("jobs"), schemas.JobPage, params)


def job(job_id: str) -> Call[schemas.Job]:
    """One job: how far it is, how it ended."""
    return Call("GET", path_of("jobs", job_id), schemas.Job)


def cancel_job(job_id: str) -> Call[schemas.Job]:
    """Ends a job; what it has done stays done."""
    return Call("POST", path_of("jobs", job_id, "cancel"), schemas.Job)


def job_report(job_id: str, *, csv: bool = False) -> Call[bytes]:
    """What the job refused: lines of JSON, or CSV."""
    return Call("GET", path_of("jobs", job_id, "report"), bytes, {"format": "csv" if csv else "jsonl"})


def models() -> Call[schemas.ModelList]:
    """The model packages this server has."""
    return Call("GET", path_of("models"), schemas.ModelList)


def erase_subject(gallery: str, subject: str, *, rewrite: bool = False) -> Call[schemas.Receipt]:
    """Erases a subject for good; the signed receipt of it."""
    path = path_of("galleries", gallery, "subjects", subject, "erase")
    return Call("POST", path, schemas.Receipt, given(rewrite=rewrite or None))


def receipts(*, limit: int | None = None, cursor: str | None = None) -> Call[schemas.ReceiptPage]:
    """One page of the receipts of erasures."""
    return Call("GET", path_of("receipts"), schemas.ReceiptPage, given(limit=limit, cursor=cursor))


def receipt(receipt_id: str) -> Call[schemas.Receipt]:
    """One receipt."""
    return Call("GET", path_of("receipts", receipt_id), schemas.Receipt)


def server_key() -> Call[schemas.ServerKey]:
    """The public half of the key that the server signs with."""
    return Call("GET", path_of("server-key"), schemas.ServerKey)


def version() -> Call[schemas.Version]:
    """The server's version."""
    return Call("GET", "/version", schemas.Version)


def ready() -> Call[schemas.Health]:
    """Whether the server takes work; raises ``ApiError`` (503) while it does not."""
    return Call("GET", "/readyz", schemas.Health)
