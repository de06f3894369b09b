"""Experiments: grids are checked before they are run, runs are kept, and a difference needs more than luck."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import InvalidInput
from training import experiments, metrics
from training.experiments import Claim, Entry, Runs, compare, load_plan, match_rate, merged, recall_at_1, summarise
from training.metrics import Floats

GRIDS = sorted((Path(__file__).parent.parent / "training" / "grids").glob("*.toml"))
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
    digests: dict[str, set[tuple[str, ...]]] = {}
    for path in GRIDS:
        for name, recipes in load_plan(path).recipes.items():
            digests.setdefault(name, set()).add(tuple(recipe.digest() for recipe in recipes))
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
    experiments.experiments([small], out=tmp_path / "out", only=["softtriple"])
    kept = {path.name: path.read_bytes() for path in (tmp_path / "out" / "runs").iterdir()}
    assert len(kept) == 2
    experiments.experiments([small], out=tmp_path / "out")
    files = sorted((tmp_path / "out" / "runs").iterdir())
    assert len(files) == 4
    assert {path.name: path.read_bytes() for path in files if path.name in kept} == kept
    text = (tmp_path / "out" / "grid.md").read_text("utf-8")
    assert "SoftTriple, K = 2" in text
    assert "3 × spread" in text
    facts = json.loads((tmp_path / "out" / "grid.json").read_text("utf-8"))
    assert 1 <= facts["softtriple"]["centers"] <= 2
    assert facts["norm_softmax"]["centers"] is None
    assert len(facts["norm_softmax"]["match_rate"]["seeds"]) == 2
    assert (tmp_path / "out" / "grid.svg").stat().st_size > 1000


def test_one_seed_is_reported_without_a_spread_and_compared_with_nothing(small: Path, tmp_path: Path) -> None:
    plan, runs = load_plan(small), Runs(tmp_path / "runs")
    assert experiments.write_report(plan, runs, tmp_path) is None
    for name in plan.recipes:
        runs.finish(plan.recipes[name][0])
    text = experiments.write_report(plan, runs, tmp_path) or ""
    assert "| norm-softmax | 1 | 0." in text
    assert "±" not in text
    assert "3 × spread" not in text


def test_runs_on_different_people_are_not_compared(small: Path, tmp_path: Path) -> None:
    plan, runs = load_plan(small), Runs(tmp_path / "runs")
    for recipe in plan.recipes["norm_softmax"]:
        runs.finish(recipe)
    changed = runs.path(plan.recipes["norm_softmax"][1])
    changed.write_text(json.dumps(json.loads(changed.read_text()) | {"unseen": "others"}))
    with pytest.raises(InvalidInput, match="different people"):
        experiments.results(plan, runs)


def test_the_quick_bootstrap_equals_the_plain_one() -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(30), 4)
    templates = rng.normal(size=(30, 1, 8)) + 0.4 * rng.normal(size=(30, 4, 8))
    templates = (templates / np.linalg.norm(templates, axis=2, keepdims=True)).reshape(-1, 8).astype(np.float32)
    rows, columns = np.triu_indices(len(labels), 1)
    scores = (templates @ templates.T)[rows, columns]
    sides = np.stack((labels[rows], labels[columns]), axis=1)
    plain = metrics.match_rate_interval(scores, sides[:, 0] == sides[:, 1], sides, 0.01, rounds=50)
    quick = match_rate(templates, labels, 0.01, metrics.people_weights(30, 50))
    assert quick.value == pytest.approx(plain.value, abs=1e-12)
    found = metrics.percentile_interval(quick.value, quick.samples)
    assert (found.low, found.high) == pytest.approx((plain.low, plain.high), abs=1e-12)
    recall = recall_at_1(templates, labels, np.ones((1, 30), np.int64))
    assert recall.samples == pytest.approx([recall.value])


def rows_of(values: list[float], samples: Floats) -> experiments.Row:
    entry = Entry(name="x", says="x")
    runs: list[dict[str, Any]] = [
        {"figures": {"match_rate": value}, "samples": {"match_rate": samples + value}, "centers": None, "warnings": []}
        for value in values
    ]
    return summarise(entry, runs)


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
    claim = Claim(better="a", worse="b", source="nobody")
    found = compare(claim, rows_of(better, samples), rows_of([0.50, 0.51, 0.52], np.zeros(200)), 0.0)
    assert found.verdict == verdict
    assert found.spread == pytest.approx(0.01)


def test_seeds_that_lie_close_together_by_luck_do_not_make_a_difference() -> None:
    better, worse = rows_of([0.520, 0.521], np.zeros(9)), rows_of([0.500, 0.501], np.zeros(9))
    usual = [better, worse, rows_of([0.50, 0.52, 0.54], np.zeros(9))]
    pooled = experiments.pooled_spread(usual)
    assert pooled == pytest.approx(math.sqrt((2 * 0.0005**2 * 2 + 2 * 0.02**2) / 4))
    claim = Claim(better="a", worse="b", source="nobody")
    assert compare(claim, better, worse, 0.0).verdict == "shown"
    assert compare(claim, better, worse, pooled).verdict == "not shown"
