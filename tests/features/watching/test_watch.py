"""Films and cameras, from the frames to the service's answer."""

from __future__ import annotations

import csv
import io
import json
import re
import threading
import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from likeness_client import ApiError, Unreachable

pytest.importorskip("av", reason="the extra video brings PyAV")

from app.errors import FileMissing, InvalidInput, Unusable
from app.features.watching.schemas import SightingParams
from app.features.watching.watcher import camera as cameras
from app.features.watching.watcher import reporter as reporting
from app.features.watching.watcher import watch as watching
from app.features.watching.watcher.camera import Camera, Frame, read_camera, read_film, shown
from app.features.watching.watcher.cameras import names, read_cameras, read_options
from app.features.watching.watcher.reporter import Report, Reporter
from app.features.watching.watcher.tracker import Tracker
from app.features.watching.watcher.watch import WHOLE, Area, Watch
from app.types import Box
from tests.features.watching.test_tracker import look, person
from tests.support.commands import run
from tests.support.films import film
from tests.support.live import serving
from tests.support.service import AGAIN, BOTH, COLLINS, HOPPER, enrolled
from tests.support.waiting import until


def test_a_film_has_so_many_frames_a_second_of_its_own_time(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4", [None], each_s=3.0, fps=30)
    frames = list(read_film(str(path), 5))
    assert len(frames) == 15
    assert np.allclose(np.diff([frame.at for frame in frames]), 0.2, atol=0.01)
    assert frames[0].pixels.shape == (480, 640, 3)


def test_what_is_no_film_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FileMissing):
        list(read_film(str(tmp_path / "none.mp4"), 5))
    (tmp_path / "text.mp4").write_text("no film")
    with pytest.raises(InvalidInput, match="no film"):
        list(read_film(str(tmp_path / "text.mp4"), 5))


@contextmanager
def http_camera(kind: str, frames: int = 50) -> Iterator[str]:
    """A camera at an address: a JPEG, or MJPEG."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            if kind == "jpeg":
                self.send_header("content-type", "image/jpeg")
                self.end_headers()
                self.wfile.write(COLLINS)
                return
            self.send_header("content-type", "multipart/x-mixed-replace; boundary=frame")
            self.end_headers()
            try:
                for _ in range(frames):
                    head = f"--frame\r\ncontent-type: image/jpeg\r\ncontent-length: {len(COLLINS)}\r\n\r\n"
                    self.wfile.write(head.encode() + COLLINS + b"\r\n")
                    time.sleep(0.05)
            except OSError:
                return

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/camera"
        server.shutdown()


@pytest.mark.parametrize("kind", ["jpeg", "mjpeg"])
def test_a_camera_at_an_address_sends_frames(kind: str) -> None:
    with http_camera(kind) as address:
        frames = read_camera(address, 20)
        shapes = [next(frames).pixels.shape for _ in range(2)]
        frames.close()  # type: ignore[attr-defined]  # a generator
    assert shapes[0] == shapes[1]
    assert shapes[0][2] == 3


@pytest.mark.parametrize("kind", ["jpeg", "mjpeg"])
def test_frames_come_on_after_the_clock_is_put_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    back_s = 0.0
    monkeypatch.setattr(cameras, "time", SimpleNamespace(**vars(time) | {"time": lambda: time.time() - back_s}))
    with http_camera(kind, frames=20) as address, closing(read_camera(address, 20)) as frames:  # type: ignore[type-var]
        before = next(frames).at
        back_s = 3600.0
        later = next(frames, None)
    assert later is not None
    assert later.at > before


def test_a_visit_goes_on_and_ends_while_the_clock_is_put_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """A visit is told with the times of the clock as it is by then."""
    told = list[Report]()
    reporter: Any = SimpleNamespace(tell=told.append)
    looker: Any = SimpleNamespace(embed=list, detect=lambda _pixels, at, **_: [look(at, 100.0, person(1))])
    watch, pixels = Watch("door", looker, Tracker(0.44, 0.35), reporter), np.zeros((480, 640, 3), np.uint8)
    start, back_s = time.monotonic(), 0.0
    monkeypatch.setattr(watching, "time", SimpleNamespace(**vars(time) | {"time": lambda: time.time() - back_s}))
    watch.see(Frame(pixels, start))
    back_s = 3600.0
    watch.see(Frame(pixels, start + 1.5))
    watch.idle(60.0)
    assert len({each.track for each in told}) == 1
    assert [each.ended for each in told] == [False, False, True]
    assert told[0].last == pytest.approx(time.time(), abs=60)
    assert told[1].last == pytest.approx(time.time() - 3600, abs=60)


def test_a_camera_that_goes_away_is_tried_again_with_growing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cameras, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(cameras, "LONGEST_WAIT_S", 0.05)
    tries: list[float] = []

    def read(_source: str, _fps: float) -> Iterator[Frame]:
        tries.append(time.monotonic())
        if len(tries) < 5:
            raise OSError("rtsp://user:secret@camera is away")
        while True:
            time.sleep(0.001)
            yield Frame(np.zeros((4, 4, 3), np.uint8), time.time())

    watched = Camera("rtsp://user:secret@camera/stream", 5, read)
    until(lambda: watched.take(0.1))
    assert len(tries) == 5
    newest = watched.take(5)
    assert newest is not None
    time.sleep(0.1)
    later = watched.take(5)
    watched.close()
    assert later is not None
    assert later.at >= newest.at, "the newest frame comes first, and no older one is kept"


def test_no_address_is_shown_with_its_password(caplog: pytest.LogCaptureFixture) -> None:
    assert shown("rtsp://user:secret@10.0.0.7:554/stream?token=secret") == "rtsp://10.0.0.7:554/stream"
    assert shown("rtsp://user:secret@[fd00::7]:554/stream") == "rtsp://[fd00::7]:554/stream"
    broken = Camera("rtsp://user:secret@127.0.0.1:9/stream", 5)
    until(lambda: broken.problem)
    broken.close()
    assert "secret" not in caplog.text


def test_cameras_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cameras.yaml"
    path.write_text(
        "cameras:\n  - {source: 'rtsp://a/1', name: hall}\n"
        "  - {source: 'rtsp://a/1', roi: [0, 0, 1, 0.5], zones: {gate: [0, 0, 0.5, 1]}}\n"
    )
    hall, other = read_cameras(path)
    assert (hall.label, other.label, other.roi.bottom) == ("hall", "rtsp://a/1", 0.5)
    assert (hall.zones, other.zones["gate"].right) == ({}, 0.5)
    assert names([hall, hall, other]) == ["hall", "hall 2", "rtsp://a/1"]
    camera = "cameras: [{source: a, %s}]"
    outside = camera % "zones: {gate: [0, 0, 2, 1]}"
    for wrong in ("cameras: 1", "cameras: []", "[", camera % "fps: 0", camera % "unknown: a", outside):
        path.write_text(wrong)
        with pytest.raises(InvalidInput):
            read_cameras(path)
    for roi in ("a", "0,0,1", "0,0,2,1", "1,0,0,1", "nan,0,1,1"):
        with pytest.raises(InvalidInput, match="roi"):
            read_options(["a"], [], roi)
    first, second = read_options(["a", "b"], ["door"], "0,0,1,0.5", fps=2.0)
    assert (first.label, first.fps, first.roi, second.name) == ("door", 2.0, (0, 0, 1, 0.5), None)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("Screen Recording at 9.41.00\u202fAM.mov", "Screen Recording at 9.41.00 AM.mov"),
        ("a\nb.mkv", "a b.mkv"),
        ("\u200fa.mkv", "a.mkv"),
        (unicodedata.normalize("NFD", "Zoë.mkv"), "Zoë.mkv"),
        ("👩\u200d👧 mum.mkv", "👩\u200d👧 mum.mkv"),
        ("\udcff.mkv", ".mkv"),
        (f"{'a' * 99} b.mkv", "a" * 99),
    ],
)
def test_a_film_is_named_by_its_file_as_the_service_takes_it(file: str, name: str) -> None:
    """Whatever characters the file's name has; a camera's own name is refused at the start instead."""
    [camera] = read_options([f"films/{file}"], [], None)
    [label] = names([camera])
    assert label == name == SightingParams(camera=label).camera
    with pytest.raises(InvalidInput, match=r"The cameras: .*U\+000A"):
        read_options(["rtsp://a/1"], ["door\nx"], None)


def test_a_zone_is_where_the_face_was_last(tmp_path: Path) -> None:
    """By the whole picture, whatever part of it is looked at."""
    path = film(tmp_path / "film.mp4", [COLLINS], each_s=1.0)
    frame = next(read_film(str(path), 5))
    height, width = frame.pixels.shape[:2]
    part, gate = Area(0.25, 0.5, 1, 1), Area(0.5, 0.5, 0.75, 1)
    in_gate = Box(0.26 * width, 0.1 * height, 0.02 * width, 0.02 * height)
    assert gate.holds(in_gate, frame.pixels, part)
    assert not gate.holds(in_gate, frame.pixels, WHOLE)
    told = list[Report]()
    reporter: Any = SimpleNamespace(tell=told.append)
    looker: Any = SimpleNamespace(embed=list, detect=lambda _pixels, at, **_: [look(at, at * 100.0, person(1))])
    watch = Watch("door", looker, Tracker(0.44, 0.35), reporter, zones={"left": Area(0, 0, 0.5, 1), "all": WHOLE})
    for step in range(25):
        watch.see(Frame(frame.pixels, step / 5))
    watch.finish()
    assert next(report.zone for report in told if report.looks) == "left"
    assert told[-1].zone == "all", "the first one of the file that holds the face"


class Away:
    """A service that is away for a while."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors, self.told = errors, list[tuple[str, bool]]()

    def hear_sighting(self, _gallery: str, sighting: str, changes: Any) -> Any:
        if self.errors:
            raise self.errors.pop(0)
        self.told.append((sighting, changes["ended"]))
        return SimpleNamespace()


def report(track: str, *, ended: bool = False) -> Report:
    return Report(track, "door", 1.0, 2.0, ended)


def test_while_the_service_is_away_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "FIRST_WAIT_S", 0.01)
    busy = ApiError(503, "not_ready", "starting", {}, "1")
    service: Any = Away([Unreachable("away"), Unreachable("away"), busy])
    reporter = Reporter(service, "home")
    for track in ("a", "b"):
        reporter.tell(report(track))
    reporter.tell(report("a", ended=True))
    assert reporter.wait(30)
    reporter.close()
    assert {track for track, _ in service.told} == {"a", "b"}
    assert ("a", True) in service.told


def test_whom_nobody_has_heard_of_yet_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before news of those whom the service knows already."""
    monkeypatch.setattr(reporting, "FIRST_WAIT_S", 0.01)
    service: Any = Away([])
    reporter = Reporter(service, "home")
    reporter.tell(report("known"))
    assert reporter.wait(30)
    service.errors = [Unreachable("away")] * 20
    reporter.tell(report("known", ended=True))
    reporter.tell(report("new"))
    service.errors.clear()
    assert reporter.wait(30)
    reporter.close()
    assert [track for track, _ in service.told] == ["known", "new", "known"]


def test_what_the_service_will_never_take_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "FIRST_WAIT_S", 0.01)
    service: Any = Away([ApiError(404, "sighting_not_found", "no", {}, "1")])
    reporter = Reporter(service, "home")
    reporter.tell(report("a"))
    reporter.tell(report("b"))
    assert reporter.wait(30)
    reporter.close()
    assert [track for track, _ in service.told] == ["b"]


def test_visits_that_the_service_never_took_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a key that was revoked while a film was read."""
    monkeypatch.setattr(reporting, "FIRST_WAIT_S", 0.01)
    service: Any = Away([ApiError(401, "revoked_key", "The key was revoked.", {}, "1")] * 1000)
    reporter = Reporter(service, "home")
    reporter.tell(report("a"))
    reporter.tell(report("b"))
    with pytest.raises(Unusable, match="2 visits"):
        reporter.close(0.2)


def test_a_visit_that_the_service_took_is_told_though_nobody_reads_what_is_printed_of_it() -> None:
    """Otherwise `likeness watch film.mp4 | head` would wait for it until `TOLD_S` is over."""

    def answered(_report: Report, _answer: Any) -> None:
        raise BrokenPipeError

    service: Any = Away([])
    reporter = Reporter(service, "home", answered)
    reporter.tell(report("a"))
    assert reporter.wait(30)
    reporter.close(30)
    assert [track for track, _ in service.told] == ["a"]


def test_what_is_refused_for_its_form_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    service: Any = Away([ApiError(422, "invalid_request", "wrong camera", {}, "1")])
    reporter = Reporter(service, "home")
    reporter.tell(report("a"))
    assert reporter.wait(30)
    reporter.close()
    assert [record.levelname for record in caplog.records if "wrong camera" in record.message] == ["WARNING"]


@pytest.mark.long
def test_a_film_becomes_a_timeline_sightings_and_events(tmp_path: Path) -> None:
    """Two people at once, one who leaves, a stranger, and a face that is too small to be anybody."""
    path = film(tmp_path / "film %41?#.mp4", [BOTH, AGAIN, HOPPER], each_s=2.0)
    tiny = film(tmp_path / "tiny.mp4", [HOPPER], size=40)
    with serving(tmp_path / "data", {"WATCHING": "on"}) as server, server.client() as api:
        api.post("/v1/galleries", json={"id": "crew"}).raise_for_status()
        enrolled(api, "/v1/galleries/crew", "eileen", COLLINS)
        key = api.post("/v1/keys", json={"scopes": ["watch"], "galleries": ["crew"]}).json()["secret"]
        asked = ["watch", str(path), str(tiny), "--gallery", "crew", "--server", server.url, "--key", key]
        for name in ("out %41?#.json", "out %41?#.csv", "out %41?#.html"):
            done = run(tmp_path / "beside", *asked, "--timeline", str(tmp_path / name))
            assert done.returncode == 0, done.stderr
            assert re.search(r"mp4: known: eileen, score 0\.\d+, \d+ frames", done.stdout)
            assert re.search(r"mp4: unknown, \d+ frames", done.stdout), done.stdout
        kinds = api.get("/v1/events", params={"after": 0, "seconds": 0}).text
    [first, second] = json.loads((tmp_path / "out %41?#.json").read_text())["films"]
    known = [visit for visit in first["visits"] if visit["decision"] == "known"]
    unknown = [visit for visit in first["visits"] if visit["decision"] != "known"]
    assert [visit["subject"] for visit in known] == ["eileen"], "she is there twice within seconds: one visit"
    assert known[0]["to_s"] > known[0]["from_s"]
    assert [(visit["decision"], visit["subject"]) for visit in unknown] == [("unknown", None)]
    assert second["visits"] == []
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out %41?#.csv").read_text())))
    assert sorted(row["decision"] for row in rows) == ["known", "unknown"]
    page = (tmp_path / "out %41?#.html").read_text()
    assert re.findall(r"<td>film %41\?#.mp4<td>0:00:0\d<td>0:00:0[1-9]<td>(\w+)<td>(\w+)", page) == [
        (visit["subject"] or "unknown", visit["decision"]) for visit in first["visits"]
    ], page
    for kind in ("person_seen", "unknown_seen", "left"):
        assert f"event: {kind}" in kinds
    assert "name_changed" not in kinds
