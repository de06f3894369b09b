"""Masks and dark glasses lie where they are worn, and the rates under a condition are those of its pairs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from app.models.stages import Stages, open_stages, pixels_of
from app.package.folders import load_package
from app.pipeline import choose_face
from app.types import Landmarks, Pixels
from tests.conftest import PROJECT
from tests.support.ready import fill_cache
from training.commands.evaluate import app
from training.evaluation.photos import Templates
from training.evaluation.stages.conditions import CLOTHS, CONDITIONS, GLASS, drawn, measure, one_photo_each

SAMPLES = PROJECT / "docs" / "samples"
MODELS = PROJECT / "models"


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stages]:
    packages = [load_package(MODELS / name) for name in ("sface-slim", "yunet")]
    fill_cache(cache := tmp_path_factory.mktemp("cache"))
    with open_stages(packages[0], packages[1], cache) as opened:
        yield opened


@pytest.fixture(scope="module")
def seen(stages: Stages) -> tuple[bytes, Pixels, Landmarks]:
    data = (SAMPLES / "collins.jpg").read_bytes()
    found = stages.pipeline.detect(data)
    landmarks = found.faces[choose_face(found).index].landmarks
    assert landmarks is not None
    return data, pixels_of(data), landmarks


def at(photo: Pixels, place: Landmarks) -> list[int]:
    x, y = np.round(place).astype(int).tolist()
    return [int(level) for level in photo[y, x]]


def test_things_worn_cover_what_they_cover_and_nothing_else(
    seen: tuple[bytes, Pixels, Landmarks], stages: Stages
) -> None:
    data, photo, landmarks = seen
    masked, glasses = (
        pixels_of(drawn(data, stages.pipeline, CONDITIONS[name], "a")) for name in ("mask", "dark-glasses")
    )
    eyes, mouth = landmarks[:2], landmarks[3:]
    for eye in eyes:
        assert at(glasses, eye) == list(GLASS)
        assert at(masked, eye) == at(photo, eye)
    for corner in mouth:
        assert min(np.abs(np.subtract(at(masked, corner), cloth)).max() for cloth in CLOTHS) <= max(CLOTHS[1]) * 0.2
        assert at(glasses, corner) == at(photo, corner)
    assert (masked != photo).any(axis=2).mean() < 0.25


@pytest.mark.parametrize("name", sorted(set(CONDITIONS) - {"clean"}))
def test_a_condition_changes_the_photo_the_same_way_each_time(
    name: str, seen: tuple[bytes, Pixels, Landmarks], stages: Stages
) -> None:
    data, photo, _ = seen
    once, again = (pixels_of(drawn(data, stages.pipeline, CONDITIONS[name], "a")) for _ in range(2))
    assert np.array_equal(once, again)
    assert once.shape == photo.shape
    assert not np.array_equal(once, photo)
    assert stages.embed_photo(drawn(data, stages.pipeline, CONDITIONS[name], "a"))[0].shape == (128,)


def templates(names: list[str], vectors: list[list[float]], found: list[bool]) -> Templates:
    return Templates(
        "p@1", tuple(names), np.array(vectors, np.float32), np.array(found), np.ones(len(names), np.float32), {}, 0
    )


def test_the_rates_count_pairs_and_faces_that_are_not_found() -> None:
    gallery = templates(
        ["ann/1", "ann/2", "bo/1", "bo/2", "cy/1"], [[1, 0], [0.8, 0.6], [0, 1], [0, 1], [1, 0]], [True] * 5
    )
    assert one_photo_each(gallery) == ["ann/1", "bo/1"]
    probes = templates(["ann/1", "bo/1"], [[1, 0], [0, 0]], [True, False])
    got = measure("mask", probes, gallery, {1e-2: 0.7, 1e-3: 0.9}, rounds=50)
    assert (got.photos, got.without_face, got.mated, got.comparisons) == (2, 1, 2, 3)
    loose, strict = got.rates
    assert (loose.fnmr.value, strict.fnmr.value) == (0.5, 1.0), "bo's photo has no face: its pair is an error"
    assert loose.found.value == strict.found.value == pytest.approx(1 / 3, abs=1e-3), "ann's looks like cy's"
    assert loose.found.low < loose.found.value < loose.found.high


@pytest.mark.long
def test_the_command_writes_the_card_and_the_manifest_keeps_its_own(tmp_path: Path) -> None:
    for place, name in (("eileen/1", "collins"), ("eileen/2", "collins_again"), ("grace/1", "hopper")):
        (tmp_path / "photos" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SAMPLES / f"{name}.jpg", tmp_path / "photos" / f"{place}.jpg")
    for name in ("sface-slim", "yunet"):
        shutil.copytree(MODELS / name, tmp_path / "models" / name)
    fill_cache(tmp_path / "cache")
    words = ["conditions", "--images", "photos", "--package", "sface-slim", "--models", "models", "--out", "out",
             "--cache", "cache", "--measured-on", "samples", "--rounds", "20", "--write"]  # fmt: skip
    words = [str(tmp_path / word) if word in {"photos", "models", "out", "cache"} else word for word in words]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    manifest = load_package(tmp_path / "models" / "sface-slim").manifest
    card = manifest.condition_card
    assert card is not None
    assert [condition.name for condition in card.conditions] == list(CONDITIONS)
    assert card.conditions[0].rates[0].fnmr.value == 0, "untouched photos of one person match"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["kind"] == "conditions"
    foreign = manifest.model_copy(update={"condition_card": card.model_copy(update={"measured_with": "0" * 64})})
    kept, removed = foreign.without_foreign_points()
    assert (kept.condition_card, removed) == (None, ("condition card",))
