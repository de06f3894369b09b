"""The rates that callers get are found by drawing galleries, and shown beside what was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from bench.rates import (
    ASKED,
    MISSED,
    MISSED_FOUND,
    MIXED,
    Faces,
    Row,
    Setting,
    Source,
    app,
    draw,
    measure,
    one_person_each,
    seen_from_afar,
    table,
    write,
)
from tests.conftest import PROJECT
from tests.support import packages
from tests.support.calibrating import photographed
from tests.support.ready import fill_cache
from tests.support.service import AGAIN, COLLINS, HOPPER, encoded
from training.commands.options import TemplateOptions, templates_of

STRICT, LAX = ({1e-2: at, 1e-3: at + 0.01, 1e-4: at + 0.02, 1e-6: at + 0.03} for at in (0.95, -0.9))


def faces(points: dict[float, float]) -> Faces:
    vectors, people = photographed(300, 4, 1)
    return Faces(vectors, people, packages.manifest(calibrations=(packages.calibration(points),)))


def test_a_gallery_has_nobody_who_searches_it_as_a_stranger() -> None:
    everybody = faces(STRICT)
    rows = {person: np.flatnonzero(everybody.people == person) for person in range(300)}
    for photos, probe in ((2, 1), (MIXED, 1), (1, 2)):
        drawn = draw(rows, Setting(photos, 50, 0.5, "package", probe), np.random.default_rng(1))
        assert drawn.mates.shape[1] == drawn.strangers.shape[1] == probe
        named = drawn.subjects < drawn.named
        inside = set(everybody.people[drawn.faces].tolist())
        assert len(set(drawn.subjects[~named])) == (~named).sum() == 50
        assert not inside & set(everybody.people[drawn.strangers].ravel().tolist())
        assert not set(drawn.faces.tolist()) & set(drawn.mates.ravel().tolist())
        assert np.array_equal(np.unique(drawn.subjects), np.arange(100))
        assert drawn.weights.sum() == pytest.approx(1)
        if photos:
            assert set(np.bincount(drawn.subjects[named])) == {photos}


@pytest.mark.parametrize(("points", "rate"), [(STRICT, 0), (LAX, 1)])
def test_what_is_found_is_what_the_thresholds_make_of_the_scores(points: dict[float, float], rate: float) -> None:
    row = measure(faces(points), Setting(2, 20, 0.0, "package"), 2)
    assert {found for what, (found, _, _) in row.found.items() if what not in {MISSED, MISSED_FOUND}} == {rate}
    assert row.found[MISSED][0] == pytest.approx(1 - rate, abs=0.1)


@pytest.mark.parametrize("source", ["others", "gallery"])
def test_points_that_were_measured_keep_what_they_state(source: Source) -> None:
    row = measure(faces({1e-2: 0.2, 1e-3: 0.25, 1e-6: 0.75}), Setting(3, 100, 0.0, source), 2)
    assert 0.5 < row.found["verify photos fmr 0.001"][0] / 1e-3 < 1.5
    assert 0.5 < row.found["verify subject fmr 0.001"][0] / 1e-3 < 1.5


@pytest.mark.long
@pytest.mark.parametrize(("photos", "probe"), [(1, 5), (3, 3)])
def test_tracks_keep_what_is_stated(photos: int, probe: int) -> None:
    vectors, people = photographed(200, 8, 1)
    everybody = Faces(vectors, people, packages.manifest(calibrations=(packages.calibration({1e-2: 0.2, 1e-6: 0.75}),)))
    found = measure(everybody, Setting(photos, 50, 0.0, "others", probe), 2).found
    for what, asked in (("verify photos fmr", 1e-3), ("verify subject fmr", 1e-3), ("identify fpir", 0.1)):
        assert 0.5 < found[f"{what} {asked:g}"][0] / asked < 1.5
    single = measure(everybody, Setting(photos, 50, 0.0, "others"), 2).found
    assert found[MISSED_FOUND][0] < single[MISSED_FOUND][0] * 2 / 3


def test_a_rate_that_is_refused_is_shown_so_and_all_is_written(tmp_path: Path) -> None:
    setting = Setting(1, 250, 0.0, "package")
    rows = [Row(setting, {f"{what} {asked:g}": (asked, 0.0, 1.0) for what, asked in ASKED[1:]})]
    cells = [next(iter(column.cells)) for column in table(rows).columns]
    assert cells[5:] == ["refused", *["1.00"] * (len(ASKED) - 1), "", ""]
    write(tmp_path / "new", rows, {"draws": 1})
    written = json.loads((tmp_path / "new" / "rates.json").read_text())
    assert written["rows"][0]["setting"]["subjects"] == 250


@pytest.mark.long
def test_people_with_too_few_photos_are_said_so_and_leave_no_traceback(tmp_path: Path) -> None:
    """Drawn crops: two people have two photos, so that one photo each can be enrolled and two can't."""
    rng = np.random.default_rng(0)
    for name in ("ada/1", "ada/2", "bob/1", "bob/2", "cy/1"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        crop = rng.integers(0, 256, (112, 112, 3), np.uint8)
        (tmp_path / "photos" / f"{name}.png").write_bytes(encoded(crop))
    (tmp_path / "none").mkdir()
    fill_cache(tmp_path / "cache")

    def run(photos: Path, *more: str) -> Result:
        words = ["--images", photos, "--package", "sface", "--aligned", "--models", PROJECT / "models"]
        words += ["--cache", tmp_path / "cache", "--out", tmp_path / "out", "--draws", "1"]
        return CliRunner().invoke(app, [str(word) for word in [*words, *more]])

    done = run(tmp_path / "photos", "--photos", "1", "--photos", "2")
    assert done.exit_code == 0, done.output
    assert "2 photos, points of package: left out, 0 of 3 people have 3 photos" in " ".join(done.stderr.split())
    for photos, more, said in (
        (tmp_path / "photos", ("--photos", "5"), "0 of 3 people have 6 photos"),
        (tmp_path / "none", (), "holds no photos"),
        (tmp_path / "photos", ("--source", "mine"), "'mine' is not one of"),
        (tmp_path / "photos", ("--face-width", "20"), "whole photos"),
    ):
        refused = run(photos, *more)
        assert (refused.exit_code, type(refused.exception)) == (2, SystemExit)
        assert said in " ".join(refused.stderr.split())


def test_searching_photos_are_reduced_until_faces_are_as_wide_as_asked(tmp_path: Path) -> None:
    """Of nine pixels none is usable; of forty all are, and templates of both sizes are of one person."""
    for name, photo in {"eileen/1": COLLINS, "eileen/2": AGAIN, "grace/1": HOPPER}.items():
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "photos" / f"{name}.jpg").write_bytes(photo)
    fill_cache(tmp_path / "cache")
    way = TemplateOptions("sface", models=PROJECT / "models", cache=tmp_path / "cache", threads=1)
    photos, names = tmp_path / "photos", ["eileen/1", "eileen/2", "grace/1"]
    whole = templates_of(photos, (), way)
    small = seen_from_afar(photos, names, 40, way)
    assert small.found.all()
    assert (np.sum(small.vectors * whole.vectors, axis=1) > 0.7).all()
    assert not (small.vectors == whole.vectors).all(axis=1).any()
    assert not seen_from_afar(photos, names, 9, way).found.any()


def test_photos_of_one_person_under_two_names_are_left_out() -> None:
    vectors, people = photographed(60, 3, 2, noise=0.3)
    names = people.copy()
    names[0] = 60
    kept = one_person_each(vectors, names, 0.8)
    assert not kept[:3].any()
    assert kept[3:].all()
    assert one_person_each(vectors, names, None).all()
