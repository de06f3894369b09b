"""Wrong labels are found by the sub-centres of a run, and the list of them is what `data.drop` takes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs the train extra")

from rich.console import Console
from typer.testing import CliRunner

from app.errors import InvalidInput
from tests.support.crops import png_of
from tests.support.runs import ALONE, flat_people, small_recipe
from training.commands.data import app
from training.data import open_dataset, rows_left
from training.recipe import Recipe
from training.run.inputs import prepare_material
from training.run.sub_centres import dominant_angles, find_outliers
from training.run.trainer import Trainer

PEOPLE, IMAGES, WRONG = 16, 12, 3


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder a person; the first three images of each lie in somebody else's folder."""
    root = tmp_path_factory.mktemp("set")
    crops = flat_people(PEOPLE, IMAGES)
    for index, person in enumerate(crops.labels.tolist()):
        wrong = index % IMAGES < WRONG
        given = (person + 1 + 5 * (index % IMAGES)) % PEOPLE if wrong else person
        folder = root / f"{given:02}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{'wrong' if wrong else 'right'}{index}.png").write_bytes(png_of(crops.images([index])[0]))
    return root


def recipe_of(source: Path, tmp_path: Path) -> Recipe:
    kept = {"indexes": str(tmp_path / "indexes"), "cache": str(tmp_path / "cache")}
    return small_recipe(
        data={"source": str(source), "held_out": 0.0, **kept},
        losses=[{"name": "subcenter_arcface", "centers": 3, "s": 16.0, "m": 0.2}],
        model={"dim": 32},
        sampler={"batch_size": 32},
        schedule={"warmup": 10, "margin_warmup": 30},
        train={"steps": 60, "log_every": 60, "ema": 0.0},
    )


@pytest.mark.long
def test_most_wrong_labels_are_found_and_few_right_ones(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(source, tmp_path)
    Trainer(recipe, prepare_material(recipe, Path("models")), tmp_path / "run", ALONE).train()
    done = CliRunner().invoke(app, ["outliers", str(tmp_path / "run"), "--out", str(tmp_path / "drop.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "drop.json").read_text())
    names = [outlier["image"] for outlier in report["outliers"]]
    wrong = sum("wrong" in name for name in names)
    assert report["images"] == PEOPLE * IMAGES
    assert wrong > PEOPLE * WRONG / 2
    assert len(names) - wrong <= 0.02 * PEOPLE * (IMAGES - WRONG)
    angles = [outlier["angle"] for outlier in report["outliers"]]
    assert angles == sorted(angles, reverse=True)
    faces = open_dataset(source)
    left = {faces.describe(row) for row in rows_left(faces, tmp_path / "drop.json").tolist()}
    assert left == {faces.describe(row) for row in range(len(faces))} - set(names)


def test_angles_are_those_of_an_explicit_loop() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 7, 200)
    labels[labels == 5] = 4  # nobody is in class 5
    cosines = rng.uniform(-1, 1, (200, 3)).astype(np.float32)
    expected = np.empty(200)
    for label in set(labels.tolist()):
        votes = [0, 0, 0]
        for row in np.flatnonzero(labels == label):
            votes[max(range(3), key=lambda k: cosines[row, k])] += 1
        dominant = votes.index(max(votes))
        for row in np.flatnonzero(labels == label):
            expected[row] = math.degrees(math.acos(cosines[row, dominant]))
    np.testing.assert_allclose(dominant_angles(cosines, labels), expected)


def test_a_run_with_one_centre_a_class_is_refused(source: Path, tmp_path: Path) -> None:
    recipe = recipe_of(source, tmp_path).model_copy(update={"losses": small_recipe().losses})
    path = Trainer(recipe, prepare_material(recipe, Path("models")), tmp_path / "run", ALONE).save()
    with pytest.raises(InvalidInput) as caught:
        find_outliers(path, 75.0, Console(quiet=True))
    assert caught.value.code == "no_sub_centres"
