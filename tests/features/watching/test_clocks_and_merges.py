"""Cameras beside a clock that is put back, subjects that are merged or expire while they are seen."""

from __future__ import annotations

import datetime as datetimes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from app import types
from app.types import utc_now
from tests.support.following import let_expire
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, running
from tests.support.sighted import HOME, events_of, make_home, told
from tests.support.waiting import until


class _Moment(type):
    def __instancecheck__(cls, other: object) -> bool:
        return isinstance(other, datetimes.datetime)


class Clock(datetimes.datetime, metaclass=_Moment):
    """The machine's clock, which can be put forward and back."""

    ahead = datetimes.timedelta()

    @classmethod
    def now(cls, tz: datetimes.tzinfo | None = None) -> Self:
        found: Self = super().now(tz) + cls.ahead
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> type[Clock]:
    monkeypatch.setattr(types, "datetime", Clock)
    monkeypatch.setattr(Clock, "ahead", datetimes.timedelta())
    return Clock


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    """A service with the gallery `home`, in which Eileen Collins and Grace Hopper are enrolled, that sweeps hourly."""
    settings: dict[str, Any] = {"webhook_networks": ("127.0.0.0/8",), "expiry_seconds": 3600.0}
    with running(tmp_path / "data", watching="on", **settings) as api:
        make_home(api, eileen=COLLINS, grace=HOPPER)
        yield api


def test_after_the_clock_is_put_back_a_webhook_gets_everything_at_once(
    clock: type[Clock], home: httpx.Client, receiver: Receiver
) -> None:
    """What is like an event of the hour before isn't repeated by it, and no turn lasts until that hour is over."""
    home.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status()
    clock.ahead = datetimes.timedelta(hours=1)
    with receiver.listening():
        told(home, AGAIN, ended=True)
        until(lambda: len(receiver.taken) == 2)
        clock.ahead = datetimes.timedelta()
        told(home, AGAIN, ended=True)
        until(lambda: len(receiver.taken) == 4)
    assert [event["number"] for event in receiver.events] == [1, 2, 3, 4]


def test_who_is_merged_while_seen_is_seen_on_as_the_one_who_stays(home: httpx.Client, tmp_path: Path) -> None:
    tracks = [told(home, photo, camera="hall") for photo in (AGAIN, HOPPER)]
    assert [track["subject"] for track in tracks] == ["eileen", "grace"]
    home.post(f"{HOME}/subjects/grace/merge", json={"into": "eileen"}).raise_for_status()
    rows = home.get(f"{HOME}/sightings", params={"subject": "eileen"}).raise_for_status().json()["sightings"]
    assert {row["id"] for row in rows} == {track["id"] for track in tracks}
    for track in tracks:
        heard = {"last_at": utc_now(), "ended": True}
        home.patch(f"{HOME}/sightings/{track['id']}", json=heard).raise_for_status()
    told_of = [(event["event"], event["subject"]) for event in events_of(tmp_path / "data")]
    assert told_of == [(kind, who) for kind in ("person_seen", "left") for who in ("eileen", "eileen")]


def test_whoever_has_expired_is_named_by_no_sighting_before_the_sweep_either(
    home: httpx.Client, tmp_path: Path
) -> None:
    seen = told(home, AGAIN)
    let_expire(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}", "eileen")
    path = f"{HOME}/sightings/{seen['id']}"
    heard = home.patch(path, json={"last_at": utc_now()}).raise_for_status().json()
    (listed,) = home.get(f"{HOME}/sightings").raise_for_status().json()["sightings"]
    for sighting in (heard, listed, home.get(path).json()):
        assert (sighting["decision"], sighting["subject"], sighting["name"]) == ("unknown", None, None)
    assert home.get(f"{HOME}/sightings", params={"subject": "eileen"}).json()["sightings"] == []
    assert told(home, AGAIN, AGAIN, sighting=seen["id"])["decision"] == "unknown"
    assert [event["event"] for event in events_of(tmp_path / "data")] == ["person_seen", "name_changed"]
