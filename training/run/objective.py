"""The objective of a run: the weighted sum of its losses and the teacher's, over the global batch of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from app.errors import InvalidInput
from training import losses
from training.collectives import gather, mean_gradients, ranks
from training.losses import miners
from training.losses.base import upcast
from training.losses.centers import HardTriple
from training.losses.miners import PairMiner
from training.losses.pairwise import Triplets, all_triplets
from training.losses.partial_fc import PartialFC
from training.recipe import MANY_CLASSES, Distill, Loss, Recipe
from training.run.distillation import Projection, embedding_loss, relation_loss

LARGEST_ACCURACY_TABLE = 200_000
"""Maximum number of classes for accuracy on the training batch, which compares the batch with every class."""


class Term(nn.Module):
    """One loss of the recipe, with its miner."""

    def __init__(self, name: str, config: Loss, loss: nn.Module, *, across_towers: bool) -> None:
        super().__init__()
        self.name, self.loss = name, loss
        self.weight = config.weight
        self.class_level = losses.is_class_level(config.name)
        self.across_towers = across_towers
        self.per_image = config.image_beta
        self.miner: PairMiner | None = None
        if config.miner is not None:
            if self.class_level:
                message = f"losses: {config.name} has class weights and takes no miner."
                raise InvalidInput(message, code="invalid_recipe")
            self.miner = miners.build(config.miner, **config.miner_options)

    @property
    def here(self) -> nn.Module:
        """Return the loss with the class weights that this rank holds."""
        return self.loss.loss if isinstance(self.loss, PartialFC) else self.loss

    def forward(self, embeddings: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        """Return the loss; `images` (B,) int64 are the crops' positions in the training set."""
        if self.class_level:
            value: Tensor = self.loss(embeddings, labels)
            return value
        triplets = None if self.miner is None else self.miner(embeddings.detach(), labels)
        if self.across_towers:
            triplets = between_towers(all_triplets(labels) if triplets is None else triplets)
        extra = {"image_ids": images} if self.per_image else {}
        mined: Tensor = self.loss(embeddings, labels, *(() if triplets is None else (triplets,)), **extra)
        return mined


def between_towers(triplets: Triplets) -> Triplets:
    """Return the triplets whose anchor comes from one tower, and whose positive and negative come from the other
    (see `TwoTowers`)."""
    anchor, positive, negative = (part % 2 for part in triplets)
    across = (anchor != positive) & (anchor != negative)
    return Triplets(*(part[across] for part in triplets))


class Objective(nn.Module):
    """`forward(embeddings, labels, images, teacher)` takes this rank's share of the batch and returns the whole batch's
    loss and each term by name, the same on every rank, in float32.

    Each rank computes the whole batch's loss from gathered embeddings; for a sharded term (PartialFC), its part.
    """

    def __init__(self, terms: Sequence[Term], distill: Distill, projection: nn.Module | None) -> None:
        super().__init__()
        self.terms = nn.ModuleList(terms)
        self.distill = distill
        self.projection = projection

    def forward(
        self, embeddings: Tensor, labels: Tensor, images: Tensor, teacher: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        mine = upcast(embeddings)
        everyone, all_labels, all_images = gather(mine), gather(labels), gather(images)
        total = mine.new_zeros(())
        parts: dict[str, Tensor] = {}
        for term in self._terms():
            if isinstance(term.loss, PartialFC):
                parts[term.name] = term.loss.of_gathered(everyone, all_labels)
            else:
                parts[term.name] = term(everyone, all_labels, all_images)
            total = total + term.weight * parts[term.name]
        if teacher is not None and self.projection is not None:
            target = gather(teacher)
            if self.distill.embedding:
                parts["distill_embedding"] = embedding_loss(self.projection(everyone), target)
                total = total + self.distill.embedding * parts["distill_embedding"]
            if self.distill.relation:
                parts["distill_relation"] = relation_loss(everyone, target)
                total = total + self.distill.relation * parts["distill_relation"]
        return total, parts

    def set_margin(self, share: float) -> None:
        """Set the margins of class-level losses to this share of their full size."""
        for term in self._terms():
            if term.class_level:
                term.loss.margin_scale = share  # type: ignore[assignment]  # a float attribute of ClassLoss and PartialFC

    @torch.no_grad()
    def imprint(self, means: Tensor) -> None:
        """Set the class weights to (P, D) unit ``means``; if a class has several centres, they start around its mean.

        Raises InvalidInput (`invalid_recipe`) without a class-level loss.
        """
        tables = [term.here for term in self._terms() if isinstance(term.here, losses.ClassLoss)]
        if not tables:
            raise InvalidInput("model.imprint needs a loss with class weights.", code="invalid_recipe")
        for loss in tables:
            centres = means[loss.table.first : loss.table.end].to(loss.weight)
            if loss.weight.ndim == 3:
                loss.weight.add_(centres[:, None])  # to the random start, since equal centres would stay equal
            else:
                loss.weight.copy_(centres)

    def seed(self, seed: int) -> None:
        """Seed the miners' generators and the draw of classes, so that no random state carries over between steps."""
        for term in self._terms():
            if term.miner is not None:
                term.miner.generator.manual_seed(seed)
            if isinstance(term.loss, PartialFC):
                term.loss.seed = seed

    def merge_centers(self) -> None:
        """Merge classes' centres that are close together, in the losses with `merge`."""
        for term in self._terms():
            loss = term.here
            if isinstance(loss, HardTriple) and loss.merge:
                loss.merge_centers()

    def average_gradients(self) -> None:
        """Average the gradients of the parameters that all ranks hold, which excludes shards of class weights."""
        for term in self._terms():
            if not isinstance(term.loss, PartialFC):
                mean_gradients(term)
        if self.projection is not None:
            mean_gradients(self.projection)

    def sharded_parameters(self) -> set[Tensor]:
        """Return the parameters of which this rank holds its own part."""
        sharded = self._partial_fc()
        return set() if sharded is None else set(sharded.loss.class_rows().values())

    @property
    def sampled(self) -> bool:
        """Return whether a step trains only some of the classes."""
        sharded = self._partial_fc()
        return sharded is not None and sharded.sample_rate < 1

    @torch.no_grad()
    def accuracy(self, embeddings: Tensor, labels: Tensor) -> float | None:
        """Return the share of (B, D) embeddings whose own class scores highest without margin; None without a
        class-level loss. It is of this rank's embeddings, or of all ranks' if they share the class weights.
        Collective."""
        for term in self._terms():
            if isinstance(term.loss, PartialFC) and term.loss.table.num_classes <= LARGEST_ACCURACY_TABLE:
                return float(term.loss.accuracy(embeddings, labels))
            if isinstance(term.loss, losses.ClassLoss) and term.loss.num_classes <= LARGEST_ACCURACY_TABLE:
                nearest = term.loss.logits(embeddings.float()).argmax(dim=1)
                return float((nearest == labels).float().mean())
        return None

    # ------------------------------------------------------- state, which doesn't depend on the number of ranks

    def whole_state(self) -> dict[str, Any]:
        """Return the state of all ranks together. Collective."""
        terms = [
            term.loss.full_state_dict() if isinstance(term.loss, PartialFC) else term.loss.state_dict()
            for term in self._terms()
        ]
        return {"terms": terms, "projection": self.projection.state_dict() if self.projection else None}

    def load_whole_state(self, state: dict[str, Any]) -> None:
        for term, saved in zip(self._terms(), state["terms"], strict=True):
            if isinstance(term.loss, PartialFC):
                term.loss.load_full_state_dict(saved)
            else:
                term.loss.load_state_dict(saved)
        if self.projection is not None:
            self.projection.load_state_dict(state["projection"])

    def whole_optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Return the optimiser's state of all ranks together. Collective."""
        sharded = self._partial_fc()
        return optimizer.state_dict() if sharded is None else sharded.full_optimizer_state(optimizer)

    def load_whole_optimizer_state(self, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
        sharded = self._partial_fc()
        if sharded is None:
            optimizer.load_state_dict(state)
        else:
            sharded.load_full_optimizer_state(optimizer, state)

    def _partial_fc(self) -> PartialFC | None:
        return next((term.loss for term in self._terms() if isinstance(term.loss, PartialFC)), None)

    def _terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]


def build_objective(recipe: Recipe, people: int, crops: int, teacher_dimension: int | None) -> Objective:
    """Build the recipe's losses for `people` classes and a training set of `crops`.

    Raises LossError for an unknown loss, miner or key, InvalidInput (`invalid_recipe`) for contradictory settings.
    """
    terms = []
    sharded = _is_sharded(recipe, people)
    for number, config in enumerate(recipe.losses):
        class_level = losses.is_class_level(config.name)
        _check_keys(config)
        shared: dict[str, Any] = {"num_classes": people, "dim": recipe.model.dim, **config.hyper}
        if config.image_beta:
            shared["num_images"] = crops
        if sharded and class_level:
            rate = recipe.partial_fc.rate(people)
            loss: nn.Module = PartialFC(config.name, sample_rate=rate, averaged=True, seed=recipe.seed, **shared)
        else:
            loss = losses.build(config.name, **shared)
        name = f"{number}_{config.name}" if len(recipe.losses) > 1 else config.name
        terms.append(Term(name, config, loss, across_towers=recipe.model.towers != "single"))
    projection = None if teacher_dimension is None else Projection(recipe.model.dim, teacher_dimension)
    return Objective(terms, recipe.distill, projection)


def _is_sharded(recipe: Recipe, people: int) -> bool:
    """Return whether the ranks share the class weights. Raises InvalidInput (`invalid_recipe`) if they can't."""
    possible = sum(losses.is_class_level(config.name) for config in recipe.losses) == 1
    if recipe.partial_fc.enabled != "auto":
        if recipe.partial_fc.enabled and not possible:
            raise InvalidInput("partial_fc.enabled needs exactly one class-level loss.", code="invalid_recipe")
        return recipe.partial_fc.enabled
    useful = ranks() > 1 or people >= MANY_CLASSES
    return possible and useful and people >= ranks()


def _check_keys(config: Loss) -> None:
    """Reject keys of a `[[losses]]` table that this loss doesn't have."""
    kind = losses.kind_of(config.name)
    if ":" not in config.name:
        for key in config.hyper:
            known = [*Loss.model_fields, *losses.hyperparameters(kind)]
            losses.check_choice(f"key of {config.name} in [[losses]]", key, known)
    if config.miner_options and config.miner is None:
        raise InvalidInput(f"losses: {config.name} has miner_options and no miner.", code="invalid_recipe")
