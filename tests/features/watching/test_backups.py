"""A backup holds what cameras have shown: sightings, strangers, events, and webhooks with how far each has got."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import run
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, running
from tests.support.sighted import HOME, events_of, make_home, told
from tests.support.waiting import until

pytestmark = pytest.mark.long
SETTINGS: dict[str, Any] = {"watching": "on", "stranger_days": 3, "webhook_networks": ("127.0.0.0/8",)}


def test_a_restored_server_has_all_and_goes_on_where_its_webhooks_were(tmp_path: Path, receiver: Receiver) -> None:
    data, backup = tmp_path / "data", tmp_path / "likeness.backup"
    with running(data, **SETTINGS) as api:
        make_home(api, eileen=COLLINS)
        api.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status()
        with receiver.listening():
            told(api, AGAIN, ended=True)
            until(lambda: len(receiver.taken) == 2)
        told(api, HOPPER, HOPPER, ended=True)  # the receiver is gone
        kept = {path: api.get(path).raise_for_status().json() for path in (f"{HOME}/sightings", f"{HOME}/strangers")}
        crop = api.get(f"{HOME}/sightings/{kept[f'{HOME}/sightings']['sightings'][0]['id']}/crop").raise_for_status()
        assert run(data, "backup", backup).returncode == 0
    restored = tmp_path / "restored"
    done = run(restored, "restore", backup)
    assert done.returncode == 0, done.stderr
    wanted = {event["id"] for event in events_of(restored)}
    assert len(wanted) == 4
    with running(restored, **SETTINGS) as api, receiver.listening():
        for path, rows in kept.items():
            assert api.get(path).raise_for_status().json() == rows
        assert api.get(crop.request.url.path).raise_for_status().content == crop.content
        until(lambda: {event["id"] for event in receiver.events} == wanted)
    assert [event["number"] for event in receiver.events] == [1, 2, 3, 4], "none twice, and signed as before"


def test_a_listener_that_heard_more_than_was_restored_misses_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "data", **SETTINGS) as api:
        make_home(api, eileen=COLLINS)
        seen = told(api, AGAIN)
        headers = {"last-event-id": "4711"}
        heard = api.get("/v1/events", params={"seconds": 0}, headers=headers).raise_for_status().text
        assert seen["id"] in heard
