"""Turned photos: what is counted of them, and the command that measures."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.conftest import PROJECT
from tests.support.ready import fill_cache
from training.commands.evaluate import app
from training.evaluation.photos import Templates
from training.evaluation.stages.turning import UNALIGNABLE, Scores, Turned, measure, sample

SAMPLES = PROJECT / "docs" / "samples"
MODELS = PROJECT / "models"


def templates(vectors: list[list[float]], quality: float = 50) -> Templates:
    names = ("ann/1", "ann/2", "bo/1", "bo/2")
    made = np.array(vectors, np.float32)
    found = np.asarray(made.any(axis=1), np.bool_)
    failures = {name: UNALIGNABLE for name, there in zip(names, found, strict=True) if not there}
    return Templates("p@1", names, made, found, np.array([50, quality, 50, 50], np.float32), failures, 0)


def test_what_is_made_up_is_counted_and_what_is_not_compared_matches_nobody() -> None:
    upright = templates([[1, 0], [1, 0], [0, 1], [0, 1]])
    turned = templates([[1, 0], [0, 1], [0, 1], [0, 0]])  # ann/2 is made up and looks like bo; bo/2 is not compared
    got = measure(90, turned, upright, Scores(match=0.5, stranger=0.5, find=0.5))
    assert (got.photos, got.found, got.unalignable) == (4, 3, 1)
    assert (got.with_itself, got.made_up, got.made_up_enrolled) == (2, 1, 1)
    assert (got.mated, got.mated_matches) == (4, 2)
    assert (got.strangers, got.false_matches) == (2, 1)
    assert (got.mixed, got.mixed_matches) == (6, 2)
    assert (got.searches, got.false_finds) == (3, 1)  # ann/2 finds bo/1; bo/1 finds nobody in ann/1
    poor = templates([[1, 0], [0, 1], [0, 1], [0, 0]], quality=30)
    assert measure(90, poor, upright, Scores(0.5, 0.5, 0.5)).made_up_enrolled == 0, "no enrollment takes it"


def test_photos_of_people_with_several_are_taken() -> None:
    assert sample(["ann/1", "bo/1", "cy/1", "cy/2", "bo/2"], 3) == ["bo/1", "bo/2", "cy/1"]


def test_people_who_were_measured_before_can_be_left_out() -> None:
    names = ["ann/1", "bo/1", "bo/2", "cy/1", "cy/2", "di/1", "di/2"]
    assert sample(names, 3, skipped=1) == ["cy/1", "cy/2", "di/1"], "ann has no mate and does not count"


@pytest.mark.parametrize(("names", "skipped"), [(["ann/1", "bo/1"], 0), (["ann/1", "ann/2", "bo/1"], 1)])
def test_nobody_with_several_photos_is_said(names: list[str], skipped: int) -> None:
    with pytest.raises(ValueError, match="nobody has several photos"):
        sample(names, 3, skipped=skipped)


@pytest.mark.long
def test_the_command_turns_photos_and_finds_the_same_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place, name in (("eileen/1", "collins"), ("eileen/2", "collins_again"), ("grace/1", "hopper")):
        (tmp_path / "photos" / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SAMPLES / f"{name}.jpg", tmp_path / "photos" / f"{place}.jpg")
    fill_cache(tmp_path / "cache")
    words = ["turned", "--images", str(tmp_path / "photos"), "--package", "sface", "--models", str(MODELS)]
    words += ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--every", "135"]
    words += ["--keep", str(tmp_path / "kept")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["turned"]
    assert [row["degrees"] for row in rows] == [0, 135, 270]
    assert all((row["photos"], row["made_up"]) == (2, 0) for row in rows)
    assert all(row["mated_matches"] == 2 for row in rows)
    assert "<svg" in (tmp_path / "out" / "turned.svg").read_text()

    def refuse(_data: bytes, degrees: float) -> bytes:
        raise AssertionError(f"turned by {degrees} again")

    monkeypatch.setattr("training.evaluation.stages.turning.turn", refuse)
    again = CliRunner().invoke(app, [*words, "--every", "180"])
    assert again.exit_code != 0, "180 degrees are not kept"
    assert "turned by 180 again" in str(again.exception)
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 0, f"{again.output} {again.exception!r}"
    assert json.loads((tmp_path / "out" / "result.json").read_text())["turned"] == rows


def test_what_is_written_after_some_photos_is_of_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is interrupted leaves a whole result, of all angles."""
    for person in ("ann", "bo", "cy"):
        for place in ("1", "2"):
            (tmp_path / "photos" / person).mkdir(parents=True, exist_ok=True)
            shutil.copy(SAMPLES / "collins.jpg", tmp_path / "photos" / person / f"{place}.jpg")
    written = []

    def write(_out: Path, _kind: str, made: Templates, _settings: object, figures: dict[str, list[Turned]]) -> None:
        written.append([(row.degrees, row.photos) for row in figures["turned"]])
        assert len(made.names) == figures["turned"][0].photos

    monkeypatch.setattr("training.commands.cards.BLOCK", 4)
    monkeypatch.setattr("training.commands.cards.write_found", write)
    fill_cache(tmp_path / "cache")
    words = ["turned", "--images", str(tmp_path / "photos"), "--package", "sface", "--models", str(MODELS), "--no-draw"]
    words += ["--out", str(tmp_path / "out"), "--cache", str(tmp_path / "cache"), "--every", "180"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, f"{done.output} {done.exception!r}"
    assert written == [[(0, 4), (180, 4)], [(0, 6), (180, 6)]]
