"""Sixteen clients at once on a real server: enrolling, identifying, verifying and deleting, each its own people."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import pytest
from likeness_client import AsyncClient

from tests.support.live import LiveServer
from tests.support.load import CLIENTS, GALLERY, Worker

pytestmark = pytest.mark.long

SECONDS, FULL_SECONDS = 8.0, 120.0


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
