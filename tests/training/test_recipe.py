"""Recipes: complete files, errors that help, schedules that are pure functions of the step."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput
from training.recipe import Recipe, Schedule, load_recipe, parse_recipe

RECIPES = sorted((Path(__file__).parents[2] / "training" / "recipes").rglob("*.toml"))
SMALL = {"name": "small", "losses": [{"name": "arcface", "m": 0.3}]}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_can_be_read(path: Path) -> None:
    assert load_recipe(path).name == path.stem


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"optimizer": {"weight_deacy": 1}}, "optimizer.weight_decay"),
        ({"train": {"step": 1}}, "train.steps"),
        ({"model": {"batch_size": 1}}, "sampler.batch_size"),
        ({"sampler": {"image": 1}}, "sampler.images"),
        ({"optimiser": {}}, "optimizer"),
        ({"lr": 0.1}, "optimizer.lr"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(wrong: dict[str, object], right: str) -> None:
    with pytest.raises(InvalidInput, match="Unknown key") as caught:
        parse_recipe(SMALL | wrong)
    assert f"did you mean {right!r}" in caught.value.message
    assert caught.value.code == "invalid_recipe"


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        ({"name": "arcface", "weigth": 2.0}, "did you mean 'weight'"),
        ({"name": "triplet", "weigth": 2.0}, "did you mean 'weight'"),
        ({"name": "triplet", "minner": "hard"}, "did you mean 'miner'"),
        ({"name": "triplet", "miner_option": {}}, "did you mean 'miner_options'"),
        ({"name": "arcface", "grads": "detached"}, "did you mean 'grad'"),
        ({"name": "triplet", "miner": "semihard", "miner_options": {"varient": "wu"}}, "did you mean 'variant'"),
        ({"name": "arkface"}, "did you mean 'arcface'"),
        ({"name": "triplet", "miner_options": {"m": 0.1}}, "miner_options and no miner"),
        ({"name": "arcface", "miner": "hard"}, "takes no miner"),
        ({"name": "triplet", "image_beta": True}, "num_images"),
    ],
)
def test_a_loss_that_cannot_be_built_says_why(loss: dict[str, object], says: str) -> None:
    objective = pytest.importorskip("training.run.objective", reason="training needs the train extra")
    with pytest.raises(InvalidInput, match=says):
        objective.build_objective(parse_recipe(SMALL | {"losses": [loss]}), 4, 8, None)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"train": {"steps": 0}}, r"train\.steps"),
        ({"train": {"steps": 10, "epochs": 1}}, "train.steps and train.epochs"),
        (
            {"train": {"compile": True, "gradient_checkpointing": True}},
            "train.compile and train.gradient_checkpointing",
        ),
        ({"losses": []}, "losses"),
        ({"sampler": {"name": "pk", "batch_size": 10, "images": 4}}, "sampler"),
        ({"model": {"towers": "siamese"}}, "towers"),
    ],
)
def test_what_cannot_be_trained_is_refused(sections: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_recipe(SMALL | sections)


def test_overrides_take_toml_values_words_and_places_in_lists(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text('name = "small"\n[[losses]]\nname = "arcface"\n', encoding="utf-8")
    changed = ["losses.0.m=0.25", "optimizer.name=adamw", "schedule.milestones=[0.5]", "data.source='a b'"]
    recipe = load_recipe(path, changed)
    assert recipe.losses[0].hyper == {"m": 0.25}
    assert recipe.optimizer.name == "adamw"
    assert recipe.schedule.milestones == (0.5,)
    assert recipe.data.source == "a b"


@pytest.mark.parametrize("override", ["train.steps", "losses.3.m=1", "name.x=1", "=3"])
def test_an_override_that_fits_nowhere_is_refused(tmp_path: Path, override: str) -> None:
    path = tmp_path / "small.toml"
    path.write_text('name = "small"\n[[losses]]\nname = "arcface"\n', encoding="utf-8")
    with pytest.raises(InvalidInput) as caught:
        load_recipe(path, [override])
    assert caught.value.code == "invalid_recipe"


def test_a_missing_or_broken_file_is_an_error_of_ours(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no recipe"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("name = ", encoding="utf-8")
    with pytest.raises(InvalidInput, match="not TOML"):
        load_recipe(tmp_path / "broken.toml")


def test_the_digest_changes_with_any_value_and_survives_a_round_trip() -> None:
    recipe = parse_recipe(SMALL)
    assert Recipe.model_validate(recipe.model_dump(mode="json")).digest() == recipe.digest()
    assert parse_recipe(SMALL | {"seed": 2}).digest() != recipe.digest()
    assert parse_recipe(SMALL | {"losses": [{"name": "arcface", "m": 0.4}]}).digest() != recipe.digest()


@given(
    name=st.sampled_from(["cosine", "poly", "step", "constant"]),
    warmup=st.integers(0, 50),
    floor=st.floats(0, 0.5),
    steps=st.integers(110, 500),
)
def test_rates_rise_in_the_warm_up_then_never_rise_again(name: str, warmup: int, floor: float, steps: int) -> None:
    optim = pytest.importorskip("training.run.optimiser")
    schedule = Schedule.model_validate({"name": name, "warmup": warmup, "floor": floor})
    factors = [optim.rate_factor(schedule, step, steps) for step in range(steps)]
    assert all(0 <= factor <= 1 for factor in factors)
    assert all(b > a for a, b in pairwise(factors[:warmup]))
    assert factors[warmup] == pytest.approx(1.0)
    assert all(b <= a + 1e-12 for a, b in pairwise(factors[warmup:]))


def test_schedules_have_the_values_of_their_formulas() -> None:
    optim = pytest.importorskip("training.run.optimiser")
    half = {"cosine": 0.5, "poly": 0.25, "step": 0.1, "constant": 1.0}
    for name, value in half.items():
        schedule = Schedule.model_validate({"name": name, "milestones": (0.5,)})
        assert optim.rate_factor(schedule, 50, 100) == pytest.approx(value)
    warm = Schedule.model_validate({"margin_warmup": 10})
    assert [optim.margin_share(warm, step) for step in (0, 5, 10, 99)] == [0.0, 0.5, 1.0, 1.0]
    assert math.isclose(optim.rate_factor(Schedule.model_validate({"floor": 0.1}), 100, 100), 0.1)


def test_a_run_is_as_long_as_its_epochs_and_warm_ups_may_be_shares_of_it() -> None:
    recipe = parse_recipe(SMALL | {"train": {"epochs": 2.5, "accumulate": 2}, "schedule": {"warmup": 0.1}})
    assert recipe.train.length(100) == 125
    assert recipe.train.length(0) == 1
    in_steps = recipe.schedule.in_steps(125)
    assert (in_steps.warmup, in_steps.margin_warmup) == (12, 0)
    assert Schedule(warmup=20, margin_warmup=0.5).in_steps(1000) == Schedule(warmup=20, margin_warmup=500)
    assert parse_recipe(SMALL).train.length(100) == 1000
    assert parse_recipe(SMALL | {"train": {"steps": 7}}).train.length(100) == 7
