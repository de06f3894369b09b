"""Losses on pairs and triplets of a batch; embeddings are normalised inside, so distances are in [0, 2].

`forward(embeddings, labels, triplets=None)`: with triplets from a miner only their pairs count, without them all pairs
of the batch. For a batch without any such pair the loss is 0, with a zero gradient.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.losses.base import (
    LABEL_TYPES,
    Gradient,
    LossError,
    check_batch,
    full_precision,
    require,
    require_gradient,
    unit,
    upcast,
)
from training.losses.margin import negative_push, positive_pull


class Triplets(NamedTuple):
    """Positions within a batch, three int64 tensors of one length: each anchor, a positive and a negative for it."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor


def check_triplets(triplets: Triplets, labels: Tensor) -> None:
    """Reject positions outside of the batch, and triplets with a wrong positive or negative."""
    require(len({len(part) for part in triplets}) == 1, "the three parts of the triplets differ in length")
    if len(triplets.anchor) == 0:
        return
    low, high = (int(end) for end in torch.stack(tuple(triplets)).aminmax())
    require(low >= 0 and high < len(labels), f"triplets point outside of the batch of {len(labels)}: {low}…{high}")
    anchor, positive, negative = (labels[part] for part in triplets)
    require(bool(((anchor == positive) & (anchor != negative)).all()), "triplets contradict the labels")


def distances(vectors: Tensor) -> Tensor:
    """Return Euclidean distances, (B, D) → (B, B), from differences (no cancellation near 0); gradient 0 at 0."""
    return torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")


def pair_masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return two (B, B) masks for (B,) labels: pairs of one class, without the diagonal; pairs of two classes."""
    same = labels[:, None] == labels[None, :]
    return same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same


def all_triplets(labels: Tensor) -> Triplets:
    """Return every triplet of the batch, anchors in order."""
    positives, negatives = pair_masks(labels)
    anchor, positive = positives.nonzero(as_tuple=True)
    pair, negative = negatives[anchor].nonzero(as_tuple=True)
    return Triplets(anchor[pair], positive[pair], negative)


def pair_counts(triplets: Triplets, size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return how often each pair (anchor, positive) and each pair (anchor, negative) occurs, (size, size) each."""
    empty = torch.zeros(size, size, dtype=dtype, device=triplets.anchor.device)
    once = empty.new_ones(())
    positives = empty.index_put((triplets.anchor, triplets.positive), once, accumulate=True)
    return positives, empty.index_put((triplets.anchor, triplets.negative), once, accumulate=True)


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """Return log-sum-exp over each row's masked entries, (N, M) → (N,); −inf, without gradient, if there are none."""
    there = mask.any(dim=1)
    masked = torch.where(mask, values, -math.inf)
    return torch.where(there[:, None], masked, 0.0).logsumexp(dim=1).masked_fill(~there, -math.inf)


def unified_rows(push: Tensor, pull: Tensor, negatives: Tensor, positives: Tensor) -> Tensor:
    """Return log(1 + Σ_n e^push · Σ_p e^pull) of each row that has both; only log-sum-exp exponentiates.

    All are (N, M), the last two masks; the result has an entry for each row with both a negative and a positive
    (Circle loss, arXiv 2002.10857).
    """
    valid = negatives.any(dim=1) & positives.any(dim=1)
    return F.softplus(masked_logsumexp(push[valid], negatives[valid]) + masked_logsumexp(pull[valid], positives[valid]))


def mean_of_active(terms: Tensor, counts: Tensor | None = None) -> Tensor:
    """Return the mean of the terms above 0, each counted `counts` times; 0 if there are none."""
    weights = torch.ones_like(terms) if counts is None else counts
    active = (weights * (terms > 0)).sum()
    return (weights * terms).sum() / active.clamp(min=1)


class PairLoss(nn.Module):
    """A loss without class weights. `num_classes` and `dim`, if given, are used to check batches."""

    def __init__(self, num_classes: int | None, dim: int | None) -> None:
        super().__init__()
        self.num_classes, self.dim = num_classes, dim

    def forward(
        self, embeddings: Tensor, labels: Tensor, triplets: Triplets | None = None, **further: Tensor | None
    ) -> Tensor:
        check_batch(embeddings, labels, self.num_classes, self.dim)
        if triplets is not None:
            check_triplets(triplets, labels)
        with full_precision(embeddings):
            return self.of(unit(upcast(embeddings)), labels, triplets, **further)

    def of(self, x: Tensor, labels: Tensor, triplets: Triplets | None) -> Tensor:
        """Return the loss, a scalar, of x (B, D) of unit length."""
        raise NotImplementedError


class MaskedPairLoss(PairLoss):
    """A loss in which each pair counts once, however often it was drawn."""

    def of(self, x: Tensor, labels: Tensor, triplets: Triplets | None) -> Tensor:
        if triplets is None:
            positives, negatives = pair_masks(labels)
        else:
            positives, negatives = (counts > 0 for counts in pair_counts(triplets, len(x), x.dtype))
        terms = self.terms(x, positives, negatives)
        return terms.mean() if len(terms) else 0 * x.sum()

    def terms(self, x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        """Return the terms to average, maybe none, from (B, D) and two (B, B) masks."""
        raise NotImplementedError


class Contrastive(PairLoss):
    """D² for a pair of one class, [m − D]₊² for a pair of two (Hadsell et al. 2006, without its ½).

    m = 1: Sampling Matters, arXiv 1706.07567. The mean over all ordered pairs with a positive term.
    """

    def __init__(self, num_classes: int | None, dim: int | None, *, m: float = 1.0) -> None:
        super().__init__(num_classes, dim)
        self.m = m

    def of(self, x: Tensor, labels: Tensor, triplets: Triplets | None) -> Tensor:
        distance = distances(x)
        if triplets is None:
            positives, negatives = (mask.to(x.dtype) for mask in pair_masks(labels))
        else:
            positives, negatives = pair_counts(triplets, len(x), x.dtype)
        terms = torch.stack((distance**2, (self.m - distance).clamp(min=0) ** 2))
        return mean_of_active(terms, torch.stack((positives, negatives)))


class Triplet(PairLoss):
    """[D_ap² − D_an² + m]₊ (`squared`; FaceNet, arXiv 1503.03832) or [D_ap − D_an + m]₊ (arXiv 1706.07567).

    m = 0.2 in both papers. The mean over the triplets with a positive term.
    """

    def __init__(self, num_classes: int | None, dim: int | None, *, m: float = 0.2, squared: bool = True) -> None:
        super().__init__(num_classes, dim)
        self.m, self.squared = m, squared

    def of(self, x: Tensor, labels: Tensor, triplets: Triplets | None) -> Tensor:
        anchor, positive, negative = all_triplets(labels) if triplets is None else triplets
        distance = distances(x)
        if self.squared:
            distance = distance**2
        return mean_of_active((distance[anchor, positive] - distance[anchor, negative] + self.m).clamp(min=0))


class Margin(PairLoss):
    """[alpha + y_ij·(D_ij − β)]₊, y = 1 within a class and −1 between two, β = β0 + β_class[y_i] + β_image[i]
    (Sampling Matters, arXiv 1706.07567).

    β0 starts at `beta` = 1.2, alpha = 0.2, nu = 0: that paper. All three β are learned, each at its own rate: `beta`;
    `beta_class` (C,) if num_classes is given and class_beta is true; `beta_image` (N,) if num_images is given, for
    which `forward` takes `image_ids` (B,). The loss is the sum over the triplets' pairs, plus nu·Σ β of their anchors,
    divided by the number of pairs with a positive term. Without mined triplets all triplets count, so that both kinds
    of pairs have the same weight.
    """

    def __init__(
        self,
        num_classes: int | None,
        dim: int | None,
        *,
        alpha: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        class_beta: bool = True,
        num_images: int | None = None,
    ) -> None:
        super().__init__(num_classes, dim)
        self.alpha, self.nu = alpha, nu
        self.beta = nn.Parameter(torch.tensor(float(beta)))
        of_classes = num_classes if class_beta else None
        self.beta_class = None if of_classes is None else nn.Parameter(torch.zeros(of_classes))
        self.beta_image = None if num_images is None else nn.Parameter(torch.zeros(num_images))

    def of(self, x: Tensor, labels: Tensor, triplets: Triplets | None, image_ids: Tensor | None = None) -> Tensor:
        triplets = all_triplets(labels) if triplets is None else triplets
        return self.between(distances(x), self.boundaries(labels, image_ids).to(x.dtype), triplets)

    def boundaries(self, labels: Tensor, image_ids: Tensor | None = None) -> Tensor:
        """Return the β of each anchor, (B,), from (B,) labels. Raises `LossError` for image ids that the loss was not
        built for."""
        beta = self.beta.expand(len(labels))
        if self.beta_class is not None:
            beta = beta + self.beta_class[labels.long()]
        if self.beta_image is not None and image_ids is not None:
            self.check_image_ids(image_ids, labels, len(self.beta_image))
            beta = beta + self.beta_image[image_ids.long()]
        elif image_ids is not None:
            raise LossError("image_ids need a loss built with num_images")
        return beta

    @staticmethod
    def check_image_ids(image_ids: Tensor, labels: Tensor, num_images: int) -> None:
        require(image_ids.dtype in LABEL_TYPES, f"image_ids must be integers, not {image_ids.dtype}")
        require(image_ids.shape == labels.shape, f"expected {len(labels)} image_ids, got {tuple(image_ids.shape)}")
        low, high = (int(end) for end in image_ids.aminmax())
        require(low >= 0 and high < num_images, f"image_ids must lie in 0…{num_images - 1}, got {low}…{high}")

    def between(self, distance: Tensor, beta: Tensor, triplets: Triplets) -> Tensor:
        positives, negatives = pair_counts(triplets, len(distance), distance.dtype)
        beyond = distance - beta[:, None]
        near = (self.alpha + beyond).clamp(min=0)
        far = (self.alpha - beyond).clamp(min=0)
        active = (positives * (near > 0) + negatives * (far > 0)).sum()
        cost = (positives * near + negatives * far).sum() + self.nu * beta[triplets.anchor].sum()
        return cost * (active > 0) / active.clamp(min=1)


class CirclePair(MaskedPairLoss):
    """log(1 + Σ_n e^{s·α_n(s_n − Δ_n)} · Σ_p e^{−s·α_p(s_p − Δ_p)}) of each anchor (Circle loss, arXiv 2002.10857).

    α_p = [1 + m − s_p]₊, α_n = [s_n + m]₊, Δ_p = 1 − m, Δ_n = m. s (the paper's γ) = 80, m = 0.4: its retrieval
    setting. The mean over the anchors that have a positive and a negative. grad as in the class-level `circle`.
    """

    def __init__(
        self,
        num_classes: int | None,
        dim: int | None,
        *,
        s: float = 80.0,
        m: float = 0.4,
        grad: Gradient = "detached",
    ) -> None:
        require(s > 0, f"s must be positive, not {s}")
        require_gradient(grad)
        super().__init__(num_classes, dim)
        self.s, self.m, self.grad = s, m, grad

    def terms(self, x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        score = x @ x.T
        push, pull = negative_push(score, self.m, self.grad), positive_pull(score, self.m, self.grad)
        return unified_rows(self.s * push, self.s * pull, negatives, positives)


class Unified(MaskedPairLoss):
    """log(1 + Σ_n Σ_p e^{s·(s_n − s_p + m)}) of each anchor (Circle loss, arXiv 2002.10857).

    If the other samples are class vectors, it is CosFace; for s → ∞ it is the hardest triplet. The paper sets no
    defaults: s = 64 and m = 0.35 are those of CosFace. The mean over the anchors with a positive and a negative.
    """

    def __init__(self, num_classes: int | None, dim: int | None, *, s: float = 64.0, m: float = 0.35) -> None:
        require(s > 0, f"s must be positive, not {s}")
        super().__init__(num_classes, dim)
        self.s, self.m = s, m

    def terms(self, x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        score = x @ x.T
        return unified_rows(self.s * (score + self.m), -self.s * score, negatives, positives)


class Lifted(MaskedPairLoss):
    """[J]₊²/2 with J = D_ij + log(Σ_k e^{m − D_ik} + Σ_l e^{m − D_jl}), k and l unlike i and j (arXiv 1511.06452).

    m = 1 is the paper's. The mean over the pairs of one class.
    """

    def __init__(self, num_classes: int | None, dim: int | None, *, m: float = 1.0) -> None:
        super().__init__(num_classes, dim)
        self.m = m

    def terms(self, x: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        distance = distances(x)
        crowd = masked_logsumexp(self.m - distance, negatives)  # (B,)
        opposed = negatives.any(dim=1)
        first, second = (positives & (opposed[:, None] | opposed[None, :])).nonzero(as_tuple=True)
        lifted = distance[first, second] + torch.logaddexp(crowd[first], crowd[second])
        return lifted.clamp(min=0) ** 2 / 2
