"""The training loop, from a recipe to checkpoints, for one process and for many.

Nothing random carries over between steps: every step seeds its generators from (recipe's seed, step), every crop from
(seed, epoch, place). So a run that is stopped and resumed makes exactly the same steps, and a checkpoint continues on
any number of ranks.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from app.errors import InvalidInput, Unusable
from training import checkpoint, collectives
from training.data.crops import Crops
from training.data.formats.bins import VerificationPack, read_pack
from training.data.loader import Augmenter, Batch, BatchKey, BatchSource, batch_keys, batches, worker_count
from training.data.sampler import BatchSampler
from training.evaluation import metrics
from training.model import Averaged, Tower, TwoTowers, add_lora, build_model, embed, recompute_blocks, tower
from training.recipe import NOT_CHOOSING, Recipe
from training.run import distributed, precision
from training.run.distillation import Teacher
from training.run.distributed import World
from training.run.faults import CollapseAlarm, stop_signals
from training.run.guard import StepGuard
from training.run.log import Reporter, draw_run
from training.run.objective import build_objective
from training.run.optimiser import build_optimizer, margin_share, parameter_groups, rate_factor, set_rates
from training.run.start import freeze, hold_statistics, load_start, mean_templates

PACK_FOLDS = 10
PAIRS_AT_ONCE = 128
KEPT_DUMPS = 5
"""Number of void steps whose batches are kept."""


class Online(Protocol):
    """Draws batches and the teacher's targets on the device, in place of a sampler and a loader."""

    @property
    def settings(self) -> dict[str, Any]:
        """Return, as plain values, the settings that must be the same in a resumed run."""

    def batch(self, number: int) -> tuple[Batch, Tensor]:
        """Return the run's batch of this number, and its (B, D) unit targets."""

    def further_losses(self, step: int) -> dict[str, Tensor]:
        """Return further terms of the loss, by name, for the batch that the model has just seen."""


@dataclass(frozen=True, slots=True)
class Material:
    """The inputs of a run; `held_out` are the unseen people to evaluate on, None without evaluation."""

    crops: Crops
    sampler: BatchSampler
    held_out: Crops | None = None
    teacher: Teacher | None = None
    augment: Augmenter | None = None
    online: Online | None = None


@dataclass(slots=True)
class StepResult:
    """The results of one step. They are on the device: reading them waits for it. `embeddings` are the last batch's."""

    loss: Tensor
    parts: dict[str, Tensor]
    norm: Tensor
    void: Tensor
    """1 if the gradient or the loss was not finite and the step changed nothing, else 0."""
    images: int
    embeddings: Tensor
    accuracy: float | None
    """`Objective.accuracy` of the last batch, before the step moved the classes towards it; None if not measured."""


@dataclass(slots=True)
class Progress:
    """The run's state in plain values."""

    step: int = 0
    skipped: int = 0
    """Void steps, counted when the run logs."""
    best: float | None = None
    best_step: int | None = None
    figures: dict[str, float] = field(default_factory=dict)
    evaluated: int = 0
    """The step of the last evaluation."""
    damaged: int = 0
    """Number of damaged images replaced by others of the same person."""


class Trainer:
    """A run: `train()` continues to the recipe's last step; `out` is the run's folder."""

    def __init__(self, recipe: Recipe, material: Material, out: Path, world: World) -> None:
        _check_world(recipe, world)
        self.recipe = recipe
        self.material = material
        self.out = out
        self.world = world
        self.progress = Progress()
        seed_step(recipe.seed, 0)
        self.model = build_model(recipe.model, channels_last=recipe.train.channels_last)
        self.fresh = load_start(self.model, recipe.model)
        add_lora(self.model, recipe.model)
        freeze(self.model, recipe.model.freeze)
        if recipe.train.gradient_checkpointing:
            recompute_blocks(self.model)
        if recipe.train.sync_batchnorm and world.size > 1:
            self.model = distributed.synchronise_batchnorm(self.model, world)  # type: ignore[assignment]  # still such a model
        self.model.to(world.device)
        self.steps = recipe.train.length(len(material.sampler))
        self.schedule = recipe.schedule.in_steps(self.steps)
        self.precision = precision.choose(recipe.train.precision, world.device, self.model)
        teacher_dim = material.teacher.dimension if material.teacher else recipe.model.dim if material.online else None
        self.objective = build_objective(recipe, len(material.crops.people), len(material.crops), teacher_dim)
        self.objective.to(world.device)
        self.parallel = self._parallel()
        groups = parameter_groups(self.model, self.objective, recipe.optimizer)
        self.optimizer = build_optimizer(groups, recipe.optimizer, by_row=self.objective.sampled)
        self.guard = StepGuard(world.device, scaled=self.precision == "fp16")
        self.average = Averaged(self.model, recipe.train.ema) if recipe.train.ema else None
        self.alarm = CollapseAlarm(len(material.crops.people))
        self._batches: Iterator[Batch] | None = None
        self._damaged_said = 0
        if world.is_first:
            for name in recipe.evaluate.packs:
                read_pack(Path(name))  # a missing or damaged pack ends the run now, not at the first evaluation

    # -------------------------------------------------------------------------------------------------- the loop

    def train(self, until: int | None = None) -> Progress:
        """Train up to step `until` (default: the recipe's last) and write a checkpoint there.

        Raises Unusable: `training_diverged` when too many steps in a row had no finite gradient or loss,
        `training_stopped` after a checkpoint on SIGTERM or Ctrl-C (with several ranks, when the run next logs).
        """
        recipe = self.recipe
        last = self.steps if until is None else min(until, self.steps)
        self._write_recipe()
        if recipe.model.imprint and self.progress.step == 0:
            self.objective.imprint(mean_templates(tower(self.model), self.material.crops, recipe.model.dim))
        out = self.out if self.world.is_first else None
        report = Reporter(out, self.steps, self.progress.step, trackers=recipe.train.trackers)
        with report, stop_signals() as signals:
            for message in self._notices():
                report.warn(self.progress.step, message)
            if self._due(recipe.evaluate.every, last) and 0 < self.progress.step != self.progress.evaluated:
                self._evaluate(report)  # the run was stopped between its last step and the evaluation
            while self.progress.step < last:
                step = self.progress.step + 1
                logged = step % recipe.train.log_every == 0 or step == last
                result = self.train_step(measured=logged)
                report.stepped(step, result.images)
                if step == self.steps:
                    self.objective.merge_centers()
                if logged:
                    self._log(report, result)
                evaluated = self._due(recipe.evaluate.every, last)
                if evaluated or self._due(recipe.train.checkpoint_every, last):
                    self.save()
                if evaluated:
                    self._evaluate(report)
                self._stop_if_asked(signals, agreed=logged)
        if out is not None:
            draw_run(out)
        return self.progress

    def _stop_if_asked(self, signals: Sequence[str], *, agreed: bool) -> None:
        """Save and raise Unusable (`training_stopped`) after a signal. Several ranks have to agree on the step, so with
        ``agreed`` they wait for each other."""
        asked = bool(signals)
        if self.world.size > 1:
            mine = torch.tensor(float(asked), device=self.world.device)
            asked = agreed and bool(collectives.largest(mine))
        if asked and self.progress.step < self.steps:
            path = self.save()
            by = signals[0] if signals else "a signal"
            message = f"Stopped by {by} at step {self.progress.step}, which {path} holds: --resume goes on."
            raise Unusable(message, code="training_stopped", step=self.progress.step)

    def train_step(self, *, measured: bool = False) -> StepResult:
        """Make one optimiser step: `accumulate` batches forward and backward, clip, step, average. With `measured`, the
        result has the accuracy, too.

        With class-level losses nothing here waits for the device (`StepGuard`).
        """
        recipe, step = self.recipe, self.progress.step
        set_rates(self.optimizer, rate_factor(self.schedule, step, self.steps))
        self.objective.set_margin(margin_share(self.schedule, step))
        self.model.train()
        if recipe.model.frozen_statistics or recipe.model.lora:  # only adapters learn
            hold_statistics(self.model)
        self.objective.train()
        self.guard.begin(self.model, self.objective)
        used = [self._backward(0)]
        for micro in range(1, recipe.train.accumulate):
            self.guard.begin_further_batch()
            used.append(self._backward(micro))
        self.objective.average_gradients()
        norm = self._clip()
        _, loss, parts, embeddings, labels = used[-1]
        accuracy = self.objective.accuracy(embeddings, labels) if measured else None
        void = self.guard.step(self.optimizer, norm, [term[1] for term in used], step)
        if self.average:
            self.average.update(self.model, step, void)
        self.progress.step += 1
        images = sum(len(batch.labels) for batch, *_ in used) * self.world.size
        return StepResult(loss, parts, norm, void, images, embeddings, accuracy)

    def _backward(self, micro: int) -> tuple[Batch, Tensor, dict[str, Tensor], Tensor, Tensor]:
        """Run one batch forward and backward; return the batch, all ranks' loss and its terms, and this rank's
        embeddings and labels."""
        recipe, world = self.recipe, self.world
        number = self.progress.step * recipe.train.accumulate + micro
        batch, target = self._next_batch(number)
        here = batch.to(world.device)
        quiet: AbstractContextManager[object] = nullcontext()
        if isinstance(self.parallel, DistributedDataParallel) and micro < recipe.train.accumulate - 1:
            quiet = self.parallel.no_sync()  # gradients are exchanged only with the last batch of a step
        with quiet:
            seed_step(recipe.seed, number, stream=1 + world.rank)
            with precision.autocast(self.precision, world.device):
                embeddings = self.parallel(here.images)
            # The seed is the same on all ranks, since they compute the loss of the same global batch.
            self.objective.seed(seed_step(recipe.seed, number))
            loss, parts = self.objective(embeddings, here.labels, here.indices, target)
            if self.material.online:
                further = self.material.online.further_losses(self.progress.step)
                loss, parts = sum(further.values(), loss), parts | further
            (self.guard.scale * loss / recipe.train.accumulate).backward()
        return batch, loss.detach(), {k: v.detach() for k, v in parts.items()}, embeddings.detach(), here.labels

    def _clip(self) -> Tensor:
        """Divide the gradients by the loss scale and clip them to `clip_norm`; return their norm before clipping, over
        all parameters of all ranks."""
        sharded = self.objective.sharded_parameters()
        gradients: dict[bool, list[Tensor]] = {True: [], False: []}
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None):
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            gradient = parameter.grad.values() if parameter.grad.is_sparse else parameter.grad
            gradients[parameter in sharded].append(gradient)
        square = nn.utils.get_total_norm(gradients[False]).square()
        if sharded:
            square = square + collectives.summed(nn.utils.get_total_norm(gradients[True]).square())
        norm = square.sqrt() / self.guard.scale
        factor = 1 / self.guard.scale
        if self.recipe.train.clip_norm:
            factor = factor * (self.recipe.train.clip_norm / norm).clamp(max=1.0)
        torch._foreach_mul_(gradients[True] + gradients[False], factor)
        return norm

    def _read_void_steps(self, report: Reporter) -> None:
        """Warn of void steps, save the last one's batch, and give up after too many in a row."""
        counts = self.guard.read()
        new, self.progress.skipped = counts.total - self.progress.skipped, counts.total
        if new and not self.guard.searches_scale:
            self._dump(counts.last)
        if new:
            message = (
                f"{new} steps changed nothing, as their gradient or loss was not finite; the last is step {counts.last}"
            )
            report.warn(self.progress.step, message)
        if counts.longest > self.recipe.train.max_skipped:
            message = (
                f"{counts.longest} steps in a row had no finite gradient or loss; lower optimizer.lr or the margin."
            )
            raise Unusable(message, code="training_diverged", step=self.progress.step)

    def _dump(self, step: int) -> None:
        """Write the crops of a step into a file, for a person to look at. They are made again exactly as they were."""
        if len(list(self.out.glob("skipped_*.pt"))) >= KEPT_DUMPS * self.world.size:
            return
        count, online = self.recipe.train.accumulate, self.material.online
        source, keys = self._source(step * count)
        numbers = range(step * count, (step + 1) * count)
        used = [online.batch(n)[0] if online else source[key] for n, key in zip(numbers, keys, strict=False)]
        dump = {"images": torch.cat([b.images for b in used]), "labels": torch.cat([b.labels for b in used])}
        self.out.mkdir(parents=True, exist_ok=True)
        torch.save(dump, self.out / f"skipped_{step:08d}_rank{self.world.rank}.pt")

    # ------------------------------------------------------------------------------------------- figures, alarms

    def _log(self, report: Reporter, result: StepResult) -> None:
        step, loss = self.progress.step, float(result.loss)
        length = float(result.embeddings.float().norm(dim=1).mean())
        figures = {"loss": loss, "gradient": float(result.norm), "length": length}
        figures["lr"] = self.optimizer.param_groups[0]["lr"]
        figures |= {f"loss_{name}": float(value) for name, value in result.parts.items() if len(result.parts) > 1}
        if result.accuracy is not None:
            figures["accuracy"] = result.accuracy
        report.log(step, figures)
        message = self.alarm.observe(loss, result.accuracy, result.embeddings)
        if message:
            report.warn(step, message)
        self._read_void_steps(report)
        if self.progress.damaged > self._damaged_said:
            self._damaged_said = self.progress.damaged
            report.warn(
                step, f"{self.progress.damaged} images are damaged; others of the same people stand in for them"
            )

    def _evaluate(self, report: Reporter) -> None:
        """Measure, and keep the checkpoint if it is the best so far: by accuracy on the packs or, without packs, by the
        FNMR (then EER) on unseen people."""
        if self.material.held_out is None and not self.recipe.evaluate.packs:
            return
        mine = self.evaluate() if self.world.is_first else {}
        # All ranks have to agree on whether this is the best, since saving is collective.
        figures = collectives.object_from_first(mine, self.world.device)
        report.evaluated(self.progress.step, figures)
        self.progress.figures, self.progress.evaluated = figures, self.progress.step
        score = 1 - figures["accuracy"] if "accuracy" in figures else figures["fnmr"] + 1e-3 * figures["eer"]
        if self.progress.best is None or score < self.progress.best:
            self.progress.best, self.progress.best_step = score, self.progress.step
            self.save("best.pt")
        self.save()  # the step's checkpoint with its figures

    def evaluate(self) -> dict[str, float]:
        """Return verification figures over all pairs of the held-out crops, and the accuracy on each pack. Raises
        InvalidInput (`nothing_to_evaluate`) without either."""
        held_out, packs = self.material.held_out, [Path(name) for name in self.recipe.evaluate.packs]
        if held_out is None and not packs:
            raise InvalidInput("There are no unseen people to evaluate on.", code="nothing_to_evaluate")
        model = tower(self.averaged())
        figures: dict[str, float] = {}
        if held_out is not None:
            images = torch.from_numpy(held_out.images(np.arange(len(held_out))))
            figures |= metrics.verification_figures(
                embed(model, images).numpy(), held_out.labels, self.recipe.evaluate.fmr
            )
        flip = self.recipe.evaluate.flip
        accuracies = {f"accuracy_{path.stem}": pack_accuracy(model, read_pack(path), flip=flip) for path in packs}
        return figures | accuracies | ({"accuracy": float(np.mean(list(accuracies.values())))} if packs else {})

    def averaged(self) -> Tower | TwoTowers:
        """Return the model to evaluate and export: the averaged one if the recipe has one."""
        model: Tower | TwoTowers = self.average.model if self.average else self.model  # type: ignore[assignment]  # a copy of self.model
        return model

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save(self, name: str | None = None) -> Path:
        """Write a checkpoint under `name`, or that of the step (older ones beyond `train.keep` are deleted)."""
        path = self.out / name if name else checkpoint.step_path(self.out, self.progress.step)
        state = self.state()  # collective: every rank takes part
        if self.world.is_first:
            facts = {
                "step": self.progress.step,
                "recipe": self.recipe.name,
                "digest": self.recipe.digest(),
                "figures": self.progress.figures,
                "best_step": self.progress.best_step,
                "skipped": self.progress.skipped,
                "people": len(self.material.crops.people),
                "crops": len(self.material.crops),
                "torch": torch.__version__,
            }
            checkpoint.save(path, state, facts)
            checkpoint.prune(self.out, self.recipe.train.keep)
        return path

    def state(self) -> dict[str, Any]:
        """Return everything that the next step depends on, the same for any number of ranks."""
        progress = self.progress
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "model": self.model.state_dict(),
            "average": self.average.model.state_dict() if self.average else None,
            "objective": self.objective.whole_state(),
            "optimizer": self.objective.whole_optimizer_state(self.optimizer),
            **self.guard.state(),
            "progress": {name: getattr(progress, name) for name in Progress.__slots__},
            "alarm": self.alarm.state(),
            "views": self.material.online.settings if self.material.online else None,
        }

    def restore(self, path: Path) -> None:
        """Load a checkpoint of this recipe, made on any number of ranks.

        Raises InvalidInput (`recipe_mismatch`) if the recipe differs in something that the state depends on.
        """
        saved = checkpoint.load(path)
        state = saved.state
        made = _belongs_to(saved.recipe, saved.facts["people"], saved.facts["crops"])
        crops = self.material.crops
        for section, value in _belongs_to(self.recipe, len(crops.people), len(crops)).items():
            if made[section] != value:
                message = f"{path} was made with another [{section}]; resume with its own recipe, or start a new run."
                raise InvalidInput(message, code="recipe_mismatch", section=section)
        if self.material.online and state.get("views") != self.material.online.settings:
            message = f"{path} was made with other views or steps; resume with its own, or start a new run."
            raise InvalidInput(message, code="recipe_mismatch", section="views")
        self.model.load_state_dict(state["model"])
        if self.average and state["average"] is not None:
            self.average.model.load_state_dict(state["average"])
        self.objective.load_whole_state(state["objective"])
        self.objective.load_whole_optimizer_state(self.optimizer, state["optimizer"])
        self.guard.restore(state)
        self.progress = Progress(**state["progress"])
        self.alarm.restore(state["alarm"])
        self._batches = None

    # ----------------------------------------------------------------------------------------------- small helpers

    def _notices(self) -> Iterator[str]:
        """Yield notices about this run that a person may not expect."""
        if self.fresh and self.progress.step == 0:
            yield f"{len(self.fresh)} weights are not in {self.recipe.model.start} and start fresh: {self.fresh[0]} …"
        slow = precision.warning(self.precision, self.world.device, self.model)
        if slow:
            yield slow

    def _source(self, first: int) -> tuple[BatchSource, Iterator[BatchKey]]:
        """Return the source of batches, and the keys of this rank's batches from the `first` on."""
        source = BatchSource(self.material.crops, self.recipe.seed, self.material.augment)
        return source, batch_keys(self.material.sampler, first, self.world.rank, self.world.size)

    def _next_batch(self, number: int) -> tuple[Batch, Tensor | None]:
        """Return a batch and the teacher's targets for it, on the device."""
        teacher, device = self.material.teacher, self.world.device
        if self.material.online:
            return self.material.online.batch(number)
        if self._batches is None:
            source, keys = self._source(self.progress.step * self.recipe.train.accumulate)
            workers = worker_count(self.recipe.data.workers, device, self.world.ranks_here)
            self._batches = batches(source, keys, workers, device)
        batch = next(self._batches)
        self.progress.damaged += batch.damaged
        return batch, teacher.targets(batch).to(device) if teacher else None

    def _parallel(self) -> nn.Module:
        """Return the model as training calls it: compiled if wanted, and under DDP on several ranks."""
        module: nn.Module = torch.compile(self.model) if self.recipe.train.compile else self.model  # type: ignore[assignment]  # an OptimizedModule
        if self.world.size == 1:
            return module
        ids = [self.world.device.index] if self.world.device.type == "cuda" else None
        return DistributedDataParallel(module, device_ids=ids)

    def _due(self, every: int, last: int) -> bool:
        return self.progress.step == last or (every > 0 and self.progress.step % every == 0)

    def _write_recipe(self) -> None:
        if self.world.is_first:
            self.out.mkdir(parents=True, exist_ok=True)
            text = json.dumps(self.recipe.model_dump(mode="json"), indent=2, ensure_ascii=False)
            (self.out / "recipe.json").write_text(text + "\n", encoding="utf-8")


def seed_step(seed: int, number: int, stream: int = 0) -> int:
    """Seed every global generator from the recipe's seed, the batch's number and a stream; return the mixed seed."""
    mixed = int(np.random.SeedSequence((seed, number, stream)).generate_state(1, np.uint32)[0])
    torch.manual_seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002  for other people's code that uses the global generator
    random.seed(mixed)
    return mixed


def pack_accuracy(model: nn.Module, pack: VerificationPack, *, flip: bool) -> float:
    """Return the mean accuracy over 10 consecutive folds of the pack, each decided by the best threshold of the others.
    With ``flip``, a template is the sum of the image's and its mirror image's; arcface_torch sums unnormalised ones."""
    scores = []
    for start in range(0, len(pack), PAIRS_AT_ONCE):
        pairs = [pack.pair(place) for place in range(start, min(start + PAIRS_AT_ONCE, len(pack)))]
        crops = torch.from_numpy(np.stack([crop for pair in pairs for crop in pair]))
        vectors = embed(model, crops)
        if flip:
            vectors = nn.functional.normalize(vectors + embed(model, crops.flip(2)))
        scores.append((vectors[0::2] * vectors[1::2]).sum(dim=1).numpy())
    folds = np.arange(len(pack)) * PACK_FOLDS // len(pack)
    return metrics.fold_accuracy(np.concatenate(scores).astype(np.float64), pack.same, folds).mean


def _belongs_to(recipe: Recipe, people: int, crops: int) -> dict[str, object]:
    """Return the values that a checkpoint's state depends on, by recipe section; others may change during a run."""
    sections = ("seed", "model", "losses", "sampler", "partial_fc", "distill", "optimizer")
    data = recipe.data.model_dump(exclude=NOT_CHOOSING)
    return {
        **{section: getattr(recipe, section) for section in sections},
        "data": (data, people, crops),
        "train.accumulate": recipe.train.accumulate,
    }


def _check_world(recipe: Recipe, world: World) -> None:
    share = recipe.sampler.batch_size
    if share % world.size or (recipe.model.towers != "single" and (share // world.size) % 2):
        message = f"sampler.batch_size {share} cannot be shared evenly by {world.size} ranks."
        raise InvalidInput(message, code="invalid_recipe")
