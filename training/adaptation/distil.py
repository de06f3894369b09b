"""Distillation on fresh views: crops stay on the device, every view is drawn anew there, and the teacher judges each.

With no conditions, student and teacher see the same view: a smaller net learns the teacher's function. With
conditions, the student sees the view degraded and the teacher sees it clean: it learns to give of a poor crop the
template of a good one. Every step seeds its generator from (seed, step), so a run that is resumed makes the steps of
one that never stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from app.errors import InvalidInput
from training.adaptation.views import ConditionConfig, ViewConfig, Views
from training.backbones.mobilenet import MobileNet
from training.model import PIXEL_CENTRE, Averaged
from training.recipe import Schedule
from training.run.distillation import embedding_loss, relation_loss
from training.run.optimiser import rate_factor
from training.run.precision import Precision, autocast

ADAM_BETAS = (0.9, 0.999)
HALF_SCALE = 256.0
"""The loss is multiplied by this in fp16, so that small gradients are not lost; clipping and AdamW do not mind."""


@dataclass(frozen=True, slots=True)
class OnlineConfig:
    """A run's settings; `features` weighs the maps that a narrower copy of the teacher should share with it."""

    steps: int
    batch_size: int = 512
    lr: float = 2e-3
    warmup: int = 200
    weight_decay: float = 0.02
    embedding: float = 1.0
    relation: float = 5.0
    features: float = 0.0
    features_until: float = 0.6
    """Share of the run after which the maps no longer count; until then their weight falls evenly."""
    freeze_statistics: bool = False
    """Keep the running statistics of batch normalisation, and normalise by them."""
    average: float = 0.999
    average_every: int = 10
    """Steps between updates of the averaged weights, whose decay is `average` at each update."""
    clip_norm: float = 5.0
    precision: Precision = "fp32"
    seed: int = 1


class Featured(nn.Module):
    """(B, 112, 112, 3) pixels 0-255 -> the embedding, and the maps after some blocks of a MobileNet."""

    def __init__(self, network: MobileNet, after: Sequence[int]) -> None:
        super().__init__()
        self.network = network
        self.after = tuple(after)

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        pixels = ((images - PIXEL_CENTRE) / PIXEL_CENTRE).permute(0, 3, 1, 2)
        return self.network.features(pixels.contiguous(memory_format=torch.channels_last), self.after)


class Plain(nn.Module):
    """A model without maps to share, called as `Featured` is."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.model(images), []


class OnlineDistillation:
    """A run over (N, 112, 112, 3) uint8 crops that lie on the device.

    `student` and `teacher` give an embedding and a list of maps; `kept` are the teacher's channels that each of the
    student's maps stands for. The teacher is used in evaluation mode and never changed.
    """

    def __init__(
        self,
        student: nn.Module,
        teacher: nn.Module,
        crops: Tensor,
        config: OnlineConfig,
        view: ViewConfig,
        *,
        conditions: ConditionConfig | None = None,
        kept: Sequence[Tensor] = (),
        compiled: bool = False,
    ) -> None:
        self.config, self.view, self.conditions = config, view, conditions
        self.crops, self.device = crops, crops.device
        self.student = student.to(self.device)
        self.teacher = teacher.to(self.device).eval().requires_grad_(False)
        self.kept = [channels.to(self.device) for channels in kept]
        self.views = Views(crops.shape[1], self.device)
        self.step = 0
        groups = _groups(self.student, config.weight_decay)
        fused = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(groups, lr=config.lr, betas=ADAM_BETAS, fused=fused)
        self.average = Averaged(self.student, config.average)
        self._student: Any = torch.compile(self.student) if compiled else self.student
        self._teacher: Any = torch.compile(self.teacher) if compiled else self.teacher
        self._generator = torch.Generator(self.device)

    def train_step(self) -> dict[str, Tensor]:
        """One optimiser step; the losses by name, on the device, so that nothing waits for them."""
        config = self.config
        factor = config.lr * rate_factor(Schedule(name="cosine", warmup=config.warmup), self.step, config.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = factor
        self.student.train(not config.freeze_statistics)
        images, clean = self.batch()
        with torch.no_grad(), autocast(config.precision, self.device):
            target, wanted = self._teacher(clean)
        with autocast(config.precision, self.device):
            embedding, maps = self._student(images)
        parts = self._losses(embedding, F.normalize(target.float()), maps, wanted)
        self.optimizer.zero_grad(set_to_none=True)
        scale = HALF_SCALE if config.precision == "fp16" else 1.0
        (parts["loss"] * scale).backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        nn.utils.clip_grad_norm_(self.student.parameters(), config.clip_norm * scale)
        self.optimizer.step()
        if self.step % config.average_every == 0:
            self.average.update(self.student, self.step // config.average_every)
        self.step += 1
        return {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def batch(self) -> tuple[Tensor, Tensor]:
        """This step's views, for the student and for the teacher: (B, 112, 112, 3) float32 of 0-255 each."""
        config, generator = self.config, self._generator
        generator.manual_seed(int(np.random.SeedSequence((config.seed, self.step)).generate_state(1, np.uint32)[0]))
        picks = torch.randint(len(self.crops), (2, config.batch_size), generator=generator, device=self.device)
        first, second = (self.crops[each].permute(0, 3, 1, 2).float() for each in picks)
        clean = self.views.fresh(first, second, self.view, generator)
        seen = clean if self.conditions is None else self.views.degraded(clean, self.conditions, generator)
        return seen.permute(0, 2, 3, 1), clean.permute(0, 2, 3, 1)

    def _losses(
        self, embedding: Tensor, target: Tensor, maps: Sequence[Tensor], wanted: Sequence[Tensor]
    ) -> dict[str, Tensor]:
        config = self.config
        parts = {"embedding": embedding_loss(embedding, target), "relation": relation_loss(embedding, target)}
        total = config.embedding * parts["embedding"] + config.relation * parts["relation"]
        share = config.features * max(0.0, 1 - self.step / max(1.0, config.features_until * config.steps))
        if share and maps:
            missed = [map_loss(own, full[:, kept]) for own, full, kept in zip(maps, wanted, self.kept, strict=True)]
            parts["features"] = torch.stack(missed).mean()
            total = total + share * parts["features"]
        return parts | {"loss": total}

    # ---------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> dict[str, Any]:
        """Everything that the next step depends on."""
        return {
            "step": self.step,
            "settings": self.settings(),
            "student": self.student.state_dict(),
            "average": self.average.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def settings(self) -> dict[str, Any]:
        """Return in plain values what a run must be resumed with; the precision may be another device's."""
        conditions = None if self.conditions is None else self.conditions.model_dump(mode="json")
        config = asdict(self.config)
        del config["precision"]
        return {**config, "view": asdict(self.view), "conditions": conditions, "crops": len(self.crops)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state of the same settings. Raises InvalidInput (`recipe_mismatch`) where one differs."""
        made, wanted = state["settings"], self.settings()
        if different := sorted(name for name in wanted if made.get(name) != wanted[name]):
            was = ", ".join(f"{name} {made.get(name)}, now {wanted[name]}" for name in different)
            message = f"The run was started with other settings ({was}): resume with its own, or start a new run."
            raise InvalidInput(message, code="recipe_mismatch", settings=different)
        self.step = state["step"]
        self.student.load_state_dict(state["student"])
        self.average.model.load_state_dict(state["average"])
        self.optimizer.load_state_dict(state["optimizer"])


def map_loss(own: Tensor, wanted: Tensor) -> Tensor:
    """Squared difference of two (B, C, h, w) maps over the second's variance, mean over channels."""
    wanted, own = wanted.float(), own.float()
    missed = (own - wanted).square().mean((0, 2, 3))
    return (missed / wanted.var((0, 2, 3)).clamp(min=1e-6)).clamp(max=4).mean()


def _groups(model: nn.Module, decay: float) -> list[dict[str, Any]]:
    """Matrices and kernels decay, vectors and scalars don't."""
    learned = [each for each in model.parameters() if each.requires_grad]
    return [
        {"params": [each for each in learned if each.ndim > 1], "weight_decay": decay},
        {"params": [each for each in learned if each.ndim <= 1], "weight_decay": 0.0},
    ]
