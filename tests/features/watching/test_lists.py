"""sightings, strangers, webhooks and events at the command line, beside a server that watches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.commands import Done, run
from tests.support.live import LiveServer, serving
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER
from tests.support.sighted import HOME, make_home, told
from tests.support.waiting import until

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = {"WATCHING": "on", "STRANGER_DAYS": 3, "WEBHOOK_NETWORKS": "127.0.0.0/8"}
    with serving(tmp_path_factory.mktemp("lists") / "data", settings) as server, server.client() as api:
        make_home(api, eileen=COLLINS)
        yield server


@pytest.fixture
def api(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client
        client.delete(f"{HOME}/sightings").raise_for_status()


def likeness(server: LiveServer, *words: object, code: int = 0) -> Done:
    done = run(server.data_dir, *words)
    assert done.returncode == code, done.stderr
    return done


def lines(server: LiveServer, *words: object) -> list[dict[str, Any]]:
    return likeness(server, *words, "--json").rows


def test_sightings_are_listed_named_denied_and_deleted(server: LiveServer, api: httpx.Client) -> None:
    known, unknown = told(api, AGAIN), told(api, HOPPER, camera="garden")
    assert [row["id"] for row in lines(server, "sightings", "list", "home")] == [unknown["id"], known["id"]]
    [listed] = lines(server, "sightings", "list", "home", "--decision", "known", "--since", "2026-01-31T12:00:00Z")
    assert (listed["subject"], listed["camera"]) == ("eileen", "door")
    assert f"{unknown['id']}  garden" in likeness(server, "sightings", "list", "home").stdout
    assert "decision: known" in likeness(server, "sightings", "show", "home", known["id"]).stdout
    [denied] = lines(server, "sightings", "deny", "home", known["id"])
    assert denied["decision"] == "unknown"
    [correction] = lines(server, "corrections", "list", "home", "eileen")
    likeness(server, "corrections", "delete", "home", "eileen", correction["id"])  # the next test knows her
    [named] = lines(server, "sightings", "name", "home", unknown["id"], "grace", "--enroll")
    assert named["subject"] == "grace"
    assert [row["id"] for row in lines(server, "people", "list", "home")] == ["eileen", "grace"]
    assert likeness(server, "sightings", "delete", "home", known["id"]).stdout == f"{known['id']}: deleted\n"
    likeness(server, "sightings", "show", "home", known["id"], code=5)
    assert "--since" in likeness(server, "sightings", "list", "home", "--since", "now", code=2).stderr
    api.delete(f"{HOME}/subjects/grace").raise_for_status()


def test_strangers_are_ignored_named_and_forgotten(server: LiveServer, api: httpx.Client) -> None:
    stranger = told(api, HOPPER, HOPPER)["stranger"]
    [edited] = lines(server, "strangers", "edit", "home", stranger, "--ignored", "--note", "the postman")
    assert (edited["ignored"], edited["note"]) == (True, "the postman")
    assert lines(server, "strangers", "list", "home", "--no-ignored") == []
    assert "the postman" in likeness(server, "strangers", "list", "home", "--ignored").stdout
    [named] = lines(server, "strangers", "name", "home", stranger, "grace")
    assert (named["subject"], named["decision"]) == ("grace", "known")
    api.delete(f"{HOME}/subjects/grace").raise_for_status()
    again = told(api, HOPPER, HOPPER)["stranger"]
    assert likeness(server, "strangers", "forget", "home", again).stdout == f"{again}: forgotten\n"
    likeness(server, "strangers", "show", "home", again, code=5)


def test_webhooks_are_added_listed_shown_resumed_and_removed(
    server: LiveServer, api: httpx.Client, receiver: Receiver
) -> None:
    asked = (
        "--kind",
        "person_seen",
        "--kind",
        "left",
        "--camera",
        "door",
        "--subject",
        "home/eileen",
        "--quiet-s",
        "5",
    )
    [made] = lines(server, "webhooks", "add", receiver.url, *asked)
    assert (made["kinds"], made["quiet_s"]) == (["person_seen", "left"], 5)
    assert made["subjects"] == [{"gallery": "home", "subject": "eileen"}]
    assert made["secret"].startswith("whsec_")
    with receiver.listening():
        told(api, AGAIN, ended=True)
        until(lambda: len(receiver.taken) == 2)
    listed = likeness(server, "webhooks", "list").stdout
    assert f"{made['id']}  {receiver.url}" in listed
    assert "person_seen left" in listed
    assert "state: active" in likeness(server, "webhooks", "show", made["id"]).stdout
    assert lines(server, "webhooks", "resume", made["id"])[0]["state"] == "active"
    assert likeness(server, "webhooks", "remove", made["id"]).stdout == f"{made['id']}: removed\n"
    likeness(server, "webhooks", "show", made["id"], code=5)
    refused = likeness(server, "webhooks", "add", "http://10.0.0.1/", code=2)
    assert "LIKENESS_WEBHOOK_NETWORKS" in refused.stderr


def test_events_are_printed_in_their_order(server: LiveServer, api: httpx.Client) -> None:
    seen = told(api, AGAIN, ended=True)
    mine = [event for event in lines(server, "events", "--gallery", "home") if event["sighting"] == seen["id"]]
    assert [event["event"] for event in mine] == ["person_seen", "left"]
    number = mine[0]["number"]
    [printed] = likeness(server, "events", "--after", number, "--event", "left", "--camera", "door").stdout.splitlines()
    assert printed.endswith("home, door: left: eileen")
    likeness(server, "events", "--gallery", "away", code=5)


def test_where_nothing_is_watched_the_setting_is_named(shared_server: LiveServer) -> None:
    for words in (["webhooks", "list"], ["sightings", "show", "home", "6f1f2d5f"], ["events"]):
        assert "LIKENESS_WATCHING=on" in likeness(shared_server, *words, code=4).stderr
