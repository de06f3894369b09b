"""Turned photos: what is counted of them, and the command that measures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import astuple
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from app.models.calibration.intervals import Interval, people_weights, percentile_interval
from tests.conftest import PROJECT
from tests.support.ready import fill_cache
from training.commands.evaluate import app
from training.evaluation.pairs import person_of
from training.evaluation.photos import Templates
from training.evaluation.stages.turning import (
    ALL_TURNED,
    UNALIGNABLE,
    MatchThresholds,
    Turned,
    beside_upright,
    measure,
    sample,
    together,
)

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
    got, _ = measure(90, turned, upright, MatchThresholds(match=0.5, stranger=0.5, find=0.5))
    assert (got.photos, got.found, got.unalignable) == (4, 3, 1)
    assert (got.with_itself, got.made_up, got.made_up_enrolled) == (2, 1, 1)
    assert (got.mated, got.mated_matches) == (4, 2)
    assert (got.strangers, got.false_matches) == (2, 1)
    assert (got.mixed, got.mixed_matches) == (6, 2)
    assert (got.searches, got.false_finds) == (3, 1)  # ann/2 finds bo/1; bo/1 finds nobody in ann/1
    poor = templates([[1, 0], [0, 1], [0, 1], [0, 0]], quality=30)
    assert measure(90, poor, upright, MatchThresholds(0.5, 0.5, 0.5))[0].made_up_enrolled == 0, "no enrollment takes it"


def matches(first: Templates, second: Templates, drawn: Sequence[str], least: float, *, alike: bool) -> float:
    """Return which share of pairs of two people's photos that are found matches, where these people were drawn: pair by
    pair. ``alike``: both of a pair are of ``second``."""
    reached = compared = 0
    for row, column in product(range(len(first.names)), repeat=2):
        people = person_of(first.names[row]), person_of(second.names[column])
        if people[0] == people[1] or (alike and row > column) or not (first.found[row] and second.found[column]):
            continue
        count = drawn.count(people[0]) * drawn.count(people[1])
        compared += count
        reached += count * bool(first.vectors[row] @ second.vectors[column] >= least)
    return reached / compared if compared else np.nan


def test_turned_photos_beside_upright_ones_are_what_counting_pair_by_pair_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("training.evaluation.stages.turning.LEAST_EVENTS", 1)
    rng = np.random.default_rng(7)
    names = [f"{person}/{photo}" for person in "abcde" for photo in range(2)]
    made = {}
    for degrees in (0, 45, 90):
        vectors = rng.normal(size=(10, 4))
        found = rng.random(10) < (1 if degrees == 0 else 0.8)
        vectors = np.where(found[:, None], vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 0)
        quality = np.full(10, 50, np.float32)
        made[degrees] = Templates("p@1", tuple(names), vectors.astype(np.float32), found, quality, {}, 0)
    at = MatchThresholds(match=0.2, stranger=0.2, find=0.6)
    measured = {degrees: measure(degrees, templates, made[0], at) for degrees, templates in made.items()}
    eighth, quarter, both = beside_upright({degrees: counted for degrees, (_, counted) in measured.items()}, rounds=50)
    assert (eighth.turned_by, quarter.turned_by, both.turned_by) == ("45°", "90°", ALL_TURNED)
    draws = [
        [person for person, count in zip("abcde", row, strict=True) for _ in range(count)]
        for row in people_weights(5, 50)
    ]

    def times(drawn: Sequence[str], *, alike: bool) -> float:
        tilted, upright = made[45], made[0]
        of = matches(upright, upright, drawn, 0.2, alike=alike)
        return matches(tilted if alike else upright, tilted, drawn, 0.2, alike=alike) / of if of > 0 else np.nan

    for got, alike in ((eighth.strangers, True), (eighth.mixed, False)):
        assert got is not None
        expected = percentile_interval(times("abcde", alike=alike), [times(drawn, alike=alike) for drawn in draws])
        assert astuple(got) == pytest.approx(astuple(expected))
    upright, *turned = (figure for figure, _ in measured.values())
    assert together([upright, *turned]).false_matches == sum(row.false_matches for row in turned)
    for what, happened, of in (
        ("mated", "mated_matches", "mated"),
        ("strangers", "false_matches", "strangers"),
        ("mixed", "mixed_matches", "mixed"),
        ("searches", "false_finds", "searches"),
    ):
        rates = [
            sum(getattr(row, happened) for row in rows) / sum(getattr(row, of) for row in rows)
            for rows in (turned, [upright])
        ]
        assert getattr(both, what).value == pytest.approx(rates[0] / rates[1]), what


def test_what_hardly_happens_upright_has_no_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    photos = templates([[1, 0], [1, 0], [0, 1], [0, 1]])
    counted = {degrees: measure(degrees, photos, photos, MatchThresholds(0.5, 0.5, 0.5))[1] for degrees in (0, 90)}
    assert [row.mated for row in beside_upright(counted)] == [None, None], "four matches are too few"
    monkeypatch.setattr("training.evaluation.stages.turning.LEAST_EVENTS", 4)
    [quarter, all_turned] = beside_upright(counted, rounds=10)
    assert quarter.mated == Interval(1, 1, 1)
    assert (quarter.strangers, quarter.mixed, quarter.searches) == (None, None, None)
    assert beside_upright({0: counted[0]}) == []
    assert all_turned.mated == quarter.mated


def test_photos_of_people_with_several_are_taken() -> None:
    assert sample(["ann/1", "bo/1", "cy/1", "cy/2", "bo/2"], 3) == ["bo/1", "bo/2", "cy/1"]


def test_people_with_one_photo_are_taken_where_they_are_asked_for() -> None:
    assert sample(["ann/1", "bo/1", "bo/2"], 0, singles=True) == ["ann/1", "bo/1", "bo/2"]
    assert sample(["ann/1", "bo/1"], 1, skipped=1, singles=True) == ["bo/1"]


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
    beside = json.loads((tmp_path / "out" / "result.json").read_text())["beside_upright"]
    assert [(row["turned_by"], row["mated"], row["strangers"]) for row in beside] == [
        (name, None, None) for name in ("135°", "270°", ALL_TURNED)
    ], "two matches are too few"
    assert f"│ {ALL_TURNED} " in done.output
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
