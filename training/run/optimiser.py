"""Learning rates as pure functions of the step, and the learning rate and decay of each parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from app.errors import InvalidInput
from training.losses.row_optimizer import RowAdamW, RowSGD
from training.recipe import Optimizer, Schedule, named

ADAM_BETA2 = 0.999
"""β2 of Adam, the default of its authors (Kingma and Ba, Adam, 2015)."""
POSITIONS = "positions"
"""The name of a transformer's position embeddings."""


def rate_factor(schedule: Schedule, step: int, steps: int) -> float:
    """Return the share of the peak learning rate at ``step`` (from 0) of ``steps``.

    Warm-up rises linearly to 1 over the first ``warmup`` steps; then cosine: (1 + cos πt)/2 (Loshchilov and Hutter,
    SGDR, 2017), poly: (1 − t)^power, step: γ^(milestones passed), where t is the progress after the warm-up, 0 to 1.
    """
    if step < schedule.warmup:
        return (step + 1) / (schedule.warmup + 1)
    t = min(1.0, (step - schedule.warmup) / max(1, steps - schedule.warmup))
    if schedule.name == "cosine":
        return schedule.floor + (1 - schedule.floor) * (1 + math.cos(math.pi * t)) / 2
    if schedule.name == "poly":
        return schedule.floor + (1 - schedule.floor) * math.pow(1 - t, schedule.power)
    if schedule.name == "step":
        return float(schedule.gamma ** sum(step >= share * steps for share in schedule.milestones))
    return 1.0


def margin_share(schedule: Schedule, step: int) -> float:
    """Return the share of the full margin at ``step``: linear from 0 to 1 over ``margin_warmup`` steps."""
    return 1.0 if step >= schedule.margin_warmup else step / schedule.margin_warmup


def parameter_groups(model: nn.Module, losses: nn.Module, config: Optimizer) -> list[dict[str, object]]:
    """Return groups with ``lr`` and ``peak_lr``: backbone with and without decay, head (class weights, centres), β.

    Vectors and scalars of the backbone (normalisations, biases, PReLU slopes) and positions are never decayed.
    """
    learning = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in learning if _is_decayed(name, p)]
    vectors = [p for name, p in learning if not _is_decayed(name, p)]
    betas = [p for name, p in losses.named_parameters() if _is_beta(name)]
    heads = [p for name, p in losses.named_parameters() if not _is_beta(name)]
    head_lr = config.head_lr or config.lr
    return [
        *_by_depth("backbone", matrices, config, config.weight_decay),
        *_by_depth("backbone_undecayed", vectors, config, 0.0),
        _group("head", heads, head_lr, config.head_weight_decay),
        _group("beta", betas, config.beta_lr, 0.0),
    ]


def _by_depth(name: str, parameters: list[nn.Parameter], config: Optimizer, decay: float) -> list[dict[str, object]]:
    """Return one group, or with ``first_layer`` one for each parameter, last parameter first."""
    if config.first_layer == 1:
        return [_group(name, parameters, config.lr, decay)]
    last = max(1, len(parameters) - 1)
    rates = [config.lr * config.first_layer ** (1 - place / last) for place in range(len(parameters))]
    groups = [_group(f"{name}_{place}", [parameter], rates[place], decay) for place, parameter in enumerate(parameters)]
    return groups[::-1]


def build_optimizer(
    groups: Iterable[dict[str, object]], config: Optimizer, *, by_row: bool = False
) -> torch.optim.Optimizer:
    """Build torch's own optimiser, fused, or with `by_row` one that steps only the rows a sparse gradient names
    (PartialFC)."""
    kept = [group for group in groups if group["params"]]
    if ":" in config.name:
        return _own(kept, config, by_row=by_row)
    if config.name == "adamw":
        adamw = RowAdamW if by_row else torch.optim.AdamW
        return adamw(kept, lr=config.lr, betas=(config.momentum, ADAM_BETA2), eps=config.eps, fused=True)
    sgd = (RowSGD if by_row else torch.optim.SGD)(kept, lr=config.lr, momentum=config.momentum, fused=True)
    if config.momentum:  # torch leaves them uninitialised if the first step is void
        for parameter in (p for group in sgd.param_groups for p in group["params"]):
            sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return sgd


def _own(groups: list[dict[str, object]], config: Optimizer, *, by_row: bool) -> torch.optim.Optimizer:
    """Build the user's own optimiser.

    Raises InvalidInput (`invalid_recipe`) if the name is not an optimiser's, or classes are sampled.
    """
    kind: Any = named("optimiser", config.name)
    is_one = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
    if by_row or not is_one:
        why = "can't step sampled classes: set partial_fc.sample_rate = 1" if by_row else "is no torch.optim.Optimizer"
        raise InvalidInput(f"{config.name} {why}.", code="invalid_recipe")
    made: torch.optim.Optimizer = kind(groups, lr=config.lr, **config.options)
    return made


def set_rates(optimizer: torch.optim.Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group["peak_lr"] * factor


def _is_decayed(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim > 1 and name.rpartition(".")[2] != POSITIONS


def _is_beta(name: str) -> bool:
    return name.rpartition(".")[2].startswith("beta")


def _group(name: str, parameters: list[nn.Parameter], lr: float, decay: float) -> dict[str, object]:
    return {"name": name, "params": parameters, "lr": lr, "peak_lr": lr, "weight_decay": decay}
