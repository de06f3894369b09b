"""Softmax with and without margins: losses that compare an embedding with one vector per class."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from training.losses.base import (
    ClassLoss,
    ClassTable,
    CosineLoss,
    Gradient,
    Part,
    detach_margin,
    psi,
    require,
    require_gradient,
)

Mode = Literal["none", "easy", "hard", "continuous", "reflect"]


def angular_margin(theta: Tensor, cosine: Tensor, m1: float, m2: float | Tensor, mode: Mode) -> Tensor:
    """Return cos(m1·θ + m2) while m1·θ + m2 ≤ π. Beyond π, where the cosine would rise again, `mode` decides.

    θ and cos θ are (n,), m2 a number or (n,). With θ* the angle at which m1·θ* + m2 = π:
    none: the formula as it is; easy: plain cos θ wherever cos θ ≤ 0; hard: cos θ − (π−θ*) sin(π−θ*), with a jump at θ*
    (for m1 = 1 the usual cos θ − m sin m); continuous: cos θ − (1 + cos θ*), without a jump; reflect: ψ(m1·θ + m2),
    without a jump or kink.
    """
    phi = m1 * theta + m2
    if mode == "reflect":
        return psi(phi)
    inside = torch.cos(phi)
    if mode == "none":
        return inside
    if mode == "easy":
        return torch.where(cosine > 0, inside, cosine)
    turn = (math.pi - torch.as_tensor(m2, dtype=theta.dtype, device=theta.device)) / m1
    beyond = (math.pi - turn) * torch.sin(turn) if mode == "hard" else 1 + torch.cos(turn)
    return torch.where(phi <= math.pi, inside, cosine - beyond)


class AngularLoss(CosineLoss):
    """A margin on the angle: `mode` says what happens beyond π, `grad` whether the margin is differentiated."""

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float,
        m: float,
        mode: Mode,
        grad: Gradient,
        conflict: float = 0.0,
        centers: int | None = None,
    ) -> None:
        require(mode in get_args(Mode), f"mode must be one of {', '.join(get_args(Mode))}, not {mode!r}")
        require_gradient(grad)
        super().__init__(table, s=s, conflict=conflict, centers=centers)
        self.m, self.mode, self.grad = m, mode, grad

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        """Return the target's score with its margin, (B,): cos(θ + m), unless a loss overrides it."""
        del part
        return angular_margin(theta, cosine, 1.0, self.m * self.margin_scale, self.mode)

    def target(self, part: Part, scores: Tensor) -> Tensor:
        cosine = part.at_target(scores)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.grad == "exact"):
            shifted = self.shifted(part, self.target_angle(part), cosine)
        return detach_margin(cosine, shifted, self.grad)


class Softmax(ClassLoss):
    """Softmax cross-entropy: z_j = W_j·x + b_j.

    The only class-level loss with a second parameter per class, `bias` (C,), initially zero.
    """

    class_parameters: ClassVar = ("weight", "bias")

    def __init__(self, table: ClassTable) -> None:
        super().__init__(table)
        self.bias = table.zeros()

    def scores(self, x: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return F.linear(x, rows["weight"], rows["bias"])

    def scale(self, x: Tensor) -> float | Tensor:
        del x
        return 1.0


class NormSoftmax(CosineLoss):
    """Normalised softmax: z_j = s·cos θ_j (NormFace, arXiv 1704.06369; the same as COCO, arXiv 1710.00870).

    s = 20, because the ArcFace paper's Table 2 has 99.20 % on LFW with it, and 98.56 % with 64.
    """

    def __init__(self, table: ClassTable, *, s: float = 20.0) -> None:
        super().__init__(table, s=s)


class WNormSoftmax(CosineLoss):
    """Softmax over normalised classes: z_j = |x|·cos θ_j, no bias ("modified softmax", arXiv 1704.08063)."""

    def __init__(self, table: ClassTable) -> None:
        super().__init__(table, s=1.0)

    def scale(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return length


class CosFace(CosineLoss):
    """z_y = s·(cos θ_y − m) (CosFace, arXiv 1801.09414; AM-Softmax, arXiv 1801.05599).

    s = 64, m = 0.35: the CosFace paper.
    """

    def __init__(self, table: ClassTable, *, s: float = 64.0, m: float = 0.35, conflict: float = 0.0) -> None:
        super().__init__(table, s=s, conflict=conflict)
        self.m = m

    def target(self, part: Part, scores: Tensor) -> Tensor:
        return part.at_target(scores) - self.m * self.margin_scale


class Combined(AngularLoss):
    """z_y = s·(cos(m1·θ_y + m2) − m3) (ArcFace, arXiv 1801.07698).

    s = 64 and (m1, m2, m3) = (1, 0.3, 0.2), that paper's CM1. `mode` and `grad` as in `ArcFace`.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 64.0,
        m1: float = 1.0,
        m2: float = 0.3,
        m3: float = 0.2,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
        conflict: float = 0.0,
    ) -> None:
        require(m1 > 0, f"m1 must be positive, not {m1}")
        super().__init__(table, s=s, m=m2, mode=mode, grad=grad, conflict=conflict)
        self.m1, self.m2, self.m3 = m1, m2, m3

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        del part
        m1 = 1 + (self.m1 - 1) * self.margin_scale
        m2, m3 = self.m2 * self.margin_scale, self.m3 * self.margin_scale
        return angular_margin(theta, cosine, m1, m2, self.mode) - m3


class ArcFace(AngularLoss):
    """z_y = s·cos(θ_y + m) (ArcFace, arXiv 1801.07698).

    s = 64, m = 0.5 radians: that paper. Beyond θ + m = π see `angular_margin`; `continuous` equals the paper's
    formula up to there. grad = `exact` differentiates the formula: dz/dcos θ = s·sin(θ+m)/sin θ; `detached` leaves the
    margin out of the derivative: dz/dcos θ = s.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        s: float = 64.0,
        m: float = 0.5,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
        conflict: float = 0.0,
    ) -> None:
        super().__init__(table, s=s, m=m, mode=mode, grad=grad, conflict=conflict)


class SphereFaceFNorm(AngularLoss):
    """z_y = s·ψ(θ_y), ψ(θ) = (−1)^k cos(mθ) − 2k with k = ⌊mθ/π⌋ (SphereFace-R with hard feature normalisation,
    arXiv 2109.05565).

    s = 30, m = 1.5: that paper's setting; the ArcFace paper uses m = 1.35 at s = 64. m ≥ 1 may be any real number. The
    SphereFace-R paper also multiplies the loss by 50/s; here a recipe's `weight` does that.
    """

    def __init__(self, table: ClassTable, *, s: float = 30.0, m: float = 1.5, grad: Gradient = "exact") -> None:
        require(m >= 1, f"m must be at least 1, not {m}")
        super().__init__(table, s=s, m=m, mode="reflect", grad=grad)

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        del part, cosine
        m = 1 + (self.m - 1) * self.margin_scale
        return psi(m * theta, last=math.ceil(m) - 1)


class SphereFace(SphereFaceFNorm):
    """A-Softmax: z_y = |x|·(λ cos θ_y + ψ(θ_y)) / (1 + λ), z_j = |x|·cos θ_j (SphereFace, arXiv 1704.08063).

    m = 4 is the paper's. λ = max(λ_min, λ_base·(1 + λ_gamma·t)^−λ_power) after t training steps; 5, 1000, 0.12 and 1
    are those of the authors' released training files. t is the buffer `iteration`, so it is saved with the state.
    `lam` fixes λ instead; 0 is the loss without annealing.
    """

    iteration: Tensor

    def __init__(
        self,
        table: ClassTable,
        *,
        m: float = 4.0,
        grad: Gradient = "exact",
        lam: float | None = None,
        lambda_base: float = 1000.0,
        lambda_gamma: float = 0.12,
        lambda_power: float = 1.0,
        lambda_min: float = 5.0,
    ) -> None:
        require(lam is None or lam >= 0, f"lam must not be negative, got {lam}")
        super().__init__(table, s=1.0, m=m, grad=grad)
        self.lam = lam
        self.lambda_base, self.lambda_gamma = lambda_base, lambda_gamma
        self.lambda_power, self.lambda_min = lambda_power, lambda_min
        self.register_buffer("iteration", torch.zeros((), dtype=torch.long))

    def annealing(self) -> Tensor | float:
        """Return λ of the next step."""
        if self.lam is not None:
            return self.lam
        decayed = self.lambda_base * (1 + self.lambda_gamma * self.iteration.double()) ** -self.lambda_power
        return decayed.clamp(min=self.lambda_min)

    def advance(self) -> None:
        self.iteration += 1

    def scale(self, x: Tensor) -> Tensor:
        length: Tensor = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return length

    def shifted(self, part: Part, theta: Tensor, cosine: Tensor) -> Tensor:
        lam = self.annealing()
        return (lam * cosine + super().shifted(part, theta, cosine)) / (1 + lam)


def positive_pull(score: Tensor, m: float, grad: Gradient) -> Tensor:
    """−α_p(s_p − Δ_p) with α_p = [1 + m − s_p]₊ and Δ_p = 1 − m; α_p carries no gradient when `detached`."""
    alpha = (1 + m - score).clamp(min=0)
    return -(alpha.detach() if grad == "detached" else alpha) * (score - (1 - m))


def negative_push(score: Tensor, m: float, grad: Gradient) -> Tensor:
    """α_n(s_n − Δ_n) with α_n = [s_n + m]₊ and Δ_n = m; α_n carries no gradient when `detached`."""
    alpha = (score + m).clamp(min=0)
    return (alpha.detach() if grad == "detached" else alpha) * (score - m)


class Circle(CosineLoss):
    """z_y = s·α_p(cos θ_y − Δ_p), z_j = s·α_n(cos θ_j − Δ_n) (Circle loss, arXiv 2002.10857).

    α_p = [1 + m − cos θ_y]₊, α_n = [cos θ_j + m]₊, Δ_p = 1 − m, Δ_n = m. s (the paper's γ) = 256 and m = 0.25: its face
    setting. grad = `detached`, the default, is the paper's gradient (the weights α are constants); `exact`
    differentiates the product. `margin_scale` is ignored: here a smaller m makes the loss stricter.
    """

    def __init__(self, table: ClassTable, *, s: float = 256.0, m: float = 0.25, grad: Gradient = "detached") -> None:
        require_gradient(grad)
        super().__init__(table, s=s)
        self.m, self.grad = m, grad

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        target = -positive_pull(part.at_target(scores), self.m, self.grad)
        return self.s * part.put(negative_push(scores, self.m, self.grad), target)
