"""Real cameras: RTSP from GStreamer's server, HLS as ffmpeg makes it, and Frigate's messages at a real broker."""

from __future__ import annotations

import ctypes
import io
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av", reason="the extra video brings PyAV")

from app.features.watching.watcher.camera import read_camera, read_film
from app.types import utc_now
from bench.parts.watch import PICTURES
from tests.features.watching.test_mqtt import MOSQUITTO, broker
from tests.features.watching.test_watch import http_camera
from tests.support.films import film
from tests.support.live import LiveServer, serving
from tests.support.service import AGAIN, COLLINS, HOPPER, encoded, enrolled
from tests.support.waiting import until
from tests.support.watchers import need_rtsp, rtsp_camera, watching

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A service with the gallery `crew`, in which Eileen Collins is enrolled."""
    with serving(tmp_path_factory.mktemp("cameras") / "data", {"WATCHING": "on"}) as server, server.client() as api:
        api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        enrolled(api, "/v1/galleries/crew", "eileen", COLLINS)
        yield server


@pytest.fixture
def api(server: LiveServer) -> Iterator[httpx.Client]:
    with server.client("/v1/galleries/crew") as client:
        yield client
        client.delete("/sightings").raise_for_status()


def watch_key(server: LiveServer) -> str:
    with server.client() as api:
        made = api.post("/v1/keys", json={"scopes": ["watch"], "galleries": ["crew"]}).raise_for_status().json()
    return str(made["secret"])


def seen(api: httpx.Client, **wanted: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = api.get("/sightings", params=wanted).raise_for_status().json()["sightings"]
    return found


def state(api: httpx.Client) -> dict[str, Any]:
    """How the camera of the hall is, as its watcher says."""
    return states(api)["hall"]


def states(api: httpx.Client) -> dict[str, dict[str, Any]]:
    return {camera["name"]: camera for camera in api.get("/cameras").raise_for_status().json()["cameras"]}


def photos(folder: Path) -> list[Path]:
    paths = [folder / "eileen.jpg", folder / "grace.jpg"]
    for path, photo in zip(paths, (AGAIN, HOPPER), strict=True):
        path.write_bytes(photo)
    return paths


def test_a_signal_that_another_thread_gets_ends_it_too(server: LiveServer, tmp_path: Path) -> None:
    """As the kernel may choose on a busy machine."""
    with (
        http_camera("mjpeg", frames=100_000) as camera,
        watching(server, tmp_path / "log", camera, "--gallery", "crew") as watched,
    ):
        until(lambda: "Watching" in watched.printed)
        main = watched.process.pid
        others = [int(task.name) for task in Path(f"/proc/{main}/task").iterdir() if int(task.name) != main]
        assert ctypes.CDLL(None).tgkill(main, others[0], signal.SIGTERM) == 0
        assert watched.process.wait(60) == 0


def test_a_camera_by_rtsp_goes_away_and_comes_back(
    server: LiveServer, api: httpx.Client, tmp_path: Path, port: int
) -> None:
    """Watched with the key of a watcher alone, which reads nothing."""
    need_rtsp()
    source, log = f"rtsp://user:secret@127.0.0.1:{port}/camera", tmp_path / "watch.log"
    words = (source, "--name", "hall", "--gallery", "crew")
    with watching(server, log, *words, key=watch_key(server)) as watched:
        with rtsp_camera(port, photos(tmp_path)):
            until(lambda: seen(api, subject="eileen", decision="known"))
            until(lambda: seen(api, decision="unknown"))
            until(lambda: state(api)["faces"] > 0 and state(api)["problem"] is None, 60)
        until(lambda: f"rtsp://127.0.0.1:{port}/camera: " in watched.printed)
        with rtsp_camera(port, photos(tmp_path)):
            until(lambda: "is there again" in watched.printed, 120)
            since = utc_now()
            until(lambda: seen(api, subject="eileen", since=since), 120)
    assert watched.process.returncode == 0
    assert int(PICTURES.findall(watched.printed)[0]) > 0, "which the benchmark reads"
    assert "secret" not in watched.printed
    assert "Traceback" not in watched.printed


def test_who_lies_before_a_camera_by_rtsp_is_named(
    server: LiveServer, api: httpx.Client, tmp_path: Path, port: int
) -> None:
    need_rtsp()
    path = film(tmp_path / "film.mp4", [AGAIN], each_s=8.0, codec="libx264", turned=90)
    words = (f"rtsp://127.0.0.1:{port}/camera", "--name", "cot", "--gallery", "crew")
    with rtsp_camera(port, [path]), watching(server, tmp_path / "watch.log", *words):
        until(lambda: seen(api, camera="cot", subject="eileen", decision="known"), 180)


def test_a_camera_that_sends_h264_by_rtsp(tmp_path: Path, port: int) -> None:
    """Its pictures are the film's, each of which has several slices."""
    need_rtsp()
    path = film(tmp_path / "film.mp4", [COLLINS], each_s=4.0, codec="libx264")
    with rtsp_camera(port, [path]):
        frames = list(read_camera(f"rtsp://127.0.0.1:{port}/camera", 5))
    assert len(frames) >= 5
    assert frames[-1].at > frames[0].at
    shown = [frame.pixels.astype(int) for frame in read_film(str(path), 1000)]
    for frame in frames:
        assert frame.pixels.shape == (480, 640, 3)
        assert min(np.abs(frame.pixels - one).mean() for one in shown) < 2


@contextmanager
def folder_served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()


@pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="needs ffmpeg (Debian: apt install ffmpeg)")
def test_a_camera_by_hls(server: LiveServer, api: httpx.Client, tmp_path: Path) -> None:
    path, live = film(tmp_path / "film.mp4", [AGAIN], each_s=4.0, codec="libx264"), tmp_path / "live"
    live.mkdir()
    made = ["-stream_loop", "-1", "-re", "-i", str(path), "-c", "copy", "-f", "hls", "-hls_time", "1"]
    command = ["ffmpeg", "-loglevel", "error", *made, "-hls_flags", "delete_segments", str(live / "camera.m3u8")]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as encoder, folder_served(live) as address:
        try:
            until((live / "camera.m3u8").exists)
            words = (f"{address}/camera.m3u8", "--name", "hls", "--gallery", "crew")
            with watching(server, tmp_path / "watch.log", *words):
                until(lambda: seen(api, camera="hls", subject="eileen"))
        finally:
            encoder.kill()


class FrigateLike:
    """What Frigate's documentation says of its HTTP interface: snapshots, live frames of go2rtc, sub-labels."""

    def __init__(self) -> None:
        self.snapshots: dict[str, bytes] = {}
        self.frame = b""
        self.labels: list[tuple[str, dict[str, Any]]] = []

    @contextmanager
    def listening(self) -> Iterator[str]:
        frigate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                if path == "/api/frame.jpeg":
                    assert self.path.endswith("src=front_door")
                    found = frigate.frame
                else:
                    found = frigate.snapshots.get(path.split("/")[3], b"")
                self.send_response(200 if found else 404)
                self.end_headers()
                self.wfile.write(found)

            def do_POST(self) -> None:
                _, _, _, event, what = self.path.split("/")
                assert what == "sub_label"
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                frigate.labels.append((event, body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
            threading.Thread(target=http.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{http.server_port}"
            finally:
                http.shutdown()


def frigate_event(event: str, kind: str, *, label: str = "person", **more: Any) -> str:
    """A message of `frigate/events` as its documentation shows it."""
    after = {
        "id": event,
        "camera": "front_door",
        "frame_time": 1607123962.082975,
        "label": label,
        "false_positive": False,
        "start_time": 1607123955.475377,
        "end_time": 1607123990.0 if kind == "end" else None,
        "box": [432, 496, 544, 854],
        "has_snapshot": True,
    }
    return json.dumps({"type": kind, "before": after, "after": after | more})


@pytest.mark.skipif(MOSQUITTO is None, reason="needs Mosquitto (Debian: mosquitto)")
def test_frigates_persons_are_named_by_sub_labels(
    server: LiveServer, api: httpx.Client, tmp_path: Path, port: int
) -> None:
    paho = pytest.importorskip("paho.mqtt.client", reason="the extra mqtt brings paho-mqtt")
    frigate = FrigateLike()
    known, other, faceless = "1607123955.475377-mxklsc", "1607123956.1-other", "1607123957.2-car"
    frigate.snapshots = {known: AGAIN, other: b"no picture"}
    frigate.frame = encoded(np.rot90(np.asarray(Image.open(io.BytesIO(HOPPER)))))  # somebody who lies
    client = paho.Client(paho.CallbackAPIVersion.VERSION2)
    with frigate.listening() as address, broker(tmp_path / "broker", port):
        words = ("--frigate", address, "--go2rtc", address, "--mqtt", f"mqtt://127.0.0.1:{port}", "--gallery", "crew")
        with watching(server, tmp_path / "watch.log", *words, key=watch_key(server)) as watched:
            until(lambda: client.connect("127.0.0.1", port) == 0)
            client.loop_start()

            def say(topic: str, message: str) -> bool:
                client.publish(topic, message, qos=1).wait_for_publish(10)
                return True

            say("frigate/events", "no JSON")
            say("frigate/events", frigate_event(faceless, "new", label="car"))
            stats = json.dumps({"cameras": {"front_door": {"camera_fps": 5.1}, "yard": {"camera_fps": 0.0}}})
            first = frigate_event(known, "update", entered_zones=["drive", "steps"], current_zones=[])
            # The watcher may not listen yet.
            until(lambda: say("frigate/stats", stats) and say("frigate/events", first) and frigate.labels, 120)
            [(event, body), *_] = frigate.labels
            assert (event, body["subLabel"], body["camera"]) == (known, "eileen", "front_door")
            assert 0 < body["subLabelScore"] <= 1
            say("frigate/events", frigate_event(other, "new"))  # without a face: the live frame has one
            until(lambda: len(seen(api)) == 2)
            say("frigate/tracked_object_update", json.dumps({"type": "face", "id": other, "camera": "front_door"}))
            until(lambda: seen(api, decision="unknown")[0]["frames"] == 2)
            say("frigate/events", frigate_event(other, "end"))
            say("frigate/events", frigate_event(known, "end"))
            until(lambda: len(seen(api)) == 2 and all(row["ended"] for row in seen(api)))
            until(lambda: {"front_door", "yard"} <= set(states(api)), 120)
            client.loop_stop()
        assert watched.process.returncode == 0
    assert (states(api)["front_door"]["problem"], states(api)["yard"]["problem"]) == (None, "no pictures in Frigate")
    by_decision = {row["decision"]: row for row in seen(api)}
    assert (by_decision["known"]["zone"], by_decision["unknown"]["zone"]) == ("steps", None)
    assert by_decision["known"]["subject"] == "eileen"
    assert by_decision["unknown"]["frames"] == 2
    assert {label for label, _ in frigate.labels} == {known}, "nobody's name is written for a stranger"
