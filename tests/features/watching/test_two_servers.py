"""Two servers on one PostgreSQL watch as one: events in one order, each delivered once, erasure for both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import EVENTS, SIGHTINGS
from tests.support.postgres import new_database
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled, running, two_running
from tests.support.sighted import HOME, make_home, told
from tests.support.waiting import until


@pytest.fixture
def servers(tmp_path: Path, postgresql: Path) -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """Two services with the gallery `home`, in which Eileen Collins is enrolled."""
    settings: dict[str, Any] = {"watching": "on", "stranger_days": 3, "webhook_networks": ("127.0.0.0/8",)}
    with two_running(tmp_path, postgresql, **settings) as (one, two):
        make_home(one, eileen=COLLINS)
        until(lambda: nearest(two, COLLINS) == "eileen")  # the other's index follows within moments
        yield one, two


def heard(api: httpx.Client) -> list[dict[str, Any]]:
    answer = api.get("/v1/events", params={"after": 0, "seconds": 0}).raise_for_status()
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def without_age(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "age_s"} for event in events]


@pytest.mark.long
def test_events_of_both_are_heard_at_both_and_delivered_once(
    servers: tuple[httpx.Client, httpx.Client], port: int
) -> None:
    one, two = servers
    receiver = Receiver(port)
    one.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status()
    with receiver.listening():
        seen = [told(api, AGAIN, camera=f"camera {turn}") for turn in range(4) for api in servers]
        told(two, AGAIN, sighting=seen[0]["id"], camera="camera 0", ended=True)  # begun at the other
        until(lambda: len(receiver.taken) >= 9)
    assert [event["number"] for event in heard(one)] == list(range(1, 10))
    assert without_age(heard(one)) == without_age(heard(two))
    assert [event["number"] for event in receiver.events] == list(range(1, 10))
    assert {row["subject"] for row in seen} == {"eileen"}


@pytest.mark.long
def test_a_stranger_is_one_whoever_heard_of_the_visit(servers: tuple[httpx.Client, httpx.Client]) -> None:
    one, two = servers
    first, second = told(one, HOPPER, HOPPER), told(two, HOPPER, HOPPER, camera="garden")
    assert first["stranger"] == second["stranger"]
    name = {"subject": "grace", "also": []}
    two.post(f"{HOME}/strangers/{first['stranger']}/name", json=name).raise_for_status()
    until(lambda: told(one, HOPPER)["subject"] == "grace")


def nearest(api: httpx.Client, photo: bytes) -> str | None:
    """The subject that the photo's face is most like."""
    (face,) = api.post(f"{HOME}/identify", files={"image": photo}).raise_for_status().json()["faces"]
    return next((candidate["subject"] for candidate in face["candidates"]), None)


@pytest.mark.long
def test_a_changed_id_is_the_persons_at_both(servers: tuple[httpx.Client, httpx.Client]) -> None:
    """In sightings and events from before too, without another event."""
    one, two = servers
    until(lambda: nearest(two, AGAIN) == "eileen")  # it follows a moment later
    seen = told(one, AGAIN)
    two.patch(f"{HOME}/subjects/eileen", json={"id": "e.collins"}).raise_for_status()
    for api in servers:
        assert api.get(f"{HOME}/subjects/eileen").status_code == 404
        assert told(api, AGAIN, sighting=seen["id"])["subject"] == "e.collins"
        assert nearest(api, AGAIN) == "e.collins"
        for subject, count in (("e.collins", 1), ("eileen", 0)):
            listed = api.get(f"{HOME}/sightings", params={"subject": subject}).json()["sightings"]
            assert len(listed) == count
    assert told(two, AGAIN, camera="garden")["subject"] == "e.collins"
    assert [(event["event"], event["subject"]) for event in heard(one)] == [("person_seen", "e.collins")] * 2
    enrolled(one, HOME, "eileen", HOPPER)
    until(lambda: nearest(two, HOPPER) == "eileen")
    assert told(two, HOPPER, camera="hall")["subject"] == "eileen"
    receipt = two.post(f"{HOME}/subjects/e.collins/erase").raise_for_status().json()
    assert receipt["erased"]["sightings"] == 2
    assert [row["subject"] for row in one.get(f"{HOME}/sightings").json()["sightings"]] == ["eileen"]


@pytest.mark.long
def test_expiry_at_one_is_expiry_at_the_other(tmp_path: Path, postgresql: Path) -> None:
    """Of crops and templates of the unknown first, and then of all."""
    second = 1 / 86_400
    settings: dict[str, Any] = {
        "database_url": new_database(postgresql),
        "watching": "on",
        "expiry_seconds": 0.2,
        "sightings_days": 8 * second,
        "unknown_days": 3 * second,
    }
    with running(tmp_path / "one", **settings) as one:
        (tmp_path / "two").mkdir(0o700)
        for file in (tmp_path / "one").glob("*.key"):
            shutil.copy(file, tmp_path / "two")
        with running(tmp_path / "two", **settings) as two:
            make_home(one)
            seen = told(one, HOPPER, HOPPER)
            path = f"{HOME}/sightings/{seen['id']}"
            until(lambda: two.get(f"{path}/crop").status_code == 404)
            until(lambda: [api.get(path).status_code for api in (one, two)] == [404, 404])
            assert heard(one) == heard(two) == []
            with closing(Database(settings["database_url"])) as database:
                rows = [database.rows(sa.select(sa.func.count()).select_from(table)) for table in (SIGHTINGS, EVENTS)]
    assert [row[0][0] for row in rows] == [0, 0]


@pytest.mark.long
def test_erasure_at_one_leaves_nothing_at_the_other(servers: tuple[httpx.Client, httpx.Client]) -> None:
    one, two = servers
    seen = told(one, AGAIN, ended=True)
    two.get(f"{HOME}/sightings/{seen['id']}/crop").raise_for_status()
    receipt = two.post(f"{HOME}/subjects/eileen/erase").raise_for_status().json()
    assert receipt["erased"]["sightings"] == 1
    for api in servers:
        assert api.get(f"{HOME}/sightings").json()["sightings"] == []
        assert heard(api) == []
    until(lambda: told(one, AGAIN, AGAIN)["decision"] == "unknown")
