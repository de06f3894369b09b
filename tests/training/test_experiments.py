"""Experiments: grids are checked before they are run, runs are kept, and a difference needs more than luck."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.calibration.intervals import Floats, people_weights, percentile_interval
from app.errors import InvalidInput
from training.commands.experiments import experiments
from training.data import read_drop_list
from training.evaluation import bootstrap
from training.experiments import grid
from training.experiments.comparison import (
    Claim,
    Comparison,
    Report,
    Row,
    compare,
    order,
    pooled_spread,
    summarise,
    tables,
)
from training.experiments.grid import Runs, load_plan, match_rate, merged, recall_at_1
from training.packages import MODELS
from training.recipe import Recipe, parse_recipe

ROOT = Path(__file__).parents[2]
GRIDS = sorted((ROOT / "training" / "grids").glob("*.toml"))
DOCUMENT = ROOT / "docs" / "decisions" / "experiments.md"
SMALL_RECIPE = """
name = "small"
[data]
source = "procedural:people=4,images=4"
held_out = 0.0
[model]
dim = 8
input_size = 16
options = { width = 0.125, blocks = [0, 0, 0, 0] }
[sampler]
name = "pk"
batch_size = 8
images = 4
[[losses]]
name = "norm_softmax"
[train]
steps = 2
[evaluate]
source = "procedural:people=4,images=3,first=1000000"
fmr = 0.1
"""
SMALL_GRID = """
title = "A small grid"
recipe = "small.toml"
seeds = [1, 2]
[[claims]]
better = "softtriple"
worse = "norm_softmax"
source = "nobody"
[[entries]]
name = "norm_softmax"
says = "norm-softmax"
[[entries]]
name = "softtriple"
says = "SoftTriple, K = 2"
losses = [{ name = "softtriple", centers = 2 }]
optimizer = { head_lr = 0.01 }
"""


@pytest.fixture
def small(tmp_path: Path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL_RECIPE)
    path = tmp_path / "grid.toml"
    path.write_text(SMALL_GRID)
    return path


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_every_grid_of_the_project_can_be_run(path: Path) -> None:
    plan = load_plan(path)
    assert len(plan.recipes) >= 2
    assert all(recipe.evaluate.source for recipes in plan.recipes.values() for recipe in recipes)


def test_grids_share_a_run_where_they_share_its_name() -> None:
    """An entry of one name means the same in every grid, so that tables can be read side by side."""
    digests: dict[tuple[str, int], set[str]] = {}
    for path in GRIDS:
        for name, recipes in load_plan(path).recipes.items():
            for recipe in recipes:
                digests.setdefault((name, recipe.seed), set()).add(recipe.digest())
    assert all(len(found) == 1 for found in digests.values())


def test_an_entry_changes_what_it_names_and_nothing_else(small: Path) -> None:
    plan = load_plan(small)
    plain, soft = plan.recipes["norm_softmax"][0], plan.recipes["softtriple"][0]
    assert soft.optimizer.head_lr == 0.01
    assert soft.optimizer.lr == plain.optimizer.lr
    assert [loss.name for loss in soft.losses] == ["softtriple"]
    assert [recipe.seed for recipe in plan.recipes["softtriple"]] == [1, 2]
    assert merged({"a": {"b": 1, "c": [1, 2]}}, {"a": {"c": [3]}, "d": 4}) == {"a": {"b": 1, "c": [3]}, "d": 4}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("optimizer = { head_lr = 0.01 }", "optimizer = { head_rl = 0.01 }"),
        ('better = "softtriple"', 'better = "softtripel"'),
        ('name = "softtriple"', 'name = "norm_softmax"'),
        ('recipe = "small.toml"', 'recipe = "large.toml"'),
        ("seeds = [1, 2]", "seeds = [1]"),
    ],
)
def test_a_grid_that_cannot_mean_what_it_says_is_refused(small: Path, old: str, new: str) -> None:
    small.write_text(SMALL_GRID.replace(old, new, 1))
    with pytest.raises(InvalidInput):
        load_plan(small)


def test_a_grid_is_trained_once_measured_and_reported(small: Path, tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("before\n<!-- grid -->\nold\n<!-- end -->\nafter\n")
    experiments([small], out=tmp_path / "out", only=["softtriple"])
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out" / "runs").iterdir()}
    assert len(kept) == 2
    experiments([small], out=tmp_path / "out", document=document)
    files = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(files) == 4
    assert {path.name: path.read_bytes() for path in files if path.name in kept} == kept
    text = (tmp_path / "out" / "grid.md").read_text("utf-8")
    assert "SoftTriple, K = 2" in text
    assert "3 × spread" in text
    written = (tmp_path / "out" / "grid.json").read_text("utf-8")
    report = Report.model_validate_json(written)
    assert 1 <= (report.entries["softtriple"].centers or 0) <= 2
    assert report.entries["norm_softmax"].centers is None
    assert report.entries["norm_softmax"].seeds == (1, 2)
    assert len(report.entries["norm_softmax"].training["accuracy"]) == 2
    assert f"**A small grid**\n\n{tables(report)}" == text
    assert document.read_text() == f"before\n<!-- grid -->\n\n{tables(report)}\n<!-- end -->\nafter\n"
    assert (tmp_path / "document" / "grid.json").read_text("utf-8") == written
    assert (tmp_path / "document" / "grid.svg").stat().st_size > 1000


def test_a_document_without_a_place_for_a_grid_is_left_alone(small: Path, tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text("<!-- grid -->\n")
    plan, runs = load_plan(small), Runs(tmp_path / "runs", MODELS)
    keep(runs, plan.recipes["norm_softmax"][0])
    with pytest.raises(InvalidInput, match="no place for grid"):
        grid.write_report(plan, grid.report_of(plan, runs), tmp_path, document)
    assert document.read_text() == "<!-- grid -->\n"


def keep(runs: Runs, recipe: Recipe) -> Path:
    """A finished run as `grid.run` returns it, of no training."""
    figures = {"match_rate": 0.5, "recall": 0.7}
    found = {
        "name": recipe.name,
        "seed": recipe.seed,
        "unseen": "people",
        "training": {"loss": 1.0},
        "warnings": [],
        "centers": None,
        "figures": figures,
        "samples": {name: [value - 0.1, value + 0.1] for name, value in figures.items()},
        "recipe": recipe.model_dump(mode="json"),
    }
    runs.folder.mkdir(parents=True, exist_ok=True)
    runs.path(recipe).write_text(json.dumps(found))
    return runs.path(recipe)


def test_a_finished_run_is_found_by_its_recipe_whatever_keys_recipes_have_got_since(
    small: Path, tmp_path: Path
) -> None:
    recipe, runs = load_plan(small).recipes["norm_softmax"][0], Runs(tmp_path / "runs", MODELS)
    path = keep(runs, recipe)
    stored = json.loads(path.read_text())
    del stored["recipe"]["data"]["unlabelled"], stored["recipe"]["losses"][0]["image_beta"]
    path.unlink()
    earlier = path.with_name(f"{recipe.name}-s1-0123456789abcdef.json")  # the hash that it had without those keys
    earlier.write_text(json.dumps(stored))
    assert runs.read(recipe) == stored
    assert runs.finish(recipe) == stored
    assert list(runs.folder.iterdir()) == [earlier]

    stored["recipe"]["train"]["clip_norm"] += 1  # another default then: another run
    earlier.write_text(json.dumps(stored))
    assert runs.read(recipe) is None
    stored["recipe"]["train"]["gone"] = 1  # a key that recipes no longer have
    earlier.write_text(json.dumps(stored))
    assert runs.read(recipe) is None


@pytest.mark.parametrize(("seeds", "told"), [(0, "not run"), (1, "one seed, not compared")])
def test_what_has_not_run_or_with_one_seed_is_said_and_compared_with_nothing(
    small: Path, tmp_path: Path, seeds: int, told: str
) -> None:
    plan, runs = load_plan(small), Runs(tmp_path / "runs", MODELS)
    for recipe in plan.recipes["norm_softmax"]:
        keep(runs, recipe)
    for recipe in plan.recipes["softtriple"][:seeds]:
        keep(runs, recipe)
    text = tables(grid.report_of(plan, runs))
    assert "| norm-softmax | 2 | 0.500 ± 0.000 |" in text
    assert ("| SoftTriple, K = 2 | 0 | not run |" in text) == (seeds == 0)
    assert ("| SoftTriple, K = 2 | 1 | 0.500 | 0.405 to 0.595 | 0.700 |" in text) == (seeds == 1)
    assert f"| SoftTriple, K = 2 > norm-softmax (nobody) |  |  |  | {told} |" in text


def test_a_grid_of_which_nothing_has_run_is_said_to_be_so(
    small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiments([small], out=tmp_path / "out", report=True)
    assert "no entry is finished" in capsys.readouterr().out
    assert not (tmp_path / "out" / "grid.md").exists()


def test_steps_and_seeds_can_be_set_for_a_whole_grid(small: Path) -> None:
    plan = load_plan(small, ["train.steps=9", "optimizer.head_lr=0.5"], seeds=4)
    recipes = [recipe for entry in plan.recipes.values() for recipe in entry]
    assert [recipe.seed for recipe in recipes] == [1, 2, 3, 4] * 2
    assert {(recipe.train.steps, recipe.optimizer.head_lr) for recipe in [*recipes, plan.shared]} == {(9, 0.5)}


@pytest.mark.parametrize("path", GRIDS, ids=lambda path: path.stem)
def test_the_committed_figures_are_of_the_committed_recipes_and_in_the_tables(path: Path) -> None:
    """Written anew by `python -m training experiments … --report --document docs/decisions/experiments.md`."""
    plan = load_plan(path)
    report = Report.model_validate_json((DOCUMENT.with_suffix("") / f"{path.stem}.json").read_text("utf-8"))
    assert report.title == plan.grid.title
    assert [(entry.name, entry.says) for entry in plan.grid.entries] == [
        (name, result.says) for name, result in report.entries.items()
    ]
    assert [Claim(**found.model_dump(exclude={"gap"})) for found in report.orders] == list(plan.grid.claims)
    shared = report.recipe.model_dump(mode="json")
    for name, result in report.entries.items():
        table = merged(shared, result.settings) | {"name": name}
        assert tuple(parse_recipe(table | {"seed": seed}) for seed in plan.grid.seeds) == plan.recipes[name]
        assert set(result.seeds) <= set(plan.grid.seeds)
        assert all(len(figure.values) == len(result.seeds) for figure in result.figures.values())
    text = DOCUMENT.read_text("utf-8").partition(f"<!-- {path.stem} -->\n")[2].partition("<!-- end -->")[0]
    assert text == f"\n{tables(report)}\n"


def test_runs_on_different_people_are_not_compared(small: Path, tmp_path: Path) -> None:
    plan, runs = load_plan(small), Runs(tmp_path / "runs", MODELS)
    for recipe in plan.recipes["norm_softmax"]:
        changed = keep(runs, recipe)
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"unseen": "others"}))
    with pytest.raises(InvalidInput, match="different people"):
        grid.results(plan, runs)


def test_the_people_that_recipes_leave_out_are_those_that_were_found() -> None:
    found = json.loads((DOCUMENT.with_suffix("") / "train112_overlap.json").read_text("utf-8"))
    names = read_drop_list(ROOT / "training" / "recipes" / "train112_drop.txt")
    assert sorted(match["drop"] for match in found["matches"]) == sorted(names)
    for match in found["matches"]:
        assert match["score"] >= found["threshold"] or match["best_pair"] >= found["pair_threshold"]


def test_the_quick_bootstrap_equals_the_plain_one() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(30), 4)
    templates = rng.normal(size=(30, 1, 8)) + 0.4 * rng.normal(size=(30, 4, 8))
    templates = (templates / np.linalg.norm(templates, axis=2, keepdims=True)).reshape(-1, 8).astype(np.float32)
    rows, columns = np.triu_indices(len(labels), 1)
    scores = (templates @ templates.T)[rows, columns]
    sides = np.stack((labels[rows], labels[columns]), axis=1)
    plain = bootstrap.match_rate_interval(scores, sides[:, 0] == sides[:, 1], sides, 0.01, rounds=50)
    quick = match_rate(templates, labels, 0.01, people_weights(30, 50))
    assert quick.value == pytest.approx(plain.value, abs=1e-12)
    found = percentile_interval(quick.value, quick.samples)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=1e-12)
    recall = recall_at_1(templates, labels, np.ones((1, 30), np.int64))
    assert recall.samples == pytest.approx([recall.value])


def row_of(values: list[float], samples: Floats) -> Row:
    runs: list[dict[str, Any]] = [
        {
            "seed": seed,
            "figures": {"match_rate": value},
            "samples": {"match_rate": samples + value},
            "centers": None,
            "training": {},
            "warnings": [],
        }
        for seed, value in enumerate(values)
    ]
    return summarise("x", {}, runs)


def compared(better: Row, worse: Row, *others: Row) -> Comparison:
    claim = Claim(better="0", worse="1", source="nobody")
    recipe = parse_recipe({"name": "x", "losses": [{"name": "softmax"}]})
    entries = {str(number): row.result for number, row in enumerate((better, worse, *others))}
    found = order(claim, better, worse)
    known = compare(Report(title="x", fmr=0.1, recipe=recipe, entries=entries, orders=(found,)), found)
    assert known is not None
    return known


@pytest.mark.parametrize(
    ("better", "noise", "verdict"),
    [
        ([0.60, 0.61, 0.62], 0.001, "shown"),
        ([0.40, 0.41, 0.42], 0.001, "reversed"),
        ([0.52, 0.53, 0.54], 0.001, "not shown"),  # within three spreads
        ([0.60, 0.61, 0.62], 0.100, "not shown"),  # other people might tell otherwise
    ],
)
def test_a_difference_counts_beyond_the_spread_over_seeds_and_for_other_people(
    better: list[float], noise: float, verdict: str
) -> None:
    samples = np.random.default_rng(1).normal(0, noise, 200)
    found = compared(row_of(better, samples), row_of([0.50, 0.51, 0.52], np.zeros(200)))
    assert found.verdict == verdict
    assert found.spread == pytest.approx(0.01)


def test_seeds_that_lie_close_together_by_luck_do_not_make_a_difference() -> None:
    better, worse = row_of([0.520, 0.521], np.zeros(9)), row_of([0.500, 0.501], np.zeros(9))
    usual = row_of([0.50, 0.52, 0.54], np.zeros(9))
    pooled = math.sqrt((2 * 0.0005**2 * 2 + 2 * 0.02**2) / 4)
    assert pooled_spread([better.result, worse.result, usual.result]) == pytest.approx(pooled)
    assert compared(better, worse).verdict == "shown"
    assert compared(better, worse, usual).verdict == "not shown"
