"""Circle loss against classes."""

from __future__ import annotations

from typing import get_args

from torch import Tensor

from training.losses.base import ClassTable, CosineLoss, Gradient, Part, require


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
    setting. grad = `detached`, the default, is the paper's gradient (the weights α are no functions of the
    score); `exact` differentiates the product. `margin_scale` changes nothing: m relaxes, and less of it asks for more.
    """

    def __init__(self, table: ClassTable, *, s: float = 256.0, m: float = 0.25, grad: Gradient = "detached") -> None:
        super().__init__(table, s=s)
        require(grad in get_args(Gradient), f"grad must be exact or detached, not {grad!r}")
        self.m = m
        self.grad: Gradient = grad

    def margined(self, part: Part, scores: Tensor) -> Tensor:
        target = -positive_pull(part.at_target(scores), self.m, self.grad)
        return self.s * part.put(negative_push(scores, self.m, self.grad), target)
