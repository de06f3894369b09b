"""SphereFace2: binary classification, one decision per class."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training.losses.base import ClassTable, CosineLoss, Gradient, Part, detach_margin, require, require_gradient


def initial_bias(num_classes: int, s: float, m: float, t: float, alpha: float) -> float:
    """Return the b at which the pull of a sample's class equals the push of all others when every cosine is 0.

    With v = e^(b + a_n), a_p and a_n the target's and the others' logit without b, and ratio = α/((1−α)(C−1)) it
    solves e^(a_p − a_n)·v² + (1 − ratio)·v − ratio = 0 (the start of SphereFace2's released code, arXiv 2108.01513).
    """
    ratio = alpha / ((1 - alpha) * (num_classes - 1))
    at_zero: float = 2 * 0.5**t - 1
    others = s * (at_zero + m)
    gap = 1 - ratio
    root = math.sqrt(gap * gap + 4 * ratio * math.exp(-2 * s * m))
    # (1 − ratio) + root cancels if ratio > 1; the other form of the same root doesn't
    if ratio <= 1:
        v = 2 * ratio / (gap + root)
        return math.log(v) - others
    return math.log((root - gap) / 2) + 2 * s * m - others


class SphereFace2(CosineLoss):
    """(lw/s)·[α·softplus(−z_y) + (1 − α)·Σ_{j≠y} softplus(z_j)] (SphereFace2, arXiv 2108.01513, type C).

    z_y = s·(g(cos θ_y) − m) + b, z_j = s·(g(cos θ_j) + m) + b, g(c) = 2((c + 1)/2)^t − 1, b learned and started where
    pull and push are equal. s (the paper's r) = 40, m = 0.4, t = 3, alpha (its λ) = 0.7, lw = 50: the paper and its
    released code. grad = `detached`, the default, is its characteristic gradient detachment: g and the margin only
    affect the forward pass. No softmax couples the classes; with sampled classes the sum runs over those sampled.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 40.0,
        m: float = 0.4,
        t: float = 3.0,
        alpha: float = 0.7,
        lw: float = 50.0,
        grad: Gradient = "detached",
    ) -> None:
        require(table.num_classes >= 2, "sphereface2 needs at least 2 classes")
        require(t >= 1, f"t must be at least 1, not {t}")
        require(0 < alpha < 1, f"alpha must lie in (0, 1), not {alpha}")
        require_gradient(grad)
        super().__init__(table, s=s)
        self.m, self.t, self.alpha, self.lw, self.grad = m, t, alpha, lw, grad
        self.b = nn.Parameter(torch.tensor(initial_bias(table.num_classes, s, m, t, alpha)))

    def sharpened(self, cosine: Tensor) -> Tensor:
        """Return g: the cosine with its upper half stretched."""
        return 2 * ((cosine + 1) / 2).clamp(min=0) ** self.t - 1

    def logits(self, embeddings: Tensor) -> Tensor:
        """(B, C) s·g(cos θ_j) + b."""
        return self.s * self.sharpened(super().logits(embeddings) / self.s) + self.b

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        m = self.m * self.margin_scale
        sharp = self.sharpened(scores)
        value = part.put(sharp + m, part.at_target(sharp) - m)
        return self.s * detach_margin(scores, value, self.grad) + part.ranks.parameter(self.b)

    def per_sample(self, part: Part, logits: Tensor) -> Tensor:
        cost = part.put((1 - self.alpha) * F.softplus(logits), self.alpha * F.softplus(-part.at_target(logits)))
        return self.lw / self.s * part.ranks.total(cost.sum(dim=1))
