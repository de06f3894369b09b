"""A listener gets events as they happen, and those that it missed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from app.db.engine import Database
from app.db.schema import API_KEYS
from app.features.watching import streaming
from app.features.watching.schemas import Event
from app.types import utc_now
from tests.support.live import ANSWER_S, serving
from tests.support.service import AGAIN, COLLINS, error_of, running
from tests.support.sighted import make_home, told
from tests.support.waiting import until


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "data", watching="on") as api:
        make_home(api, eileen=COLLINS)
        yield api


def heard(api: httpx.Client, last: int | None = None, **asked: Any) -> list[dict[str, Any]]:
    """What a listener hears of events that there are already."""
    headers = {} if last is None else {"last-event-id": str(last)}
    answer = api.get("/v1/events", params={"seconds": 0} | asked, headers=headers).raise_for_status()
    assert answer.headers["content-type"].startswith("text/event-stream")
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]


def test_a_listener_resumes_after_the_last_event_that_it_has(home: httpx.Client) -> None:
    for camera in ("door", "garden"):
        told(home, AGAIN, camera=camera)
    everything = heard(home, 0)
    assert [(event["number"], event["camera"]) for event in everything] == [(1, "door"), (2, "garden")]
    assert heard(home, 1) == heard(home, after=1) or heard(home, 1)[0]["id"] == everything[1]["id"]
    assert heard(home) == [], "without a number it begins now"
    for event in everything:
        Event.model_validate(event)


def test_a_key_hears_of_its_own_galleries_alone(home: httpx.Client) -> None:
    home.post("/v1/galleries", json={"id": "other"}).raise_for_status()
    told(home, AGAIN)
    told(home, AGAIN, AGAIN, gallery="other")
    made = home.post("/v1/keys", json={"scopes": ["read"], "galleries": ["other"]}).raise_for_status().json()
    own = home.get("/v1/events?after=0&seconds=0", headers={"x-api-key": made["secret"]}).raise_for_status()
    assert '"other"' in own.text
    assert '"home"' not in own.text
    refused = home.get("/v1/events?gallery=home&seconds=0", headers={"x-api-key": made["secret"]})
    error_of(refused, 404, "gallery_not_found")


def test_a_listener_gets_the_kinds_and_cameras_that_were_asked_for(home: httpx.Client) -> None:
    for camera in ("door", "garden"):
        told(home, AGAIN, camera=camera, ended=camera == "door")

    def asked(**wanted: str) -> list[tuple[str, str]]:
        return [(event["event"], event["camera"]) for event in heard(home, 0, **wanted)]

    assert asked() == [("person_seen", "door"), ("left", "door"), ("person_seen", "garden")]
    assert asked(event="person_seen") == [("person_seen", "door"), ("person_seen", "garden")]
    assert asked(camera="door", event="left") == [("left", "door")]
    assert asked(camera="nowhere") == []
    error_of(home.get("/v1/events?event=seen&seconds=0"), 422, "invalid_request")


def test_a_listener_who_can_hear_nothing_is_refused_at_once(home: httpx.Client) -> None:
    error_of(home.get("/v1/events?gallery=hom&seconds=0"), 404, "gallery_not_found")
    error_of(home.get("/v1/events?camera=a%00b&seconds=0"), 422, "invalid_id")
    error_of(home.get(f"/v1/events?after={10**30}&seconds=0"), 422, "invalid_request")


def test_listeners_are_bounded_and_give_their_places_back(home: httpx.Client) -> None:
    for _ in range(streaming.MOST + 5):
        heard(home, 0)


@pytest.mark.long
def test_an_event_arrives_while_a_listener_waits_and_the_server_can_stop(tmp_path: Path) -> None:
    with serving(tmp_path / "data", {"WATCHING": "on"}) as server, server.client() as api:
        make_home(api, eileen=COLLINS)
        assert api.head("/v1/events").status_code == 200
        assert api.get("/version").status_code == 200, "the head's own connection waits for no event"
        with api.stream("GET", "/v1/events") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            with server.client() as other:
                told(other, AGAIN)
            assert next(line for line in lines if line.startswith("event:")) == "event: person_seen"
            server.process.terminate()
            assert list(lines) is not None
        assert server.process.wait(60) == 0


@pytest.mark.long
@pytest.mark.parametrize("change", ["revoked", "expired"])
def test_a_stream_ends_with_its_key(tmp_path: Path, change: str) -> None:
    """Before the next event is sent, which the key may not hear any more."""
    with serving(tmp_path / "data", {"WATCHING": "on"}) as server, server.client() as api:
        make_home(api, eileen=COLLINS)
        asked = {"id": "ear", "scopes": ["read"], "galleries": ["home"], "expires_at": utc_now(timedelta(days=1))}
        key = api.post("/v1/keys", json=asked).raise_for_status().json()["secret"]
        with server.client(headers={"x-api-key": key}) as ear, ear.stream("GET", "/v1/events") as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            told(api, AGAIN)
            assert next(line for line in lines if line.startswith("event:")) == "event: person_seen"
            if change == "revoked":
                api.delete("/v1/keys/ear").raise_for_status()
            else:
                url = f"sqlite:///{server.data_dir / 'likeness.db'}"
                with closing(Database(url)) as database, database.write() as connection:
                    connection.execute(sa.update(API_KEYS).values(expires_at=utc_now()))
                until(lambda: api.get("/v1/galleries", headers={"x-api-key": key}).status_code == 401)
            told(api, AGAIN, camera="garden")
            assert next((line for line in lines if "garden" in line), None) is None, "and the stream ends"


@pytest.mark.long
def test_a_stream_ends_when_its_browser_signs_out(tmp_path: Path) -> None:
    with serving(tmp_path / "data", {"WATCHING": "on"}) as server, server.client() as api:
        make_home(api, eileen=COLLINS)
        cookie = api.post("/v1/session").raise_for_status().headers["set-cookie"].partition(";")[0]
        signed_in = {"cookie": cookie, "x-likeness-session": "page"}
        with (
            httpx.Client(base_url=server.url, headers=signed_in, timeout=ANSWER_S) as browser,
            browser.stream("GET", "/v1/events") as stream,
        ):
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            told(api, AGAIN)
            assert next(line for line in lines if line.startswith("event:")) == "event: person_seen"
            httpx.delete(f"{server.url}/v1/session", headers=signed_in, timeout=ANSWER_S).raise_for_status()
            told(api, AGAIN, camera="garden")
            assert next((line for line in lines if "garden" in line), None) is None, "and the stream ends"
