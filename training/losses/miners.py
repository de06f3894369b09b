"""Miners choose the triplets of a batch to learn from.

A miner is called with embeddings (B, D), of any length, and labels (B,), and returns `Triplets`: one negative for each
ordered pair of one class (anchor, positive), unless it says otherwise. Distances are Euclidean between unit vectors.
Randomness comes from the miner's own seeded generator, whose state is in `state_dict()`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, get_args

import torch
from torch import Tensor

from training.losses import Triplets, check_choice, check_hyper
from training.losses.base import check_batch, full_precision, require, unit, upcast
from training.losses.pairwise import all_triplets, distances, pair_masks

Variant = Literal["facenet", "wu", "roth", "all"]
Fallback = Literal["uniform", "skip"]


def gumbel_argmax(log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a column for each row with probability ∝ exp(log weight), (N, M) → (N,); −inf is never drawn.

    The largest log weight + Gumbel noise is such a draw. Nothing is exponentiated, since the weights may differ by
    hundreds of e-folds. A row needs at least one finite entry.
    """
    noise = torch.rand(log_weights.shape, generator=generator, dtype=torch.float64).clamp(min=1e-300)
    noise = -torch.log(-torch.log(noise)).to(log_weights.device)
    return (log_weights + noise).argmax(dim=1)


def evenly(mask: Tensor) -> Tensor:
    """Return log weights with which every true entry of (N, M) bool is equally likely."""
    return torch.zeros(mask.shape, dtype=torch.float64, device=mask.device).masked_fill(~mask, -math.inf)


def log_inverse_density(distance: Tensor, dim: int, cutoff: float) -> Tensor:
    """Return log 1/q(d) up to a constant; q(d) = d^(n−2)·(1 − d²/4)^((n−3)/2) is the density of the distance between
    two random unit vectors in n dimensions (arXiv 1706.07567). Distances below `cutoff` count as `cutoff`. float64."""
    d = distance.double().clamp(min=cutoff)
    return (2 - dim) * torch.log(d) - (dim - 3) / 2 * torch.log1p((-(d**2) / 4).clamp(min=-1 + 1e-12))


def checked_distances(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the (B, B) distances between the directions of a batch. Raises `LossError`."""
    check_batch(embeddings, labels, None, None)
    with full_precision(embeddings):
        return distances(unit(upcast(embeddings)))


class PairMiner:
    """Chooses one negative for each pair (anchor, positive) by `choose`."""

    def __init__(self, *, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        """Choose triplets as positions within the batch, from (B, D) floats and (B,) integers. No gradient."""
        distance = checked_distances(embeddings, labels)
        positives, negatives = pair_masks(labels)
        anchor, positive = self.pairs(distance, positives & negatives.any(dim=1, keepdim=True))
        if len(anchor) == 0:
            return Triplets(anchor, positive, anchor)
        far = distance[anchor, positive]
        negative, has_negative = self.choose(far, distance[anchor], negatives[anchor], embeddings.shape[1])
        return Triplets(anchor[has_negative], positive[has_negative], negative[has_negative])

    def pairs(self, distance: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs to find negatives for, from (B, B) distances and their mask."""
        del distance
        anchor, positive = positives.nonzero(as_tuple=True)
        return anchor, positive

    def choose(self, far: Tensor, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Choose a negative for each of P pairs with distance `far` (P,).

        Takes distances (P, B) from the anchor and which of these are negatives (P, B), at least one each. Returns the
        chosen columns (P,) and whether one was found (P,).
        """
        raise NotImplementedError

    def draw(self, log_weights: Tensor) -> Tensor:
        return gumbel_argmax(log_weights, self.generator)

    def state_dict(self) -> dict[str, Tensor]:
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.generator.set_state(state["generator"])


class RandomMiner(PairMiner):
    """Chooses any negative, all equally likely."""

    def choose(self, far: Tensor, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        del distance, dim
        return self.draw(evenly(negatives)), torch.ones_like(far, dtype=torch.bool)


class HardMiner(PairMiner):
    """Chooses the nearest negative. `hardest_positive` pairs it with each anchor's farthest positive only: "batch
    hard" (arXiv 1703.07737)."""

    def __init__(self, *, hardest_positive: bool = False, seed: int = 0) -> None:
        super().__init__(seed=seed)
        self.hardest_positive = hardest_positive

    def pairs(self, distance: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:
        if not self.hardest_positive:
            return super().pairs(distance, positives)
        anchor = positives.any(dim=1).nonzero(as_tuple=True)[0]
        return anchor, distance.masked_fill(~positives, -math.inf)[anchor].argmax(dim=1)

    def choose(self, far: Tensor, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        del dim
        return distance.masked_fill(~negatives, math.inf).argmin(dim=1), torch.ones_like(far, dtype=torch.bool)


class SemihardMiner(PairMiner):
    """Chooses negatives in a band, farther than the positive by less than the margin m: D_ap < D_an < D_ap + m.

    facenet: one of the band at random, no triplet if it is empty (arXiv 1503.03832, whose distances are squared); wu:
    the nearest negative with D_an > D_ap, without upper limit (as in arXiv 1706.07567); roth: one of the band at
    random, any negative if it is empty (arXiv 2002.08473's baseline); all: every triplet of the band. `squared`:
    whether the band is measured on squared distances.
    """

    def __init__(self, *, variant: Variant = "facenet", m: float = 0.2, squared: bool = True, seed: int = 0) -> None:
        super().__init__(seed=seed)
        require(variant in get_args(Variant), f"variant must be one of {', '.join(get_args(Variant))}, not {variant!r}")
        self.variant, self.m, self.squared = variant, m, squared

    @torch.no_grad()
    def __call__(self, embeddings: Tensor, labels: Tensor) -> Triplets:
        if self.variant != "all":
            return super().__call__(embeddings, labels)
        distance = checked_distances(embeddings, labels)
        anchor, positive, negative = all_triplets(labels)
        within = self.band(distance[anchor, positive], distance[anchor, negative])
        return Triplets(anchor[within], positive[within], negative[within])

    def band(self, far: Tensor, near: Tensor) -> Tensor:
        power = 2 if self.squared else 1
        gap = near**power - far**power
        return (gap > 0) & (gap < self.m)

    def choose(self, far: Tensor, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        del dim
        if self.variant == "wu":
            beyond = negatives & (distance > far[:, None])
            return distance.masked_fill(~beyond, math.inf).argmin(dim=1), beyond.any(dim=1)
        band = negatives & self.band(far[:, None], distance)
        has_negative = band.any(dim=1)
        choice = self.draw(evenly(torch.where(has_negative[:, None], band, negatives)))
        return choice, has_negative | (self.variant == "roth")


class DistanceWeightedMiner(PairMiner):
    """Draws a negative with probability ∝ min(λ, 1/q(D_an)), q the density of random distances (arXiv 1706.07567).

    λ is given by `cutoff` = 0.5: closer negatives have the same weight as at this distance. Negatives at
    `nonzero_loss_cutoff` = 1.4 (the margin loss's alpha + β0) and beyond have no loss and are not drawn; an anchor
    without closer ones draws any of its negatives (`fallback` = uniform) or none (skip). Both numbers are from the
    paper's released code. Weights are per anchor and stay logarithms, since in 512 dimensions they span 370 e-folds.
    """

    def __init__(
        self,
        *,
        cutoff: float = 0.5,
        nonzero_loss_cutoff: float = 1.4,
        fallback: Fallback = "uniform",
        seed: int = 0,
    ) -> None:
        super().__init__(seed=seed)
        require(0 < cutoff < nonzero_loss_cutoff <= 2, "expected 0 < cutoff < nonzero_loss_cutoff ≤ 2")
        require(fallback in get_args(Fallback), f"fallback must be uniform or skip, not {fallback!r}")
        self.cutoff, self.nonzero_loss_cutoff, self.fallback = cutoff, nonzero_loss_cutoff, fallback

    def choose(self, far: Tensor, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        del far
        log_weights, has_negative = self.log_weights(distance, negatives, dim)
        return self.draw(log_weights), has_negative | (self.fallback == "uniform")

    def log_weights(self, distance: Tensor, negatives: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """Return unnormalised log probabilities, (P, B), and whether any negative was close enough, (P,)."""
        near = negatives & (distance < self.nonzero_loss_cutoff)
        has_negative = near.any(dim=1)
        weights = log_inverse_density(distance, dim, self.cutoff).masked_fill(~near, -math.inf)
        return torch.where(has_negative[:, None], weights, evenly(negatives)), has_negative


MINERS: dict[str, type[PairMiner]] = {
    "random": RandomMiner,
    "hard": HardMiner,
    "semihard": SemihardMiner,
    "distance_weighted": DistanceWeightedMiner,
}


def build(name: str, **hyper: object) -> PairMiner:
    """Build the miner with this name. Raises `LossError` for an unknown name or argument, naming the nearest."""
    check_choice("miner", name, MINERS)
    kind = MINERS[name]
    check_hyper(name, kind, hyper)
    return kind(**hyper)  # type: ignore[arg-type]  # checked by name above, by value in the constructor
