"""Measure the watcher: the cost of a camera with nobody, with two people and with somebody lying in front of it, how
many cameras two cores can handle, and how soon it says who is there.

Cameras are films in a loop, H.264 of 640 × 480 at 10 images per second, sent over HTTP as cameras do, each starting at
another place; five images per second are looked at. The cost is counted per frame, so that it is the same on a busy
machine.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import yaml
from PIL import Image

from app.errors import Unusable
from app.machine import memory_in_use
from app.models.commands.sample_photos import SAMPLES
from app.types import utc_seconds
from bench.figures import Figure, Goal
from bench.run import Run
from bench.server import Server, serving
from training.evaluation.speed import Spread
from training.service import environment

PART = "watch"
SIZE, FPS, LOOKED_AT = (640, 480), 10, 5
HEIGHT = 240
"""Height of the photos in a film, in pixels: their faces are about 100 wide."""
WANTED = 6
"""Number of cameras that two cores should handle, with two people in front of each."""
SOON_S, LATE_S = 1.0, 2.0
"""Goals for the seconds from the first good frame to the event: median and 95th percentile."""
GONE_S = 14.0
"""Seconds without anybody: so long that a visit ends, and the same person is a new visit afterwards."""
PICTURES = re.compile(r": (\d+) pictures; ")
"""Matches the line that a watcher prints about each camera when it ends."""
PIECES = 10
"""Pieces per second of a film that is sent."""


class Shown(NamedTuple):
    """A photo in a film: turned clockwise by some degrees, and placed below a share of the film's height."""

    photo: str
    turned: int = 0
    top: float = 0.0


KNOWN, OTHER = Shown("collins.jpg"), Shown("hopper.jpg")
LIES, CLOTHES = KNOWN._replace(turned=90), OTHER._replace(top=0.6)


def measure(run: Run) -> None:
    seconds = max(12.0, 5 * run.effort.seconds)
    with tempfile.TemporaryDirectory() as folder, run.data_folder() as data:
        films = {
            "nobody": _film(Path(folder) / "nobody.ts", [((), 8.0)]),
            "clothes": _film(Path(folder) / "clothes.ts", [((CLOTHES,), 8.0)]),
            "two": _film(Path(folder) / "two.ts", [((KNOWN, OTHER), 8.0)]),
            "lies": _film(Path(folder) / "lies.ts", [((LIES,), 8.0)]),
            "visits": _film(Path(folder) / "visits.ts", [((KNOWN, OTHER), 4.0), ((), GONE_S)]),
        }
        with serving(data, MODELS_DIR=run.stages.models, WATCHING="on") as server, _cameras(films) as address:
            with server.client() as client:
                client.post("/v1/galleries", json={"id": "bench"}).raise_for_status()
                photo = (SAMPLES / "collins_again.jpg").read_bytes()
                client.post("/v1/galleries/bench/subjects/collins/faces", files={"images": photo}).raise_for_status()
            people_in = {
                "nobody": "nobody",
                "clothes": "clothes that move",
                "two": "two people",
                "lies": "somebody who lies",
            }
            for film, people in people_in.items():
                run.say(f"cameras with {people} before them")
                cost = _watched(server, [f"{address}/{film}"] * 2, seconds, Path(folder))
                _tell_cost(run, people, cost)
            run.say(f"{WANTED} cameras, and how soon visits are told")
            cost = _watched(server, [f"{address}/visits"] * WANTED, max(2 * (GONE_S + 4), 2 * seconds), Path(folder))
            _tell_delay(run, server, cost)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The cost of watching cameras: processor seconds by process, number of frames, memory, and the seconds watched."""

    cameras: int
    seconds: float
    frames: int
    watcher_s: float
    service_s: float
    memory: int

    @property
    def share(self) -> float:
        """Return the processor seconds per second that a camera takes, in the watcher and the service."""
        return LOOKED_AT * (self.watcher_s + self.service_s) / self.frames


def _tell_cost(run: Run, people: str, cost: _Cost) -> None:
    details = {
        "cameras": cost.cameras,
        "watcher_ms_per_frame": 1000 * cost.watcher_s / cost.frames,
        "service_ms_per_frame": 1000 * cost.service_s / cost.frames,
        "frames_per_camera_s": cost.frames / cost.cameras / cost.seconds,
        "watcher_mb": cost.memory / 1e6,
        "films": "photos that move, in a loop",
    }
    work = f"processor time of a camera with {people} before it, 640×480, {LOOKED_AT} looks a second"
    run.add(Figure(PART, work, 1000 * cost.share, "ms/s", details=details))
    ratio = Spread.of(np.array([2 / cost.share / WANTED]))
    work = f"cameras that two cores bear, {people} before each, by processor time"
    run.add(Figure(PART, work, 2 / cost.share, "cameras", f"{WANTED} wanted", ratio, Goal(1.0)))


def _tell_delay(run: Run, server: Server, cost: _Cost) -> None:
    with server.client() as client:
        listed = client.get("/v1/galleries/bench/sightings", params={"limit": 200}).raise_for_status().json()
        lines = client.get("/v1/events", params={"after": 0, "seconds": 0}).raise_for_status().text.splitlines()
    began = {row["id"]: utc_seconds(row["first_at"]) for row in listed["sightings"]}
    events = [httpx.Response(200, content=line[6:]).json() for line in lines if line.startswith("data: ")]
    seen = [event for event in events if event["event"] == "person_seen" and event["sighting"] in began]
    waits = np.array([utc_seconds(event["at"]) - began[event["sighting"]] for event in seen])
    frames = cost.frames / cost.cameras / cost.seconds
    details = {"visits": len(waits), "cameras": cost.cameras, "watcher_mb": cost.memory / 1e6, "frames_per_s": frames}
    for what, percent, wanted in (("median", 50, SOON_S), ("95th percentile", 95, LATE_S)):
        value = float(np.percentile(waits, percent))
        ratio, work = Spread.of(np.array([value / wanted])), f"first good frame to `person_seen`, {what}"
        run.add(Figure(PART, work, value, "s", f"{wanted:g} s", ratio, Goal(1.0, at_most=True), details))


def _watched(server: Server, sources: Sequence[str], seconds: float, folder: Path) -> _Cost:
    """Run a watcher on the sources and return its cost over this many seconds, counted once it searches for faces."""
    listed = [{"source": source, "name": f"camera {number}", "fps": LOOKED_AT} for number, source in enumerate(sources)]
    cameras = folder / "cameras.yaml"
    cameras.write_text(yaml.safe_dump({"cameras": listed}))
    environ = environment(SERVER=server.url, KEY=server.target.key, DATA_DIR=server.data_dir) | {
        "PYTHONUNBUFFERED": "1"
    }
    command = [sys.executable, "-m", "app", "watch", "--cameras", str(cameras), "--gallery", "bench"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as watcher:  # noqa: S603 - our own
        if watcher.stdout is None or not watcher.stdout.readline():
            raise Unusable("the watcher did not start", code="unusable")
        before, service = _processor_s(watcher.pid), server.processor_s()
        time.sleep(seconds)
        spent, served = _processor_s(watcher.pid) - before, server.processor_s() - service
        memory = memory_in_use(watcher.pid)
        watcher.terminate()
        printed = watcher.stdout.read()
    frames = sum(int(count) for count in PICTURES.findall(printed))
    return _Cost(len(sources), seconds, max(1, frames), spent, served, memory)


def _processor_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _film(path: Path, scenes: Sequence[tuple[tuple[Shown, ...], float]]) -> list[bytes]:
    """Return the pieces, PIECES per second, of a film of these scenes: who is there, and for how many seconds."""
    import av  # noqa: PLC0415 - an extra

    noise = np.random.default_rng(0).integers(-3, 4, (8, SIZE[1], SIZE[0], 3), dtype=np.int8)
    with av.open(str(path), "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "ultrafast", "g": str(FPS)})
        stream.width, stream.height = SIZE
        for who, seconds in scenes:
            photos = [_photo(shown) for shown in who]
            for step in range(round(seconds * FPS)):
                picture = Image.new("RGB", SIZE, "grey")
                for place, photo in enumerate(photos):
                    picture.paste(photo, (40 + 300 * place + 2 * (step % 40), 100 + step % 20))
                pixels = np.asarray(picture, np.int16) + noise[step % len(noise)]
                frame = av.VideoFrame.from_ndarray(np.clip(pixels, 0, 255).astype(np.uint8), format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    data, number = path.read_bytes(), round(sum(seconds for _, seconds in scenes) * PIECES)
    return [data[len(data) * at // number : len(data) * (at + 1) // number] for at in range(number)]


def _photo(shown: Shown) -> Image.Image:
    photo = Image.open(io.BytesIO((SAMPLES / shown.photo).read_bytes())).convert("RGB")
    photo = photo.resize((photo.width * HEIGHT // photo.height, HEIGHT))
    return photo.crop((0, round(shown.top * HEIGHT), *photo.size)).rotate(-shown.turned, expand=True)


@contextmanager
def _cameras(films: dict[str, list[bytes]]) -> Iterator[str]:
    """Serve each film in a loop, at its own speed, by its name."""

    asked = count()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "video/mp2t")
            self.end_headers()
            pieces = films[self.path.strip("/")]
            first, begin = next(asked) * len(pieces) // WANTED, time.monotonic()
            try:
                for sent in count(1):
                    self.wfile.write(pieces[(first + sent) % len(pieces)])
                    time.sleep(max(0.0, begin + sent / PIECES - time.monotonic()))
            except OSError:  # the watcher has ended
                return

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
