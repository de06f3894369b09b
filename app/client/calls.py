"""Each REST call as a value: what to send, and what type the answer has. Nothing is sent here."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from app.api import schemas

Answer = TypeVar("Answer")

Tar: TypeAlias = bytes | os.PathLike[str] | Callable[[], Iterator[bytes]]
"""A tar's bytes, where the file lies, or what makes it, piece by piece, each time it is called."""
PIECE = 1024 * 1024
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


def detect(image: Image, *, explain: bool | None) -> Call[schemas.DetectAnswer]:
    files = [part("image", image)]
    return Call("POST", path_of("detect"), schemas.DetectAnswer, given(explain=explain), files)


def embed(image: Image, *, model: str | None, explain: bool | None) -> Call[schemas.EmbedAnswer]:
    files = [part("image", image)]
    return Call("POST", path_of("embed"), schemas.EmbedAnswer, given(model=model, explain=explain), files)


def verify(
    image1: Image, image2: Image, *, fmr: float | None, model: str | None, explain: bool | None
) -> Call[schemas.VerifyAnswer]:
    files = [part("image1", image1), part("image2", image2)]
    return Call("POST", path_of("verify"), schemas.VerifyAnswer, given(fmr=fmr, model=model, explain=explain), files)


def verify_subject(
    gallery: str, subject: str, image: Image, *, fmr: float | None, explain: bool | None
) -> Call[schemas.SubjectVerifyAnswer]:
    path = path_of("galleries", gallery, "subjects", subject, "verify")
    return Call("POST", path, schemas.SubjectVerifyAnswer, given(fmr=fmr, explain=explain), [part("image", image)])


def identify(
    gallery: str,
    image: Image,
    *,
    limit: int | None,
    fmr: float | None,
    fpir: float | None,
    explain: bool | None,
) -> Call[schemas.IdentifyAnswer]:
    params = given(limit=limit, fmr=fmr, fpir=fpir, explain=explain)
    path = path_of("galleries", gallery, "identify")
    return Call("POST", path, schemas.IdentifyAnswer, params, [part("image", image)])


def enroll(
    gallery: str,
    subject: str,
    images: Sequence[Image],
    *,
    quality: str | None,
    expires_at: datetime | None,
    consent: str | None,
    explain: bool | None,
) -> Call[schemas.EnrollAnswer]:
    path = path_of("galleries", gallery, "subjects", subject, "faces")
    files = [part("images", image) for image in images]
    params = given(quality=quality, expires_at=_text(expires_at), consent=consent, explain=explain)
    return Call("POST", path, schemas.EnrollAnswer, params, files)


def galleries(*, limit: int | None, cursor: str | None) -> Call[schemas.GalleryPage]:
    return Call("GET", path_of("galleries"), schemas.GalleryPage, given(limit=limit, cursor=cursor))


def create_gallery(
    gallery: str, *, embedder: str | None, store: str | None, search: str | None
) -> Call[schemas.Gallery]:
    body = given(id=gallery, embedder=embedder, store=store, search=search)
    return Call("POST", path_of("galleries"), schemas.Gallery, json=body)


def gallery(gallery: str) -> Call[schemas.Gallery]:
    return Call("GET", path_of("galleries", gallery), schemas.Gallery)


def update_gallery(gallery: str, changes: Mapping[str, Any]) -> Call[schemas.Gallery]:
    return Call("PATCH", path_of("galleries", gallery), schemas.Gallery, json=dict(changes))


def delete_gallery(gallery: str) -> Call[None]:
    return Call("DELETE", path_of("galleries", gallery), type(None))


def check_gallery(gallery: str) -> Call[schemas.GalleryCheck]:
    return Call("GET", path_of("galleries", gallery, "check"), schemas.GalleryCheck)


def reembed(
    gallery: str, embedder: str, *, without_crop: str | None, keep_days: float | None
) -> Call[schemas.Reembedding]:
    body = given(embedder=embedder, without_crop=without_crop, keep_days=keep_days)
    return Call("POST", path_of("galleries", gallery, "reembed"), schemas.Reembedding, json=body)


def reembedding(gallery: str) -> Call[schemas.Reembedding]:
    return Call("GET", path_of("galleries", gallery, "reembed"), schemas.Reembedding)


def cancel_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    return Call("DELETE", path_of("galleries", gallery, "reembed"), schemas.Reembedding)


def roll_back_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    return Call("POST", path_of("galleries", gallery, "reembed", "rollback"), schemas.Reembedding)


def finish_reembedding(gallery: str) -> Call[schemas.Reembedding]:
    return Call("POST", path_of("galleries", gallery, "reembed", "finish"), schemas.Reembedding)


def subjects(
    gallery: str, *, search: str | None, expires_before: datetime | None, limit: int | None, cursor: str | None
) -> Call[schemas.SubjectPage]:
    params = given(search=search, expires_before=_text(expires_before), limit=limit, cursor=cursor)
    return Call("GET", path_of("galleries", gallery, "subjects"), schemas.SubjectPage, params)


def create_subject(
    gallery: str,
    subject: str,
    *,
    name: str | None,
    metadata: Mapping[str, Any] | None,
    expires_at: datetime | None,
    consent: Mapping[str, Any] | None,
) -> Call[schemas.Subject]:
    body = given(id=subject, name=name, expires_at=_text(expires_at))
    body |= {} if metadata is None else {"metadata": dict(metadata)}
    body |= {} if consent is None else {"consent": dict(consent)}
    return Call("POST", path_of("galleries", gallery, "subjects"), schemas.Subject, json=body)


def subject(gallery: str, subject: str) -> Call[schemas.Subject]:
    return Call("GET", path_of("galleries", gallery, "subjects", subject), schemas.Subject)


def update_subject(gallery: str, subject: str, changes: Mapping[str, Any]) -> Call[schemas.Subject]:
    return Call("PATCH", path_of("galleries", gallery, "subjects", subject), schemas.Subject, json=dict(changes))


def delete_subject(gallery: str, subject: str) -> Call[None]:
    return Call("DELETE", path_of("galleries", gallery, "subjects", subject), type(None))


def faces(gallery: str, subject: str, *, limit: int | None, cursor: str | None) -> Call[schemas.FacePage]:
    path = path_of("galleries", gallery, "subjects", subject, "faces")
    return Call("GET", path, schemas.FacePage, given(limit=limit, cursor=cursor))


def face(gallery: str, subject: str, face_id: str) -> Call[schemas.StoredFace]:
    return Call("GET", path_of("galleries", gallery, "subjects", subject, "faces", face_id), schemas.StoredFace)


def face_crop(gallery: str, subject: str, face_id: str) -> Call[bytes]:
    return Call("GET", path_of("galleries", gallery, "subjects", subject, "faces", face_id, "crop"), bytes)


def move_face(gallery: str, subject: str, face_id: str, to: str) -> Call[schemas.StoredFace]:
    path = path_of("galleries", gallery, "subjects", subject, "faces", face_id, "move")
    return Call("POST", path, schemas.StoredFace, json={"subject": to})


def delete_face(gallery: str, subject: str, face_id: str) -> Call[None]:
    return Call("DELETE", path_of("galleries", gallery, "subjects", subject, "faces", face_id), type(None))


def keys(*, limit: int | None, cursor: str | None) -> Call[schemas.KeyPage]:
    return Call("GET", path_of("keys"), schemas.KeyPage, given(limit=limit, cursor=cursor))


def create_key(
    scopes: Sequence[str],
    *,
    key_id: str | None,
    name: str | None,
    galleries: Sequence[str] | None,
    expires_at: datetime | None,
    rate: str | None,
    aws: bool,
) -> Call[schemas.NewKey]:
    expires = None if expires_at is None else expires_at.isoformat()
    body = given(id=key_id, name=name, expires_at=expires, rate=rate) | {"scopes": list(scopes)}
    if aws:
        body["aws"] = True
    if galleries is not None:
        body["galleries"] = list(galleries)
    return Call("POST", path_of("keys"), schemas.NewKey, json=body)


def own_key() -> Call[schemas.OwnKey]:
    return Call("GET", path_of("key"), schemas.OwnKey)


def key(key_id: str) -> Call[schemas.Key]:
    return Call("GET", path_of("keys", key_id), schemas.Key)


def rotate_key(key_id: str, *, grace_seconds: int) -> Call[schemas.NewKey]:
    return Call("POST", path_of("keys", key_id, "rotate"), schemas.NewKey, json={"grace_seconds": grace_seconds})


def revoke_key(key_id: str) -> Call[None]:
    return Call("DELETE", path_of("keys", key_id), type(None))


def audit(
    *,
    key: str | None,
    operation: str | None,
    gallery: str | None,
    subject: str | None,
    since: datetime | None,
    until: datetime | None,
    order: str | None,
    limit: int | None,
    cursor: str | None,
) -> Call[schemas.AuditPage]:
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
    data: Callable[[], Iterator[bytes]],
    *,
    content: str,
    quality: str | None,
    package: str | None,
    normalize: bool | None,
    trust: str | None,
) -> Call[schemas.Job]:
    params = given(content=content, quality=quality, package=package, normalize=normalize, trust=trust)
    path = path_of("galleries", gallery, "import")
    return Call("POST", path, schemas.Job, params, content=data)


def export_gallery(gallery: str, *, crops: bool | None) -> Call[schemas.Job]:
    return Call("POST", path_of("galleries", gallery, "export"), schemas.Job, given(crops=crops))


def job_result(job_id: str) -> Call[bytes]:
    return Call("GET", path_of("jobs", job_id, "result"), bytes)


def tar_of(source: Tar) -> Callable[[], Iterator[bytes]]:
    """A tar's bytes, its file, or what makes it, as what makes it."""
    if isinstance(source, bytes):
        return lambda: iter([source])
    if callable(source):
        return source

    def pieces() -> Iterator[bytes]:
        with Path(source).open("rb") as file:
            while piece := file.read(PIECE):
                yield piece

    return pieces


@contextmanager
def draft_of(path: os.PathLike[str]) -> Iterator[BinaryIO]:
    """A file for its owner alone, which is at ``path`` when it is whole."""
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def jobs(*, gallery: str | None, state: str | None, limit: int | None, cursor: str | None) -> Call[schemas.JobPage]:
    params = given(gallery=gallery, state=state, limit=limit, cursor=cursor)
    return Call("GET", path_of("jobs"), schemas.JobPage, params)


def job(job_id: str) -> Call[schemas.Job]:
    return Call("GET", path_of("jobs", job_id), schemas.Job)


def cancel_job(job_id: str) -> Call[schemas.Job]:
    return Call("POST", path_of("jobs", job_id, "cancel"), schemas.Job)


def job_report(job_id: str, *, csv: bool) -> Call[bytes]:
    return Call("GET", path_of("jobs", job_id, "report"), bytes, {"format": "csv" if csv else "jsonl"})


def models() -> Call[schemas.ModelList]:
    return Call("GET", path_of("models"), schemas.ModelList)


def erase_subject(gallery: str, subject: str, *, rewrite: bool) -> Call[schemas.Receipt]:
    path = path_of("galleries", gallery, "subjects", subject, "erase")
    return Call("POST", path, schemas.Receipt, given(rewrite=rewrite or None))


def receipts(*, limit: int | None, cursor: str | None) -> Call[schemas.ReceiptPage]:
    return Call("GET", path_of("receipts"), schemas.ReceiptPage, given(limit=limit, cursor=cursor))


def receipt(receipt_id: str) -> Call[schemas.Receipt]:
    return Call("GET", path_of("receipts", receipt_id), schemas.Receipt)


def server_key() -> Call[schemas.ServerKey]:
    return Call("GET", path_of("server-key"), schemas.ServerKey)


def version() -> Call[schemas.Version]:
    return Call("GET", "/version", schemas.Version)


def ready() -> Call[schemas.Health]:
    return Call("GET", "/readyz", schemas.Health)
