"""Experiments: one recipe trained many times over, with other losses and seeds, and compared.

A grid is a TOML file that names a complete recipe and, for each entry, what differs from it. Every entry is trained
with every seed and measured on people that no run has seen. What is finished is not repeated. `comparison`
says what follows from it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console

from app.calibration.intervals import Floats, Ints, allowed_errors, people_weights
from app.errors import InvalidInput, Unusable
from app.files import PUBLIC, replacing
from training.data.crops import Crops, fingerprint
from training.evaluation import metrics, plots
from training.experiments.comparison import (
    LEAST_SEEDS,
    Claim,
    Part,
    Report,
    Row,
    order,
    put_tables,
    summarise,
    tables,
)
from training.losses.centers import HardTriple
from training.model import embed, tower
from training.recipe import Recipe, apply_override, parse_recipe
from training.run.distributed import World
from training.run.inputs import prepare_material
from training.run.trainer import Material, Trainer

ROUNDS = 500
"""Rounds of the bootstrap over people; the same people are drawn for every run, so that differences are paired."""
TOP_SHARE = 30
"""Non-mated pairs kept for the bootstrap: so many times the FMR's share of them all, the highest scores."""
PREPARES = ("data", "sampler", "augment", "evaluate", "distill", "seed")
"""The sections of a recipe that decide what a run is fed with."""

Settings: TypeAlias = Mapping[str, Any]


# --- Grids -----------------------------------------------------------------------------------------------------------


class Entry(BaseModel):
    """One row of a grid; every other key is a section of a recipe that replaces the grid's recipe's key by key."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    says: str
    """What it is, for the table."""

    @property
    def settings(self) -> Settings:
        return dict(self.model_extra or {})


class Grid(Part):
    title: str
    recipe: str
    """The recipe all entries share, relative to the grid's file."""
    seeds: tuple[int, ...] = Field(default=(1, 2, 3), min_length=LEAST_SEEDS)
    claims: tuple[Claim, ...] = ()
    entries: tuple[Entry, ...] = Field(min_length=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A grid with its recipes: for each entry one per seed, all checked."""

    name: str
    grid: Grid
    shared: Recipe
    recipes: dict[str, tuple[Recipe, ...]]


def load_plan(path: Path, overrides: Sequence[str] = (), seeds: int | None = None) -> Plan:
    """Load and check a grid; `overrides` (`key=value`) go for every entry, and `seeds` is how many, in place of the
    grid's own. Raises InvalidInput (`invalid_grid`, `invalid_recipe`) for a broken file, an unknown
    key, a claim about an entry that isn't there or two entries of one name.
    """
    try:
        grid = Grid.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        grid = grid if seeds is None else grid.model_copy(update={"seeds": tuple(range(1, seeds + 1))})
        shared = tomllib.loads((path.parent / grid.recipe).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise InvalidInput(f"{path} is no grid of experiments: {error}", code="invalid_grid") from error
    names = [entry.name for entry in grid.entries]
    strangers = {side for claim in grid.claims for side in (claim.better, claim.worse)} - set(names)
    if strangers or len(set(names)) < len(names):
        message = f"{path}: every entry has a name of its own, and claims are about entries {sorted(strangers)}."
        raise InvalidInput(message, code="invalid_grid")
    recipes = {}
    for entry in grid.entries:
        table = merged(shared, entry.settings) | {"name": entry.name}
        for override in overrides:
            apply_override(table, override)
        recipes[entry.name] = tuple(parse_recipe(table | {"seed": seed}) for seed in grid.seeds)
    for override in overrides:
        apply_override(shared, override)
    return Plan(path.stem, grid, parse_recipe(shared), recipes)


def merged(base: Settings, changes: Settings) -> dict[str, Any]:
    """Return `base` with the keys of `changes`, merging tables within tables; lists are replaced as a whole."""
    result = dict(base)
    for key, value in changes.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, Mapping) and isinstance(value, Mapping) else value
    return result


# --- One run ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A figure on all unseen people, and on those of each bootstrap round (ROUNDS,)."""

    value: float
    samples: Floats


def match_rate(templates: NDArray[np.float32], labels: Ints, fmr: float, weights: Ints) -> Measured:
    """Return 1 − FNMR at `fmr` over all pairs of (N, D) unit templates, and with every row of `weights` (R, people).

    The same as `bootstrap.match_rate_interval`, but the rounds look at the highest non-mated scores alone.
    """
    scores = templates @ templates.T
    above = np.triu(np.ones(scores.shape, bool), 1)
    alike = (labels[:, None] == labels[None, :]) & above
    mated, owner = scores[alike], labels[np.nonzero(alike)[0]]
    first, second = np.nonzero(above & ~alike)
    nonmated = scores[first, second]
    value = 1 - metrics.fnmr_at(metrics.threshold_at_fmr(nonmated, fmr), mated)
    kept = min(len(nonmated), round(TOP_SHARE * fmr * len(nonmated)) + 1)
    top = np.argpartition(-nonmated, kept - 1)[:kept]
    top = top[np.argsort(-nonmated[top], kind="stable")]
    highest, one, other = nonmated[top], labels[first[top]], labels[second[top]]
    images = np.bincount(labels)
    samples = np.empty(len(weights))
    for number, weight in enumerate(weights):
        counts = weight * images
        total = int(counts.sum() ** 2 - (counts**2).sum()) // 2
        place = int(np.searchsorted(np.cumsum(weight[one] * weight[other]), allowed_errors(fmr, total), "right"))
        refused = highest[min(place, kept - 1)]
        samples[number] = weight[owner[mated > refused]].sum() / weight[owner].sum()
    return Measured(value, samples)


def recall_at_1(templates: NDArray[np.float32], labels: Ints, weights: Ints) -> Measured:
    """Return the share of images whose nearest other one shows the same person; rounds weigh the searched images
    alone.
    """
    found = metrics.retrieval(templates, labels, ks=(1,))
    hits, owner = found.recall_of[1], labels[found.searched]
    right, all_of = np.bincount(owner, hits, len(weights[0])), np.bincount(owner, minlength=len(weights[0]))
    return Measured(found.recall[1], (weights @ right) / (weights @ all_of))


def measure(model: torch.nn.Module, unseen: Crops, fmr: float) -> dict[str, Measured]:
    images = torch.from_numpy(unseen.images(np.arange(len(unseen))))
    templates = embed(model, images).numpy()
    weights = people_weights(len(unseen.people), ROUNDS)
    return {
        "match_rate": match_rate(templates, unseen.labels, fmr, weights),
        "recall": recall_at_1(templates, unseen.labels, weights),
    }


def run(recipe: Recipe, material: Material) -> dict[str, Any]:
    """Train and measure one recipe; the result is plain JSON."""
    if material.held_out is None:
        raise InvalidInput(f"{recipe.name} has no unseen people to measure on.", code="nothing_to_evaluate")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            recipe, dataclasses.replace(material, held_out=None), Path(folder), World(0, 1, torch.device("cpu"))
        )
        failure = None
        try:
            trainer.train()
        except Unusable as error:  # the gradient stayed non-finite: measure the model as it is
            failure = error.message
        log = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text("utf-8").splitlines()]
    seconds = time.monotonic() - began
    figures = measure(tower(trainer.averaged()), material.held_out, recipe.evaluate.fmr)
    last: dict[str, Any] = next((line for line in reversed(log) if line["kind"] == "train"), {})
    return {
        "name": recipe.name,
        "seed": recipe.seed,
        "date": time.strftime("%Y-%m-%d"),
        "torch": torch.__version__,
        "seconds": round(seconds, 1),
        "people": [len(material.crops.people), len(material.held_out.people)],
        "images": [len(material.crops), len(material.held_out)],
        "unseen": fingerprint(material.held_out.images(np.arange(len(material.held_out)))),
        "training": {key: round(last[key], 4) for key in ("loss", "accuracy") if key in last},
        "warnings": [line["message"] for line in log if line["kind"] == "warning"] + ([failure] if failure else []),
        "centers": _centers(trainer),
        "figures": {name: round(figure.value, 5) for name, figure in figures.items()},
        "samples": {name: [round(float(x), 5) for x in figure.samples] for name, figure in figures.items()},
        "recipe": recipe.model_dump(mode="json"),
    }


def _centers(trainer: Trainer) -> float | None:
    """The mean number of different centres that a class kept, for the losses that have several."""
    for term in trainer.objective.terms:
        if isinstance(term.loss, HardTriple):
            return round(float(term.loss.distinct_centers().double().mean()), 3)
    return None


class Runs:
    """Finished runs, a JSON file each in `folder`, found by the recipe that they hold.

    A recipe's digest changes with every key that recipes learn, so that it names a file and finds none.
    """

    def __init__(self, folder: Path, models: Path) -> None:
        self.folder = folder
        self.models = models
        self._fed: tuple[str, Material] | None = None

    def path(self, recipe: Recipe) -> Path:
        return self.folder / f"{recipe.name}-s{recipe.seed}-{recipe.digest()}.json"

    def read(self, recipe: Recipe) -> dict[str, Any] | None:
        """The run whose recipe is the same once keys that have come since have today's default; a default that has
        changed since makes it another."""
        for path in sorted(self.folder.glob(f"{recipe.name}-s{recipe.seed}-*.json")):
            found: dict[str, Any] = json.loads(path.read_text("utf-8"))
            if _recipe_of(found) == recipe:
                return found
        return None

    def finish(self, recipe: Recipe) -> dict[str, Any]:
        """The run of this recipe, trained now if it is not there yet."""
        done = self.read(recipe)
        if done is not None:
            return done
        result = run(recipe, self._material(recipe))
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self.path(recipe), PUBLIC) as file:
            file.write(json.dumps(result).encode() + b"\n")
        return result

    def _material(self, recipe: Recipe) -> Material:
        """Kept from one run to the next where they are fed alike."""
        text = json.dumps(recipe.model_dump(mode="json", include=set(PREPARES)), sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()
        if self._fed is None or self._fed[0] != key:
            self._fed = key, prepare_material(recipe, self.models, Console(quiet=True))
        return self._fed[1]


def _recipe_of(found: Mapping[str, Any]) -> Recipe | None:
    """Return the run's recipe, None if a key it needs no longer exists."""
    try:
        return Recipe.model_validate(found["recipe"])
    except ValidationError:
        return None


# --- Many runs -------------------------------------------------------------------------------------------------------


def results(plan: Plan, runs: Runs) -> dict[str, Row]:
    """Return every entry over the seeds that are finished.

    Raises InvalidInput (`invalid_grid`) where runs were not measured on the same people: they are compared in pairs.
    """
    rows = {}
    unseen = set()
    for entry in plan.grid.entries:
        done = [found for recipe in plan.recipes[entry.name] if (found := runs.read(recipe)) is not None]
        rows[entry.name] = summarise(entry.says, entry.settings, done)
        unseen |= {found["unseen"] for found in done}
    if len(unseen) > 1:
        message = (
            f"{plan.name}: runs were measured on different people; give the recipe evaluate.source and max_images."
        )
        raise InvalidInput(message, code="invalid_grid")
    return rows


def report_of(plan: Plan, runs: Runs) -> Report:
    rows = results(plan, runs)
    return Report(
        title=plan.grid.title,
        fmr=plan.shared.evaluate.fmr,
        recipe=plan.shared,
        entries={name: row.result for name, row in rows.items()},
        orders=tuple(order(claim, rows[claim.better], rows[claim.worse]) for claim in plan.grid.claims),
    )


def write_report(plan: Plan, report: Report, out: Path, document: Path | None = None) -> None:
    """Write GRID.md, GRID.json and GRID.svg to `out`; with a document also its tables, and JSON and plot to the
    folder next to it that has its name.
    """
    text = tables(report)
    _write_files(plan.name, report, out)
    (out / f"{plan.name}.md").write_text(f"**{report.title}**\n\n{text}", "utf-8")
    if document is not None:
        put_tables(document, plan.name, text)
        _write_files(plan.name, report, document.with_suffix(""))


def _write_files(name: str, report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(report.model_dump_json(indent=1) + "\n", "utf-8")
    finished = [result.figures["match_rate"] for result in report.entries.values() if result.seeds]
    says = [result.says for result in report.entries.values() if result.seeds]
    intervals = {label: (figure.interval, figure.values) for label, figure in zip(says, finished, strict=True)}
    plots.intervals(intervals, folder / f"{name}.svg", xlabel=f"1 − FNMR at FMR {report.fmr:g} on unseen people")


def carry_out(plans: Sequence[Plan], runs: Runs, only: Sequence[str], say: Callable[[str], None]) -> None:
    """Train what is not finished: the first seed of all grids, then the second, so that an interrupted experiment
    can be compared as far as it got. `only` names entries, none = all.
    """
    recipes = [
        recipe for plan in plans for name in plan.recipes if not only or name in only for recipe in plan.recipes[name]
    ]
    todo = {recipe.digest(): recipe for recipe in recipes if runs.read(recipe) is None}
    for number, recipe in enumerate(sorted(todo.values(), key=lambda recipe: recipe.seed), start=1):
        done = runs.finish(recipe)
        figures = "  ".join(f"{name} {value:.3f}" for name, value in done["figures"].items())
        say(f"{number}/{len(todo)}  {recipe.name} seed {recipe.seed}  {figures}  {done['seconds']} s")
