"""The service is killed again and again while it sends to a webhook whose receiver fails: no event is lost."""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import WEBHOOKS
from app.features.watching.events import read_events
from app.types import utc_now
from tests.support.live import LiveServer, serving
from tests.support.postgres import new_database
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER
from tests.support.sighted import make_home, tell
from tests.support.waiting import until
from training.service import reserved_port

KILLS = 4
BACK_S = 150.0
"""A receiver that is back is tried within a minute."""
WAYS = ("takes", "fails", "hangs", "is gone")


def disturbed(server: LiveServer, receiver: Receiver, way: str, chance: random.Random) -> list[str]:
    """Tell of some visits while the receiver does as the ``way`` says, and kill the server at a random moment; return
    the sightings that the server acknowledged."""
    receiver.status = 500 if way == "fails" else 204
    (receiver.hangs.set if way == "hangs" else receiver.hangs.clear)()
    acknowledged = []
    dies = time.monotonic() + chance.uniform(0.5, 3.0)
    with server.client(timeout=5) as api:
        while time.monotonic() < dies:
            sighting = uuid.UUID(int=chance.getrandbits(128)).hex
            try:
                tell(
                    api, *chance.choice([(AGAIN,), (HOPPER, HOPPER)]), sighting=sighting, ended=True
                ).raise_for_status()
            except httpx.TransportError:
                break
            acknowledged.append(sighting)
            time.sleep(chance.uniform(0, 0.3))
    server.process.kill()
    server.process.wait()
    receiver.released.set()
    receiver.released.clear()
    return acknowledged


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_every_acknowledged_visit_reaches_the_webhook(
    kind: str, tmp_path: Path, receiver: Receiver, request: pytest.FixtureRequest
) -> None:
    """In order, with one id each; then the webhook is set aside, across a kill too, and goes on where it stopped."""
    data, url = tmp_path / "data", f"sqlite:///{tmp_path / 'data' / 'likeness.db'}"
    settings: dict[str, object] = {"WATCHING": "on", "WEBHOOK_NETWORKS": "127.0.0.0/8"}
    if kind == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"))
        settings["DATABASE_URL"] = url
    chance = random.Random(43)
    with reserved_port() as own:
        with serving(data, settings, port=own) as server, server.client() as api:
            make_home(api, eileen=COLLINS)
            made = api.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status().json()
        acknowledged = list[str]()
        for turn in range(KILLS):
            way = WAYS[turn % len(WAYS)]
            waited(url)
            with serving(data, settings, port=own) as server:
                if way == "is gone":
                    acknowledged += disturbed(server, receiver, way, chance)
                else:
                    with receiver.listening():
                        acknowledged += disturbed(server, receiver, way, chance)
        receiver.status = 204
        receiver.hangs.clear()
        waited(url)
        with serving(data, settings, port=own) as server, server.client() as api:
            with receiver.listening():
                wanted = all_events(url)
                until(lambda: wanted.keys() <= {event["id"] for event in receiver.events}, BACK_S, 0.2)
            check(receiver, wanted, acknowledged)
            count = len(receiver.taken)
            tell(api, AGAIN, ended=True).raise_for_status()
            until(lambda: set_aside(api, made["id"], url))
            server.process.kill()
        with receiver.listening(), serving(data, settings, port=own) as server, server.client() as api:
            shown = api.get(f"/v1/webhooks/{made['id']}").raise_for_status().json()
            assert (shown["state"], len(receiver.taken)) == ("set_aside", count)
            assert shown["last_error"]
            api.post(f"/v1/webhooks/{made['id']}/resume").raise_for_status()
            until(lambda: len({event["id"] for event in receiver.events}) == len(wanted) + 2)


def all_events(url: str) -> dict[str, dict[str, Any]]:
    with closing(Database(url)) as database:
        return {event["id"]: event for event in read_events(database, 0, 100_000)}


def waited(url: str) -> None:
    """Let what a webhook waits for be over, as if the minute had passed: the pause after a failure, and the turn of a
    server that was killed."""
    with closing(Database(url)) as database, database.write() as connection:
        connection.execute(sa.update(WEBHOOKS).values(not_before=utc_now()))


def check(receiver: Receiver, wanted: Mapping[str, Mapping[str, Any]], acknowledged: list[str]) -> None:
    assert set(acknowledged) <= {event["sighting"] for event in wanted.values()}
    assert all(headers["webhook-id"] == json.loads(body)["id"] for headers, body in receiver.taken)
    numbers = [event["number"] for event in receiver.events]
    first = [number for place, number in enumerate(numbers) if number not in numbers[:place]]
    assert first == list(range(1, len(wanted) + 1)), "in order, and none left out"


def set_aside(api: httpx.Client, webhook: str, url: str) -> bool:
    """Make the webhook one that has failed for a day; return whether it is set aside by now."""
    with closing(Database(url)) as database, database.write() as connection:
        failing = sa.update(WEBHOOKS).where(WEBHOOKS.c.attempts > 0)
        connection.execute(failing.values(failing_since=utc_now(timedelta(days=-2))))
    return bool(api.get(f"/v1/webhooks/{webhook}").raise_for_status().json()["state"] == "set_aside")
