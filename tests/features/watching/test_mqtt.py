"""Events and who is where, at a real Mosquitto."""

from __future__ import annotations

import json
import shutil
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from app.gallery.store import Store
from app.types import utc_now
from tests.support.live import serving
from tests.support.service import AGAIN, COLLINS, HOPPER, running
from tests.support.sighted import HOME, events_of, make_home, told
from tests.support.waiting import PATIENCE_S, until

paho = pytest.importorskip("paho.mqtt.client", reason="the extra mqtt brings paho-mqtt")
from app.features.watching.mqtt import Publisher  # noqa: E402 - needs paho-mqtt

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto (Debian: mosquitto)"),
]


@contextmanager
def broker(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Mosquitto, listening, with what it keeps in this folder."""
    folder.mkdir(exist_ok=True)
    config = folder / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n"
        f"persistence true\npersistence_location {folder}/\n"
    )
    process = subprocess.Popen(
        [str(MOSQUITTO), "-c", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until(lambda: _listens(port))
        yield process
    finally:
        process.terminate()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Listener:
    """Home Assistant's side: everything that the broker has."""

    def __init__(self, port: int) -> None:
        self.retained: dict[str, str] = {}
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self.statuses: list[str] = []
        self._lock = threading.Lock()
        # A session that the broker keeps: what comes while the listener is away is sent to it later.
        self.client = paho.Client(paho.CallbackAPIVersion.VERSION2, "listener", clean_session=False)
        self.client.on_message = self._on_message
        self.client.on_connect = lambda client, *_: client.subscribe([("likeness/#", 1), ("homeassistant/#", 1)])
        self.client.reconnect_delay_set(1, 1)
        self.client.connect_async("127.0.0.1", port)
        self.client.loop_start()

    def _on_message(self, _client: object, _data: object, message: Any) -> None:
        with self._lock:
            text = message.payload.decode("latin-1")
            if message.topic == "likeness/status":
                self.statuses.append(text)
            if message.topic.endswith("/event"):
                self.heard.append((message.topic, json.loads(text)))
            elif text:
                self.retained[message.topic] = text
            else:
                self.retained.pop(message.topic, None)

    def states(self, what: str) -> list[dict[str, Any]]:
        with self._lock:
            found = {
                topic: text
                for topic, text in self.retained.items()
                if topic.startswith(f"likeness/{what}/") and topic.endswith("/state")
            }
        return [json.loads(text) for text in found.values()]

    def configs(self) -> dict[str, dict[str, Any]]:
        with self._lock:
            return {topic: json.loads(text) for topic, text in self.retained.items() if topic.endswith("/config")}

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def listener(port: int) -> Iterator[Listener]:
    made = Listener(port)
    yield made
    made.close()


def test_home_assistant_learns_of_people_and_cameras(tmp_path: Path, port: int, listener: Listener) -> None:
    settings: dict[str, Any] = {"watching": "on", "mqtt": f"mqtt://127.0.0.1:{port}"}
    with broker(tmp_path / "broker", port), running(tmp_path / "data", **settings) as api:
        make_home(api, eileen=COLLINS)
        until(lambda: listener.retained.get("likeness/status") == "online")
        seen = told(api, AGAIN)
        until(lambda: listener.states("people") and listener.heard)
        [person], [camera] = listener.states("people"), listener.states("cameras")
        assert (person["present"], person["subject"], person["camera"]) == ("ON", "eileen", "door")
        assert (camera["who"], camera["count"]) == (["eileen"], 1)
        [(_, event)] = listener.heard
        assert (event["event_type"], event["sighting"]) == ("person_seen", seen["id"])
        assert event["id"]
        kinds = {topic.split("/")[1] for topic in listener.configs()}
        assert kinds == {"binary_sensor", "sensor", "event", "image"}
        for config in listener.configs().values():
            assert config["availability_topic"] == "likeness/status"
            assert config.get("state_topic", config.get("image_topic", "")).startswith("likeness/")
            assert "eileen" not in config["unique_id"]
        [image] = [config for config in listener.configs().values() if "image_topic" in config]
        until(lambda: image["image_topic"] in listener.retained)
        shown = api.get(f"{HOME}/sightings/{seen['id']}/crop").raise_for_status().content
        assert listener.retained[image["image_topic"]].encode("latin-1") == shown
        told(api, AGAIN, sighting=seen["id"], ended=True)
        until(lambda: listener.states("people")[0]["present"] == "OFF")
        api.post(f"{HOME}/subjects/eileen/erase").raise_for_status()
        until(lambda: not listener.states("people"))  # without any other event
        until(lambda: not [topic for topic in listener.configs() if "binary_sensor" in topic])
        until(lambda: image["image_topic"] not in listener.retained)
        told(api, HOPPER, HOPPER)
        until(lambda: [camera["count"] for camera in listener.states("cameras")] == [1])
        before = 2  # of the camera
        until(lambda: len(listener.configs()) == before)
        with listener._lock:
            listener.retained.clear()
        listener.client.publish("homeassistant/status", "online", qos=1)
        until(lambda: len(listener.configs()) == before)
    until(lambda: listener.retained.get("likeness/status") == "offline")


def test_cameras_of_one_name_in_two_galleries_are_two_devices(tmp_path: Path, port: int, listener: Listener) -> None:
    settings: dict[str, Any] = {"watching": "on", "mqtt": f"mqtt://127.0.0.1:{port}"}
    with broker(tmp_path / "broker", port), running(tmp_path / "data", **settings) as api:
        make_home(api, eileen=COLLINS)
        api.post("/v1/galleries", json={"id": "office"}).raise_for_status()
        until(lambda: listener.retained.get("likeness/status") == "online")  # it has subscribed, and hears all events
        told(api, AGAIN)
        until(lambda: _devices(listener, "event") == ["door"])
        told(api, AGAIN, AGAIN, gallery="office")
        until(lambda: _devices(listener, "event") == ["door (home)", "door (office)"])
        assert len({config["device"]["identifiers"][0] for config in listener.configs().values()}) == 3, "and a person"
        there = {state["gallery"]: state["who"] for state in listener.states("cameras")}
        assert there == {"home": ["eileen"], "office": ["unknown"]}
        until(lambda: len(listener.heard) == 2)
        heard = dict(listener.heard)
        for config in listener.configs().values():
            if (topic := config.get("state_topic")) in heard:
                assert config["device"]["name"] == f"door ({heard[topic]['gallery']})"


def _devices(listener: Listener, kind: str) -> list[str]:
    """The names of the devices with an entity of this kind."""
    configs = listener.configs().items()
    return sorted(config["device"]["name"] for topic, config in configs if topic.split("/")[1] == kind)


def test_while_one_server_of_two_ends_the_other_keeps_people_available(
    tmp_path: Path, port: int, listener: Listener
) -> None:
    settings: dict[str, Any] = {"watching": "on", "mqtt": f"mqtt://127.0.0.1:{port}"}
    with broker(tmp_path / "broker", port), running(tmp_path / "data", **settings):
        until(lambda: listener.statuses)
        with closing(Store(f"sqlite:///{tmp_path / 'data' / 'likeness.db'}")) as store:
            second = Publisher(settings["mqtt"], store)
            until(second._client.is_connected)
            second.close()
        until(lambda: listener.statuses[-2:] == ["offline", "online"])


def test_a_killed_server_is_unavailable(tmp_path: Path, port: int, listener: Listener) -> None:
    with broker(tmp_path / "broker", port):
        with serving(tmp_path / "data", {"WATCHING": "on", "MQTT": f"mqtt://127.0.0.1:{port}"}) as server:
            until(lambda: listener.statuses[-1:] == ["online"])
            server.process.kill()
        until(lambda: listener.statuses[-1:] == ["offline"])


def test_a_broker_that_was_away_gets_every_event(tmp_path: Path, port: int, listener: Listener) -> None:
    settings: dict[str, Any] = {"watching": "on", "mqtt": f"mqtt://127.0.0.1:{port}"}
    with running(tmp_path / "data", **settings) as api:
        make_home(api, eileen=COLLINS)
        with broker(tmp_path / "broker", port):
            # Both sides are there: what was before is neither published nor heard.
            until(lambda: listener.retained.get("likeness/status") == "online")
            told(api, AGAIN, camera="first")
            until(lambda: listener.heard)
        for camera in ("second", "third"):
            told(api, AGAIN, camera=camera, ended=True)
        with broker(tmp_path / "broker", port):
            # One more than these, should the first track have been silent for long enough to end.
            wanted = {event["number"] for event in events_of(tmp_path / "data")}
            assert len(wanted) >= 5
            until(lambda: wanted <= {event["number"] for _, event in listener.heard}, 2 * PATIENCE_S)


def test_a_server_that_starts_after_the_clock_was_put_back_publishes(
    tmp_path: Path, port: int, listener: Listener
) -> None:
    """The turn of the server before seems to last for another hour."""
    settings: dict[str, Any] = {"watching": "on", "mqtt": f"mqtt://127.0.0.1:{port}"}
    with broker(tmp_path / "broker", port):
        with running(tmp_path / "data", **settings) as api:
            make_home(api, eileen=COLLINS)
            until(lambda: listener.retained.get("likeness/status") == "online")
        with closing(sqlite3.connect(tmp_path / "data" / "likeness.db")) as database, database:
            database.execute("UPDATE event_cursors SET until = ?", (utc_now(timedelta(hours=1)),))
        with running(tmp_path / "data", **settings) as api:
            told(api, AGAIN)
            until(lambda: listener.heard)
