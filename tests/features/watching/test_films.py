"""The eleven research films, one person left out in turn, or nobody: who is enrolled from one film is named in the
others."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("av", reason="the extra video brings PyAV")

from PIL import Image

from app.features.watching.watcher.camera import read_film
from tests.conftest import PROJECT
from tests.support.commands import run
from tests.support.live import LiveServer, serving
from tests.support.service import encoded

VIDEOS = PROJECT.parent / "shared" / "data" / "videos"
ENROLLED = 5
"""Frames of a film."""
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not (VIDEOS / "who.csv").is_file(), reason="needs the films in ../shared/data"),
]


def films() -> dict[str, list[str]]:
    """The films' names by who is in them."""
    found = defaultdict(list)
    with (VIDEOS / "who.csv").open() as file:
        for row in csv.reader(file):
            name, who = row[0], row[1]
            if (VIDEOS / name).is_file():
                found[who].append(name)
    return dict(found)


def frames(name: str) -> list[bytes]:
    """Some frames of a film, spread over it."""
    pixels = [frame.pixels for frame in read_film(str(VIDEOS / name), 5)]
    chosen = np.linspace(0, len(pixels) - 1, ENROLLED).astype(int)
    return [encoded(np.asarray(Image.fromarray(pixels[at]))) for at in chosen]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving(tmp_path_factory.mktemp("films") / "data", {"WATCHING": "on", "STRANGER_DAYS": 3}) as server:
        yield server


@pytest.mark.parametrize("left_out", ["nobody", *(sorted(films()) if (VIDEOS / "who.csv").is_file() else [])])
def test_the_enrolled_are_named_and_nobody_else(server: LiveServer, left_out: str, tmp_path: Path) -> None:
    gallery = f"without-{left_out}".lower()
    watched, owner = list[str](), {name: who for who, names in films().items() for name in names}
    with server.client() as api:
        api.post("/v1/galleries", json={"id": gallery}).raise_for_status()
        for who, (first, *others) in films().items():
            watched += others if who != left_out else [first, *others]
            if who != left_out:
                files = [("images", photo) for photo in frames(first)]
                api.post(f"/v1/galleries/{gallery}/subjects/{who}/faces", files=files).raise_for_status()
        timeline = tmp_path / "timeline.json"
        paths = [VIDEOS / name for name in watched]
        words = ("--gallery", gallery, "--server", server.url, "--key", server.key, "--timeline", timeline)
        done = run(tmp_path / "beside", "watch", *paths, *words)
        assert done.returncode == 0, done.stderr
        visits = {film["film"]: film["visits"] for film in json.loads(timeline.read_text())["films"]}
        strangers = api.get(f"/v1/galleries/{gallery}/strangers").raise_for_status().json()["strangers"]
    for name in watched:
        named = {visit["subject"] for visit in visits[name] if visit["decision"] == "known"}
        assert named == ({owner[name]} if owner[name] != left_out else set()), (name, visits[name])
    assert len(strangers) <= 1, strangers
