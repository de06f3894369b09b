"""The watcher, the service and the broker are killed in turn: nothing that was acknowledged is lost."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from likeness_client import Client

pytest.importorskip("av", reason="the extra video brings PyAV")
pytest.importorskip("paho.mqtt.client", reason="the extra mqtt brings paho-mqtt")

from app.face.formats import Limits
from app.face.image import decode
from app.features.watching.watcher.looks import Look
from app.features.watching.watcher.reporter import Report, Reporter
from app.types import Box, Detection, Quality
from tests.features.watching.test_mqtt import MOSQUITTO, Listener, broker
from tests.features.watching.test_watch import http_camera
from tests.support.live import serving
from tests.support.receiver import Receiver
from tests.support.service import AGAIN, COLLINS, HOPPER, enrolled
from tests.support.sighted import events_of
from tests.support.waiting import until
from tests.support.watchers import watching
from training.service import reserved_port

CREW = "/v1/galleries/crew"


def look(photo: bytes) -> Look:
    pixels = decode(photo, Limits()).pixels
    detection = Detection(Box(0, 0, 60, 80), np.zeros((5, 2), np.float32), 0.95)
    return Look(0.0, detection, Quality(80.0, ()), pixels[:112, :112], pixels)


@pytest.mark.long
@pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto (Debian: mosquitto)")
def test_no_acknowledged_sighting_or_event_is_lost(tmp_path: Path, port: int) -> None:  # noqa: PLR0915 - one story
    """The service is killed twice, the broker once, and the receiver of webhooks is gone for most of the time."""
    acknowledged: dict[str, bool] = {}
    with reserved_port() as own, reserved_port() as hooked:
        settings = {
            "WATCHING": "on",
            "MQTT": f"mqtt://127.0.0.1:{port}",
            "WEBHOOK_NETWORKS": "127.0.0.0/8",
        }
        receiver, listener = Receiver(hooked), Listener(port)
        data, url = tmp_path / "data", f"http://127.0.0.1:{own}"
        with serving(data, settings, port=own) as server, broker(tmp_path / "broker", port):
            with server.client() as api:
                api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
                enrolled(api, CREW, "eileen", COLLINS)
                api.post("/v1/webhooks", json={"url": receiver.url}).raise_for_status()
            until(lambda: listener.retained.get("likeness/status") == "online")
            key = server.key

            def answered(report: Report, _sighting: Any) -> None:
                acknowledged[report.track] = acknowledged.get(report.track, False) or report.ended

            client = Client(url, key)
            reporter = Reporter(client, "crew", answered)
            known, unknown = look(AGAIN), look(HOPPER)
            tracks = [f"{number:032x}" for number in range(24)]

            def tell(some: list[str]) -> None:
                for number, track in enumerate(some):
                    looks = (known,) if number % 2 else (unknown, unknown)
                    now = time.time()
                    reporter.tell(Report(track, "door", now, now, False, looks))
                for track in some:
                    reporter.tell(Report(track, "door", now, now, True))

            tell(tracks[:8])
            until(lambda: acknowledged)
            server.process.kill()
        with receiver.listening(), serving(data, settings, port=own) as server:  # for a moment
            tell(tracks[8:16])
            until(lambda: len(acknowledged) > 8)
            server.process.kill()
        with serving(data, settings, port=own) as server:
            tell(tracks[16:])
            with broker(tmp_path / "broker", port) as mosquitto:
                until(lambda: len(acknowledged) > 18)
                mosquitto.kill()
            with broker(tmp_path / "broker", port), receiver.listening():
                assert reporter.wait(120)
                reporter.close()
                client.close()
                with server.client() as api:
                    rows = api.get(f"{CREW}/sightings", params={"limit": 100}).raise_for_status().json()["sightings"]
                wanted = {event["number"]: event["id"] for event in events_of(data)}
                until(lambda: set(wanted) <= {event["number"] for _, event in listener.heard}, 120)
                until(lambda: set(wanted) <= {event["number"] for event in receiver.events}, 120)
        listener.close()
    assert set(acknowledged) == set(tracks) == {row["id"] for row in rows}
    assert all(acknowledged.values())
    assert all(row["ended"] for row in rows)
    assert sorted(wanted) == list(range(1, 2 * len(tracks) + 1)), "each said once and left once"
    for heard in ([event for _, event in listener.heard], receiver.events):
        assert {event["number"]: event["id"] for event in heard} == wanted


@pytest.mark.long
def test_a_killed_watcher_loses_no_sighting(tmp_path: Path) -> None:
    with (
        serving(tmp_path / "data", {"WATCHING": "on"}) as server,
        server.client() as api,
        http_camera("mjpeg", frames=100_000) as camera,
    ):
        api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        enrolled(api, CREW, "eileen", COLLINS)
        words = (camera, "--name", "door", "--gallery", "crew")

        def rows() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = api.get(f"{CREW}/sightings").raise_for_status().json()["sightings"]
            return found

        with watching(server, tmp_path / "first.log", *words) as watched:
            until(rows)
            watched.process.kill()
            watched.process.wait()
        [first] = rows()
        with watching(server, tmp_path / "second.log", *words):
            until(lambda: len(rows()) == 2)
        until(lambda: all(row["ended"] for row in rows()), 120)
        assert {row["subject"] for row in rows()} == {"eileen"}
        assert first["id"] in {row["id"] for row in rows()}
    kinds = [str(event["event"]) for event in events_of(tmp_path / "data")]
    assert sorted(kinds) == ["left", "left", "person_seen", "person_seen"]
