"""A real server with photo workers, as `likeness serve` starts it.

`python -m pytest tests/workers/test_serving.py --full -s` kills 100 workers under load, and prints the memory of a
server that has just started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.machine import cores, memory_in_use
from tests.features.immich.test_immich import faces_of
from tests.support.live import LiveServer, children, family, serving
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER
from tests.support.sighted import events_of, told
from tests.support.waiting import until

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="photo workers are limited and ended by Linux"),
]
KILLED, FULL_KILLED = 20, 100
MIB = 1024 * 1024
AT_REST = 350 * MIB
"""Maximum memory of a server with two workers after its first start, in which it prepares the models."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """By default as many workers as cores."""
    wanted = {
        "PHOTO_WORKERS": "",
        "DEEPSTACK": "on",
        "IMMICH": "on",
        "IMMICH_NETWORKS": "127.0.0.0/8",
        "WATCHING": "on",
    }
    with serving(tmp_path_factory.mktemp("workers") / "data", wanted) as started:
        yield started


def workers_of(server: LiveServer) -> list[int]:
    (parent,) = children(server.process.pid)
    return children(parent)


def test_there_are_as_many_as_cores(server: LiveServer) -> None:
    assert len(workers_of(server)) == cores()
    assert "photo workers" in server.log.read_text()


def test_a_server_with_two_workers_starts_in_1_gib_and_takes_a_third_of_it(tmp_path: Path) -> None:
    settings = {"PHOTO_WORKERS": 2, "MEMORY_BYTES": 1024 * MIB}
    with serving(tmp_path / "data", settings, models=False) as server, server.client() as client:
        until(lambda: len(workers_of(server)) == 2)
        taken = sum(map(memory_in_use, family(server.process.pid)))
        print(f"{taken / MIB:.0f} MiB at rest")  # noqa: T201 (what -s is for)
        assert taken <= AT_REST
        assert len(client.post("/v1/detect", files={"image": BOTH}).raise_for_status().json()["faces"]) == 2


def test_people_are_enrolled_and_found_while_workers_are_killed(server: LiveServer, full: bool) -> None:
    kills = FULL_KILLED if full else KILLED
    times = kills // KILLED
    with server.client() as client, ThreadPoolExecutor(6) as pool:
        client.post("/v1/galleries", json={"id": "killed"}).raise_for_status()
        client.post("/v1/galleries/killed/subjects/hopper/faces", files={"images": HOPPER}).raise_for_status()

        def enroll(number: int) -> int | str:
            path = f"/v1/galleries/killed/subjects/{number}/faces?on_conflict=allow"
            answer = client.post(path, files=[("images", COLLINS), ("images", AGAIN)])
            return answer.status_code if answer.is_success else answer.text

        def identify(_: int) -> list[str]:
            answer = client.post("/v1/galleries/killed/identify", files={"image": HOPPER}).raise_for_status().json()
            return [face["candidates"][0]["subject"] for face in answer["faces"]]

        scopes = {"scopes": ["read", "recognize"], "galleries": ["killed"]}
        key = client.post("/v1/keys", json=scopes).raise_for_status().json()["secret"]

        def by_deepstack(_: int) -> list[str]:
            with httpx.Client(base_url=server.url, timeout=120) as camera:
                answer = camera.post("/v1/vision/face/recognize", files={"image": HOPPER}, data={"api_key": key})
            return [face["userid"] for face in answer.raise_for_status().json()["predictions"]]

        def by_immich(_: int) -> int:
            with httpx.Client(base_url=server.url, timeout=120) as immich:
                return len(faces_of(immich, BOTH))

        def by_track(number: int) -> tuple[str, str | None, int]:
            sighting = f"{number:032x}"
            seen = told(client, HOPPER, HOPPER, gallery="killed", sighting=sighting, ended=True)
            return seen["id"], seen["subject"], seen["frames"]

        tracks = [pool.submit(by_track, number) for number in range(10)]
        cameras = [pool.submit(by_deepstack, number) for number in range(10)]
        albums = [pool.submit(by_immich, number) for number in range(10)]
        enrolled = [pool.submit(enroll, number) for number in range(30 * times)]
        found = [pool.submit(identify, number) for number in range(60 * times)]
        for number in range(kills):
            until(lambda: workers_of(server))
            with suppress(ProcessLookupError, IndexError):  # it has just been replaced
                os.kill(workers_of(server)[number % cores()], signal.SIGKILL)
            everything: list[Future[Any]] = [*tracks, *cameras, *albums, *enrolled, *found]
            wait([future for future in everything if future.running()])  # so that no photo ends two workers
        assert [future.result() for future in tracks] == [(f"{number:032x}", "hopper", 2) for number in range(10)]
        events = [(event["sighting"], event["event"]) for event in events_of(server.data_dir)]
        assert sorted(events) == [(f"{number:032x}", kind) for number in range(10) for kind in ("left", "person_seen")]
        assert {name for future in cameras for name in future.result()} == {"hopper"}
        assert {future.result() for future in albums} == {2}
        assert {future.result() for future in enrolled} == {201}
        assert [name for future in found for name in future.result()] == ["hopper"] * len(found)
        assert client.get("/v1/galleries/killed").json()["faces"] == 1 + 2 * len(enrolled)
    until(lambda: len(workers_of(server)) >= cores())


def test_a_request_in_work_is_answered_before_the_server_ends_and_no_process_is_left(tmp_path: Path) -> None:
    with serving(tmp_path / "data", {"PHOTO_WORKERS": 1}) as server:
        (worker,) = workers_of(server)
        everyone = [*children(server.process.pid), worker]
        os.kill(worker, signal.SIGSTOP)
        with server.client() as client, ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.post, "/v1/detect", files={"image": BOTH})
            until(lambda: "likeness_requests_admitted 1.0" in client.get("/metrics").text)
            server.process.send_signal(signal.SIGTERM)
            for process in everyone:  # as a supervisor that ends a whole group
                os.kill(process, signal.SIGTERM)
            os.kill(worker, signal.SIGCONT)
            assert len(asked.result().json()["faces"]) == 2
        server.process.wait(60)
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in everyone))
