"""Eight honest clients beside hostile requests of every kind, in a server of 2 GiB and of 1 GiB: none of them fails.

`LIKENESS_HOSTILE_S=300 python -m pytest tests/server/test_hostile_load.py --full -s` takes a quarter of an hour and
prints the honest ones' p99, quiet and beside the hostile ones, and what each kind of hostile request was answered. Run
nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import base64
import io
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import httpx
import numpy as np
import pytest
from PIL import Image

from app.machine import memory_in_use
from tests.support.connections import begun, opened, unsigned
from tests.support.live import LiveServer, children, family, serving
from tests.support.load import PHOTOS

pytestmark = pytest.mark.long

SECONDS = float(os.environ.get("LIKENESS_HOSTILE_S", "12"))
QUIET_S = 60.0
"""The most for the quiet phase."""
CLIENTS, INTERVAL_S = 8, 2.0
"""Honest clients, and the seconds between the requests of each: four a second of 75 ms of a core each, so
that two quiet cores are idle for six sevenths of the time and nobody waits for another."""
WITHIN = 2.5
"""How much longer the honest ones' p99 may take beside the hostile ones; reported, as it depends on the machine."""
GIB = 1024**3
ERROR_TYPE = "x-amzn-errortype"
"""The header with the name of an error of Rekognition's interface."""


def black(kind: str, side: int, mode: str = "RGBA", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (side, side)).save(file, kind, **options)
    return file.getvalue()


def heic(side: int) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif", reason="the extra heic brings it")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.new("RGB", (side, side))).save(file)
    return file.getvalue()


@dataclass
class Honest:
    """Verifies and identifies from CLIENTS clients at once, in a process that the hostile clients don't share."""

    url: str
    key: str
    ms: list[float] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)

    async def run(self, seconds: float) -> float:
        """Return the p99 in milliseconds, and note what failed."""
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            sent = await asyncio.get_running_loop().run_in_executor(process, Honest(self.url, self.key).send, seconds)
        self.ms, self.failed = sent.ms, self.failed + sent.failed
        return float(np.percentile(self.ms, 99))

    def send(self, seconds: float) -> Honest:
        asyncio.run(self._send(time.monotonic() + seconds))
        return self

    async def _send(self, until: float) -> None:
        async with httpx.AsyncClient(base_url=self.url, headers={"x-api-key": self.key}, timeout=60) as client:
            await asyncio.gather(*(self._send_regularly(client, number, until) for number in range(CLIENTS)))

    async def _send_regularly(self, client: httpx.AsyncClient, number: int, until: float) -> None:
        await asyncio.sleep(number * INTERVAL_S / CLIENTS)
        while time.monotonic() < until:
            start = time.perf_counter()
            if number % 2:
                answer = await client.post("/v1/verify", files={"image1": PHOTOS[0], "image2": PHOTOS[1]})
            else:
                answer = await client.post("/v1/galleries/people/identify", files={"image": PHOTOS[0]})
            self.ms.append((time.perf_counter() - start) * 1000)
            if answer.status_code != 200:
                self.failed[answer.text] += 1
            await asyncio.sleep(max(0.0, INTERVAL_S - (time.perf_counter() - start)))


@dataclass(frozen=True, slots=True)
class ApiKeys:
    """What hostile callers hold: a key of the REST interface, and one that signs."""

    key: str
    camera: Mapping[str, str]

    def signed(self, server: LiveServer) -> tuple[bytes, dict[str, str]]:
        """A signed request that is sent again and again."""
        from tests.support import aws  # noqa: PLC0415 (which needs boto3)

        body = b"{}"
        return body, aws.signed_headers(server.url, self.camera, "ListCollections", body)


Send: TypeAlias = Callable[[], Awaitable[httpx.Response]]
Answers: TypeAlias = Counter[tuple[str, str]]
"""How often each kind of request was answered with what."""


async def _again_and_again(kind: str, send: Send, answers: Answers) -> None:
    while True:
        answer = await send()
        # Rekognition's interface answers with 500 also where it tells the caller to slow down.
        answers[kind, answer.headers.get(ERROR_TYPE, str(answer.status_code))] += 1
        await asyncio.sleep(0.02)  # on two cores the clients themselves would be most of the load


def _kinds(client: httpx.AsyncClient, signed: tuple[bytes, dict[str, str]]) -> dict[str, tuple[int, Send]]:
    """How many clients send each kind of hostile request at once, and what sends one."""
    bomb, middling, damaged = black("WEBP", 7000, lossless=True), black("PNG", 2500), PHOTOS[0][: len(PHOTOS[0]) // 2]
    floats = black("TIFF", 7000, "F", compression="tiff_deflate")
    phones, avif = heic(5000), black("AVIF", 5000, subsampling="4:4:4", speed=10)
    objects = b'{"image":[' + b"{}," * (4 * 1024**2) + b"{}]}"
    long_text = b'{"images":["' + base64.b64encode(bytes(9 * 1024**2)) + b'"]}'
    json_type = {"content-type": "application/json"}
    vectors = {"embeddings": np.eye(128).tolist()}
    faces = "/v1/galleries/people/subjects/x/faces"
    return {
        "photos of 49 megapixels": (6, lambda: client.post("/v1/detect", files={"image": bomb})),
        "photos of 6 megapixels": (4, lambda: client.post("/v1/detect", files={"image": middling})),
        "float TIFFs of 49 megapixels": (2, lambda: client.post("/v1/detect", files={"image": floats})),
        "HEIC photos of 25 megapixels": (2, lambda: client.post("/v1/detect", files={"image": phones})),
        "AVIF photos of 25 megapixels": (2, lambda: client.post("/v1/detect", files={"image": avif})),
        "JSON of four million objects": (2, lambda: client.post("/v1/detect", content=objects, headers=json_type)),
        "JSON of 12 MiB of base64": (2, lambda: client.post(faces, content=long_text, headers=json_type)),
        "enrollments of 14 large photos": (2, lambda: client.post(faces, files=[("images", bomb)] * 14)),
        "damaged photos": (2, lambda: client.post("/v1/detect", files={"image": damaged})),
        "vectors to solve for templates": (
            2,
            lambda: client.post("/api/v1/recognition/embeddings/recognize", json=vectors),
        ),
        "photos to solve for templates": (
            1,
            lambda: client.post("/v1/galleries/people/identify?limit=100&explain=true", files={"image": PHOTOS[2]}),
        ),
        "deletions of everybody": (1, lambda: client.delete("/api/v1/recognition/faces")),
        "deep JSON": (1, lambda: client.post("/v1/galleries/people/subjects", content=b'{"a":' * 90_000)),
        "wrong keys": (1, lambda: client.get("/v1/galleries", headers={"x-api-key": "lk_no_key"})),
        "guessed sign-in codes": (1, lambda: client.post("/v1/sign-in", headers={"x-api-key": "lc_no_code"})),
        "other servers' names": (1, lambda: client.get("/v1/galleries", headers={"host": "elsewhere.example"})),
        "a request signed once": (1, lambda: client.post("/", content=signed[0], headers=signed[1])),
        "large archives": (1, lambda: client.post("/v1/galleries/people/import", content=bytes(4_000_000))),
    }


async def _attack(server: LiveServer, hostile: ApiKeys, begins: threading.Event, over: threading.Event) -> Answers:
    """Send everything until it is over, at the lowest priority: on other machines the clients would take no core of
    the server's, here they take the half of two."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    answers: Answers = Counter()
    async with httpx.AsyncClient(base_url=server.url, headers={"x-api-key": hostile.key}, timeout=120) as client:
        attacks = [
            asyncio.create_task(_again_and_again(kind, send, answers))
            for kind, (count, send) in _kinds(client, hostile.signed(server)).items()
            for _ in range(count)
        ]
        begins.set()
        while not over.is_set():
            await asyncio.sleep(0.1)
        for attack in attacks:
            attack.cancel()
        ended = await asyncio.gather(*attacks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in ended), ended
    return answers


async def _beside_hostile(server: LiveServer, honest: Honest, hostile: ApiKeys, seconds: float) -> float:
    slow = ("POST /v1/detect HTTP/1.1", "content-type: image/jpeg", f"x-api-key: {hostile.key}")
    begins, over = threading.Event(), threading.Event()
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(begun(server, slow))
            stack.enter_context(begun(server, unsigned(hostile.camera["aws_access_key_id"])))
            stack.enter_context(opened(server)).sendall(b"GET /v1/galleries HTTP/1.1\r\nx-slow: ")
        attack = asyncio.create_task(asyncio.to_thread(asyncio.run, _attack(server, hostile, begins, over)))
        try:
            await asyncio.to_thread(begins.wait, 60)
            await asyncio.sleep(1)
            p99 = await honest.run(seconds)
        finally:
            over.set()
            answers = await attack
    for (kind, given), count in sorted(answers.items()):
        print(f"{kind}: {count} answered with {given}")  # noqa: T201 (shown by `pytest -s`)
    assert not {"500", "InternalServerError"} & {given for _, given in answers}
    return p99


@pytest.mark.parametrize("memory", [2 * GIB, GIB], ids=["2GiB", "1GiB"])
def test_honest_clients_are_answered_beside_hostile_ones(tmp_path: Path, memory: int) -> None:
    pytest.importorskip("boto3", reason="the dev extra brings boto3")
    workers = os.environ.get("LIKENESS_HOSTILE_WORKERS", "")  # by default as many as cores
    with serving(tmp_path / "data", {"MEMORY_BYTES": memory, "PHOTO_WORKERS": workers}) as server:
        parents = children(server.process.pid)
        with watched(server.process.pid) as held:
            quiet, beside, honest = _played(server)
        assert server.process.poll() is None
        assert parents == children(server.process.pid)  # nothing but workers may end
    peak = max(held)
    verdict = "within" if beside <= WITHIN * quiet else "NOT within"
    figures = f"p99 {quiet:.0f} ms quiet, {beside:.0f} ms beside hostile ones: {beside / quiet:.1f}x"
    print(f"{figures}, {verdict} {WITHIN}x; {len(honest.ms)} requests; peak {peak / 1e6:.0f} MB")  # noqa: T201
    assert not honest.failed
    assert peak < memory


@contextmanager
def watched(process: int) -> Iterator[list[int]]:
    """Note the memory of a process and all its children, again and again while the block runs."""
    held, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.2):
            held.append(sum(map(memory_in_use, family(process))))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield held
    finally:
        over.set()
        thread.join()


def _played(server: LiveServer) -> tuple[float, float, Honest]:
    """Return the honest ones' p99 in milliseconds, quiet and beside hostile ones."""
    with server.client() as admin:
        made = {}
        for name, scopes in (("honest", ["recognize"]), ("hostile", ["recognize", "enroll"]), ("camera", ["read"])):
            terms = {"id": name, "scopes": scopes, "aws": name == "camera"}
            made[name] = admin.post("/v1/keys", json=terms).raise_for_status().json()
        admin.post("/v1/galleries", json={"id": "people"}).raise_for_status()
        for number, photo in enumerate(PHOTOS):
            files = {"images": photo}
            admin.post(f"/v1/galleries/people/subjects/{number}/faces", files=files).raise_for_status()
    honest = Honest(server.url, made["honest"]["secret"])
    hostile = ApiKeys(made["hostile"]["secret"], made["camera"])

    async def play() -> tuple[float, float]:
        await honest.run(2)
        quiet = await honest.run(min(SECONDS, QUIET_S))
        return quiet, await _beside_hostile(server, honest, hostile, SECONDS)

    return *asyncio.run(play()), honest
