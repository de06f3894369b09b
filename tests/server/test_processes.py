"""Several real server processes over one database, on one data folder and on two.

`python -m pytest tests/server/test_processes.py --full -s` measures how long it takes until one answers what another
one has
acknowledged, the time of the answer included.
"""

from __future__ import annotations

import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from app.access.keys import CACHE_S
from app.db.encryption import VAULT_FILE, load_or_make
from app.server import data_folder
from tests.support.live import LiveServer, serving
from tests.support.postgres import new_database
from tests.support.service import COLLINS, HOPPER
from tests.support.waiting import until

pytestmark = pytest.mark.long

FEW, MANY = 2, 50


@pytest.fixture(params=["one data folder and SQLite", "two data folders and PostgreSQL"])
def servers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[LiveServer, LiveServer]]:
    folders = [tmp_path / "one", tmp_path / "one"]
    settings: dict[str, object] = {}
    if "PostgreSQL" in request.param:
        folders[1] = tmp_path / "two"
        for folder in folders:
            folder.mkdir(mode=0o700)
        load_or_make(folders[0] / VAULT_FILE)
        shutil.copy(folders[0] / VAULT_FILE, folders[1])
        settings["DATABASE_URL"] = new_database(request.getfixturevalue("postgresql"))
    with ExitStack() as stack:
        first, second = (stack.enter_context(serving(folder, settings)) for folder in folders)
        yield first, second


def known(client: httpx.Client, photo: bytes) -> list[str]:
    answer = client.post("/galleries/crew/identify", content=photo, headers={"content-type": "image/jpeg"})
    faces = answer.raise_for_status().json()["faces"]
    return [face["candidates"][0]["subject"] for face in faces if face["decision"] == "known"]


def round_trip(first: httpx.Client, second: httpx.Client) -> tuple[float, float]:
    """Seconds from what one has acknowledged until the other answers it: an enrollment, and its deletion."""
    first.post("/galleries/crew/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
    begun = time.monotonic()
    until(lambda: known(second, COLLINS) == ["eileen"])
    enrolled = time.monotonic() - begun
    first.delete("/galleries/crew/subjects/eileen").raise_for_status()
    begun = time.monotonic()
    until(lambda: known(second, COLLINS) == [])
    return enrolled, time.monotonic() - begun


def test_enrolled_on_one_identified_on_the_other_and_deleted_likewise(
    servers: tuple[LiveServer, LiveServer], full: bool
) -> None:
    with servers[0].client("/v1") as first, servers[1].client("/v1") as second:
        first.post("/galleries", json={"id": "crew"}).raise_for_status()
        assert known(second, COLLINS) == []
        first.post("/galleries/crew/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
        second.post("/galleries/crew/subjects/grace/faces", files={"images": HOPPER}).raise_for_status()
        until(lambda: known(second, COLLINS) == ["eileen"])
        until(lambda: known(first, HOPPER) == ["grace"])
        second.delete("/galleries/crew/subjects/eileen").raise_for_status()
        assert known(second, COLLINS) == []
        until(lambda: known(first, COLLINS) == [])
        for client in (first, second):
            report = client.get("/galleries/crew/check").json()
            assert (report["ok"], report["faces"], report["indexed"]) == (True, 1, 1)
        taken = [round_trip(first, second) for _ in range(MANY if full else FEW)]
        for what, seconds in zip(("enrolled", "deleted"), zip(*taken, strict=True), strict=True):
            half, most = statistics.median(seconds), max(seconds)
            print(f"{what} on one, answered by the other: median {half:.2f} s, longest {most:.2f} s of {len(seconds)}")  # noqa: T201 (shown by `pytest -s`)
        first.delete("/galleries/crew").raise_for_status()
        assert second.get("/galleries/crew").status_code == 404
    assert data_folder.running_at(servers[0].data_dir) == servers[0].url


def halted(send: Callable[[int], None], work: Callable[[], bool]) -> bool:
    """Halt the server; let it go on, and return False, if it was writing, since SQLite's other writers then wait."""
    send(signal.SIGSTOP)
    if not (done := work()):
        send(signal.SIGCONT)
    return done


def test_a_server_that_was_halted_names_nobody_who_was_erased_meanwhile_and_takes_no_revoked_key(
    servers: tuple[LiveServer, LiveServer],
) -> None:
    """Also in answers to requests that waited for it, before it has followed the change log."""
    with servers[0].client("/v1") as first, servers[1].client("/v1") as second:
        first.post("/galleries", json={"id": "crew"}).raise_for_status()
        first.post("/galleries/crew/subjects/eileen/faces", files={"images": COLLINS}).raise_for_status()
        until(lambda: known(second, COLLINS) == ["eileen"])
        key = first.post("/keys", json={"id": "door", "scopes": ["read"]}).raise_for_status().json()["secret"]
        with_key = {"x-api-key": key}
        assert second.get("/key", headers=with_key).status_code == 200
        halt = servers[1].process.send_signal
        until(lambda: halted(halt, lambda: first.delete("/keys/door").is_success))
        try:
            receipt = first.post("/galleries/crew/subjects/eileen/erase").raise_for_status().json()
            time.sleep(CACHE_S)
            with ThreadPoolExecutor() as pool:
                named = [pool.submit(known, second, COLLINS) for _ in range(4)]
                taken = pool.submit(second.get, "/key", headers=with_key)
                time.sleep(0.5)  # so that they wait for it
                halt(signal.SIGCONT)
                assert [asked.result() for asked in named] == [[]] * 4
                assert taken.result().status_code == 401
        finally:
            halt(signal.SIGCONT)
    assert receipt["complete"]
    assert any("other servers" in place for place in receipt["not_reached"])
