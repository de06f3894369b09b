"""A run's data is prepared by one process before the ranks join; the others wait and say what for."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs the train extra")

from rich.console import Console
from typer.testing import CliRunner

from app.errors import Unusable
from tests.support.runs import TINY, small_recipe
from training.__main__ import app
from training.data import sampler
from training.recipe import Recipe
from training.run.inputs import prepare_alone, prepare_material
from training.run.trainer import Material


def quiet() -> Console:
    return Console(quiet=True)


def recipe_of(folder: Path, **data: object) -> Recipe:
    return small_recipe(data={"indexes": str(folder / "indexes"), "source": "procedural:people=6,images=4", **data})


def test_one_process_prepares_and_the_others_wait_for_it(tmp_path: Path) -> None:
    recipe, made = recipe_of(tmp_path), list[Material]()
    with Path(f"{recipe.data.indexes}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        waiting = threading.Thread(target=lambda: made.append(prepare_alone(recipe, tmp_path, quiet())))
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive()
        assert not Path(recipe.data.indexes).exists()
    waiting.join(60)
    assert len(made) == 1
    assert made[0].crops.rows.tolist() == prepare_alone(recipe, tmp_path, quiet()).crops.rows.tolist()


def test_who_waits_too_long_says_what_for(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, prepare_timeout=0.01)
    with Path(f"{recipe.data.indexes}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Unusable, match="prepare the data") as caught:
            prepare_alone(recipe, tmp_path, quiet())
    assert caught.value.code == "preparation_timeout"


def test_what_was_chosen_once_is_mapped_and_the_same(tmp_path: Path) -> None:
    recipe = recipe_of(tmp_path, held_out=0.4)
    first, again = prepare_material(recipe, tmp_path, quiet()), prepare_material(recipe, tmp_path, quiet())
    made = len(list((tmp_path / "indexes").iterdir()))
    assert made == 2  # crops to train on, crops held out
    assert list(first.crops.people) == list(again.crops.people)
    assert first.crops.rows.tolist() == again.crops.rows.tolist()
    assert first.held_out is not None
    assert not set(first.held_out.people) & set(first.crops.people)
    prepare_material(recipe_of(tmp_path, held_out=0.4, min_images=2), tmp_path, quiet())
    assert len(list((tmp_path / "indexes").iterdir())) == 2 * made


def test_a_drop_list_that_changes_under_its_name_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "drop.txt").write_text("drawn-0\n")
    recipe = recipe_of(tmp_path, held_out=0.0, drop=str(tmp_path / "drop.txt"))
    assert "drawn-0" not in prepare_material(recipe, tmp_path, quiet()).crops.people
    (tmp_path / "drop.txt").write_text("drawn-1\n")
    assert "drawn-1" not in prepare_material(recipe, tmp_path, quiet()).crops.people


def test_a_recipe_is_prepared_by_a_command(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY.replace("[data]", f'[data]\nindexes = "{tmp_path}/indexes"'))
    found = CliRunner().invoke(app, ["prepare", str(tmp_path / "tiny.toml")])
    assert found.exit_code == 0
    assert "Prepared: 40 crops of 10 people" in found.output
    assert len(list((tmp_path / "indexes").iterdir())) == 2


@pytest.mark.parametrize("name", sampler.names())
def test_samplers_of_mapped_labels_are_those_of_labels_in_memory(name: str, tmp_path: Path) -> None:
    crops = prepare_material(recipe_of(tmp_path, held_out=0.0), tmp_path, quiet()).crops
    mapped, plain = (
        sampler.build(name, labels, batch_size=8, images=4, seed=1) for labels in (crops.labels, crops.labels.copy())
    )
    assert mapped.batch(1).tolist() == plain.batch(1).tolist()
