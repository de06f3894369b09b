"""The sync and the async client over the same calls (`likeness_client.calls`)."""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Self, TypeVar, cast

import httpx
from pydantic import BaseModel, ValidationError

from likeness_client import answers
from likeness_client.call import PIECE, TAR_TYPE, Call, call
from likeness_client.errors import Unreachable, UnreadableAnswer, api_error
from likeness_client.operations import Operations
from likeness_client.sending import Page

Answer = TypeVar("Answer")
Item = TypeVar("Item")

TIMEOUT_S = 60.0
BUSY = 429
JOB_LOOK_S = 0.5
"""Seconds between requests for the state of a job that is waited for."""
MAX_WAIT_S = 10.0
"""Longest wait for a busy server, in seconds, whatever its Retry-After says."""
RUNNING = frozenset({"queued", "running"})
"""States of a job that has not ended."""


def _trusted(url: str) -> ssl.SSLContext | bool:
    """Return httpx's ``verify``. Loading its certificates takes 30 ms, longer than most calls; HTTP needs none."""
    if not url.lower().startswith(("http://", "https://")):
        raise Unreachable(f"{url[:100]!r} is no server's address: it has to begin with http:// or https://.")
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if url.startswith("http:") else True


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
    """Return the seconds that Retry-After asks for; 1 if it is absent or a date."""
    value = response.headers.get("retry-after", "")
    return min(MAX_WAIT_S, float(value)) if value.isdigit() else 1.0


def _answer(call: Call[Answer], response: httpx.Response) -> Answer:
    if not response.is_success:
        raise api_error(response)
    if issubclass(call.answer, BaseModel):
        try:
            return cast(Answer, call.answer.model_validate_json(response.content))
        except ValidationError as error:
            message = f"HTTP {response.status_code}, but the answer can't be read: this client may be too old for it."
            raise UnreadableAnswer(message, details={"path": call.path, "problems": error.error_count()}) from error
    return cast(Answer, response.content if call.answer is bytes else None)


def _job_result(job_id: str) -> Call[bytes]:
    return call("GET", "/v1/jobs/{job}/result", bytes, job=job_id)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that only its owner may read. It replaces ``path`` once it is complete."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


class Client(Operations):
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
        self._http = httpx.Client(
            base_url=url, headers=_headers(key), timeout=timeout_s, transport=transport, verify=_trusted(url)
        )

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
        self, job_id: str, *, told: Callable[[answers.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> answers.Job:
        """Wait until the job has ended and return it. Calls ``told`` with each state of the job that it sees."""
        while True:
            job = self.job(job_id)
            told(job)
            if job.state not in RUNNING:
                return job
            time.sleep(every_s)

    def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Write the file that the job made to ``path``."""
        call = _job_result(job_id)
        try:
            with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    response.read()
                    raise api_error(response)
                with _replacing(Path(path)) as file:
                    for piece in response.iter_bytes(PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error


class AsyncClient(Operations):
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
        self._http = httpx.AsyncClient(
            base_url=url, headers=_headers(key), timeout=timeout_s, transport=transport, verify=_trusted(url)
        )

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
        self, job_id: str, *, told: Callable[[answers.Job], None] = lambda _: None, every_s: float = JOB_LOOK_S
    ) -> answers.Job:
        """Wait until the job has ended and return it. Calls ``told`` with each state of the job that it sees."""
        while True:
            job = await self.job(job_id)
            told(job)
            if job.state not in RUNNING:
                return job
            await asyncio.sleep(every_s)

    async def job_result(self, job_id: str, path: os.PathLike[str]) -> None:
        """Write the file that the job made to ``path``."""
        call = _job_result(job_id)
        try:
            async with self._http.stream(call.method, call.path) as response:
                if not response.is_success:
                    await response.aread()
                    raise api_error(response)
                with _replacing(Path(path)) as file:
                    async for piece in response.aiter_bytes(PIECE):
                        file.write(piece)
        except httpx.TransportError as error:
            raise Unreachable(f"{self._http.base_url}: {error}") from error
