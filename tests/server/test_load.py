"""Sixteen clients at once on a real server: enrolling, identifying, verifying and deleting, each its own people."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from likeness_client import AsyncClient

from tests.support.live import LiveServer, serving
from tests.support.load import CLIENTS, GALLERY, Worker
from tests.support.soak import play

pytestmark = pytest.mark.long

SECONDS, FULL_SECONDS = 8.0, 120.0
SOAK_MINUTES, FULL_SOAK_MINUTES = float(os.environ.get("LIKENESS_SOAK_MINUTES", "2")), 10.0
MIB_PER_MINUTE, FULL_MIB_PER_MINUTE = 40.0, 8.0
"""Growth of the server's memory over the second half of the time, at most: pools and the index fill up at first."""


def test_sixteen_clients_leave_index_and_database_in_step(live_server: LiveServer, full: bool) -> None:
    """No error, everything acknowledged is there, nothing deleted is, and the gallery is in order."""
    done: Counter[str] = Counter()
    workers = [Worker(number, random.Random(number), done=done) for number in range(CLIENTS)]

    async def play() -> None:
        async with AsyncClient(live_server.url, live_server.key) as client:
            await client.create_gallery(GALLERY)
            until = time.monotonic() + (FULL_SECONDS if full else SECONDS)
            await asyncio.gather(*(worker.run(client, until) for worker in workers))

            known = {subject: person for worker in workers for subject, person in worker.people.items()}
            found = {subject.id: subject.face_count async for subject in client.all_subjects(GALLERY)}
            assert found == {subject: len(person.faces) for subject, person in known.items()}
            report = await client.check_gallery(GALLERY)
            assert report.ok, report.problems
            assert report.faces == report.indexed == sum(found.values())

    asyncio.run(play())
    print(dict(done))  # noqa: T201 (shown by `pytest -s`)
    assert " 500," not in live_server.log.read_text().replace('"status": 500', " 500,")


def test_memory_does_not_grow_while_people_come_and_go(tmp_path: Path, full: bool) -> None:
    """Each client has at most fifty people at a time. `LIKENESS_SOAK_MINUTES` is how long; ten with `--full`."""
    with serving(tmp_path / "data") as server:
        found = asyncio.run(play(server, FULL_SOAK_MINUTES if full else SOAK_MINUTES))
        log = server.log.read_text()
    print(found)  # noqa: T201 (shown by `pytest -s`)
    assert found["memory_mib_per_minute"] <= (FULL_MIB_PER_MINUTE if full else MIB_PER_MINUTE)
    assert found["gallery_in_order"]
    assert '"level": "error"' not in log
