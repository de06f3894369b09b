"""Several vectors per class: `weight` is (C, K, D)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from training.losses.base import ClassLoss, ClassTable, Gradient, Part, require, unit
from training.losses.margin import AngularLoss, Mode

DISTANCE_FLOOR = 1e-5
"""Added under the regulariser's root, whose slope at 0 is infinite (SoftTriple's released code)."""


def center_cosines(x: Tensor, weight: Tensor) -> Tensor:
    """Return the cosines with all centres: (B, D), (R, K, D) → (B, R, K)."""
    return F.linear(unit(x), unit(weight).flatten(0, 1)).reshape(len(x), *weight.shape[:2])


def center_groups(weight: Tensor, threshold: float) -> Tensor:
    """Return whether two centres of a class are in one group, (C, K, D) → (C, K, K): centres closer than `threshold`
    (Euclidean, 0 to 2) are joined."""
    centers = unit(weight.detach())
    near = torch.cdist(centers, centers) < threshold
    reach = near | torch.eye(weight.shape[1], dtype=torch.bool, device=weight.device)
    for _ in range(weight.shape[1].bit_length()):
        reach = (reach.float() @ reach.float()) > 0
    return reach


class SubCenterArcFace(AngularLoss):
    """ArcFace against the nearest of a class's K centres (Sub-center ArcFace, ECCV 2020).

    cos θ_j = max_k cos θ_jk. centers = 3, s = 64, m = 0.5: that paper. `mode` and `grad` as in ArcFace.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        centers: int = 3,
        s: float = 64.0,
        m: float = 0.5,
        mode: Mode = "continuous",
        grad: Gradient = "exact",
    ) -> None:
        super().__init__(table, s=s, m=m, mode=mode, grad=grad, centers=centers)

    def scores(self, x: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return center_cosines(x, rows["weight"]).amax(dim=2)

    def target_rows(self, part: Part) -> Tensor:
        centers = part.weight[part.column]  # (B, K, D)
        cosines = torch.einsum("nd,nkd->nk", unit(part.x), unit(centers)).detach()
        return centers[torch.arange(len(centers), device=centers.device), cosines.argmax(dim=1)]


class HardTriple(ClassLoss):
    """z_c = la·(S_c − margin·[c = y]) with S_c = max_k x·w_ck (SoftTriple paper, arXiv 1909.05235).

    la = 20, margin = 0.01, centers = 10: that paper. `tau` weighs the regulariser of `SoftTriple`, by default 0.
    Embeddings and centres are normalised inside. With `merge` above 0, a class's centres that are closer than `merge`
    become one at the end of a run.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        centers: int = 10,
        la: float = 20.0,
        margin: float = 0.01,
        tau: float = 0.0,
        merge: float = 0.0,
    ) -> None:
        require(0 <= merge < 2, f"merge must lie in [0, 2), not {merge}")
        require(la > 0, f"la must be positive, not {la}")
        require(tau >= 0, f"tau must not be negative, got {tau}")
        super().__init__(table, centers=centers)
        self.centers, self.la, self.margin, self.tau, self.merge = centers, la, margin, tau, merge

    def pool(self, cosines: Tensor) -> Tensor:
        """Return each class's best cosine: (B, R, K) → (B, R)."""
        return cosines.amax(dim=2)

    def scores(self, x: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        return self.pool(center_cosines(x, rows["weight"]))

    def scale(self, x: Tensor) -> float | Tensor:
        del x
        return self.la

    def target(self, part: Part, scores: Tensor) -> Tensor:
        return part.at_target(scores) - self.margin * self.margin_scale

    def row_penalty(self, rows: Mapping[str, Tensor]) -> Tensor | None:
        """(R,) tau/(K(K−1))·Σ_{t<s} √(2 − 2 w_s·w_t + 1e-5), from one K×K Gram matrix per class."""
        if self.tau == 0 or self.centers == 1:
            return None
        centers = unit(rows["weight"])
        first, second = torch.triu_indices(self.centers, self.centers, offset=1, device=centers.device)
        gram = centers @ centers.transpose(1, 2)
        apart = torch.sqrt((2 - 2 * gram[:, first, second]).clamp(min=0) + DISTANCE_FLOOR)
        return self.tau / (self.centers * (self.centers - 1)) * apart.sum(dim=1)

    @torch.no_grad()
    def merge_centers(self) -> None:
        """Join each class's centres that are closer than `merge` into groups, and move them to their group's mean."""
        groups = center_groups(self.weight, self.merge).to(self.weight.dtype)
        self.weight.copy_(unit(groups @ unit(self.weight)))

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, centers={self.centers}, la={self.la}"


class SoftTriple(HardTriple):
    """z_c = la·(S'_c − margin·[c = y]), S'_c = Σ_k q_k x·w_ck, q = softmax_k(x·w_ck / gamma) (arXiv 1909.05235).

    Plus tau/(C·K·(K−1))·Σ_c Σ_{t<s} √(2 − 2 w_cs·w_ct + 1e-5), which draws a class's superfluous centres together. As
    the paper prints it, the sum is over unordered pairs, so it is half the mean distance. la = 20, gamma = 0.1,
    tau = 0.2, margin = 0.01, centers = 10: that paper. S' is the average with the weights q, not the log-sum-exp.
    """

    def __init__(
        self,
        table: ClassTable,
        *,
        centers: int = 10,
        la: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
        merge: float = 0.0,
    ) -> None:
        require(gamma > 0, f"gamma must be positive, not {gamma}; for gamma → 0 take hardtriple")
        super().__init__(table, centers=centers, la=la, margin=margin, tau=tau, merge=merge)
        self.gamma = gamma

    def pool(self, cosines: Tensor) -> Tensor:
        return (torch.softmax(cosines / self.gamma, dim=2) * cosines).sum(dim=2)
