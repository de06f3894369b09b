"""How the cameras are: what their watchers count, and what the service says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from app.api.page_files import TYPES, read_files
from app.features.watching.routes import FEATURE
from app.features.watching.watcher.tally import MINUTE_S, MINUTES, Tally
from app.types import Box, Detection, Quality, Reason
from tests.conftest import PROJECT
from tests.features.watching.test_tracker import look
from tests.support.service import COLLINS, HOPPER, enrolled, error_of, running
from tests.support.sighted import HOME, make_home, told

PAGE = PROJECT / "app" / "features" / "watching" / "page"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[httpx.Client]:
    with running(tmp_path / "data", watching="on", stranger_days=3) as api:
        make_home(api)
        yield api


def test_a_camera_is_as_its_watcher_says_and_has_what_was_seen(home: httpx.Client) -> None:
    enrolled(home, HOME, "eileen", COLLINS)
    seen = told(home, COLLINS, camera="door")
    told(home, HOPPER, camera="door", ago_s=7200)
    report = {"name": "rtsp://10.0.0.7/stream2", "problem": "TimeoutError", "reasons": {"small_face": 3}, "faces": 3}
    for _ in range(2):
        home.put(f"{HOME}/cameras", json={"cameras": [report]}).raise_for_status()
    door, away = home.get(f"{HOME}/cameras").raise_for_status().json()["cameras"]
    assert (door["name"], door["told_at"], door["visits"], door["known"]) == ("door", None, 1, 1)
    assert door["last_at"] == seen["last_at"]
    assert door["picture"]
    assert (away["name"], away["problem"], away["faces"], away["visits"]) == (report["name"], "TimeoutError", 3, 0)
    assert away["told_at"]


def test_a_watchers_key_tells_and_does_not_read(home: httpx.Client) -> None:
    key = home.post("/v1/keys", json={"scopes": ["watch"], "galleries": ["home"]}).json()["secret"]
    home.put(f"{HOME}/cameras", json={"cameras": [{"name": "door"}]}, headers={"x-api-key": key}).raise_for_status()
    error_of(home.get(f"{HOME}/cameras", headers={"x-api-key": key}), 403, "missing_scope")
    error_of(home.put(f"{HOME}/cameras", json={"cameras": []}), 422, "invalid_request")


def test_a_sighting_is_deleted_alone(home: httpx.Client) -> None:
    first, second = told(home, HOPPER), told(home, HOPPER)
    home.delete(f"{HOME}/sightings/{first['id']}").raise_for_status()
    assert [row["id"] for row in home.get(f"{HOME}/sightings").json()["sightings"]] == [second["id"]]
    error_of(home.delete(f"{HOME}/sightings/{first['id']}"), 404, "sighting_not_found")


def test_those_that_are_more_alike_go_along_when_a_stranger_is_parted(home: httpx.Client) -> None:
    grace = [told(home, HOPPER, HOPPER) for _ in range(3)]
    eileen = [told(home, COLLINS, COLLINS) for _ in range(2)]
    mixed = f"{HOME}/strangers/{grace[0]['stranger']}"
    merge = {"into": grace[0]["stranger"]}
    home.post(f"{HOME}/strangers/{eileen[0]['stranger']}/merge", json=merge).raise_for_status()
    parting = {"sightings": [eileen[1]["id"]], "alike": True}
    made = home.post(f"{mixed}/part", json=parting).raise_for_status().json()
    assert made["sightings"] == 2
    assert home.get(mixed).json()["sightings"] == 3


def test_an_hour_of_faces_is_counted_and_what_is_older_forgotten() -> None:
    tally = Tally()
    good = look(0.0, 0.0, np.full(4, 0.5, np.float32))
    poor = type(good)(
        0.0,
        Detection(Box(0, 0, 14, 14), good.detection.landmarks, 0.9),
        Quality(5.0, (Reason.SMALL_FACE,)),
        good.crop,
        good.photo,
    )
    tally.add([good], 0.0)
    for minute in range(1, MINUTES + 1):
        tally.add([poor, poor], minute * MINUTE_S)
    report = tally.report(MINUTES * MINUTE_S)
    assert (report["frames"], report["faces"], report["usable"]) == (MINUTES, 2 * MINUTES, 0)
    assert (report["width"], report["reasons"]) == (14.0, {"small_face": 2 * MINUTES})


def test_the_features_part_of_the_page_is_whole_and_loaded_first() -> None:
    files = read_files([PAGE])
    names = sorted(name for name in files if name.startswith("watching/"))
    assert names == sorted(f"watching/{path.name}" for path in PAGE.iterdir() if path.suffix[1:] in TYPES)
    start = files["index.html"].content.decode()
    assert start.index("/page/watching/start.js") < start.index("/page/main.js")
    assert "watching" not in read_files()["index.html"].content.decode()
    for name in names:
        for target in re.findall(r'from "(\.{1,2}/[\w./]+)"', files[name].content.decode()):
            reached = target.removeprefix("../") if target.startswith("../") else f"watching/{target[2:]}"
            assert reached in files, (name, target)
    assert FEATURE.page == PAGE
