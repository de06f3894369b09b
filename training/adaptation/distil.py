"""Distil on fresh views: crops stay on the device, which draws new views for each batch, and the teacher embeds each.

Without conditions, student and teacher see the same view, and a smaller net learns the teacher's function. With
conditions, the student sees the view degraded and the teacher sees it clean, and the student learns to give a poor crop
the template of a good one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import checkpoint
from training.adaptation.views import ConditionConfig, ViewConfig, Views
from training.backbones.mobilenet import MobileNet
from training.data.crops import Crops
from training.data.loader import Batch
from training.data.sampler import PlainSampler
from training.recipe import Recipe
from training.run.distributed import World
from training.run.precision import autocast, choose
from training.run.trainer import Material, Trainer


class OnlineViews:
    """Views of crops for a `Trainer`, with a teacher's templates of them (`training.run.trainer.Online`).

    Each batch seeds its generator with the recipe's seed and its number. The teacher is in evaluation mode and never
    changes.
    """

    def __init__(
        self,
        crops: Crops,
        teacher: nn.Module,
        recipe: Recipe,
        view: ViewConfig,
        device: torch.device,
        *,
        conditions: ConditionConfig | None = None,
        maps: SharedMaps | None = None,
    ) -> None:
        self.recipe, self.view, self.conditions, self.maps = recipe, view, conditions, maps
        self.crops = torch.from_numpy(crops.pixels[:]).to(device)
        teacher = teacher.to(device).eval().requires_grad_(False)
        self.precision = choose(recipe.train.precision, device, teacher)
        self.teacher: Any = torch.compile(teacher) if recipe.train.compile else teacher
        self.views = Views(self.crops.shape[1], device)
        self._generator = torch.Generator(device)

    @property
    def settings(self) -> dict[str, Any]:
        """Return, as plain values, the settings that must be the same in a resumed run."""
        conditions = None if self.conditions is None else self.conditions.model_dump(mode="json")
        return {"view": asdict(self.view), "conditions": conditions, "steps": self.recipe.train.steps}

    @torch.no_grad()
    def batch(self, number: int) -> tuple[Batch, Tensor]:
        """Return the student's views as (B, 112, 112, 3) float32 of 0-255, and the teacher's (B, D) unit templates."""
        generator, device, count = self._generator, self.crops.device, self.recipe.sampler.batch_size
        seed = np.random.SeedSequence((self.recipe.seed, number)).generate_state(1, np.uint32)[0]
        generator.manual_seed(int(seed))
        picks = torch.randint(len(self.crops), (2, count), generator=generator, device=device)
        first, second = (self.crops[picked].permute(0, 3, 1, 2).float() for picked in picks)
        clean = self.views.fresh(first, second, self.view, generator)
        seen = clean if self.conditions is None else self.views.degraded(clean, self.conditions, generator)
        with autocast(self.precision, device):
            target = self.teacher(clean.permute(0, 2, 3, 1))
        anybody = torch.zeros_like(picks[0])
        batch = Batch(seen.permute(0, 2, 3, 1), anybody, picks[0], torch.zeros_like(anybody, dtype=torch.bool))
        return batch, F.normalize(target.float())

    def further_losses(self, step: int) -> dict[str, Tensor]:
        """Return the loss between the student's and the teacher's maps of the last batch, if they share maps."""
        return {} if self.maps is None else self.maps.loss(step)


class SharedMaps:
    """Compares maps after some blocks of a MobileNet with those of a narrower copy.

    `kept` maps a block's number to the teacher's channels that the student's stand for, in order. The weight falls
    linearly from 1 to 0 at step `until`.
    """

    def __init__(self, teacher: MobileNet, kept: Mapping[int, Tensor], until: float) -> None:
        self.kept, self.until = kept, until
        self._wanted, self._own = _watched(teacher, kept), dict[int, Tensor]()

    def watch(self, student: MobileNet) -> None:
        self._own = _watched(student, self.kept)

    def loss(self, step: int) -> dict[str, Tensor]:
        """Return the weighted loss by its name; an empty dict once its weight is 0."""
        share = 1 - step / max(1.0, self.until)
        if share <= 0:
            return {}
        missed = [map_loss(self._own.pop(block), self._wanted.pop(block)[:, kept]) for block, kept in self.kept.items()]
        return {"maps": share * torch.stack(missed).mean()}


def _watched(network: MobileNet, blocks: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return a dict that always holds the last output of each of these blocks, by number."""
    outputs: dict[int, Tensor] = {}
    for number in blocks:
        network.blocks[number].register_forward_hook(
            lambda _block, _inputs, output, number=number: outputs.__setitem__(number, output)
        )
    return outputs


def map_loss(got: Tensor, wanted: Tensor) -> Tensor:
    """Return the squared difference of two (B, C, h, w) maps over the second's variance, averaged over channels."""
    wanted, got = wanted.float(), got.float()
    missed = (got - wanted).square().mean((0, 2, 3))
    return (missed / wanted.var((0, 2, 3)).clamp(min=1e-6)).clamp(max=4).mean()


def open_trainer(recipe: Recipe, crops: Crops, online: OnlineViews, out: Path, *, resume: bool) -> Trainer:
    """Return the trainer of a run on views, at the run's last checkpoint if the run is resumed.

    Raises InvalidInput (`run_exists`, `recipe_mismatch`).
    """
    last = checkpoint.last_of(out, resume=resume)
    batches = PlainSampler(crops.labels, batch_size=recipe.sampler.batch_size, seed=recipe.seed)
    trainer = Trainer(recipe, Material(crops, batches, online=online), out, World(0, 1, online.crops.device))
    if last is not None:
        trainer.restore(last)
    return trainer
