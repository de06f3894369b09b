"""A real watcher behind nginx, two servers on one PostgreSQL and a broker: one of the servers is killed."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("av", reason="the extra video brings PyAV")
pytest.importorskip("paho.mqtt.client", reason="the extra mqtt brings paho-mqtt")

from tests.features.watching.test_mqtt import MOSQUITTO, Listener, broker
from tests.support.films import film
from tests.support.live import LiveServer, serving
from tests.support.postgres import new_database
from tests.support.service import AGAIN, COLLINS, HOPPER
from tests.support.sighted import HOME, make_home
from tests.support.waiting import until
from tests.support.watchers import need_rtsp, rtsp_camera, watching
from training.service import reserved_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
CONFIG = """
daemon off;
pid nginx.pid;
error_log stderr warn;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path buffer;
    fastcgi_temp_path fastcgi;
    scgi_temp_path scgi;
    uwsgi_temp_path uwsgi;
    upstream likeness {{
        server 127.0.0.1:{one} max_fails=1 fail_timeout=5s;
        server 127.0.0.1:{two} max_fails=1 fail_timeout=5s;
    }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 0;
        location / {{
            proxy_pass http://likeness;
            proxy_set_header Host $http_host;
            proxy_request_buffering off;
        }}
    }}
}}
"""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto (Debian: mosquitto)"),
    pytest.mark.skipif(NGINX is None, reason="needs nginx (Debian: nginx-light)"),
]


@contextmanager
def proxy(folder: Path, port: int, one: int, two: int) -> Iterator[str]:
    """nginx before the two servers, in turns."""
    folder.mkdir()
    (folder / "nginx.conf").write_text(CONFIG.format(port=port, one=one, two=two))
    with subprocess.Popen([str(NGINX), "-p", folder, "-c", "nginx.conf"]) as process:
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


class Hearer:
    """Listens to one server after the other, from the last event on."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.last = "0"

    def listen(self, server: LiveServer) -> threading.Thread:
        thread = threading.Thread(target=self._listen, args=(server,), daemon=True)
        thread.start()
        return thread

    def _listen(self, server: LiveServer) -> None:
        with (
            suppress(httpx.HTTPError),
            server.client(timeout=None) as api,
            api.stream("GET", "/v1/events", headers={"last-event-id": self.last}) as sent,
        ):
            for line in sent.iter_lines():
                if line.startswith("id: "):
                    self.last = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    self.events.append(json.loads(line.removeprefix("data: ")))


def test_watching_goes_on_with_the_other(tmp_path: Path, postgresql: Path, port: int) -> None:
    """Each visit is said once, to listeners and the broker, and no entity is gone from Home Assistant or comes anew."""
    need_rtsp()
    visits = film(tmp_path / "film.mp4", [AGAIN, None, None, None, HOPPER, None, None, None], each_s=4, codec="libx264")
    with reserved_port() as first, reserved_port() as second, reserved_port() as front, reserved_port() as camera:
        settings = {
            "WATCHING": "on",
            "DATABASE_URL": new_database(postgresql),
            "MQTT": f"mqtt://127.0.0.1:{port}",
        }
        listener, hearer = Listener(port), Hearer()
        with broker(tmp_path / "broker", port), serving(tmp_path / "one", settings, port=first) as one:
            (tmp_path / "two").mkdir(0o700)
            for file in (tmp_path / "one").glob("*.key"):
                shutil.copy(file, tmp_path / "two")
            with (
                serving(tmp_path / "two", settings, port=second) as two,
                two.client() as api,
                proxy(tmp_path / "proxy", front, first, second) as url,
                rtsp_camera(camera, [visits]),
            ):
                make_home(api, eileen=COLLINS)
                listening = hearer.listen(one)
                words = (f"rtsp://127.0.0.1:{camera}/camera", "--name", "door", "--gallery", "home")
                with watching(replace(one, url=url), tmp_path / "watch.log", *words) as watched:
                    until(lambda: len(hearer.events) >= 2)
                    until(lambda: {event["number"] for _, event in listener.heard} >= {1, 2})
                    configs, statuses = listener.configs(), len(listener.statuses)
                    one.process.kill()
                    listening.join(30)
                    before = len(hearer.events)
                    hearer.listen(two)
                    until(lambda: len(rows(api)) >= 4, 180)
                    until(lambda: len(hearer.events) >= before + 2, 180)
                    assert configs.items() <= listener.configs().items()
                assert watched.process.returncode == 0
                until(lambda: all(row["ended"] for row in rows(api)), 120)
                seen = rows(api)
                until(lambda: len(hearer.events) == said(api), 60)
                until(lambda: len(listener.heard) >= said(api), 60)
                assert listener.statuses[statuses:][-1:] in ([], ["online"])
        listener.close()
    numbers = [event["number"] for event in hearer.events]
    assert numbers == list(range(1, len(numbers) + 1)), "each once, in order"
    published = Counter(event["number"] for _, event in listener.heard)
    assert sorted(published) == numbers
    assert sum(published.values()) - len(published) <= 1, "at most the one that was sent when the server was killed"
    assert {event["sighting"] for event in hearer.events} == {row["id"] for row in seen if told(row)}
    assert {row["subject"] for row in seen} == {"eileen", None}


def rows(api: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get(f"{HOME}/sightings").raise_for_status().json()["sightings"]
    return found


def told(row: dict[str, Any]) -> bool:
    """Whether a sighting has events: nobody is called unknown by a single photo."""
    return bool(row["decision"] == "known" or row["frames"] > 1)


def said(api: httpx.Client) -> int:
    """The number of the last event."""
    text = api.get("/v1/events", params={"after": 0, "seconds": 0}).raise_for_status().text
    return int([line for line in text.splitlines() if line.startswith("id: ")][-1].removeprefix("id: "))
