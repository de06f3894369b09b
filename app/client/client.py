"""The sync and the async client over the same calls; how a call is sent stands in ``send`` of each, once."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, cast

import httpx
from pydantic import BaseModel

from app.api import schemas
from app.client import calls
from app.client.calls import Call, Image, Tar
from app.client.errors import Unreachable, api_error

Answer = TypeVar("Answer")
Item = TypeVar("Item")

TIMEOUT_S = 60.0
BUSY = 429
JOB_LOOK_S = 0.5
"""Between looks at a job that is waited for."""
MAX_WAIT_S = 10.0
"""The longest a busy server's Retry-After is waited for at a time."""


class _Page(Protocol):
    next_cursor: str | None


Page = TypeVar("Page", bound=_Page)


def _all(page_from: Callable[[str | None], Page], items: Callable[[Page], list[Item]]) -> Iterator[Item]:
    """The items of every page, the next one asked for when the last one is used up."""
    cursor = None
    while True:
        page = page_from(cursor)
        yield from items(page)
        if (cursor := page.next_cursor) is None:
            return


async def _all_async(
    page_from: Callable[[str | None], Awaitable[Page]], items: Callable[[Page], list[Item]]
) -> AsyncIterator[Item]:
    cursor = None
    while True:
        page = await page_from(cursor)
        for item in items(page):
            yield item
        if (cursor := page.next_cursor) is None:
            return


def _headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _arguments(call: Call[Any]) -> dict[str, Any]:
    if call.content is not None:
        return {"params": call.params, "content": call.content(), "headers": {"content-type": calls.TAR_TYPE}}
    return {"params": call.params, "files": list(call.files) or None, "json": call.json}


def _async_arguments(call: Call[Any]) -> dict[str, Any]:
    arguments = _arguments(call)
    if "content" in arguments:
        arguments["content"] = _in_threads(arguments["content"])
    return arguments


async def _in_threads(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


def _wait_s(response: httpx.Response) -> float:
    """What Retry-After asks for, in seconds; 1 where it is absent or a date."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_S, float(value)) if value.isdigit() else 1.0


def _answer(call: Call[Answer], response: httpx.Response) -> Answer:
    if not response.is_success:
        raise api_error(response)
    if issubclass(call.answer, BaseModel):
        return cast(Answer, call.answer.model_validate_json(response.content))
    return cast(Answer, response.content if call.answer is bytes else None)


class Client:
    """Speaks to one server. ``retries``: how often a busy server (429) is asked again; ``transport``: httpx's own,
    for a server in the same process or behind something special."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = 5,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.Client(base_url=url, headers=_headers(key), timeout=timeout_s, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[Answer]) -> Answer:
        """Sends one call; raises ``ApiError`` or ``Unreachable``."""
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(call.method, call.path, **_arguments(call))
            except httpx.TransportError as error:
                raise Unreachable(f"{self._http.base_url}: {error}") from error
            if response.status_code != BUSY or attempt == self._retries:
                break
            time.sleep(_wait_s(response))
        return _answer(call, response)

    def all_subjects(self, gallery: str, *, search: str | None = None) -> Iterator[schemas.Subject]:
        """Every subject of a gallery, page after page."""
        return _all(lambda cursor: self.subjects(gallery, search=search, cursor=cursor), lambda page: page.subjects)

    def all_galleries(self) -> Iterator[schemas.Gallery]:
        """Every gallery, page after page."""
        return _all(lambda cursor: self.galleries(cursor=cursor), lambda page: page.galleries)

    def all_receipts(self) -> Iterator[schemas.Receipt]:
        """Every receipt of an erasure, page after page."""
        return _all(lambda cursor: self.receipts(cursor=cursor), lambda page: page.receipts)

    def all_keys(self) -> Iterator[schemas.Key]:
        """Every API key, page after page."""
        return _all(lambda cursor: self.keys(cursor=cursor), lambda page: page.keys)

    def all_audit(self, **wanted: Any) -> Iterator[schemas.AuditEntry]:
        """Every entry of the audit log that ``audit`` finds with the same arguments, page after page."""
        return _all(lambda cursor: self.audit(cursor=cursor, **wanted), lambda page: page.entries)

    def detect(self, image: Image, *, explain: bool | None = None) -> schemas.DetectAnswer:
        """Finds the faces of a photo."""
        return self.send(calls.detect(image, explain=explain))

    def embed(self, image: Image, *, model: str | None = None, explain: bool | None = None) -> schemas.EmbedAnswer:
        """Finds the faces of a photo and computes their templates, with the default package or ``model``."""
        return self.send(calls.embed(image, model=model, explain=explain))

    def verify(
        self,
        image1: Image,
        image2: Image,
        *,
        fmr: float | None = None,
        model: str | None = None,
        explain: bool | None = None,
    ) -> schemas.VerifyAnswer:
        """Says whether two photos show the same person (1:1), by the default package or ``model``."""
        return self.send(calls.verify(image1, image2, fmr=fmr, model=model, explain=explain))

    def verify_subject(
        self, gallery: str, subject: str, image: Image, *, fmr: float | None = None, explain: bool | None = None
    ) -> schemas.SubjectVerifyAnswer:
        """Says whether a photo shows that subject (1:1)."""
        return self.send(calls.verify_subject(gallery, subject, image, fmr=fmr, explain=explain))

    def identify(
        self,
        gallery: str,
        image: Image,
        *,
        limit: int | None = None,
        fmr: float | None = None,
        fpir: float | None = None,
        explain: bool | None = None,
    ) -> schemas.IdentifyAnswer:
        """Says who of the gallery is in a photo (1:N), face by face."""
        return self.send(calls.identify(gallery, image, limit=limit, fmr=fmr, fpir=fpir, explain=explain))

    def enroll(
        self,
        gallery: str,
        subject: str,
        images: Sequence[Image],
        *,
        quality: str | None = None,
        expires_at: datetime | None = None,
        consent: str | None = None,
        explain: bool | None = None,
    ) -> schemas.EnrollAnswer:
        """Adds photos of one person; makes the subject where it is new. Bad photos are in ``rejected``. ``expires_at``
        knows its time zone; ``consent`` is a note."""
        call = calls.enroll(
            gallery, subject, images, quality=quality, expires_at=expires_at, consent=consent, explain=explain
        )
        return self.send(call)

    def galleries(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.GalleryPage:
        """One page of the galleries."""
        return self.send(calls.galleries(limit=limit, cursor=cursor))

    def create_gallery(
        self, gallery: str, *, embedder: str | None = None, store: str | None = None, search: str | None = None
    ) -> schemas.Gallery:
        """Makes a gallery."""
        return self.send(calls.create_gallery(gallery, embedder=embedder, store=store, search=search))

    def gallery(self, gallery: str) -> schemas.Gallery:
        """One gallery, with its counts."""
        return self.send(calls.gallery(gallery))

    def update_gallery(self, gallery: str, changes: Mapping[str, Any]) -> schemas.Gallery:
        """Replaces ``search`` where it is given: how the gallery's vectors are searched."""
        return self.send(calls.update_gallery(gallery, changes))

    def delete_gallery(self, gallery: str) -> None:
        """Deletes a gallery with everyone in it."""
        self.send(calls.delete_gallery(gallery))

    def check_gallery(self, gallery: str) -> schemas.GalleryCheck:
        """Whether database and index agree."""
        return self.send(calls.check_gallery(gallery))

    def reembed(
        self, gallery: str, embedder: str, *, without_crop: str | None = None, keep_days: float | None = None
    ) -> schemas.Reembedding:
        """Moves a gallery to another model package, as a job; ``without_crop`` is ``refuse`` or ``drop``."""
        return self.send(calls.reembed(gallery, embedder, without_crop=without_crop, keep_days=keep_days))

    def reembedding(self, gallery: str) -> schemas.Reembedding:
        """How far a gallery's move is."""
        return self.send(calls.reembedding(gallery))

    def cancel_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Gives a gallery's move up, before the switch or after a rollback."""
        return self.send(calls.cancel_reembedding(gallery))

    def roll_back_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Has the gallery's package before answer again."""
        return self.send(calls.roll_back_reembedding(gallery))

    def finish_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Removes the templates of the gallery's package before."""
        return self.send(calls.finish_reembedding(gallery))

    def subjects(
        self,
        gallery: str,
        *,
        search: str | None = None,
        expires_before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> schemas.SubjectPage:
        """One page of a gallery's subjects. ``expires_before`` knows its time zone."""
        return self.send(
            calls.subjects(gallery, search=search, expires_before=expires_before, limit=limit, cursor=cursor)
        )

    def create_subject(
        self,
        gallery: str,
        subject: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
        consent: Mapping[str, Any] | None = None,
    ) -> schemas.Subject:
        """Makes a subject without faces. ``expires_at`` knows its time zone; ``consent`` has ``note`` and, if it was
        not given now, ``given_at``."""
        call = calls.create_subject(
            gallery, subject, name=name, metadata=metadata, expires_at=expires_at, consent=consent
        )
        return self.send(call)

    def subject(self, gallery: str, subject: str) -> schemas.Subject:
        """One subject."""
        return self.send(calls.subject(gallery, subject))

    def update_subject(self, gallery: str, subject: str, changes: Mapping[str, Any]) -> schemas.Subject:
        """Replaces ``name`` and ``metadata``, those that are given."""
        return self.send(calls.update_subject(gallery, subject, changes))

    def delete_subject(self, gallery: str, subject: str) -> None:
        """Deletes a subject with all of its faces."""
        self.send(calls.delete_subject(gallery, subject))

    def faces(
        self, gallery: str, subject: str, *, limit: int | None = None, cursor: str | None = None
    ) -> schemas.FacePage:
        """One page of a subject's faces."""
        return self.send(calls.faces(gallery, subject, limit=limit, cursor=cursor))

    def face(self, gallery: str, subject: str, face_id: str) -> schemas.StoredFace:
        """One enrolled face."""
        return self.send(calls.face(gallery, subject, face_id))

    def move_face(self, gallery: str, subject: str, face_id: str, to: str) -> schemas.StoredFace:
        """Gives an enrolled face to another subject of the gallery, ``to``."""
        return self.send(calls.move_face(gallery, subject, face_id, to))

    def face_crop(self, gallery: str, subject: str, face_id: str) -> bytes:
        """The aligned crop of an enrolled face, a JPEG file."""
        return self.send(calls.face_crop(gallery, subject, face_id))

    def delete_face(self, gallery: str, subject: str, face_id: str) -> None:
        """Deletes one enrolled face."""
        self.send(calls.delete_face(gallery, subject, face_id))

    def keys(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.KeyPage:
        """One page of the API keys, without their secrets."""
        return self.send(calls.keys(limit=limit, cursor=cursor))

    def create_key(
        self,
        scopes: Sequence[str],
        *,
        key_id: str | None = None,
        name: str | None = None,
        galleries: Sequence[str] | None = None,
        expires_at: datetime | None = None,
        rate: str | None = None,
        aws: bool = False,
    ) -> schemas.NewKey:
        """Makes an API key; its ``secret`` is in this answer alone. ``expires_at`` knows its time zone; ``aws``: for
        AWS's clients too."""
        return self.send(
            calls.create_key(
                scopes, key_id=key_id, name=name, galleries=galleries, expires_at=expires_at, rate=rate, aws=aws
            )
        )

    def own_key(self) -> schemas.OwnKey:
        """What the key in use may do."""
        return self.send(calls.own_key())

    def key(self, key_id: str) -> schemas.Key:
        """One API key, without its secret."""
        return self.send(calls.key(key_id))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> schemas.NewKey:
        """Gives an API key a new secret; the last one works for ``grace_seconds`` more."""
        return self.send(calls.rotate_key(key_id, grace_seconds=grace_seconds))

    def revoke_key(self, key_id: str) -> None:
        """Ends an API key for good."""
        self.send(calls.revoke_key(key_id))

    def audit(
        self,
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
    ) -> schemas.AuditPage:
        """One page of the audit log. Times know their time zone; ``order`` is ``newest`` or ``oldest`` first."""
        return self.send(
            calls.audit(
                key=key,
                operation=operation,
                gallery=gallery,
                subject=subject,
                since=since,
                until=until,
                order=order,
                limit=limit,
                cursor=cursor,
            )
        )

    def import_faces(
        self,
        gallery: str,
        tar: Tar,
        *,
        content: str = "photos",
        quality: str | None = None,
        package: str | None = None,
        normalize: bool | None = None,
        trust: str | None = None,
    ) -> schemas.Job:
        """Sends a tar of ``photos``, ``templates`` or an exported ``archive``; the job that enrolls them."""
        data = calls.tar_of(tar)
        return self.send(
            calls.import_faces(
                gallery, data, content=content, quality=quality, package=package, normalize=normalize, trust=trust
            )
        )

    def export_gallery(self, gallery: str, *, crops: bool | None = None) -> schemas.Job:
        """The job that writes a gallery into one archive."""
        return self.send(calls.export_gallery(gallery, crops=crops))

    def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Writes what the job has left to a file."""
        call = calls.job_result(job_id)
        try:
            with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    response.read()
                    raise api_error(response)
                with calls.draft_of(path) as file:
                    for piece in response.iter_bytes(calls.PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error

    def jobs(
        self,
        *,
        gallery: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> schemas.JobPage:
        """One page of the jobs, the newest first."""
        return self.send(calls.jobs(gallery=gallery, state=state, limit=limit, cursor=cursor))

    def all_jobs(self, *, gallery: str | None = None, state: str | None = None) -> Iterator[schemas.Job]:
        """Every job, the newest first, page after page."""
        return _all(lambda cursor: self.jobs(gallery=gallery, state=state, cursor=cursor), lambda page: page.jobs)

    def job(self, job_id: str) -> schemas.Job:
        """One job: how far it is, how it ended."""
        return self.send(calls.job(job_id))

    def wait_job(
        self, job_id: str, *, told: Callable[[schemas.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> schemas.Job:
        """The job once it has ended; ``told`` hears of it each time it is looked at."""
        while True:
            job = self.job(job_id)
            told(job)
            if job.state not in {"queued", "running"}:
                return job
            time.sleep(every_s)

    def cancel_job(self, job_id: str) -> schemas.Job:
        """Ends a job; what it has done stays done."""
        return self.send(calls.cancel_job(job_id))

    def job_report(self, job_id: str, *, csv: bool = False) -> bytes:
        """What the job refused: lines of JSON, or CSV."""
        return self.send(calls.job_report(job_id, csv=csv))

    def models(self) -> schemas.ModelList:
        """The model packages this server has."""
        return self.send(calls.models())

    def erase_subject(self, gallery: str, subject: str, *, rewrite: bool = False) -> schemas.Receipt:
        """Erases a subject for good; the signed receipt of it."""
        return self.send(calls.erase_subject(gallery, subject, rewrite=rewrite))

    def receipts(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.ReceiptPage:
        """One page of the receipts of erasures."""
        return self.send(calls.receipts(limit=limit, cursor=cursor))

    def receipt(self, receipt_id: str) -> schemas.Receipt:
        """One receipt."""
        return self.send(calls.receipt(receipt_id))

    def server_key(self) -> schemas.ServerKey:
        """The public half of the key that the server signs with."""
        return self.send(calls.server_key())

    def version(self) -> schemas.Version:
        """The server's version."""
        return self.send(calls.version())

    def ready(self) -> schemas.Health:
        """Whether the server takes work; raises ``ApiError`` (503) while it does not."""
        return self.send(calls.ready())


class AsyncClient:
    """Speaks to one server. ``retries``: how often a busy server (429) is asked again; ``transport``: httpx's own,
    for a server in the same process or behind something special."""

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: int = 5,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.AsyncClient(base_url=url, headers=_headers(key), timeout=timeout_s, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[Answer]) -> Answer:
        """Sends one call; raises ``ApiError`` or ``Unreachable``."""
        for attempt in range(self._retries + 1):
            try:
                response = await self._http.request(call.method, call.path, **_async_arguments(call))
            except httpx.TransportError as error:
                raise Unreachable(f"{self._http.base_url}: {error}") from error
            if response.status_code != BUSY or attempt == self._retries:
                break
            await asyncio.sleep(_wait_s(response))
        return _answer(call, response)

    def all_subjects(self, gallery: str, *, search: str | None = None) -> AsyncIterator[schemas.Subject]:
        """Every subject of a gallery, page after page."""
        return _all_async(
            lambda cursor: self.subjects(gallery, search=search, cursor=cursor), lambda page: page.subjects
        )

    def all_galleries(self) -> AsyncIterator[schemas.Gallery]:
        """Every gallery, page after page."""
        return _all_async(lambda cursor: self.galleries(cursor=cursor), lambda page: page.galleries)

    def all_receipts(self) -> AsyncIterator[schemas.Receipt]:
        """Every receipt of an erasure, page after page."""
        return _all_async(lambda cursor: self.receipts(cursor=cursor), lambda page: page.receipts)

    def all_keys(self) -> AsyncIterator[schemas.Key]:
        """Every API key, page after page."""
        return _all_async(lambda cursor: self.keys(cursor=cursor), lambda page: page.keys)

    def all_audit(self, **wanted: Any) -> AsyncIterator[schemas.AuditEntry]:
        """Every entry of the audit log that ``audit`` finds with the same arguments, page after page."""
        return _all_async(lambda cursor: self.audit(cursor=cursor, **wanted), lambda page: page.entries)

    async def detect(self, image: Image, *, explain: bool | None = None) -> schemas.DetectAnswer:
        """Finds the faces of a photo."""
        return await self.send(calls.detect(image, explain=explain))

    async def embed(
        self, image: Image, *, model: str | None = None, explain: bool | None = None
    ) -> schemas.EmbedAnswer:
        """Finds the faces of a photo and computes their templates, with the default package or ``model``."""
        return await self.send(calls.embed(image, model=model, explain=explain))

    async def verify(
        self,
        image1: Image,
        image2: Image,
        *,
        fmr: float | None = None,
        model: str | None = None,
        explain: bool | None = None,
    ) -> schemas.VerifyAnswer:
        """Says whether two photos show the same person (1:1), by the default package or ``model``."""
        return await self.send(calls.verify(image1, image2, fmr=fmr, model=model, explain=explain))

    async def verify_subject(
        self, gallery: str, subject: str, image: Image, *, fmr: float | None = None, explain: bool | None = None
    ) -> schemas.SubjectVerifyAnswer:
        """Says whether a photo shows that subject (1:1)."""
        return await self.send(calls.verify_subject(gallery, subject, image, fmr=fmr, explain=explain))

    async def identify(
        self,
        gallery: str,
        image: Image,
        *,
        limit: int | None = None,
        fmr: float | None = None,
        fpir: float | None = None,
        explain: bool | None = None,
    ) -> schemas.IdentifyAnswer:
        """Says who of the gallery is in a photo (1:N), face by face."""
        return await self.send(calls.identify(gallery, image, limit=limit, fmr=fmr, fpir=fpir, explain=explain))

    async def enroll(
        self,
        gallery: str,
        subject: str,
        images: Sequence[Image],
        *,
        quality: str | None = None,
        expires_at: datetime | None = None,
        consent: str | None = None,
        explain: bool | None = None,
    ) -> schemas.EnrollAnswer:
        """Adds photos of one person; makes the subject where it is new. Bad photos are in ``rejected``. ``expires_at``
        knows its time zone; ``consent`` is a note."""
        call = calls.enroll(
            gallery, subject, images, quality=quality, expires_at=expires_at, consent=consent, explain=explain
        )
        return await self.send(call)

    async def galleries(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.GalleryPage:
        """One page of the galleries."""
        return await self.send(calls.galleries(limit=limit, cursor=cursor))

    async def create_gallery(
        self, gallery: str, *, embedder: str | None = None, store: str | None = None, search: str | None = None
    ) -> schemas.Gallery:
        """Makes a gallery."""
        return await self.send(calls.create_gallery(gallery, embedder=embedder, store=store, search=search))

    async def gallery(self, gallery: str) -> schemas.Gallery:
        """One gallery, with its counts."""
        return await self.send(calls.gallery(gallery))

    async def update_gallery(self, gallery: str, changes: Mapping[str, Any]) -> schemas.Gallery:
        """Replaces ``search`` where it is given: how the gallery's vectors are searched."""
        return await self.send(calls.update_gallery(gallery, changes))

    async def delete_gallery(self, gallery: str) -> None:
        """Deletes a gallery with everyone in it."""
        await self.send(calls.delete_gallery(gallery))

    async def check_gallery(self, gallery: str) -> schemas.GalleryCheck:
        """Whether database and index agree."""
        return await self.send(calls.check_gallery(gallery))

    async def reembed(
        self, gallery: str, embedder: str, *, without_crop: str | None = None, keep_days: float | None = None
    ) -> schemas.Reembedding:
        """Moves a gallery to another model package, as a job; ``without_crop`` is ``refuse`` or ``drop``."""
        return await self.send(calls.reembed(gallery, embedder, without_crop=without_crop, keep_days=keep_days))

    async def reembedding(self, gallery: str) -> schemas.Reembedding:
        """How far a gallery's move is."""
        return await self.send(calls.reembedding(gallery))

    async def cancel_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Gives a gallery's move up, before the switch or after a rollback."""
        return await self.send(calls.cancel_reembedding(gallery))

    async def roll_back_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Has the gallery's package before answer again."""
        return await self.send(calls.roll_back_reembedding(gallery))

    async def finish_reembedding(self, gallery: str) -> schemas.Reembedding:
        """Removes the templates of the gallery's package before."""
        return await self.send(calls.finish_reembedding(gallery))

    async def subjects(
        self,
        gallery: str,
        *,
        search: str | None = None,
        expires_before: datetime | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> schemas.SubjectPage:
        """One page of a gallery's subjects. ``expires_before`` knows its time zone."""
        return await self.send(
            calls.subjects(gallery, search=search, expires_before=expires_before, limit=limit, cursor=cursor)
        )

    async def create_subject(
        self,
        gallery: str,
        subject: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        expires_at: datetime | None = None,
        consent: Mapping[str, Any] | None = None,
    ) -> schemas.Subject:
        """Makes a subject without faces. ``expires_at`` knows its time zone; ``consent`` has ``note`` and, if it was
        not given now, ``given_at``."""
        call = calls.create_subject(
            gallery, subject, name=name, metadata=metadata, expires_at=expires_at, consent=consent
        )
        return await self.send(call)

    async def subject(self, gallery: str, subject: str) -> schemas.Subject:
        """One subject."""
        return await self.send(calls.subject(gallery, subject))

    async def update_subject(self, gallery: str, subject: str, changes: Mapping[str, Any]) -> schemas.Subject:
        """Replaces ``name`` and ``metadata``, those that are given."""
        return await self.send(calls.update_subject(gallery, subject, changes))

    async def delete_subject(self, gallery: str, subject: str) -> None:
        """Deletes a subject with all of its faces."""
        await self.send(calls.delete_subject(gallery, subject))

    async def faces(
        self, gallery: str, subject: str, *, limit: int | None = None, cursor: str | None = None
    ) -> schemas.FacePage:
        """One page of a subject's faces."""
        return await self.send(calls.faces(gallery, subject, limit=limit, cursor=cursor))

    async def face(self, gallery: str, subject: str, face_id: str) -> schemas.StoredFace:
        """One enrolled face."""
        return await self.send(calls.face(gallery, subject, face_id))

    async def move_face(self, gallery: str, subject: str, face_id: str, to: str) -> schemas.StoredFace:
        """Gives an enrolled face to another subject of the gallery, ``to``."""
        return await self.send(calls.move_face(gallery, subject, face_id, to))

    async def face_crop(self, gallery: str, subject: str, face_id: str) -> bytes:
        """The aligned crop of an enrolled face, a JPEG file."""
        return await self.send(calls.face_crop(gallery, subject, face_id))

    async def delete_face(self, gallery: str, subject: str, face_id: str) -> None:
        """Deletes one enrolled face."""
        await self.send(calls.delete_face(gallery, subject, face_id))

    async def keys(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.KeyPage:
        """One page of the API keys, without their secrets."""
        return await self.send(calls.keys(limit=limit, cursor=cursor))

    async def create_key(
        self,
        scopes: Sequence[str],
        *,
        key_id: str | None = None,
        name: str | None = None,
        galleries: Sequence[str] | None = None,
        expires_at: datetime | None = None,
        rate: str | None = None,
        aws: bool = False,
    ) -> schemas.NewKey:
        """Makes an API key; its ``secret`` is in this answer alone. ``expires_at`` knows its time zone; ``aws``: for
        AWS's clients too."""
        return await self.send(
            calls.create_key(
                scopes, key_id=key_id, name=name, galleries=galleries, expires_at=expires_at, rate=rate, aws=aws
            )
        )

    async def own_key(self) -> schemas.OwnKey:
        """What the key in use may do."""
        return await self.send(calls.own_key())

    async def key(self, key_id: str) -> schemas.Key:
        """One API key, without its secret."""
        return await self.send(calls.key(key_id))

    async def rotate_key(self, key_id: str, *, grace_seconds: int = 0) -> schemas.NewKey:
        """Gives an API key a new secret; the last one works for ``grace_seconds`` more."""
        return await self.send(calls.rotate_key(key_id, grace_seconds=grace_seconds))

    async def revoke_key(self, key_id: str) -> None:
        """Ends an API key for good."""
        await self.send(calls.revoke_key(key_id))

    async def audit(
        self,
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
    ) -> schemas.AuditPage:
        """One page of the audit log. Times know their time zone; ``order`` is ``newest`` or ``oldest`` first."""
        return await self.send(
            calls.audit(
                key=key,
                operation=operation,
                gallery=gallery,
                subject=subject,
                since=since,
                until=until,
                order=order,
                limit=limit,
                cursor=cursor,
            )
        )

    async def import_faces(
        self,
        gallery: str,
        tar: Tar,
        *,
        content: str = "photos",
        quality: str | None = None,
        package: str | None = None,
        normalize: bool | None = None,
        trust: str | None = None,
    ) -> schemas.Job:
        """Sends a tar of ``photos``, ``templates`` or an exported ``archive``; the job that enrolls them."""
        data = calls.tar_of(tar)
        return await self.send(
            calls.import_faces(
                gallery, data, content=content, quality=quality, package=package, normalize=normalize, trust=trust
            )
        )

    async def export_gallery(self, gallery: str, *, crops: bool | None = None) -> schemas.Job:
        """The job that writes a gallery into one archive."""
        return await self.send(calls.export_gallery(gallery, crops=crops))

    async def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Writes what the job has left to a file."""
        call = calls.job_result(job_id)
        try:
            async with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    await response.aread()
                    raise api_error(response)
                with calls.draft_of(path) as file:
                    async for piece in response.aiter_bytes(calls.PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error

    async def jobs(
        self,
        *,
        gallery: str | None = None,
        state: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> schemas.JobPage:
        """One page of the jobs, the newest first."""
        return await self.send(calls.jobs(gallery=gallery, state=state, limit=limit, cursor=cursor))

    def all_jobs(self, *, gallery: str | None = None, state: str | None = None) -> AsyncIterator[schemas.Job]:
        """Every job, the newest first, page after page."""
        return _all_async(lambda cursor: self.jobs(gallery=gallery, state=state, cursor=cursor), lambda page: page.jobs)

    async def job(self, job_id: str) -> schemas.Job:
        """One job: how far it is, how it ended."""
        return await self.send(calls.job(job_id))

    async def wait_job(
        self, job_id: str, *, told: Callable[[schemas.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> schemas.Job:
        """The job once it has ended; ``told`` hears of it each time it is looked at."""
        while True:
            job = await self.job(job_id)
            told(job)
            if job.state not in {"queued", "running"}:
                return job
            await asyncio.sleep(every_s)

    async def cancel_job(self, job_id: str) -> schemas.Job:
        """Ends a job; what it has done stays done."""
        return await self.send(calls.cancel_job(job_id))

    async def job_report(self, job_id: str, *, csv: bool = False) -> bytes:
        """What the job refused: lines of JSON, or CSV."""
        return await self.send(calls.job_report(job_id, csv=csv))

    async def models(self) -> schemas.ModelList:
        """The model packages this server has."""
        return await self.send(calls.models())

    async def erase_subject(self, gallery: str, subject: str, *, rewrite: bool = False) -> schemas.Receipt:
        """Erases a subject for good; the signed receipt of it."""
        return await self.send(calls.erase_subject(gallery, subject, rewrite=rewrite))

    async def receipts(self, *, limit: int | None = None, cursor: str | None = None) -> schemas.ReceiptPage:
        """One page of the receipts of erasures."""
        return await self.send(calls.receipts(limit=limit, cursor=cursor))

    async def receipt(self, receipt_id: str) -> schemas.Receipt:
        """One receipt."""
        return await self.send(calls.receipt(receipt_id))

    async def server_key(self) -> schemas.ServerKey:
        """The public half of the key that the server signs with."""
        return await self.send(calls.server_key())

    async def version(self) -> schemas.Version:
        """The server's version."""
        return await self.send(calls.version())

    async def ready(self) -> schemas.Health:
        """Whether the server takes work; raises ``ApiError`` (503) while it does not."""
        return await self.send(calls.ready())
