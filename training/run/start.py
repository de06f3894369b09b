"""Set a run's start: the weights of another run, of a file, or of an imported network; class weights imprinted by them;
and which weights are frozen."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from app.errors import InvalidInput, NotFound, Unusable
from training import checkpoint, collectives
from training.data.crops import Crops
from training.losses.base import unit
from training.model import TwoTowers, embed, merge_adapters, tower
from training.recipe import Model
from training.terminal import counted

EMBEDDED_AT_ONCE = 256


def load_start(model: nn.Module, config: Model) -> list[str]:
    """Load the weights that the recipe starts from, if they are a run's or a `.pt` file's. Return the names of the
    model's weights that keep their fresh values, as `model.fresh` allows.

    Weights are matched by name, and must have the same shape. If no name is known, as in a `backbone.pt` of
    InsightFace's arcface_torch, they are matched by order, if all shapes agree. Raises InvalidInput
    (`start_does_not_fit`; also for a weight on either side that has no counterpart and is not listed), NotFound
    (`checkpoint_not_found`), Unusable (`checkpoint_damaged`).
    """
    if config.start is None or config.starts_with_network:
        return []
    given = _read(Path(config.start))
    fresh: list[str] = []
    for number in range(2 if isinstance(model, TwoTowers) else 1):
        network = tower(model, number)  # type: ignore[arg-type]  # is one of the two classes with towers
        weights = network.state_dict()
        fitting = _fitting(weights, given, config.start)
        fresh = [name for name, value in weights.items() if value.ndim and name not in fitting]
        by_name = any(name in given for name in fitting)
        left_out = [name for name, value in given.items() if value.ndim and by_name and name not in fitting]
        _check_listed(fresh, left_out, config)
        network.load_state_dict(fitting, strict=False)
    return fresh


def _check_listed(fresh: Sequence[str], left_out: Sequence[str], config: Model) -> None:
    """Check that `model.fresh` lists the model's weights that the start lacks, and the start's that the model lacks.

    Raises InvalidInput (`start_does_not_fit`).
    """
    fresh, left_out = (
        [name for name in names if not any(fnmatch.fnmatchcase(name, pattern) for pattern in config.fresh)]
        for names in (fresh, left_out)
    )
    if fresh or left_out:
        examples = ", ".join(list(dict.fromkeys([*fresh, *left_out]))[:4])
        message = (
            f"{len(fresh)} weights of this model are not in {config.start}, and {len(left_out)} of its weights have no "
            f"place in this model ({examples} …). List the names of those that may differ in model.fresh."
        )
        raise InvalidInput(message, code="start_does_not_fit", fresh=fresh, left_out=left_out)


def _read(path: Path) -> dict[str, Tensor]:
    if path.is_dir() or path.with_suffix(".json").is_file():
        saved = checkpoint.load(checkpoint.resolve(path))
        model = checkpoint.trained_model(saved)
        merge_adapters(model)
        return dict(tower(model).state_dict())
    if not path.is_file():
        raise NotFound(f"There is no {path} to start from.", code="checkpoint_not_found")
    loaded = checkpoint.read_tensors(path)
    for key in ("state_dict", "model", "state_dict_backbone"):
        loaded = loaded.get(key, loaded) if isinstance(loaded, Mapping) else {}
    found = {name.removeprefix("module."): value for name, value in loaded.items() if isinstance(value, Tensor)}
    if not found:
        raise Unusable(f"{path} holds no weights.", code="checkpoint_damaged")
    return found


def _fitting(weights: Mapping[str, Tensor], given: Mapping[str, Tensor], start: str) -> dict[str, Tensor]:
    named = {name: given[name] for name in weights if name in given and given[name].shape == weights[name].shape}
    if named:
        return named
    bodies = [[(name, value) for name, value in network.items() if value.ndim] for network in (weights, given)]
    if [value.shape for _, value in bodies[0]] == [value.shape for _, value in bodies[1]]:
        return {name: value for (name, _), (_, value) in zip(*bodies, strict=True)}
    message = f"None of the weights in {start} fits this model: choose the backbone, dim and options it was made with."
    raise InvalidInput(message, code="start_does_not_fit")


def mean_templates(model: nn.Module, crops: Crops, dim: int) -> Tensor:
    """Return the (P, dim) float32 unit mean of the templates of each person's crops, on the model's device.
    Collective: each rank embeds its share of the crops."""
    mine = np.arange(len(crops))[collectives.rank() :: collectives.ranks()]
    sums = torch.zeros(len(crops.people), dim, dtype=torch.float32)
    for part, vectors in embedded(model, crops, mine):
        sums.index_add_(0, torch.from_numpy(crops.labels[part]), vectors)
    return unit(collectives.summed(sums.to(next(model.parameters()).device)))


def embedded(
    model: nn.Module, crops: Crops, places: NDArray[np.int64], console: Console | None = None
) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
    """Yield places in the set, a few at a time, with the (n, D) templates of the crops there; show progress."""
    with counted("embedding the training set", len(places), console) as progress:
        for start in range(0, len(places), EMBEDDED_AT_ONCE):
            part = places[start : start + EMBEDDED_AT_ONCE]
            yield part, embed(model, torch.from_numpy(crops.images(part)))
            progress(len(part))


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Freeze the weights whose names match a pattern (`backbone.stages.0.*`).

    Raises InvalidInput (`invalid_recipe`) for a pattern that matches none, or if nothing is left to learn.
    """
    named = dict(model.named_parameters())
    for pattern in patterns:
        matching = fnmatch.filter(named, pattern)
        if not matching:
            examples = ", ".join(list(named)[:3])
            raise InvalidInput(
                f"model.freeze: no weight is named {pattern!r}; there are {examples} …", code="invalid_recipe"
            )
        for name in matching:
            named[name].requires_grad_(False)
    if not any(parameter.requires_grad for parameter in named.values()):
        raise InvalidInput("model.freeze leaves no weight to learn.", code="invalid_recipe")


def hold_statistics(model: nn.Module) -> None:
    """Make batch normalisation use its running statistics unchanged; `train()` undoes it."""
    for layer in model.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()
