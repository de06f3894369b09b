"""The sync and the async client over the same calls (`app.client.calls`)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

import httpx
from pydantic import BaseModel

from app.api import schemas
from app.client import calls, server_calls
from app.client.call import PIECE, TAR_TYPE, Call
from app.client.errors import Unreachable, api_error
from app.files import replacing

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
Item = TypeVar("Item")

TIMEOUT_S = 60.0
BUSY = 429
JOB_LOOK_S = 0.5
"""Seconds between requests for the state of a job that is waited for."""
MAX_WAIT_S = 10.0
"""Longest wait for a busy server, in seconds, whatever its Retry-After says."""


class _Page(Protocol):
    next_cursor: str | None


Page = TypeVar("Page", bound=_Page)


class _Operation(Generic[Arguments, Answer]):
    """A call as a method of both clients, with the same arguments."""

    def __init__(self, call: Callable[Arguments, Call[Answer]]) -> None:
        self._call = call

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Arguments, Call[Answer]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[Arguments, Answer]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[Arguments, Coroutine[Any, Any, Answer]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[Arguments, Any]:
        if client is None:
            return self._call  # help() and editors show its docstring

        @wraps(self._call)
        def send(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            return client.send(self._call(*args, **kwargs))

        return send


class _Pages(Generic[Arguments, Item]):
    """A call for a page as a method of both clients that yields the items of every page."""

    def __init__(self, call: Callable[Arguments, Call[Page]], items: Callable[[Page], list[Item]]) -> None:
        self._call = call
        self._items: Callable[[Any], list[Item]] = items

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Arguments, Call[Any]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[Arguments, Iterator[Item]]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[Arguments, AsyncIterator[Item]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[Arguments, Any]:
        if client is None:
            return self._call

        @wraps(self._call)
        def walk(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Any:
            first = self._call(*args, **kwargs)
            return client.walk(first, self._items)

        walk.__doc__ = f"Yield the items of every page of ``{self._call.__name__}``."
        return walk


class _Operations:
    """The methods of both clients; `app.client.calls` and `server_calls` describe their arguments."""

    detect = _Operation(calls.detect)
    embed = _Operation(calls.embed)
    verify = _Operation(calls.verify)
    verify_subject = _Operation(calls.verify_subject)
    identify = _Operation(calls.identify)
    enroll = _Operation(calls.enroll)

    create_challenge = _Operation(calls.create_challenge)
    answer_challenge = _Operation(calls.answer_challenge)

    galleries = _Operation(calls.galleries)
    create_gallery = _Operation(calls.create_gallery)
    gallery = _Operation(calls.gallery)
    update_gallery = _Operation(calls.update_gallery)
    delete_gallery = _Operation(calls.delete_gallery)
    check_gallery = _Operation(calls.check_gallery)

    calibrate_gallery = _Operation(calls.calibrate_gallery)
    calibration = _Operation(calls.calibration)
    start_review = _Operation(calls.start_review)
    review = _Operation(calls.review)
    dismiss_finding = _Operation(calls.dismiss_finding)
    reopen_finding = _Operation(calls.reopen_finding)

    reembed = _Operation(calls.reembed)
    reembedding = _Operation(calls.reembedding)
    cancel_reembedding = _Operation(calls.cancel_reembedding)
    roll_back_reembedding = _Operation(calls.roll_back_reembedding)
    finish_reembedding = _Operation(calls.finish_reembedding)

    subjects = _Operation(calls.subjects)
    create_subject = _Operation(calls.create_subject)
    subject = _Operation(calls.subject)
    update_subject = _Operation(calls.update_subject)
    delete_subject = _Operation(calls.delete_subject)
    merge_subject = _Operation(calls.merge_subject)

    faces = _Operation(calls.faces)
    face = _Operation(calls.face)
    face_crop = _Operation(calls.face_crop)
    move_face = _Operation(calls.move_face)
    move_faces = _Operation(calls.move_faces)
    delete_face = _Operation(calls.delete_face)

    corrections = _Operation(calls.corrections)
    add_correction = _Operation(calls.add_correction)
    delete_correction = _Operation(calls.delete_correction)

    keys = _Operation(server_calls.keys)
    create_key = _Operation(server_calls.create_key)
    own_key = _Operation(server_calls.own_key)
    create_sign_in_code = _Operation(server_calls.create_sign_in_code)
    key = _Operation(server_calls.key)
    rotate_key = _Operation(server_calls.rotate_key)
    revoke_key = _Operation(server_calls.revoke_key)
    audit = _Operation(server_calls.audit)

    import_faces = _Operation(calls.import_faces)
    export_gallery = _Operation(calls.export_gallery)

    jobs = _Operation(server_calls.jobs)
    job = _Operation(server_calls.job)
    cancel_job = _Operation(server_calls.cancel_job)
    job_report = _Operation(server_calls.job_report)

    models = _Operation(server_calls.models)

    erase_subject = _Operation(calls.erase_subject)
    receipts = _Operation(server_calls.receipts)
    receipt = _Operation(server_calls.receipt)
    server_key = _Operation(server_calls.server_key)

    version = _Operation(server_calls.version)
    ready = _Operation(server_calls.ready)

    all_subjects = _Pages(calls.subjects, lambda page: page.subjects)
    all_faces = _Pages(calls.faces, lambda page: page.faces)
    all_galleries = _Pages(calls.galleries, lambda page: page.galleries)
    all_findings = _Pages(calls.review, lambda page: page.findings)
    all_jobs = _Pages(server_calls.jobs, lambda page: page.jobs)
    all_keys = _Pages(server_calls.keys, lambda page: page.keys)
    all_audit = _Pages(server_calls.audit, lambda page: page.entries)
    all_receipts = _Pages(server_calls.receipts, lambda page: page.receipts)


def _headers(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}


def _arguments(call: Call[Any]) -> dict[str, Any]:
    if call.content is not None:
        return {"params": call.params, "content": call.content(), "headers": {"content-type": TAR_TYPE}}
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
    """Return the seconds that Retry-After asks for; 1 where it is absent or a date."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_S, float(value)) if value.isdigit() else 1.0


def _answer(call: Call[Answer], response: httpx.Response) -> Answer:
    if not response.is_success:
        raise api_error(response)
    if issubclass(call.answer, BaseModel):
        return cast(Answer, call.answer.model_validate_json(response.content))
    return cast(Answer, response.content if call.answer is bytes else None)


class Client(_Operations):
    """A client of one server. ``retries``: how often a request to a busy server (429) is repeated; ``transport``:
    httpx's, for a server in the same process or one that needs special settings."""

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
        self.url = url
        self._http = httpx.Client(base_url=url, headers=_headers(key), timeout=timeout_s, transport=transport)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def send(self, call: Call[Answer]) -> Answer:
        """Send one call; raises ``ApiError`` or ``Unreachable``."""
        for attempt in range(self._retries + 1):
            try:
                response = self._http.request(call.method, call.path, **_arguments(call))
            except httpx.TransportError as error:
                raise Unreachable(f"{self._http.base_url}: {error}") from error
            if response.status_code != BUSY or attempt == self._retries:
                break
            time.sleep(_wait_s(response))
        return _answer(call, response)

    def walk(self, first: Call[Page], items: Callable[[Page], list[Item]]) -> Iterator[Item]:
        """Yield the items of the first page and of all that follow."""
        call = first
        while True:
            page = self.send(call)
            yield from items(page)
            if page.next_cursor is None:
                return
            call = first.after(page.next_cursor)

    def wait_job(
        self, job_id: str, *, told: Callable[[schemas.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> schemas.Job:
        """Wait until the job has ended and return it; ``told`` is called with each state seen."""
        while True:
            job = self.job(job_id)
            told(job)
            if job.state not in {"queued", "running"}:
                return job
            time.sleep(every_s)

    def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Write the file that the job made to ``path``."""
        call = server_calls.job_result(job_id)
        try:
            with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    response.read()
                    raise api_error(response)
                with replacing(Path(path)) as file:
                    for piece in response.iter_bytes(PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error


class AsyncClient(_Operations):
    """A client of one server. ``retries``: how often a request to a busy server (429) is repeated; ``transport``:
    httpx's, for a server in the same process or one that needs special settings."""

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

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, call: Call[Answer]) -> Answer:
        """Send one call; raises ``ApiError`` or ``Unreachable``."""
        for attempt in range(self._retries + 1):
            try:
                response = await self._http.request(call.method, call.path, **_async_arguments(call))
            except httpx.TransportError as error:
                raise Unreachable(f"{self._http.base_url}: {error}") from error
            if response.status_code != BUSY or attempt == self._retries:
                break
            await asyncio.sleep(_wait_s(response))
        return _answer(call, response)

    async def walk(self, first: Call[Page], items: Callable[[Page], list[Item]]) -> AsyncIterator[Item]:
        """Yield the items of the first page and of all that follow."""
        call = first
        while True:
            page = await self.send(call)
            for item in items(page):
                yield item
            if page.next_cursor is None:
                return
            call = first.after(page.next_cursor)

    async def wait_job(
        self, job_id: str, *, told: Callable[[schemas.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> schemas.Job:
        """Wait until the job has ended and return it; ``told`` is called with each state seen."""
        while True:
            job = await self.job(job_id)
            told(job)
            if job.state not in {"queued", "running"}:
                return job
            await asyncio.sleep(every_s)

    async def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Write the file that the job made to ``path``."""
        call = server_calls.job_result(job_id)
        try:
            async with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    await response.aread()
                    raise api_error(response)
                with replacing(Path(path)) as file:
                    async for piece in response.aiter_bytes(PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error
