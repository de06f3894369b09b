"""`evaluate liveness`: error rates in the words of the standard, with intervals, bound to the packages."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from app.features.liveness.gate import judge, liveness_point
from app.models.calibration.intervals import wilson
from app.package.folders import load_package
from app.types import Box, Pixels, Verdict
from tests.conftest import PROJECT
from tests.support import liveness as packages
from tests.support.ready import fill_cache
from tests.support.service import SAMPLES
from training.commands.evaluate import app
from training.evaluation.stages.liveness import (
    Recording,
    Sample,
    Scored,
    calibration,
    find_recordings,
    measure,
    with_calibration,
)


def scored(kind: str | None, scores: list[float], groups: list[str] | None = None) -> list[Scored]:
    return [
        Scored(Recording(Path(f"{place}.jpg"), kind, groups[place] if groups else None), score, 100.0 + place)
        for place, score in enumerate(scores)
    ]


LIVE = [0.5 + place / 100 for place in range(40)]  # 0.50 … 0.89
PRINTS = [place / 100 for place in range(40)]  # 0.00 … 0.39
REPLAYS = [0.3 + place / 100 for place in range(20)] + [0.6]  # one passes as live


def test_rates_are_those_counted_by_hand() -> None:
    found = measure([*scored(None, LIVE), *scored("print", PRINTS), *scored("replay", REPLAYS)])
    for point in found.points:
        assert point.bpcer.value == np.mean([score < point.threshold for score in LIVE])
        assert point.kinds["print"].value == np.mean([score >= point.threshold for score in PRINTS])
        assert point.kinds["replay"].value == np.mean([score >= point.threshold for score in REPLAYS])
        assert point.apcer.value == max(kind.value for kind in point.kinds.values())
        assert point.apcer.high == max(kind.high for kind in point.kinds.values())
        assert point.bpcer == wilson(sum(score < point.threshold for score in LIVE), len(LIVE))
    rates = [(point.apcer.value, point.bpcer.value) for point in found.points]
    assert rates == sorted(rates, key=lambda point_rates: (-point_rates[0], point_rates[1]))
    assert found.smallest_face == 100
    assert min(point.apcer.value for point in found.points) == pytest.approx(1 / 21), "20 photos say nothing of 0.02"


def test_rates_that_the_recordings_cannot_show_are_not_decided_at(tmp_path: Path) -> None:
    package = packages.install(tmp_path)
    found = measure([*scored(None, LIVE), *scored("print", PRINTS)])
    made = calibration(found, [package], name="own", measured_on="a test")
    point = liveness_point(made, 0.05, 0.05)
    assert point is not None
    assert liveness_point(made, 0.01, 0.05) is None, "40 attacks cannot show 1 in 100, though none passes"
    assert liveness_point(made, 0.05, 0.01) is None
    assert liveness_point(None, 0.05, 0.05) is None
    # both rates hold at one threshold, so that nothing is uncertain
    assert point.live_from == point.spoof_below
    box = Box(0, 0, 150, 150)
    assert np.mean([judge(score, box, point).verdict is Verdict.LIVE for score in PRINTS]) <= 0.05
    assert np.mean([judge(score, box, point).verdict is Verdict.SPOOF for score in LIVE]) <= 0.05


def test_scores_that_overlap_leave_a_zone_of_doubt(tmp_path: Path) -> None:
    overlapping = [0.3 + place / 100 for place in range(40)]  # 0.30 … 0.69
    found = measure([*scored(None, LIVE), *scored("replay", overlapping)])
    point = liveness_point(calibration(found, [packages.install(tmp_path)], name="own", measured_on="-"), 0.05, 0.05)
    assert point is not None
    assert point.spoof_below == pytest.approx(0.52)
    assert 0.66 < point.live_from <= 0.68, "two of forty pass"
    assert judge(0.6, Box(0, 0, 150, 150), point).verdict is Verdict.UNCERTAIN


def test_frames_of_one_person_count_less_than_people() -> None:
    scores = [0.2] * 50 + [0.9] * 150
    people = [f"p{place // 50}" for place in range(200)]
    frames = Sample.of(scored(None, scores, people))
    alone = Sample.of(scored(None, scores, [f"p{place}" for place in range(200)]))
    happened = frames.scores < 0.5
    by_person, by_photo = (sample.share(happened, rounds=500, seed=0) for sample in (frames, alone))
    assert by_person.value == by_photo.value == 0.25
    assert by_person.high - by_person.low > 3 * (by_photo.high - by_photo.low)
    nobody = frames.share(frames.scores < 0, rounds=500, seed=0)
    assert nobody.high == wilson(0, 4).high, "no error among four people says little"


@given(
    live=st.lists(st.floats(0, 1), min_size=5, max_size=60),
    attack=st.lists(st.floats(0, 1), min_size=5, max_size=60),
)
def test_any_scores_make_points_that_a_manifest_takes(live: list[float], attack: list[float]) -> None:
    found = measure([*scored(None, live), *scored("print", attack)], rounds=10)
    thresholds = [point.threshold for point in found.points]
    assert thresholds == sorted(set(thresholds))
    for point in found.points:
        assert 0 <= point.threshold <= 1
    made = calibration(found, [], name="own", measured_on="-")
    assert len(made.points) == len(found.points)


def test_recordings_without_a_face_are_counted_apart() -> None:
    unread = [Scored(Recording(Path("x.jpg"), "print", None), failure="no_face")] * 10
    found = measure([*scored(None, LIVE), *scored("print", PRINTS), *unread])
    assert found.attacks["print"].unanswered.value == 0.2
    assert len(found.attacks["print"].scores) == 40
    with pytest.raises(ValueError, match="no face was found in any photo of print"):
        measure([*scored(None, LIVE), *unread])
    with pytest.raises(ValueError, match="at least 5 photos"):
        measure([*scored(None, [0.5] * 4), *scored("print", [0.1] * 4)])


# --- From folders to the manifest ------------------------------------------------------------------------------------


def write(path: Path, pixels: Pixels) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels[:, :, ::-1])


def sample(name: str) -> Pixels:
    return np.asarray(Image.open(SAMPLES / name).convert("RGB"), np.uint8)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bright photos of live people by person, dark ones of two kinds of attack, and what is no photo."""
    folder = tmp_path_factory.mktemp("recorded")
    photos = [sample("collins.jpg"), sample("hopper.jpg")]
    for place in range(24):
        person, light = photos[place % 2], 0.8 + 0.2 * place / 24
        small = np.asarray(cv2.resize(person, None, fx=0.5, fy=0.5, interpolation=cv2.INTER_AREA), np.uint8)
        write(folder / "live" / f"person{place % 6}" / f"{place}.png", (small * light).astype(np.uint8))
        kind = "Print A4" if place % 2 else "replay"
        write(folder / "spoof" / kind / f"{place}.png", (small * 0.3 * light).astype(np.uint8))
    write(folder / "spoof" / "replay" / "wall.png", np.full((200, 200, 3), 90, np.uint8))
    (folder / "live" / "notes.txt").write_text("no photo")
    return folder


def test_folders_say_the_kind_and_the_person(recorded: Path, tmp_path: Path) -> None:
    found = find_recordings(recorded / "live", recorded / "spoof")
    assert sum(recording.kind is None for recording in found) == 24
    assert {recording.kind for recording in found} == {None, "print-a4", "replay"}
    assert {recording.group for recording in found if recording.kind is None} == {
        f"person{place}" for place in range(6)
    }
    assert all(recording.group is None for recording in found if recording.kind == "replay")
    with pytest.raises(ValueError, match="must hold photos"):
        find_recordings(recorded / "live", tmp_path)
    write(tmp_path / "loose.png", np.zeros((8, 8, 3), np.uint8))
    assert {recording.kind for recording in find_recordings(recorded / "live", tmp_path)} == {None, "attack"}


def run(*words: str | Path) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.long
def test_the_command_measures_the_services_answers_and_binds_them(recorded: Path, tmp_path: Path) -> None:
    made = packages.install(tmp_path / "own", packages.brightness_model(middle=0.2, steepness=40))
    words = (
        "liveness", "--package", made.folder, "--live", recorded / "live", "--spoof", recorded / "spoof",
        "--name", "door", "--measured-on", "a test", "--models", PROJECT / "models", "--cache", tmp_path / "cache",
    )  # fmt: skip
    fill_cache(tmp_path / "cache")
    printed = run(*words, "--out", tmp_path / "out", "--write")
    assert "APCER" in printed
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["photos"] == {"live": 24, "print-a4": 12, "replay": 12}
    assert result["groups"] == {"live": 6, "print-a4": None, "replay": None}
    assert result["non_responses"]["replay"]["value"] == pytest.approx(1 / 13)
    assert list(result["failures"].values()) == ["no_face"]
    (kept,) = load_package(made.folder).manifest.liveness_calibrations
    assert (kept.name, kept.live, dict(kept.attacks)) == ("door", 24, {"print-a4": 12, "replay": 12})
    point = liveness_point(kept, 0.1, 0.1)
    assert point is not None
    assert point.live_from == point.spoof_below
    assert liveness_point(kept, 0.05, 0.05) is None, "12 photos of an attack cannot show 1 in 20"
    run(*words[:8], "again", *words[9:], "--out", tmp_path / "out", "--write")
    (again,) = load_package(made.folder).manifest.liveness_calibrations
    assert again.name == "again", "one set of packages has one calibration"


def test_points_of_another_set_of_packages_stay(tmp_path: Path) -> None:
    first, second = (packages.install(tmp_path, name=name) for name in ("one", "two"))
    found = measure([*scored(None, LIVE), *scored("print", PRINTS)])
    alone = with_calibration(first.manifest, calibration(found, [first], name="alone", measured_on="-"))
    both = with_calibration(alone, calibration(found, [first, second], name="both", measured_on="-"))
    assert [calibrated.name for calibrated in both.liveness_calibrations] == ["alone", "both"]
