"""Make tiny training runs for the tests: a small recipe and its material, without files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.data import sampler
from training.data.crops import Crops
from training.losses.centers import center_groups
from training.recipe import Recipe, parse_recipe
from training.run.distributed import World
from training.run.trainer import Material, Trainer

ALONE = World(0, 1, torch.device("cpu"))
TINY = """name = "tiny"
[data]
source = "procedural:people=12,images=4"
held_out = 0.2
[sampler]
batch_size = 8
[model]
dim = 8
input_size = 16
options = { width = 0.125 }
[[losses]]
name = "cosface"
s = 16.0
[train]
log_every = 1
"""
"""A recipe's file for the command line. The caller sets its steps."""


def small_recipe(**sections: Any) -> Recipe:
    """Return a recipe of a net with some thousand parameters on 16-pixel crops, merged with the given sections."""
    table: dict[str, Any] = {
        "name": "small",
        "sampler": {"batch_size": 12},
        "model": {"backbone": "mobilefacenet", "dim": 8, "input_size": 16, "options": {"width": 0.125}},
        "losses": [{"name": "arcface", "s": 16.0, "m": 0.2}],
        "optimizer": {"lr": 0.05},
        "schedule": {"warmup": 2, "margin_warmup": 3},
        "train": {"steps": 8, "log_every": 4, "checkpoint_every": 100, "ema": 0.9},
    }
    for name, values in sections.items():
        table[name] = table.get(name, {}) | values if isinstance(values, dict) else values
    return parse_recipe(table)


def flat_people(people: int = 6, images: int = 6, seed: int = 0) -> Crops:
    """Return crops of people who differ in the colour of each quarter, with noise: quick to make, easy to separate."""
    rng = np.random.default_rng(seed)
    colours = rng.integers(40, 216, (people, 1, 2, 1, 2, 1, 3))
    pixels = np.broadcast_to(colours, (people, images, 2, 56, 2, 56, 3)).reshape(people * images, 112, 112, 3)
    noisy = np.clip(pixels + rng.integers(-30, 31, pixels.shape), 0, 255).astype(np.uint8)
    labels = np.repeat(np.arange(people, dtype=np.int64), images)
    return Crops(noisy, np.arange(len(noisy)), labels, [f"person {p}" for p in range(people)])


def small_trainer(
    recipe: Recipe, out: Path, world: World = ALONE, *, crops: Crops | None = None, **material: Any
) -> Trainer:
    crops = flat_people() if crops is None else crops
    batches = sampler.build(
        recipe.sampler.name,
        crops.labels,
        batch_size=recipe.sampler.batch_size,
        images=recipe.sampler.images,
        seed=recipe.seed,
    )
    return Trainer(recipe, Material(crops=crops, sampler=batches, **material), out, world)


def all_tensors(state: Any, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return every tensor of a nested state by its path."""
    if isinstance(state, torch.Tensor):
        return {prefix: state}
    items = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list | tuple) else ()
    found: dict[str, torch.Tensor] = {}
    for key, value in items:
        found |= all_tensors(value, f"{prefix}/{key}")
    return found


def differing(first_state: Any, second_state: Any) -> list[str]:
    """Return the paths of the tensors in which two nested states differ. Both must have the same paths."""
    first, second = all_tensors(first_state), all_tensors(second_state)
    assert first.keys() == second.keys()
    return [path for path, value in first.items() if not torch.equal(value, second[path])]


def logged(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return the lines of one kind in a run's `metrics.jsonl`: train, evaluation or warning."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def count_centers(weight: torch.Tensor, threshold: float = 0.1) -> torch.Tensor:
    """Return how many groups the centres of each class form: (C, K, D) → (C,)."""
    leads = ~center_groups(weight, threshold).tril(-1).any(dim=2)  # no centre before it in its group
    return leads.sum(dim=1)
