"""People who lie before a camera, and cameras and films that are on their side."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("av", reason="the extra video brings PyAV")

from app.errors import InvalidInput
from app.features.watching.watcher.camera import Frame, read_film
from app.features.watching.watcher.cameras import CameraConfig, Eyes, open_eyes, read_options
from app.features.watching.watcher.looks import KEPT, Look
from app.features.watching.watcher.reporter import Report
from app.features.watching.watcher.tracker import Tracker
from app.features.watching.watcher.watch import Watch
from tests.features.watching.test_tracker import look, person
from tests.support.films import SIZE, film
from tests.support.ready import MODELS
from tests.support.service import AGAIN, COLLINS, HOPPER

FPS = 5
LYING = np.array([[0, 40], [0, 0], [20, 20], [40, 40], [40, 0]], np.float32)
"""Landmarks of a face that lies: the eyes are above each other."""


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Eyes]:
    folder = tmp_path_factory.mktemp("eyes")
    with open_eyes(MODELS, folder / "none", folder, "yunet", "sface") as opened:
        yield opened


def scene(*photos: tuple[bytes, int]) -> Image.Image:
    """Photos side by side, each turned by so many degrees clockwise."""
    picture = Image.new("RGB", SIZE, "grey")
    width = SIZE[0] // len(photos)
    for place, (photo, degrees) in enumerate(photos):
        shown = Image.open(io.BytesIO(photo)).convert("RGB").resize((240, 300))
        turned = shown.rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="grey")
        turned.thumbnail((width - 20, SIZE[1] - 40))
        picture.paste(turned, (place * width + 10, 20))
    return picture


def visits(eyes: Eyes, picture: Image.Image, seconds: float = 3.0, **camera: Any) -> dict[str, Report]:
    """The last report with looks of each track before a camera that sees this picture, moving a little."""
    told = list[Report]()
    reporter: Any = SimpleNamespace(tell=told.append)
    watch = eyes.watch("cot", CameraConfig(source="film.mp4", **camera), reporter, 0.0)
    pixels = np.asarray(picture)
    for step in range(round(seconds * FPS)):
        watch.see(Frame(np.roll(pixels, 2 * (step % 3), axis=1), step / FPS))
    watch.finish()
    return {report.track: report for report in told if report.looks}


def alike(looks: tuple[Look, ...], others: tuple[Look, ...]) -> float:
    """The cosine of the means."""
    vectors = ([look.vector for look in some if look.vector is not None] for some in (looks, others))
    one, other = (np.mean(some, axis=0) for some in vectors)
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize(
    "degrees", [45, 90, *(pytest.param(degrees, marks=pytest.mark.long) for degrees in (135, 180, 270))]
)
def test_who_lies_is_one_visit_and_is_recognised(eyes: Eyes, degrees: int) -> None:
    [upright] = visits(eyes, scene((AGAIN, 0))).values()
    [lying] = visits(eyes, scene((COLLINS, degrees))).values()
    assert len(lying.looks) == KEPT
    assert all(look.lies for look in lying.looks)
    assert alike(lying.looks, upright.looks) >= eyes.same
    assert lying.began <= 1.0


def test_who_lies_beside_somebody_upright_is_seen_too(eyes: Eyes) -> None:
    both = visits(eyes, scene((HOPPER, 0), (COLLINS, 90))).values()
    assert sorted(report.looks[0].lies for report in both) == [False, True]


def test_a_camera_on_its_side_is_turned_back(eyes: Eyes) -> None:
    """Parts and zones are those of the picture as it is shown then."""
    sideways = scene((HOPPER, 0), (COLLINS, 0)).transpose(Image.Transpose.ROTATE_90)
    zones: dict[str, Any] = {"right": (0.6, 0, 1, 1), "left": (0, 0, 0.5, 1)}
    [seen] = visits(eyes, sideways, rotate=90, roi=(0.5, 0, 1, 1), zones=zones).values()
    assert (seen.looks[0].lies, seen.zone) == (False, "right")
    assert {report.looks[0].lies for report in visits(eyes, sideways).values()} == {True}
    for wrong in (45, "90 degrees", -90):
        with pytest.raises(InvalidInput, match="rotate"):
            read_options(["film.mp4"], [], None, rotate=wrong)


def test_who_lies_is_looked_for_now_and_then_and_at_once_until_there_are_looks_enough() -> None:
    """The search takes several times as long as the one for upright faces."""
    searched = list[float]()
    there = False

    def detect(_pixels: Any, at: float, _min_face: int | None = None, *, turned: bool = False) -> list[Look]:
        searched.extend([at] if turned else [])
        return [lying(at)] if there and turned else []

    looker: Any = SimpleNamespace(embed=list, detect=detect)
    reporter: Any = SimpleNamespace(tell=lambda _: None)
    watch = Watch("cot", looker, Tracker(0.44, 0.35), reporter)
    flicker = np.random.default_rng(0).integers(0, 255, (60, 48, 64, 3), dtype=np.uint8)
    for step in range(25):
        watch.see(Frame(flicker[step], step / FPS))
    assert len(searched) == 5
    there = True
    for step in range(25, 50):
        watch.see(Frame(flicker[step], step / FPS))
    assert [round(at * FPS) for at in searched[5 : 5 + KEPT]] == list(range(25, 25 + KEPT))
    assert len(searched) == 5 + KEPT + 4


def test_what_is_no_face_when_looked_at_closely_costs_a_close_look_in_some_frames_alone() -> None:
    """A poster, say, of which the detector is sure, and the closer search is not."""
    told, searched = list[Report](), list[float]()

    def detect(_pixels: Any, at: float, _min_face: int | None = None, *, turned: bool = False) -> list[Look]:
        searched.extend([at] if turned else [])
        return [] if turned else [look(at, 100, person(1))]

    looker: Any = SimpleNamespace(embed=list, detect=detect)
    reporter: Any = SimpleNamespace(tell=told.append)
    watch = Watch("cot", looker, Tracker(0.44, 0.35), reporter)
    flicker = np.random.default_rng(0).integers(0, 255, (60, 48, 64, 3), dtype=np.uint8)
    for step in range(50):
        watch.see(Frame(flicker[step], step / FPS))
    watch.finish()
    assert told == []
    assert len(searched) == 25


def lying(at: float) -> Look:
    seen = look(at, 100, person(1))
    return Look(at, type(seen.detection)(seen.box, LYING, 0.95), seen.quality, seen.crop, seen.photo, seen.vector)


def test_a_film_of_a_telephone_is_shown_as_it_was_held(tmp_path: Path) -> None:
    path = film(tmp_path / "film.mp4", [COLLINS], each_s=1.0)
    upright = next(read_film(str(path), FPS)).pixels
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 4 + 20 + 16
    quarter = struct.pack(">9i", 0, 1 << 16, 0, -(1 << 16), 0, 0, 480 << 16, 0, 1 << 30)
    data[at : at + len(quarter)] = quarter
    path.write_bytes(data)
    turned = next(read_film(str(path), FPS)).pixels
    assert np.array_equal(turned, np.rot90(upright, -1)), "clockwise, as players show it"
