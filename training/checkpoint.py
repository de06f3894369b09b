"""Checkpoints: tensors in a `.pt` file that loads with `weights_only`, and facts of the same step as readable JSON.

A run's folder:

    recipe.json          every value the run was started with
    metrics.jsonl        one line for each log and evaluation
    step_00002000.pt     weights, optimiser, average, scaler…   step_00002000.json   step, loss, figures
    best.pt, best.json   the checkpoint with the best evaluation
"""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.errors import InvalidInput, NotFound, Unusable
from app.files import PUBLIC, replacing
from training.model import EmbedderExport, Tower, TwoTowers, add_lora, build_model, tower
from training.recipe import Recipe

STEP_NAME = re.compile(r"step_(\d{8})\.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: Path
    facts: dict[str, Any]
    state: dict[str, Any]

    @property
    def recipe(self) -> Recipe:
        """Return the recipe that the run was started with."""
        saved = self.state["recipe"]
        data = {key: value for key, value in saved["data"].items() if key != "unlabelled"}  # earlier runs have this key
        return Recipe.model_validate(saved | {"data": data})


def save(path: Path, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write `path` (.pt) and its JSON; a crash leaves either the old files or the new ones.

    The JSON is written first, so that a checkpoint with a `.pt` is always complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(facts, indent=2, ensure_ascii=False) + "\n"
    with replacing(path.with_suffix(".json"), PUBLIC) as file:
        file.write(text.encode())
    with replacing(
        path, PUBLIC, draft=path.with_name(path.name + ".tmp")
    ) as file:  # the draft's name is always the same, so killed runs leave at most one
        torch.save(dict(state), file)


def load(path: Path) -> Checkpoint:
    """Load a checkpoint with its tensors on the CPU. Only plain values and tensors are unpickled.

    Raises NotFound (`checkpoint_not_found`) or Unusable (`checkpoint_damaged`).
    """
    if not path.is_file():
        raise NotFound(f"There is no checkpoint {path}.", code="checkpoint_not_found")
    state = read_tensors(path)
    try:
        facts = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unusable(f"{path} cannot be read: {error}", code="checkpoint_damaged") from error
    return Checkpoint(path, facts, state)


def read_tensors(path: Path) -> Any:
    """Return a `.pt` file's plain values and tensors, on the CPU. Raises Unusable (`checkpoint_damaged`)."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, ValueError, RuntimeError, KeyError, pickle.UnpicklingError) as error:
        raise Unusable(f"{path} cannot be read: {error}", code="checkpoint_damaged") from error


def step_path(run: Path, step: int) -> Path:
    return run / f"step_{step:08d}.pt"


def by_step(run: Path) -> list[Path]:
    """Return the run's step checkpoints in the order of steps."""
    return sorted(path for path in run.glob("step_*.pt") if STEP_NAME.fullmatch(path.name))


def latest(run: Path) -> Path | None:
    """Return the run's checkpoint with the highest step, or None."""
    return next(reversed(by_step(run)), None)


def last_of(run: Path, *, resume: bool) -> Path | None:
    """Return `latest`. Raises InvalidInput (`run_exists`) if there is one, but the run is not to be resumed."""
    last = latest(run)
    if last is not None and not resume:
        message = f"{run} holds a run already: add --resume to go on with it, or choose another --out."
        raise InvalidInput(message, code="run_exists")
    return last


def prune(run: Path, keep: int) -> None:
    """Delete all but the `keep` newest step checkpoints; `best.pt` stays."""
    for path in by_step(run)[:-keep]:
        path.unlink()
        path.with_suffix(".json").unlink(missing_ok=True)


def resolve(path: Path) -> Path:
    """Return `path` if it is a file, else the run folder's best checkpoint, else its latest. Raises NotFound."""
    if path.is_file():
        return path
    best = path / "best.pt"
    kept = [best] if best.is_file() else by_step(path)
    if not kept:
        raise NotFound(f"There is no checkpoint in {path}.", code="checkpoint_not_found")
    return kept[-1]


def trained_embedder(saved: Checkpoint, *, second_tower: bool = False) -> EmbedderExport:
    """Return the embedder of a checkpoint, with the averaged weights if there are any.

    Raises InvalidInput (``no_second_tower``).
    """
    if second_tower and saved.recipe.model.towers != "pseudo_siamese":
        raise InvalidInput("Only a pseudo-siamese run has a second tower of its own.", code="no_second_tower")
    return EmbedderExport(tower(trained_model(saved), int(second_tower)))


def trained_model(saved: Checkpoint) -> Tower | TwoTowers:
    """Return the model of a checkpoint, with its adapters and its averaged weights, if there are any."""
    config = saved.recipe.model
    model = build_model(config, channels_last=False)
    add_lora(model, config)
    model.load_state_dict(saved.state["average"] or saved.state["model"])
    return model
